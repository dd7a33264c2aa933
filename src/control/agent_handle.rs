//! Where requests are handed to the agent, and what comes of that; and what is asked of the agent as a whole.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use utoipa::{IntoResponses, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::request::{NoReload, Reloaded, Request};
use crate::http::error::{Code, Error};

/// The way to the agent's loop.
#[derive(Clone, Debug)]
pub(super) struct AgentHandle {
    requests: mpsc::Sender<Request>,
}

impl AgentHandle {
    pub(super) fn new(requests: mpsc::Sender<Request>) -> Self {
        Self { requests }
    }

    /// Asks the agent. Where this future is dropped, so is the answer's place, and all that `request` holds on to.
    ///
    /// # Errors
    ///
    /// Too much is asked at once, or the agent has ended.
    pub(super) async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.requests.try_send(request(reply)).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => Error::new(
                Code::Busy,
                "the agent has more requests before it than it takes in at once; try again in a second",
            ),
            mpsc::error::TrySendError::Closed(_) => ended(),
        })?;
        answer.await.map_err(|_unanswered| ended())
    }
}

fn ended() -> Error {
    Error::new(Code::Draining, "the agent ends, and takes no requests any more; ask the next one")
}

/// What is going on now.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Progress {
    /// The agent gives everything back, and ends.
    Draining,
    /// A lease is being given back.
    Leaving,
}

/// Something has been begun that goes on after the answer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Begun {
    /// What is going on now.
    pub(super) state: Progress,
}

pub(super) fn endpoints() -> OpenApiRouter<AgentHandle> {
    OpenApiRouter::default().routes(routes!(drain)).routes(routes!(reload))
}

/// The workload is done
///
/// Everything is given back, and the agent ends, with 0 where all could be. Said again it changes nothing. Under
/// `slotkeeper run` the command is stopped first.
#[utoipa::path(
    post,
    path = "/v1/drain",
    operation_id = "drain",
    tag = "agent",
    responses((status = 202, description = "It has begun, or had before.", body = Begun))
)]
async fn drain(State(agent): State<AgentHandle>) -> Response {
    // Waits for room, which the agent makes at once: this one must not be lost. Where nobody takes it, it has ended.
    let _ = agent.requests.send(Request::Drain).await;
    (StatusCode::ACCEPTED, Json(Begun { state: Progress::Draining })).into_response()
}

/// What is answered where a reload was asked for.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "its schema is used")]
enum Answers {
    /// It is done: what has changed.
    #[response(status = 200)]
    Reloaded(Reloaded),
    /// `reload_refused`: the configuration is wrong, or cannot be read. Nothing has changed.
    #[response(status = 422)]
    Refused(Error),
    /// `draining`: the agent is ending. `busy`: more is asked at once than the agent takes in.
    #[response(status = 503)]
    Unavailable(Error),
}

/// Reload the configuration
///
/// The configuration is read again, and the agent takes over what can change, as on SIGHUP: an entry that is not configured any
/// more is released. Under `slotkeeper run` nothing is released. The answer comes when that is done, after at most some 20 s.
#[utoipa::path(post, path = "/v1/reload", operation_id = "reload", tag = "agent", responses(Answers))]
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
