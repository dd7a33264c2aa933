//! The endpoints of a granted lease: show, renew, release.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;

use super::agent_handle::{AgentHandle, Begun, Progress};
use super::request::{Grant, Kind, NoLease, Released, Request};
use crate::http::error::{Code, Error};
use crate::http::json::Json;
use crate::http::segment::Segment;
use slotkeeper_semaphore::LossReason;

pub(super) fn endpoints() -> Router<AgentHandle> {
    Router::new()
        .route("/v1/leases/{lease}", get(show).delete(release))
        .route("/v1/leases/{lease}/renew", post(renew))
}

/// A lease that is held.
#[derive(Debug, Serialize)]
pub(super) struct Lease {
    /// Its id, with which any client can renew and release it.
    lease: String,
    /// The lease's own Consul session.
    session: String,
    /// Increases from grant to grant, so that a resource can reject a late write.
    fencing_token: u64,
    /// For a lock, how often it was acquired since its key was created (Consul's LockIndex); null for a semaphore.
    lock_index: Option<u64>,
    /// Its slot indexes; `[0]` for a lock.
    slot_indexes: Vec<u32>,
    /// The first of them.
    slot: u32,
    /// Seconds, to the millisecond, until the lease expires unless it is renewed.
    expires_in_seconds: f64,
    /// The same as `expires_in_seconds`.
    expires_in: f64,
    /// The kind of the lease.
    kind: Kind,
    /// The configured name of the semaphore or lock.
    name: String,
    /// The semaphore's key prefix; null for a lock.
    prefix: Option<String>,
    /// The lock's key; null for a semaphore.
    key: Option<String>,
    /// Whether the agent ends. It grants nothing new, and the lease stays its client's until it expires or is released: also if the
    /// agent ends before and does not answer any more.
    draining: bool,
    /// Seconds until the agent ends at the latest; null if it is not draining, or waits for its workload first.
    draining_ends_in_seconds: Option<f64>,
}

impl From<Grant> for Lease {
    fn from(grant: Grant) -> Self {
        let expires_in_seconds = seconds(grant.expires_in);
        let ends_in = grant.draining.and_then(|draining| draining.ends_in);
        let (prefix, key) = match grant.kind {
            Kind::Semaphore => (Some(grant.key), None),
            Kind::Lock => (None, Some(grant.key)),
        };
        Self {
            lease: grant.lease,
            session: grant.session,
            fencing_token: grant.fencing_token,
            lock_index: grant.lock_index,
            slot: grant.slot_indexes.first().copied().unwrap_or_default(),
            slot_indexes: grant.slot_indexes,
            expires_in_seconds,
            expires_in: expires_in_seconds,
            kind: grant.kind,
            name: grant.name,
            prefix,
            key,
            draining: grant.draining.is_some(),
            draining_ends_in_seconds: ends_in.map(seconds),
        }
    }
}

/// Rounded down to the millisecond: the shown time must not exceed the lease.
fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

/// The lease as it is now. This does not renew it.
async fn show(State(agent): State<AgentHandle>, Segment(lease): Segment) -> Result<Json<Lease>, Error> {
    let id = lease.clone();
    let held = agent.ask(|reply| Request::Show { lease, reply }).await?;
    held.map(|grant| Json(grant.into())).map_err(|why| gone(&id, why))
}

/// Extends the lease.
async fn renew(State(agent): State<AgentHandle>, Segment(lease): Segment) -> Result<Json<Lease>, Error> {
    let id = lease.clone();
    let held = agent.ask(|reply| Request::Renew { lease, reply }).await?;
    held.map(|grant| Json(grant.into())).map_err(|why| gone(&id, why))
}

/// Releases the slot or lock. A lease that was released before, has expired or was lost is no error.
async fn release(State(agent): State<AgentHandle>, Segment(lease): Segment) -> Result<Response, Error> {
    let id = lease.clone();
    match agent.ask(|reply| Request::Release { lease, reply }).await? {
        Ok(Released::UnderWay) => {
            Ok((StatusCode::ACCEPTED, Json(Begun { state: Progress::Leaving })).into_response())
        }
        Ok(Released::Done) | Err(NoLease::Released | NoLease::Expired | NoLease::Lost(_)) => {
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Err(why @ NoLease::Unknown) => Err(gone(&id, why)),
    }
}

fn gone(lease: &str, why: NoLease) -> Error {
    let (code, text) = match why {
        NoLease::Unknown => {
            let text =
                format!("this agent has no lease {lease:?}; acquire one, or use the agent that granted it");
            (Code::UnknownLease, text)
        }
        NoLease::Released => {
            (Code::UnknownLease, format!("the lease {lease} was released; acquire another one"))
        }
        NoLease::Expired => {
            let text = format!(
                "the lease {lease} was not renewed in time and is released: stop the work that it protects; then acquire \
                 another one"
            );
            (Code::LeaseExpired, text)
        }
        NoLease::Lost(reason) if reason == LossReason::Evicted.as_str() => {
            let text = format!(
                "an operator has evicted the lease {lease}: stop the work that it protects and release the lease, so that its \
                 slot is free at once; then acquire another one"
            );
            (Code::LeaseLost, text)
        }
        NoLease::Lost(reason) => {
            let text = format!(
                "the lease {lease} was lost ({reason}), and another client may hold the slot: stop the work that it protects; then \
                 acquire another one"
            );
            (Code::LeaseLost, text)
        }
    };
    Error::new(code, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_never_rounded_up() {
        for (micros, shown) in [(29_999_999, "29.999"), (1_000, "0.001"), (999, "0.0"), (13_500_000, "13.5")]
        {
            let seconds = seconds(Duration::from_micros(micros));
            assert_eq!(serde_json::to_string(&seconds).unwrap(), shown);
        }
    }
}
