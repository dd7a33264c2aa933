//! A lease that there is: how it stands, that it is still needed, that it is not.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::openapi::link::LinkBuilder;
use utoipa::openapi::{OpenApi, RefOr};
use utoipa::{IntoResponses, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::agent_handle::{AgentHandle, Begun, Progress};
use super::request::{Grant, Kind, NoLease, Released, Request};
use crate::http::error::{Code, Error};
use crate::http::segment::Segment;
use slotkeeper_semaphore::LossReason;

pub(super) fn endpoints() -> OpenApiRouter<AgentHandle> {
    OpenApiRouter::default().routes(routes!(show, release)).routes(routes!(renew))
}

/// Says in the document where the id that a grant gives is asked for.
pub(super) fn link(document: &mut OpenApi) {
    let granting = document.paths.paths.iter_mut().filter(|(path, _)| path.ends_with("/acquire"));
    let operations = granting.filter_map(|(_, item)| item.post.as_mut());
    for granted in operations.filter_map(|operation| operation.responses.responses.get_mut("200")) {
        let RefOr::T(granted) = granted else { continue };
        for operation in ["show_lease", "renew_lease", "release_lease"] {
            let link = LinkBuilder::new().operation_id(operation).parameter("lease", "$response.body#/lease");
            granted.links.insert(operation.to_owned(), link.build().into());
        }
    }
}

/// What a lease is of.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Kind)]
enum Of {
    /// Slots of a semaphore.
    Semaphore,
    /// A single-key lock.
    Lock,
}

/// A lease that is held.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Lease {
    /// Its id. Whoever knows it can renew and release it.
    #[schema(pattern = "^[A-Za-z0-9_-]{1,128}$")]
    lease: String,
    /// The Consul session that holds it: its own.
    session: String,
    /// Grows from grant to grant: what the lease protects can tell a late write by it.
    fencing_token: u64,
    /// Of a lock, how often it has been taken since its key was made (Consul's LockIndex); null of a semaphore.
    #[schema(required = true)]
    lock_index: Option<u64>,
    /// The first of its slots' numbers; of a lock 0.
    slot: u32,
    /// The numbers of all its slots.
    #[schema(min_items = 1)]
    slot_indexes: Vec<u32>,
    /// Seconds, to the millisecond, for which it may be believed in from now on, unless it is renewed.
    #[schema(minimum = 0)]
    expires_in: f64,
    /// The configured name of what it is of.
    name: String,
    /// What it is of.
    kind: Of,
}

impl From<Grant> for Lease {
    fn from(grant: Grant) -> Self {
        Self {
            lease: grant.lease,
            session: grant.session,
            fencing_token: grant.fencing_token,
            lock_index: grant.lock_index,
            slot: grant.slot_indexes.first().copied().unwrap_or_default(),
            slot_indexes: grant.slot_indexes,
            expires_in: seconds(grant.expires_in),
            name: grant.name,
            kind: match grant.kind {
                Kind::Semaphore => Of::Semaphore,
                Kind::Lock => Of::Lock,
            },
        }
    }
}

/// Rounded down to the millisecond: a lease must not be believed in for longer than it lasts.
fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

/// What is answered where a lease is to be had.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "its schema is used")]
enum Answers {
    /// The lease as it is now.
    #[response(status = 200)]
    Held(Lease),
    /// `unknown_lease`: released, of an agent before this one, or of another.
    #[response(status = 404)]
    Unknown(Error),
    /// `lease_expired`: it was not renewed in time, and is given back. `lease_lost`: somebody else may have it.
    #[response(status = 410)]
    Gone(Error),
    /// `draining`: the agent has ended. `busy`: more is asked at once than the agent takes in.
    #[response(status = 503)]
    Unavailable(Error),
}

/// A lease
///
/// As it is now. Looking renews nothing.
#[utoipa::path(
    get,
    path = "/v1/leases/{lease}",
    operation_id = "show_lease",
    tag = "leases",
    params(("lease" = String, Path, description = "Its id.", pattern = "^[A-Za-z0-9_-]{1,128}$")),
    responses(Answers)
)]
async fn show(State(agent): State<AgentHandle>, Segment(lease): Segment) -> Result<Json<Lease>, Error> {
    let id = lease.clone();
    let held = agent.ask(|reply| Request::Show { lease, reply }).await?;
    held.map(|grant| Json(grant.into())).map_err(|why| gone(&id, why))
}

/// Renew a lease
///
/// Says that it is still needed. Read `expires_in`: it grows as the agent renews the lease's session by itself, every third of
/// its TTL, and falls while Consul does not answer. A third of it is a good interval.
#[utoipa::path(
    post,
    path = "/v1/leases/{lease}/renew",
    operation_id = "renew_lease",
    tag = "leases",
    params(("lease" = String, Path, description = "Its id.", pattern = "^[A-Za-z0-9_-]{1,128}$")),
    responses(Answers)
)]
async fn renew(State(agent): State<AgentHandle>, Segment(lease): Segment) -> Result<Json<Lease>, Error> {
    let id = lease.clone();
    let held = agent.ask(|reply| Request::Renew { lease, reply }).await?;
    held.map(|grant| Json(grant.into())).map_err(|why| gone(&id, why))
}

/// Release a lease
///
/// Gives back what it is of. Releasing what was released before, has expired or was lost is no error.
#[utoipa::path(
    delete,
    path = "/v1/leases/{lease}",
    operation_id = "release_lease",
    tag = "leases",
    params(("lease" = String, Path, description = "Its id.", pattern = "^[A-Za-z0-9_-]{1,128}$")),
    responses(
        (status = 202, description = "Consul has not answered yet; the agent goes on trying.", body = Begun),
        (status = 204, description = "It is given back, or was before."),
        (status = 404, description = "`unknown_lease`: of an agent before this one, or of another.", body = Error),
        (
            status = 503,
            description = "`draining`: the agent has ended. `busy`: more is asked at once than the agent takes in.",
            body = Error
        )
    )
)]
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
                format!("this agent knows no lease {lease:?}; acquire one, at the agent that is to hold it");
            (Code::UnknownLease, text)
        }
        NoLease::Released => {
            (Code::UnknownLease, format!("the lease {lease} was released; acquire another one"))
        }
        NoLease::Expired => {
            let text = format!(
                "the lease {lease} was not renewed in time and is given back: stop what it was for; then acquire \
                 another one"
            );
            (Code::LeaseExpired, text)
        }
        NoLease::Lost(reason) if reason == LossReason::Evicted.as_str() => {
            let text = format!(
                "an operator has taken the lease {lease} back (evicted): stop what it was for and release it, which gives \
                 it on at once where it is kept for you still; then acquire another one"
            );
            (Code::LeaseLost, text)
        }
        NoLease::Lost(reason) => {
            let text = format!(
                "the lease {lease} was lost ({reason}) and somebody else may have it: stop what it was for; then \
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
