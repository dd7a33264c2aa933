//! Passes requests to the agent's loop and returns its answers; the endpoints of the agent as a whole.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::request::{NoReload, Reloaded, Request};
use crate::http::error::{Code, Error};
use crate::http::json::Json;

/// The sender to the agent's loop.
#[derive(Clone, Debug)]
pub(super) struct AgentHandle {
    requests: mpsc::Sender<Request>,
}

impl AgentHandle {
    pub(super) fn new(requests: mpsc::Sender<Request>) -> Self {
        Self { requests }
    }

    /// Sends a request and waits for the answer. If this future is dropped, the reply channel and all that `request` owns are
    /// too.
    ///
    /// # Errors
    ///
    /// Too many requests at once, or the agent has ended.
    pub(super) async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.requests.try_send(request(reply)).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => {
                Error::new(Code::Busy, "too many requests to the agent at once; retry in a second")
            }
            mpsc::error::TrySendError::Closed(_) => ended(),
        })?;
        answer.await.map_err(|_unanswered| ended())
    }
}

fn ended() -> Error {
    Error::new(Code::Draining, "the agent is ending and accepts no requests; retry with its successor")
}

/// The operation in progress.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Progress {
    /// The agent releases everything, and ends.
    Draining,
    /// The lease is being released.
    Leaving,
}

/// An operation that continues after the response.
#[derive(Debug, Serialize)]
pub(super) struct Begun {
    /// The operation in progress.
    pub(super) state: Progress,
}

pub(super) fn endpoints() -> Router<AgentHandle> {
    Router::new().route("/v1/drain", post(drain)).route("/v1/reload", post(reload))
}

/// The workload is done: the agent releases everything and ends.
async fn drain(State(agent): State<AgentHandle>) -> Response {
    // Wait for room, which the agent makes at once: this request must not be lost. Without a receiver, the agent has ended.
    let _ = agent.requests.send(Request::Drain).await;
    (StatusCode::ACCEPTED, Json(Begun { state: Progress::Draining })).into_response()
}

/// The agent reads its configuration again and applies it, as on SIGHUP.
async fn reload(State(agent): State<AgentHandle>) -> Result<Json<Reloaded>, Error> {
    let reloaded = agent.ask(|reply| Request::Reload { reply }).await?;
    reloaded.map(Json).map_err(|refusal| {
        let code = match refusal {
            NoReload::Refused(_) => Code::ReloadRefused,
            NoReload::Draining => Code::Draining,
        };
        Error::new(code, refusal.to_string())
    })
}
