//! `/v1/status` and `/v1/semaphores/{name}`.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};

use super::{Error, Site};
use crate::clock;

pub(super) async fn status(State(site): State<Site>) -> Response {
    Json(site.snapshot().report(clock::now(), clock::wall())).into_response()
}

pub(super) async fn lock(State(site): State<Site>, Path(name): Path<String>) -> Result<Response, Error> {
    let snapshot = site.snapshot();
    let Some(lock) = snapshot.locks.iter().find(|lock| lock.name == name) else {
        let known: Vec<_> = snapshot.locks.iter().map(|one| one.name.as_str()).collect();
        return Err(Error::no_such_lock(&name, &known));
    };
    Ok(Json(snapshot.lock_report(lock, clock::now(), clock::wall())).into_response())
}

pub(super) async fn semaphore(State(site): State<Site>, Path(name): Path<String>) -> Result<Response, Error> {
    let snapshot = site.snapshot();
    let Some(semaphore) = snapshot.semaphores.iter().find(|semaphore| semaphore.name == name) else {
        let known: Vec<_> = snapshot.semaphores.iter().map(|one| one.name.as_str()).collect();
        return Err(Error::no_such_semaphore(&name, &known));
    };
    Ok(Json(snapshot.semaphore_report(semaphore, clock::now(), clock::wall())).into_response())
}
