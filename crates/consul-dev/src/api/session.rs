//! `/v1/session`: create, renew, destroy and read sessions.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use hyper::{HeaderMap, Method, StatusCode};
use serde::Serialize;
use serde_json::{Value, json as json_value};

use super::App;
use super::answer::{Answer, Refusal, json, only, with_index};
use super::json::{Fields, first, kind};
use super::params::{self, Params};
use crate::dialect::Kind;
use crate::duration::{self, NANOS_PER_SECOND};
use crate::store::Store;
use crate::store::session::{Request, SERF_HEALTH, ServiceCheck, Session, SessionId};
use crate::{Dialect, Options};

/// Consul's default lock-delay.
const LOCK_DELAY: i64 = 15_000_000_000;

/// A session as clients see it.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "Node")]
    node: String,
    #[serde(rename = "LockDelay")]
    lock_delay: i64,
    #[serde(rename = "Behavior")]
    behavior: &'static str,
    #[serde(rename = "TTL")]
    ttl: String,
    #[serde(rename = "NodeChecks")]
    node_checks: Option<Vec<String>>,
    #[serde(rename = "ServiceChecks")]
    service_checks: Option<Vec<Value>>,
    #[serde(rename = "Checks", skip_serializing_if = "Vec::is_empty")]
    checks: Vec<String>,
    #[serde(rename = "CreateIndex")]
    create_index: u64,
    /// No session changes after its creation: a renewal does not count.
    #[serde(rename = "ModifyIndex")]
    modify_index: u64,
}

impl From<&Arc<Session>> for Shown {
    fn from(session: &Arc<Session>) -> Self {
        let Session { id, name, node, lock_delay, ttl, node_checks, checks, .. } = Session::clone(session);
        let show = |check: &ServiceCheck| json_value!({"ID": check.id, "Namespace": check.namespace});
        Self {
            id,
            name,
            node,
            lock_delay,
            behavior: session.behavior.name(),
            ttl,
            node_checks,
            service_checks: session.service_checks.as_ref().map(|checks| checks.iter().map(show).collect()),
            checks,
            create_index: session.create_index,
            modify_index: session.create_index,
        }
    }
}

/// `/v1/session/create`.
pub(crate) async fn create(
    State(app): State<App>,
    params: Params,
    method: Method,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    only(&method, &[Method::PUT])?;
    // A body without a Content-Length is ignored, so the session has the defaults.
    let body = match params::announced(&headers) {
        Some(1..) => {
            let bound = ("kv_max_value_size", Options::MAX_VALUE);
            params::body(&app, &headers, body, bound).await?
        }
        Some(0) | None => "{}".into(),
    };
    let asked = request(app.dialect(), &body)
        .map_err(|fault| Refusal::bad(format!("Request decode failed: {fault}")))?;
    params.here(app.dialect())?;
    app.rights(&params).write_sessions()?;
    app.admit(Kind::Write)?;
    let id = uuid::Uuid::new_v4();
    let created = app.shared.with(|store, now| store.create_session(id, asked, now));
    created.map_err(|error| Refusal::failed(app.dialect().session_refused(&error)))?;
    json(&params, &json_value!({"ID": id.to_string()}))
}

/// `/v1/session/list`.
pub(crate) async fn list(State(app): State<App>, params: Params, method: Method) -> Answer {
    only(&method, &[Method::GET])?;
    node_list(&app, &params, |_| true).await
}

/// `/v1/session/<verb>/` without an ID or a node.
pub(crate) async fn without_id(verb: Verb, method: Method) -> Answer {
    only(&method, verb.methods())?;
    Err(Refusal::bad(match verb {
        Verb::Renew | Verb::Destroy | Verb::Info => "Missing session",
        Verb::Node => "Missing node name",
    }))
}

/// `/v1/session/<verb>/<id or node>`.
pub(crate) async fn with_id(
    verb: Verb,
    State(app): State<App>,
    Path(id): Path<String>,
    params: Params,
    method: Method,
) -> Answer {
    only(&method, verb.methods())?;
    match verb {
        Verb::Renew => renew(&app, &id, &params),
        Verb::Destroy => destroy(&app, &id, &params),
        Verb::Info => info(&app, &id, &params).await,
        Verb::Node => node_list(&app, &params, |session| session.node == id).await,
    }
}

/// An operation on one session, or on those of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Renew,
    Destroy,
    Info,
    Node,
}

impl Verb {
    pub(crate) const ALL: [Self; 4] = [Self::Renew, Self::Destroy, Self::Info, Self::Node];

    /// Its part of the path.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Renew => "renew",
            Self::Destroy => "destroy",
            Self::Info => "info",
            Self::Node => "node",
        }
    }

    fn methods(self) -> &'static [Method] {
        match self {
            Self::Renew | Self::Destroy => &[Method::PUT],
            Self::Info | Self::Node => &[Method::GET],
        }
    }
}

fn renew(app: &App, id: &str, params: &Params) -> Answer {
    params.here(app.dialect())?;
    let session = parse_id(app, id)?;
    app.rights(params).write_sessions()?;
    app.admit(Kind::Write)?;
    let renewed = session.and_then(|id| app.shared.with(|store, now| store.renew_session(&id, now)));
    match renewed {
        Some(session) => json(params, &[Shown::from(&session)]),
        None => Err(Refusal::Status(StatusCode::NOT_FOUND, format!("Session id '{id}' not found"))),
    }
}

fn destroy(app: &App, id: &str, params: &Params) -> Answer {
    params.here(app.dialect())?;
    let session = parse_id(app, id)?;
    app.rights(params).write_sessions()?;
    app.admit(Kind::Write)?;
    if let Some(id) = session {
        app.shared.with(|store, now| store.destroy_session(&id, now));
    }
    json(params, &true)
}

async fn info(app: &App, id: &str, params: &Params) -> Answer {
    let wait = params.wait(app.dialect())?;
    let session = parse_id(app, id)?;
    let found = |store: &Store| match &session {
        Some(id) => store.session(id),
        None => store.no_session(),
    };
    let read = app.shared.read(wait, found).await;
    shown(app, params, read.index, read.found.iter())
}

async fn node_list(app: &App, params: &Params, shows: impl Fn(&Session) -> bool) -> Answer {
    let read = app.shared.read(params.wait(app.dialect())?, |store| store.sessions()).await;
    shown(app, params, read.index, read.found.iter().filter(|session| shows(session)))
}

/// The sessions of a read that the token may see.
fn shown<'a>(
    app: &App,
    params: &Params,
    index: u64,
    found: impl Iterator<Item = &'a Arc<Session>>,
) -> Answer {
    let mut shown: Vec<Shown> = found.map(Shown::from).collect();
    let filtered = !app.rights(params).sees_sessions() && !shown.is_empty();
    if filtered {
        shown.clear();
    }
    Ok(with_index(app.dialect(), index, filtered, json(params, &shown)?))
}

fn parse_id(app: &App, id: &str) -> Result<Option<SessionId>, Refusal> {
    let parsed = app.dialect().session_id(id);
    parsed.map_err(|fault| Refusal::failed(format!("failed session lookup: index error: {fault}")))
}

/// The body of a creation, with Consul's defaults for missing fields.
fn request(dialect: Dialect, body: &[u8]) -> Result<Request, String> {
    let value = first(body)?;
    let empty = serde_json::Map::new();
    let object = match &value {
        Value::Object(object) => object,
        Value::Null => &empty,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            let target = "struct { LockDelay interface {}; *structs.Alias }";
            return Err(format!("json: cannot unmarshal {} into Go value of type {target}", kind(&value)));
        }
    };
    let fields = Fields::new(object, dialect.session_body());
    let behavior = fields.text("Behavior")?.unwrap_or("release").to_owned();
    let (node_checks, checks) = checks(&fields)?;
    Ok(Request {
        name: fields.text_or_empty("Name")?,
        node: fields.text("Node")?.map(str::to_owned),
        lock_delay: lock_delay(&fields)?,
        behavior,
        ttl: fields.text_or_empty("TTL")?,
        node_checks,
        service_checks: service_checks(&fields)?,
        checks,
    })
}

/// The two fields for the checks of a node. An empty `Checks` overrides `NodeChecks`. A `Checks` with the default is not shown.
fn checks(fields: &Fields<'_>) -> Result<(Option<Vec<String>>, Vec<String>), String> {
    let default = || vec![SERF_HEALTH.to_owned()];
    let given = |name| match fields.get_or_null(name) {
        Some(_) => fields.texts(name),
        None => Ok(Some(default())),
    };
    let node_checks = given("NodeChecks")?;
    let checks = given("Checks")?.unwrap_or_default();
    Ok(if checks.is_empty() {
        (Some(Vec::new()), checks)
    } else if checks == default() {
        (node_checks, Vec::new())
    } else {
        (node_checks, checks)
    })
}

fn service_checks(fields: &Fields<'_>) -> Result<Option<Vec<ServiceCheck>>, String> {
    let Some(list) = fields.list("ServiceChecks", "structs.ServiceCheck")? else { return Ok(None) };
    let mut checks = Vec::with_capacity(list.len());
    for value in list {
        let object =
            value.as_object().ok_or_else(|| fields.wrong(value, "ServiceChecks", "structs.ServiceCheck"))?;
        let check = Fields::new(object, "ServiceCheck.ServiceChecks");
        checks.push(ServiceCheck {
            id: check.text_or_empty("ID")?,
            namespace: check.text_or_empty("Namespace")?,
        });
    }
    Ok(Some(checks))
}

/// A text in Go's notation, or a number: below 1000 of seconds, else of nanoseconds.
fn lock_delay(fields: &Fields<'_>) -> Result<i64, String> {
    match fields.get("LockDelay") {
        None => Ok(LOCK_DELAY),
        Some(Value::String(text)) => duration::parse(text).map_err(|error| error.to_string()),
        Some(Value::Number(number)) => {
            let whole = whole(number.as_f64().unwrap_or_default());
            let scale = i64::try_from(NANOS_PER_SECOND).unwrap_or(i64::MAX);
            Ok(if whole < 1000 { whole.saturating_mul(scale) } else { whole })
        }
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) => Ok(0),
    }
}

/// Go's conversion of a float to an integer, which drops the fraction.
#[allow(clippy::cast_possible_truncation, reason = "`as` saturates, and that is what is wanted")]
fn whole(number: f64) -> i64 {
    number as i64
}
