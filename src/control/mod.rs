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
use crate::shutdown::Ask;

pub use socket::Socket;

/// Asks that may wait for the agent, which takes each at once.
const ASKS: usize = 8;

/// Where the endpoints' asks go, and where the agent finds them.
pub fn asks() -> (mpsc::Sender<Ask>, mpsc::Receiver<Ask>) {
    mpsc::channel(ASKS)
}

/// The endpoints.
pub fn router(asks: mpsc::Sender<Ask>) -> Router {
    Router::new()
        .route("/v1/drain", post(move || drain(asks.clone())))
        .fallback(async |uri: Uri| Error::no_such_control(uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Error::not_post(&method, uri.path()))
}

/// The workload is done: everything is given back, and the agent ends. Said again it changes nothing.
async fn drain(asks: mpsc::Sender<Ask>) -> Response {
    // Where the queue is full, it has been said.
    let _ = asks.try_send(Ask::Drain);
    (StatusCode::ACCEPTED, Json(json!({ "state": "draining" }))).into_response()
}
