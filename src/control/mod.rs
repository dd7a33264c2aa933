//! The endpoints that change state, for the workload beside us: on a unix socket, which only those can reach who share
//! its folder.

pub mod request;
mod socket;

use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::mpsc;

use crate::http::error::Error;
use request::Request;

pub use socket::Socket;

/// The endpoints.
pub fn router(requests: mpsc::Sender<Request>) -> Router {
    Router::new()
        .route("/v1/drain", post(move || drain(requests.clone())))
        .fallback(async |uri: Uri| Error::no_such_control(uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Error::not_post(&method, uri.path()))
}

/// The workload is done: everything is given back, and the agent ends. Said again it changes nothing.
async fn drain(requests: mpsc::Sender<Request>) -> Response {
    // Where the queue is full, it has been said.
    let _ = requests.try_send(Request::Drain);
    (StatusCode::ACCEPTED, Json(json!({ "state": "draining" }))).into_response()
}
