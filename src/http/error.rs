//! Errors of the endpoints: `{"error","code"}` with the right status.

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::http::json::Json;
use crate::status::Kind;

/// The error codes for programs. Each has one HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    /// No endpoint has this path.
    NotFound,
    /// The endpoint does not support this method.
    MethodNotAllowed,
    /// A defect of the agent.
    Internal,
    /// No semaphore of the agent has this name.
    UnknownSemaphore,
    /// No lock of the agent has this name.
    UnknownLock,
    /// The agent has no such lease, or no longer.
    UnknownLease,
    /// The lease was not renewed in time.
    LeaseExpired,
    /// The lease was lost.
    LeaseLost,
    /// The agent itself holds the semaphore or lock.
    NotOnDemand,
    /// No slot was free within the wait.
    TimedOut,
    /// Blocked until the problem is fixed.
    Blocked,
    /// The body, or the request's head, is invalid.
    BadRequest,
    /// The body is too large.
    TooLarge,
    /// The body did not arrive in time.
    TooSlow,
    /// The limit of waiting clients is reached.
    TooManyWaits,
    /// The limit of leases is reached.
    TooManyLeases,
    /// The request's host is not the agent's.
    Misdirected,
    /// The token is missing or wrong.
    Unauthorized,
    /// Consul does not respond.
    ConsulUnavailable,
    /// The agent has not applied the entry yet.
    Pending,
    /// The agent is ending.
    Draining,
    /// Too many requests at once.
    Busy,
    /// The configuration is invalid or cannot be read.
    ReloadRefused,
}

impl Code {
    /// The HTTP status.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::NotFound | Self::UnknownSemaphore | Self::UnknownLock | Self::UnknownLease => {
                StatusCode::NOT_FOUND
            }
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::LeaseExpired | Self::LeaseLost => StatusCode::GONE,
            Self::NotOnDemand => StatusCode::FORBIDDEN,
            Self::TimedOut | Self::Blocked => StatusCode::CONFLICT,
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::TooManyWaits | Self::TooManyLeases => StatusCode::TOO_MANY_REQUESTS,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::ReloadRefused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::ConsulUnavailable | Self::Pending | Self::Draining | Self::Busy => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }
}

/// An error.
#[derive(Debug, Serialize)]
pub(crate) struct Error {
    /// What failed, what came back and what to do, for people. The wording may change.
    #[serde(rename = "error")]
    text: String,
    /// The error code for programs.
    code: Code,
}

impl Error {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn no_such_path(path: &str) -> Self {
        Self::new(Code::NotFound, format!("no endpoint at {path}; see /v1/openapi.json"))
    }

    /// There is no semaphore, or lock, of that name.
    pub(crate) fn unknown(kind: Kind, name: &str, known: &[impl AsRef<str>]) -> Self {
        let code = match kind {
            Kind::Semaphore => Code::UnknownSemaphore,
            Kind::Lock => Code::UnknownLock,
        };
        let known: Vec<_> = known.iter().map(AsRef::as_ref).collect();
        let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Self::new(code, format!("this agent has no {} {name:?}; it has {has}", kind.as_str()))
    }

    pub(crate) fn read_only(method: &Method, path: &str) -> Self {
        let text = format!("{path} does not support {method}; this address is read-only, use GET");
        Self::new(Code::MethodNotAllowed, text)
    }

    pub(crate) fn method_not_allowed(method: &Method, path: &str) -> Self {
        let text = format!("{path} does not support {method}; see the header Allow");
        Self::new(Code::MethodNotAllowed, text)
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        (self.code.status(), Json(self)).into_response()
    }
}
