//! `/v1/events`: the status and its changes, as server-sent events.
//!
//! The stream is produced as it is read: a slow reader receives fewer events, each with the current status.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout};

use super::Site;
use super::error::{Code, Error};
use crate::clock;
use crate::status::{Id, Snapshot};
use slotkeeper_serve::Endless;

/// Seconds until a refused client may retry.
const RETRY_AFTER: &str = "5";
/// Milliseconds until a client reconnects after the end of its stream.
const RETRY: u32 = 1000;
/// The event that ends a silence. Scripts in browsers do not see a comment.
const ALIVE: &[u8] = b"event: alive\ndata: {}\n\n";

/// The terms of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Following {
    /// The maximum of concurrent streams, below that of all connections: probes and scrapes always find a connection.
    pub places: usize,
    /// Changes within this time are sent together.
    pub pace: Duration,
    /// The longest silence: proxies close silent connections, and a client takes a longer silence for the end of its connection.
    pub silence: Duration,
    /// The longest lifetime of a stream. Its client reconnects and misses nothing; the stream of a client that has disconnected
    /// is free again.
    pub life: Duration,
}

impl Default for Following {
    fn default() -> Self {
        Self {
            places: 32,
            pace: Duration::from_millis(100),
            silence: Duration::from_secs(10),
            life: Duration::from_secs(60 * 60),
        }
    }
}

/// The status and its changes. With `Last-Event-ID`, the stream begins with the changes after that id; with an id of another
/// life of the agent, with all that are kept.
pub(super) async fn events(State(site): State<Site>, headers: HeaderMap) -> Response {
    let Ok(place) = Arc::clone(&site.followers).try_acquire_owned() else {
        let text = format!(
            "{} clients follow the events of this agent already, which is the limit; retry, or use /v1/status",
            site.following.places
        );
        return ([(header::RETRY_AFTER, RETRY_AFTER)], Error::new(Code::Busy, text)).into_response();
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let life = sleep(site.following.life);
    let follower = Follower { site, sent: Sent::Before(last), _place: place };
    let stream = stream::unfold(follower, Follower::next).take_until(life).flat_map(stream::iter);
    let body = Body::from_stream(stream.map(Ok::<_, Infallible>));
    // HTTP/1.1 keeps no connection after this stream.
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CONNECTION, "close")];
    let mut response = (headers, body).into_response();
    response.extensions_mut().insert(Endless);
    response
}

/// The changes that a client has received.
enum Sent {
    /// None on this stream; on an earlier one perhaps all up to this id.
    Before(Option<Id>),
    /// All up to this id.
    UpTo(Id),
}

/// A client of the stream.
struct Follower {
    site: Site,
    sent: Sent,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    /// The next events; `None` once the agent has ended.
    async fn next(mut self) -> Option<(Vec<Bytes>, Self)> {
        self.site.watchdog.view(clock::now());
        let last = match self.sent {
            Sent::Before(last) => {
                let snapshot = Arc::clone(&self.site.status.borrow_and_update());
                let mut events = vec![Bytes::from(format!("retry: {RETRY}\n\n"))];
                events.extend(self.news(&snapshot, last));
                self.sent = Sent::UpTo(snapshot.id);
                return Some((events, self));
            }
            Sent::UpTo(last) => last,
        };
        // Only the agent's end interrupts this: it closes the channel.
        let _ = timeout(self.site.following.pace, self.site.status.wait_for(|_| false)).await;
        loop {
            let snapshot = Arc::clone(&self.site.status.borrow_and_update());
            if last.is_before(snapshot.id) {
                self.sent = Sent::UpTo(snapshot.id);
                return Some((self.news(&snapshot, Some(last)), self));
            }
            match timeout(self.site.following.silence, self.site.status.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_ended)) => return None,
                Err(_silence) => return Some((vec![Bytes::from_static(ALIVE)], self)),
            }
        }
    }

    /// The events after `last`. The status is the shared text, not a copy.
    fn news(&self, snapshot: &Snapshot, last: Option<Id>) -> Vec<Bytes> {
        let wall = clock::wall();
        let mut text = String::new();
        // An id that was not sent yet is of another life, even one with the same name.
        let last = last.filter(|last| *last == snapshot.id || last.is_before(snapshot.id));
        for change in
            snapshot.changes.iter().filter(|change| last.is_none_or(|last| last.is_before(change.id)))
        {
            // Text and numbers always serialise; JSON has no line breaks, so this is one line.
            let data = serde_json::to_string(&change.report(wall)).unwrap_or_default();
            text.push_str(&format!("{}{data}\n\n", head(change.id, "change")));
        }
        text.push_str(&head(snapshot.id, "status"));
        vec![text.into(), self.site.status_text(snapshot), Bytes::from_static(b"\n\n")]
    }
}

/// The beginning of an event, up to its data.
fn head(id: Id, name: &str) -> String {
    format!("id: {id}\nevent: {name}\ndata: ")
}

#[cfg(test)]
mod tests;
