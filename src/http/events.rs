//! `/v1/events`: the status as it changes, and what has happened, as server-sent events.
//!
//! The stream is made as it is read: whoever reads slowly is told less often, and how things stand now.

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

/// Seconds after which one that has found no place may ask again.
const RETRY_AFTER: &str = "5";
/// Milliseconds after which a client whose stream has ended asks again.
const RETRY: u32 = 1000;
/// What ends a silence. A comment would do for proxies, but scripts in browsers never hear of one.
const ALIVE: &[u8] = b"event: alive\ndata: {}\n\n";

/// What those have who follow an agent.
#[derive(Clone, Copy, Debug)]
pub struct Following {
    /// Streams at once, of all the connections that there may be: probes and scrapes always find a place.
    pub places: usize,
    /// What comes faster than that is told together.
    pub pace: Duration,
    /// The longest silence: proxies end connections that say nothing, and a client takes a longer one for the end of its own.
    pub silence: Duration,
    /// A stream's longest life. Its client comes again and misses nothing; one that is not there any more gives its place
    /// back.
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

/// What happens, as it happens
///
/// Server-sent events. `status`, at once and after each change: the document of `/v1/status` on one line. `change`: what
/// has happened, as `{"at","what","name","detail"}`, of which the last 50 are kept. Both have an id, and who asks with
/// `Last-Event-ID` gets the changes after that one; who names none of this agent's life gets all that are kept. Whoever reads
/// slowly gets the newest status and not each one. `alive` comes where nothing else has for 10 s.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "events",
    tag = "status",
    params(
        (
            "Last-Event-ID" = inline(Option<String>), Header, nullable = false, pattern = "^[0-9a-f]{16}-[0-9]{1,20}$",
            description = "The last event that the client has seen."
        )
    ),
    responses(
        (status = 200, description = "The events, until the agent ends, or for an hour.", content_type = "text/event-stream", body = String),
        (status = 503, description = "`busy`: as many follow the agent as it has places for.", body = Error)
    )
)]
pub(super) async fn events(State(site): State<Site>, headers: HeaderMap) -> Response {
    let Ok(place) = Arc::clone(&site.followers).try_acquire_owned() else {
        let text = format!(
            "{} clients follow the events of this agent already; ask again, or ask for /v1/status",
            site.following.places
        );
        return ([(header::RETRY_AFTER, RETRY_AFTER)], Error::new(Code::Busy, text)).into_response();
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let life = sleep(site.following.life);
    let follower = Follower { site, told: Told::Before(last), _place: place };
    let stream = stream::unfold(follower, Follower::next).take_until(life).flat_map(stream::iter);
    let body = Body::from_stream(stream.map(Ok::<_, Infallible>));
    // Its connection has served its purpose with it.
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CONNECTION, "close")];
    let mut response = (headers, body).into_response();
    response.extensions_mut().insert(Endless);
    response
}

/// What a client has been told.
enum Told {
    /// On this stream nothing; on another one, perhaps, all up to there.
    Before(Option<Id>),
    /// All up to there.
    UpTo(Id),
}

/// One that follows an agent.
struct Follower {
    site: Site,
    told: Told,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    /// What it is told next; nothing more once the agent has ended.
    async fn next(mut self) -> Option<(Vec<Bytes>, Self)> {
        self.site.watchdog.view(clock::now());
        let last = match self.told {
            Told::Before(last) => {
                let snapshot = Arc::clone(&self.site.status.borrow_and_update());
                let mut told = vec![Bytes::from(format!("retry: {RETRY}\n\n"))];
                told.extend(self.news(&snapshot, last));
                self.told = Told::UpTo(snapshot.id);
                return Some((told, self));
            }
            Told::UpTo(last) => last,
        };
        // Nothing cuts this short but the agent's end, which closes the channel.
        let _ = timeout(self.site.following.pace, self.site.status.wait_for(|_| false)).await;
        loop {
            let snapshot = Arc::clone(&self.site.status.borrow_and_update());
            if last.is_before(snapshot.id) {
                self.told = Told::UpTo(snapshot.id);
                return Some((self.news(&snapshot, Some(last)), self));
            }
            match timeout(self.site.following.silence, self.site.status.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_ended)) => return None,
                Err(_silence) => return Some((vec![Bytes::from_static(ALIVE)], self)),
            }
        }
    }

    /// What there is to tell to one that knows all up to `last`. The status is the text that all are told, and not a copy.
    fn news(&self, snapshot: &Snapshot, last: Option<Id>) -> Vec<Bytes> {
        let wall = clock::wall();
        let mut text = String::new();
        // One that names what was not told yet has another life in mind, be it one with the same name.
        let last = last.filter(|last| *last == snapshot.id || last.is_before(snapshot.id));
        for change in
            snapshot.changes.iter().filter(|change| last.is_none_or(|last| last.is_before(change.id)))
        {
            // What is made of text and numbers can be written; JSON has no line breaks, so that it is one line.
            let data = serde_json::to_string(&change.report(wall)).unwrap_or_default();
            text.push_str(&format!("{}{data}\n\n", head(change.id, "change")));
        }
        text.push_str(&head(snapshot.id, "status"));
        vec![text.into(), self.site.told(snapshot), Bytes::from_static(b"\n\n")]
    }
}

/// An event's beginning, up to its data.
fn head(id: Id, name: &str) -> String {
    format!("id: {id}\nevent: {name}\ndata: ")
}

#[cfg(test)]
mod tests;
