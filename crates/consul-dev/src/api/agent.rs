//! `/v1/status`, `/v1/agent/self` and logins.

use axum::extract::State;
use hyper::{Method, StatusCode};
use serde_json::json as json_value;

use super::App;
use super::answer::{Answer, Refusal, json, only};
use super::params::{DATACENTER, Params};

/// `/v1/status/leader`: always this server.
pub(crate) async fn leader(State(app): State<App>, params: Params, method: Method) -> Answer {
    only(&method, &[Method::GET])?;
    json(&params, &app.addr.to_string())
}

/// `/v1/status/peers`: only this server.
pub(crate) async fn peers(State(app): State<App>, params: Params, method: Method) -> Answer {
    only(&method, &[Method::GET])?;
    json(&params, &[app.addr.to_string()])
}

/// `/v1/acl/login` and `/v1/acl/logout`: there is no access control here.
pub(crate) async fn no_acl(method: Method) -> Answer {
    only(&method, &[Method::POST])?;
    Err(Refusal::Status(StatusCode::UNAUTHORIZED, "ACL support disabled".into()))
}

/// `/v1/agent/self`: the fields that `consul lock` and scripts read.
pub(crate) async fn this(State(app): State<App>, params: Params, method: Method) -> Answer {
    only(&method, &[Method::GET])?;
    let version = concat!("slotkeeper development server ", env!("CARGO_PKG_VERSION"));
    json(
        &params,
        &json_value!({
            "Config": {
                "Datacenter": DATACENTER,
                "NodeName": &app.options.node,
                "Revision": version,
                "Server": true,
                "Version": app.dialect().version(),
            },
            "Member": {"Name": &app.options.node, "Addr": app.addr.ip().to_string(), "Port": app.addr.port(), "Status": 1},
        }),
    )
}
