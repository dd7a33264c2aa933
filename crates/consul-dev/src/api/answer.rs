//! Answers: JSON with Consul's headers, and refusals in plain text.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use hyper::{Method, StatusCode};
use serde::Serialize;

use super::params::Params;
use crate::Dialect;
use slotkeeper_serve::Unanswered;

/// The content type of JSON.
pub(crate) const JSON: &str = "application/json";
/// The maximum size of JSON that is sent with its length. Go's HTTP server sends a longer answer in chunks, unless it knows the
/// length, as it is of raw values.
const UNCHUNKED: usize = 2048;

const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-consul-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-consul-lastcontact");

/// The result of a handler: an answer, or a refusal.
pub(crate) type Answer = Result<Response, Refusal>;

/// Why a request is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A status and a text.
    Status(StatusCode, String),
    /// The method is not allowed. Contains those that are.
    Method(Method, &'static [Method]),
    /// The answer to `OPTIONS`: the allowed methods.
    Methods(&'static [Method]),
    /// The body is too large to be read; the rest of it is not.
    TooLarge(String),
    /// No answer: the connection ends.
    Unanswered,
}

impl Refusal {
    /// 400.
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self::Status(StatusCode::BAD_REQUEST, text.into())
    }

    /// 500, by which Consul answers whatever its state machine refuses.
    pub(crate) fn failed(error: impl ToString) -> Self {
        Self::Status(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let allowed = |methods: &[Method]| {
            let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
            [(ALLOW, format!("OPTIONS,{}", names.join(",")))]
        };
        match self {
            Self::Status(status, text) if text.is_empty() => status.into_response(),
            Self::Status(status, text) => (status, text).into_response(),
            Self::Method(method, methods) => {
                let text = format!("method {method} not allowed");
                (StatusCode::METHOD_NOT_ALLOWED, allowed(methods), text).into_response()
            }
            Self::Methods(methods) => (StatusCode::OK, allowed(methods)).into_response(),
            Self::TooLarge(text) => {
                (StatusCode::PAYLOAD_TOO_LARGE, [(CONNECTION, "close")], text).into_response()
            }
            Self::Unanswered => Unanswered.into_response(),
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

/// A JSON answer; indented with `?pretty`.
pub(crate) fn json(params: &Params, value: &impl Serialize) -> Answer {
    json_with(StatusCode::OK, JSON, params, value)
}

/// A JSON answer with a status and a content type of its own.
pub(crate) fn json_with(
    status: StatusCode,
    content_type: &'static str,
    params: &Params,
    value: &impl Serialize,
) -> Answer {
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
    let body = if body.len() > UNCHUNKED {
        Body::from_stream(stream::iter([Ok::<_, Infallible>(body)]))
    } else {
        body.into()
    };
    Ok((status, [(CONTENT_TYPE, content_type)], body).into_response())
}

/// The headers of a read. An index is never 0, on which a client could not block. `filtered`: the token hides a part of
/// what there is.
pub(crate) fn with_index(dialect: Dialect, index: u64, filtered: bool, answer: Response) -> Response {
    let mut answer = with_leader(true, answer);
    let headers = answer.headers_mut();
    headers.insert(INDEX, index.max(1).into());
    let filtered = dialect.filtered().filter(|_| filtered);
    for (name, value) in dialect.query_backend().into_iter().chain(filtered) {
        headers.insert(name, value);
    }
    answer
}

/// The headers that say how far the answer can be relied on. This server is always its own leader, which an answer may
/// deny that was given before anything was looked at.
pub(crate) fn with_leader(known: bool, mut answer: Response) -> Response {
    let known = HeaderValue::from_static(if known { "true" } else { "false" });
    answer.headers_mut().insert(KNOWN_LEADER, known);
    answer.headers_mut().insert(LAST_CONTACT, 0.into());
    answer
}
