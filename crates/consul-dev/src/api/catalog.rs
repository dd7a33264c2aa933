//! `/v1/catalog/register`, for nodes alone: sessions are tied to them.

use axum::body::Body;
use axum::extract::State;
use hyper::{HeaderMap, Method};
use serde_json::{Map, Value};

use super::App;
use super::answer::{Answer, Refusal, json, only};
use super::json::{Fields, first, kind};
use super::params::{self, DATACENTER, Params};
use crate::Options;
use crate::dialect::Kind;

/// What Consul's messages call the body.
const BODY: &str = "RegisterRequest";

/// Adds a node to the catalogue. Services and checks are ignored.
pub(crate) async fn register(
    State(app): State<App>,
    params: Params,
    method: Method,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    only(&method, &[Method::PUT])?;
    let body = params::body(&app, &headers, body, ("kv_max_value_size", Options::MAX_VALUE)).await?;
    let malformed = |fault: String| Refusal::bad(format!("Request decode failed: {fault}"));
    let value = first(&body).map_err(malformed)?;
    let empty = Map::new();
    let object = match &value {
        Value::Object(object) => object,
        Value::Null => &empty,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(malformed(format!(
                "json: cannot unmarshal {} into Go value of type structs.{BODY}",
                kind(&value)
            )));
        }
    };
    let fields = Fields::new(object, BODY);
    let text = |name| fields.text_or_empty(name).map_err(malformed);
    let (node, address, datacenter) = (text("Node")?, text("Address")?, text("Datacenter")?);
    params.here(app.dialect())?;
    if !["", DATACENTER].contains(&datacenter.as_str()) {
        return Err(Refusal::failed("No path to datacenter"));
    }
    if node.is_empty() {
        return Err(Refusal::failed("Must provide node"));
    }
    if address.is_empty() && fields.get("SkipNodeUpdate") != Some(&Value::Bool(true)) {
        return Err(Refusal::failed("Must provide address if SkipNodeUpdate is not set"));
    }
    app.admit(Kind::Write)?;
    app.shared.with(|store, _| store.register(&node));
    json(&params, &true)
}
