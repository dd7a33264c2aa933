//! Answers: JSON with Consul's headers, and refusals in plain text.

use axum::http::HeaderName;
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use hyper::{Method, StatusCode};
use serde::Serialize;

use super::params::Params;

const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-consul-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-consul-lastcontact");

/// What a handler gives: an answer, or why there is none.
pub(crate) type Answer = Result<Response, Refusal>;

/// Why a request is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A status and a text.
    Told(StatusCode, String),
    /// The method does not exist here; these do.
    Method(Method, &'static [Method]),
    /// Only the methods were asked for.
    Methods(&'static [Method]),
    /// The body is too large to be read; the rest of it is not.
    TooLarge(String),
}

impl Refusal {
    /// 400.
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self::Told(StatusCode::BAD_REQUEST, text.into())
    }

    /// 500, by which Consul answers whatever its state machine refuses.
    pub(crate) fn failed(error: impl ToString) -> Self {
        Self::Told(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let allowed = |methods: &[Method]| {
            let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
            [(ALLOW, format!("OPTIONS,{}", names.join(",")))]
        };
        match self {
            Self::Told(status, text) if text.is_empty() => status.into_response(),
            Self::Told(status, text) => (status, text).into_response(),
            Self::Method(method, methods) => {
                let text = format!("method {method} not allowed");
                (StatusCode::METHOD_NOT_ALLOWED, allowed(methods), text).into_response()
            }
            Self::Methods(methods) => (StatusCode::OK, allowed(methods)).into_response(),
            Self::TooLarge(text) => {
                (StatusCode::PAYLOAD_TOO_LARGE, [(CONNECTION, "close")], text).into_response()
            }
        }
    }
}

/// Refuses every method but `allowed`.
pub(crate) fn only(method: &Method, allowed: &'static [Method]) -> Result<(), Refusal> {
    if allowed.contains(method) {
        Ok(())
    } else if *method == Method::OPTIONS {
        Err(Refusal::Methods(allowed))
    } else {
        Err(Refusal::Method(method.clone(), allowed))
    }
}

/// A JSON answer; indented where `?pretty` asks for it.
pub(crate) fn json(params: &Params, value: &impl Serialize) -> Answer {
    json_with(StatusCode::OK, params, value)
}

/// A JSON answer with a status of its own.
pub(crate) fn json_with(status: StatusCode, params: &Params, value: &impl Serialize) -> Answer {
    let body = if params.has("pretty") {
        let mut body = Vec::new();
        let indent = serde_json::ser::PrettyFormatter::with_indent(b"    ");
        let mut out = serde_json::Serializer::with_formatter(&mut body, indent);
        value.serialize(&mut out).map_err(Refusal::failed)?;
        body.push(b'\n');
        body
    } else {
        serde_json::to_vec(value).map_err(Refusal::failed)?
    };
    Ok((status, [(CONTENT_TYPE, "application/json")], body).into_response())
}

/// The headers of a read. An index is never 0, on which a client could not block.
pub(crate) fn with_index(index: u64, answer: Response) -> Response {
    let mut answer = with_leader(answer);
    answer.headers_mut().insert(INDEX, index.max(1).into());
    answer
}

/// The headers that say how far the answer can be relied on: this server is always its own leader.
pub(crate) fn with_leader(mut answer: Response) -> Response {
    answer.headers_mut().insert(KNOWN_LEADER, axum::http::HeaderValue::from_static("true"));
    answer.headers_mut().insert(LAST_CONTACT, 0.into());
    answer
}
