//! Errors of the endpoints: `{"error","code"}` with the right status.

use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// What went wrong, for programs. Each goes with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ErrorCode)]
pub(crate) enum Code {
    /// There is nothing at this path.
    NotFound,
    /// There is, but it does not take this method.
    MethodNotAllowed,
    /// A defect.
    Internal,
    /// No semaphore of the agent has this name.
    UnknownSemaphore,
    /// No lock of the agent has this name.
    UnknownLock,
    /// The agent has no such lease, or has it no more.
    UnknownLease,
    /// The lease was not renewed in time.
    LeaseExpired,
    /// The lease was lost.
    LeaseLost,
    /// The agent holds it itself.
    NotOnDemand,
    /// None was free in the time given.
    TimedOut,
    /// Kept out until somebody mends something.
    Blocked,
    /// The body, or the request's head, is not what is taken.
    BadRequest,
    /// The body is too long.
    TooLarge,
    /// The body does not come.
    TooSlow,
    /// So many clients wait already.
    TooManyWaits,
    /// There are so many leases already.
    TooManyLeases,
    /// It is asked for by a name that is not its own.
    Misdirected,
    /// The token is missing or wrong.
    Unauthorized,
    /// Consul does not answer.
    ConsulUnavailable,
    /// It is configured, and the agent has not taken it over yet.
    Pending,
    /// The agent is ending.
    Draining,
    /// More is asked at once than the agent takes.
    Busy,
    /// The configuration is wrong or cannot be read.
    ReloadRefused,
}

impl Code {
    /// The status it goes with.
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
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Error {
    /// What was tried, what came of it and what to do, for people. Its wording may change.
    #[serde(rename = "error")]
    text: String,
    /// What went wrong, for programs.
    code: Code,
}

impl Error {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn no_such_path(path: &str) -> Self {
        Self::new(Code::NotFound, format!("there is nothing at {path}; /v1/openapi.json says what there is"))
    }

    pub(crate) fn unknown_semaphore(name: &str, known: &[impl AsRef<str>]) -> Self {
        Self::new(Code::UnknownSemaphore, unknown("semaphore", name, known))
    }

    pub(crate) fn unknown_lock(name: &str, known: &[impl AsRef<str>]) -> Self {
        Self::new(Code::UnknownLock, unknown("lock", name, known))
    }

    pub(crate) fn read_only(method: &Method, path: &str) -> Self {
        let text = format!("{path} does not take {method}; this address is read-only, use GET");
        Self::new(Code::MethodNotAllowed, text)
    }

    pub(crate) fn method_not_allowed(method: &Method, path: &str) -> Self {
        let text = format!("{path} does not take {method}; the header Allow says what it takes");
        Self::new(Code::MethodNotAllowed, text)
    }
}

fn unknown(kind: &str, name: &str, known: &[impl AsRef<str>]) -> String {
    let known: Vec<_> = known.iter().map(AsRef::as_ref).collect();
    let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    format!("no {kind} of this agent is called {name:?}; it has {has}")
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        (self.code.status(), Json(self)).into_response()
    }
}
