//! `/v1/status`, `/v1/semaphores/{name}` and `/v1/locks/{name}`.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use serde::Serialize;

use super::Site;
use super::error::Error;
use super::segment::Segment;
use crate::clock;
use crate::http::json::Json;
use crate::schema_version::SchemaVersion;
use crate::status::{Kind, Lock, Semaphore};

/// The document of `/v1/semaphores/{name}`.
#[derive(Debug, Serialize)]
pub(crate) struct SemaphoreDocument {
    schema_version: SchemaVersion,
    #[serde(flatten)]
    semaphore: Semaphore,
}

/// The document of `/v1/locks/{name}`.
#[derive(Debug, Serialize)]
pub(crate) struct LockDocument {
    schema_version: SchemaVersion,
    #[serde(flatten)]
    lock: Lock,
}

/// The whole status.
pub(super) async fn status(State(site): State<Site>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], site.status_text(&site.viewed())).into_response()
}

/// One semaphore, as in the whole status.
pub(super) async fn semaphore(State(site): State<Site>, Segment(name): Segment) -> Result<Response, Error> {
    let snapshot = site.viewed();
    let Some(semaphore) = snapshot.semaphores.iter().find(|semaphore| semaphore.entry.name == name) else {
        let known: Vec<_> = snapshot.semaphores.iter().map(|one| one.entry.name.as_str()).collect();
        return Err(Error::unknown(Kind::Semaphore, &name, &known));
    };
    let semaphore = snapshot.semaphore_report(semaphore, clock::now(), clock::wall());
    Ok(Json(SemaphoreDocument { schema_version: SchemaVersion::default(), semaphore }).into_response())
}

/// One lock, as in the whole status, with its holder, which is the leader.
pub(super) async fn lock(State(site): State<Site>, Segment(name): Segment) -> Result<Response, Error> {
    let snapshot = site.viewed();
    let Some(lock) = snapshot.locks.iter().find(|lock| lock.entry.name == name) else {
        let known: Vec<_> = snapshot.locks.iter().map(|one| one.entry.name.as_str()).collect();
        return Err(Error::unknown(Kind::Lock, &name, &known));
    };
    let lock = snapshot.lock_report(lock, clock::now(), clock::wall());
    Ok(Json(LockDocument { schema_version: SchemaVersion::default(), lock }).into_response())
}
