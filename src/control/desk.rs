//! Where requests are handed to the agent, and what comes of that; and the one request that wants no answer.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::request::Request;
use crate::http::error::{Code, Error};

/// The way to the agent's loop.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    requests: mpsc::Sender<Request>,
}

impl Desk {
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

pub(super) fn endpoints() -> OpenApiRouter<Desk> {
    OpenApiRouter::default().routes(routes!(drain))
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
async fn drain(State(desk): State<Desk>) -> Response {
    // Waits for room, which the agent makes at once: this one must not be lost. Where nobody takes it, it has ended.
    let _ = desk.requests.send(Request::Drain).await;
    (StatusCode::ACCEPTED, Json(Begun { state: Progress::Draining })).into_response()
}
