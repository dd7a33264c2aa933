//! Errors of the endpoints: `{"error","code"}` with the right status.

use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// An error as the client sees it.
#[derive(Debug)]
pub(crate) struct Error {
    status: StatusCode,
    code: &'static str,
    text: String,
}

impl Error {
    pub(crate) fn no_such_path(path: &str) -> Self {
        let text = format!(
            "there is nothing at {path}; see /v1/status, /v1/semaphores/{{name}}, /v1/locks/{{name}}, /readyz, /healthz, /livez, /startupz \
             and /metrics"
        );
        Self { status: StatusCode::NOT_FOUND, code: "not_found", text }
    }

    pub(crate) fn no_such_semaphore(name: &str, known: &[&str]) -> Self {
        let text = format!("no semaphore of this agent is called {name:?}; it has {}", known.join(", "));
        Self { status: StatusCode::NOT_FOUND, code: "unknown_semaphore", text }
    }

    pub(crate) fn no_such_lock(name: &str, known: &[&str]) -> Self {
        let text = format!("no lock of this agent is called {name:?}; it has {}", known.join(", "));
        Self { status: StatusCode::NOT_FOUND, code: "unknown_lock", text }
    }

    pub(crate) fn method_not_allowed(method: &Method, path: &str) -> Self {
        let text = format!("{path} does not take {method}; this address is read-only, use GET");
        Self { status: StatusCode::METHOD_NOT_ALLOWED, code: "method_not_allowed", text }
    }

    pub(crate) fn no_such_control(path: &str) -> Self {
        let text = format!("there is nothing at {path}; this socket has POST /v1/drain");
        Self { status: StatusCode::NOT_FOUND, code: "not_found", text }
    }

    pub(crate) fn not_post(method: &Method, path: &str) -> Self {
        let text = format!("{path} does not take {method}; use POST");
        Self { status: StatusCode::METHOD_NOT_ALLOWED, code: "method_not_allowed", text }
    }

    pub(crate) fn internal(text: String) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, code: "internal", text }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.text, "code": self.code }))).into_response()
    }
}
