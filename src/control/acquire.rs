//! `POST /v1/semaphores/{name}/acquire` and the same for locks: grants a lease.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::MAX_WAIT;
use super::agent_handle::AgentHandle;
use super::lease::Lease;
use super::request::{Kind, Refusal, Request};
use crate::duration;
use crate::http::error::{Code, Error};
use crate::http::json::Json;
use crate::http::segment::Segment;

/// The largest request body. A usual one has 20 bytes.
pub(super) const MAX_BODY_BYTES: usize = 4 * 1024;
/// What is read and dropped of a larger one: a client that still sends it would see a reset in place of the answer.
const MAX_DROPPED_BYTES: usize = 16 * 1024 * 1024;
/// Time in which the body must arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn endpoints() -> Router<AgentHandle> {
    Router::new()
        .route("/v1/semaphores/{name}/acquire", post(semaphore))
        .route("/v1/locks/{name}/acquire", post(lock))
}

/// The options of an acquisition.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Wanted {
    /// How long to wait, in the configuration's syntax: whole numbers with the units ms, s, m and h, such as 30s or
    /// 1m30s. At most 1h. Without it, the call returns at once.
    // The parser accepts more (everything that adds up to at most 1h), which no pattern can express.
    wait: Option<String>,
}

/// Acquires the slots of a semaphore as a lease.
async fn semaphore(
    State(agent): State<AgentHandle>,
    Segment(name): Segment,
    body: Body,
) -> Result<Json<Lease>, Error> {
    acquire(&agent, Kind::Semaphore, name, body).await
}

/// Acquires a single-key lock as a lease.
async fn lock(
    State(agent): State<AgentHandle>,
    Segment(name): Segment,
    body: Body,
) -> Result<Json<Lease>, Error> {
    acquire(&agent, Kind::Lock, name, body).await
}

async fn acquire(agent: &AgentHandle, kind: Kind, name: String, body: Body) -> Result<Json<Lease>, Error> {
    let wait = wait(&read(body, BODY_TIMEOUT).await?)?;
    // Lives as long as this future, which is dropped with its client's connection.
    let (got_it, present) = oneshot::channel();
    let wanted = name.clone();
    let answer = agent.ask(|reply| Request::Acquire { kind, name, wait, present, reply }).await?;
    // An agent that has ended needs no confirmation.
    let _ = got_it.send(());
    answer.map(|grant| Json(grant.into())).map_err(|refusal| refused(kind, &wanted, wait, refusal))
}

/// The whole body, within its limits.
async fn read(body: Body, time_limit: Duration) -> Result<Vec<u8>, Error> {
    // Not with the library's collector, which keeps each piece, however small, with the buffer that contains it.
    let collect = async {
        let (mut body, mut whole, mut length) = (body, Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            let part = frame?.into_data().unwrap_or_default();
            length += part.len();
            if length <= MAX_BODY_BYTES {
                whole.extend(part);
            } else if length > MAX_DROPPED_BYTES {
                break;
            }
        }
        Ok((whole, length))
    };
    let collected = tokio::time::timeout(time_limit, collect).await;
    let collected = collected.map_err(|_elapsed| {
        Error::new(Code::TooSlow, format!("the body did not arrive within {time_limit:?}; send it at once"))
    })?;
    let (whole, length) = collected.map_err(|failure: axum::Error| {
        Error::new(Code::BadRequest, format!("the body cannot be read: {failure}; send it again"))
    })?;
    if length > MAX_BODY_BYTES {
        let text =
            format!("the body has more than {MAX_BODY_BYTES} bytes; write such as {{\"wait\":\"30s\"}}");
        return Err(Error::new(Code::TooLarge, text));
    }
    Ok(whole)
}

/// The body's `wait`.
fn wait(body: &[u8]) -> Result<Duration, Error> {
    let bad = |what: String| Error::new(Code::BadRequest, what);
    if body.trim_ascii().is_empty() {
        return Ok(Duration::ZERO);
    }
    let not_taken = |error: &str| {
        bad(format!("the body is invalid: {error}; write such as {{\"wait\":\"30s\"}}, or nothing"))
    };
    // serde accepts a list of the members for a struct too.
    if body.trim_ascii().starts_with(b"[") {
        return Err(not_taken("a list"));
    }
    let wanted: Option<Wanted> =
        serde_json::from_slice(body).map_err(|error| not_taken(&error.to_string()))?;
    let Some(wait) = wanted.unwrap_or_default().wait else { return Ok(Duration::ZERO) };
    let wait = duration::parse(&wait).map_err(|error| bad(format!("the body's `wait`: {error}")))?;
    if wait > MAX_WAIT {
        let (asked, most) = (duration::show(wait), duration::show(MAX_WAIT));
        return Err(bad(format!("the body's `wait`: {asked} is out of bounds; write 0s to {most}")));
    }
    Ok(wait)
}

/// The error for an agent's refusal.
fn refused(kind: Kind, name: &str, wait: Duration, refusal: Refusal) -> Error {
    let within =
        if wait.is_zero() { "at once".to_owned() } else { format!("within {}", duration::show(wait)) };
    let one = kind.as_str();
    let (code, text) = match refusal {
        Refusal::UnknownName { known } => return Error::unknown(kind, name, &known),
        Refusal::NotOnDemand => {
            let text = format!(
                "the agent itself holds the {one} {name}; to acquire it here, set `mode: on_demand` in its entry of \
                 `{one}s`"
            );
            (Code::NotOnDemand, text)
        }
        Refusal::Timeout => (
            Code::TimedOut,
            format!("timed out {within} waiting for the {one} {name}; retry, or raise `wait`"),
        ),
        Refusal::Evicted(by) => (
            Code::TimedOut,
            format!("the request for the {one} {name} was evicted by {by}; it is no longer in the queue"),
        ),
        Refusal::Blocked(why) => (Code::Blocked, format!("the {one} {name} cannot be acquired: {why}")),
        Refusal::Unavailable(why) => {
            let text = format!("the {one} {name} could not be acquired {within}: {why}; retry");
            (Code::ConsulUnavailable, text)
        }
        Refusal::Pending(reason) => {
            (Code::Pending, format!("the {one} {name} cannot be acquired yet: {reason}; retry later"))
        }
        Refusal::Draining => {
            (Code::Draining, format!("the {one} {name} is not granted: the agent is draining"))
        }
        Refusal::TooManyWaits(bound) => {
            let text = format!(
                "{bound} clients wait already, which is the limit; retry later, or raise control.max_waits"
            );
            (Code::TooManyWaits, text)
        }
        Refusal::TooManyLeases(bound) => {
            let text = format!(
                "{bound} leases are held or waited for already, which is the limit; release some, or raise \
                 control.max_leases"
            );
            (Code::TooManyLeases, text)
        }
    };
    Error::new(code, text)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_body_comes_in_time_and_in_one_piece() {
        let of = |chunks: Vec<Result<Bytes, std::io::Error>>| Body::from_stream(stream::iter(chunks));
        let all = read(of(vec![Ok("{".into()), Ok("}".into())]), BODY_TIMEOUT).await;
        assert_eq!(all.unwrap(), b"{}");
        let code = |error: Error| serde_json::to_value(&error).unwrap()["code"].clone();
        let broken = of(vec![Ok("{".into()), Err(std::io::ErrorKind::ConnectionReset.into())]);
        assert_eq!(code(read(broken, BODY_TIMEOUT).await.unwrap_err()), "bad_request");
        let large = of(vec![Ok(vec![b' '; MAX_BODY_BYTES].into()), Ok(" ".into())]);
        assert_eq!(code(read(large, BODY_TIMEOUT).await.unwrap_err()), "too_large");
        let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(code(read(never, Duration::from_millis(10)).await.unwrap_err()), "too_slow");
    }

    #[test]
    fn a_body_says_how_long_or_nothing() {
        for (body, seconds) in [
            ("", 0),
            (" \n", 0),
            ("{}", 0),
            ("null", 0),
            (r#"{"wait":null}"#, 0),
            (r#"{"wait":"0s"}"#, 0),
            (r#" {"wait":"1m30s"} "#, 90),
            (r#"{"wait":"1h"}"#, 3600),
        ] {
            assert_eq!(wait(body.as_bytes()).unwrap(), Duration::from_secs(seconds), "{body}");
        }
    }

    #[test]
    fn any_other_body_is_refused_with_the_fix() {
        let said = |body: &str| {
            let error = wait(body.as_bytes()).unwrap_err();
            serde_json::to_value(&error).unwrap()
        };
        for (body, fix) in [
            ("wait=30s", "write such as"),
            ("{", "write such as"),
            ("[]", "write such as"),
            ("[null]", "write such as"),
            (r#"["0s"]"#, "write such as"),
            ("\"30s\"", "write such as"),
            (r#"{"wait":30}"#, "write such as"),
            (r#"{"wait":"30"}"#, "write 30s"),
            (r#"{"wait":""}"#, "write whole numbers"),
            (r#"{"wait":"forever"}"#, "write whole numbers"),
            (r#"{"wait":"1h1ms"}"#, "write 0s to 1h"),
            (r#"{"wait":"1s","wait":"2s"}"#, "duplicate"),
            (r#"{"wiat":"1s"}"#, "unknown field"),
        ] {
            let error = said(body);
            assert_eq!(error["code"], "bad_request", "{body}");
            assert!(error["error"].as_str().unwrap().contains(fix), "{body}: {error}");
        }
        assert!(wait(b"\xff").is_err());
    }
}
