//! `/v1/status`, `/v1/semaphores/{name}` and `/v1/locks/{name}`.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use serde::Serialize;
use utoipa::ToSchema;

use super::Site;
use super::error::Error;
use super::segment::Segment;
use crate::clock;
use crate::http::json::Json;
use crate::schema_version::SchemaVersion;
use crate::status::{Kind, Lock, Semaphore, Status};

/// The document of `/v1/semaphores/{name}`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SemaphoreDocument {
    schema_version: SchemaVersion,
    #[serde(flatten)]
    semaphore: Semaphore,
}

/// The document of `/v1/locks/{name}`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LockDocument {
    schema_version: SchemaVersion,
    #[serde(flatten)]
    lock: Lock,
}

/// The whole status
///
/// The agent, its session, and all its semaphores and locks, as far as the agent knows them, also while Consul does not
/// respond. All times in it are as of `agent.now`, at most 0.1 s ago.
#[utoipa::path(
    get,
    path = "/v1/status",
    operation_id = "status",
    tag = "status",
    responses((status = 200, description = "The status.", body = Status))
)]
pub(super) async fn status(State(site): State<Site>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], site.status_text(&site.viewed())).into_response()
}

/// One semaphore's status
///
/// The same as in the whole status.
#[utoipa::path(
    get,
    path = "/v1/semaphores/{name}",
    operation_id = "semaphore",
    tag = "status",
    params(
        ("name" = String, Path, description = "Its configured name.", pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    ),
    responses(
        (status = 200, description = "Its status.", body = SemaphoreDocument),
        (status = 404, description = "`unknown_semaphore`: the agent has no semaphore of that name.", body = Error)
    )
)]
pub(super) async fn semaphore(State(site): State<Site>, Segment(name): Segment) -> Result<Response, Error> {
    let snapshot = site.viewed();
    let Some(semaphore) = snapshot.semaphores.iter().find(|semaphore| semaphore.entry.name == name) else {
        let known: Vec<_> = snapshot.semaphores.iter().map(|one| one.entry.name.as_str()).collect();
        return Err(Error::unknown(Kind::Semaphore, &name, &known));
    };
    let semaphore = snapshot.semaphore_report(semaphore, clock::now(), clock::wall());
    Ok(Json(SemaphoreDocument { schema_version: SchemaVersion::default(), semaphore }).into_response())
}

/// One lock's status
///
/// The same as in the whole status, with its holder, which is the leader.
#[utoipa::path(
    get,
    path = "/v1/locks/{name}",
    operation_id = "lock",
    tag = "status",
    params(
        ("name" = String, Path, description = "Its configured name.", pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    ),
    responses(
        (status = 200, description = "Its status.", body = LockDocument),
        (status = 404, description = "`unknown_lock`: the agent has no lock of that name.", body = Error)
    )
)]
pub(super) async fn lock(State(site): State<Site>, Segment(name): Segment) -> Result<Response, Error> {
    let snapshot = site.viewed();
    let Some(lock) = snapshot.locks.iter().find(|lock| lock.entry.name == name) else {
        let known: Vec<_> = snapshot.locks.iter().map(|one| one.entry.name.as_str()).collect();
        return Err(Error::unknown(Kind::Lock, &name, &known));
    };
    let lock = snapshot.lock_report(lock, clock::now(), clock::wall());
    Ok(Json(LockDocument { schema_version: SchemaVersion::default(), lock }).into_response())
}
