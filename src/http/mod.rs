//! The read-only endpoints, and the bounded accept loop beneath every HTTP server of ours.

mod api;
pub(crate) mod error;
mod events;
mod health;
pub(crate) mod host;
pub(crate) mod openapi;
mod page;
mod scrape;
pub(crate) mod segment;
pub mod servers;
mod status_cache;

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::middleware::{from_fn, map_response};
use axum::response::Response;
use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::clock;
use crate::metrics::Metrics;
use crate::status::Snapshot;
use crate::watchdog::Watchdog;
use error::Error;
pub use events::Following;
use slotkeeper_serve::{Limits, WhenFull};
use status_cache::StatusCache;

/// What the endpoints read from.
#[derive(Clone, Debug)]
pub struct Site {
    /// The agent as it last told of itself.
    pub status: watch::Receiver<Arc<Snapshot>>,
    /// Its metrics.
    pub metrics: Arc<Metrics>,
    /// Its pulse.
    pub watchdog: Arc<Watchdog>,
    /// The status as all are told it.
    status_cache: Arc<StatusCache>,
    /// What those have who follow it.
    following: Following,
    /// Places for them.
    followers: Arc<Semaphore>,
}

impl Site {
    /// What the endpoints of one agent read from, at all of its addresses.
    pub fn new(
        status: watch::Receiver<Arc<Snapshot>>,
        metrics: Arc<Metrics>,
        watchdog: Arc<Watchdog>,
    ) -> Self {
        let (status_cache, following) = (Arc::default(), Following::default());
        let followers = Arc::new(Semaphore::new(following.places));
        Self { status, metrics, watchdog, status_cache, following, followers }
    }

    /// The same, where those who follow have something else.
    #[cfg(any(test, fuzzing))]
    #[must_use]
    pub(crate) fn followed(self, following: Following) -> Self {
        Self { following, followers: Arc::new(Semaphore::new(following.places)), ..self }
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.status.borrow())
    }

    /// The same, for somebody who wants to know of others too: what the agent does not watch it looks at anew.
    fn viewed(&self) -> Arc<Snapshot> {
        self.watchdog.view(clock::now());
        self.snapshot()
    }

    /// The status as it is told to whoever asks now.
    fn told(&self, snapshot: &Snapshot) -> Bytes {
        self.status_cache.get_or_render(snapshot, clock::now())
    }
}

/// What their server allows. All answers but the stream of events are at hand, and whoever follows that one comes again by
/// itself: so a probe is let in however many a neighbour has sent.
pub fn limits() -> Limits {
    Limits { when_full: WhenFull::Displace, ..Limits::default() }
}

/// The read-only endpoints, for a listener at `address`. A GET route answers HEAD too, and other methods with 405 and `Allow`.
pub fn router(site: Site, address: IpAddr) -> Router {
    let endpoints = openapi::begin(ABOUT).routes(routes!(page::page)).merge(endpoints(site));
    let (routes, document) = endpoints.split_for_parts();
    let routes = openapi::finish(routes, &document)
        .fallback(async |uri: Uri| Error::no_such_path(uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Error::read_only(&method, uri.path()));
    let routes =
        if address.to_canonical().is_loopback() { routes.layer(from_fn(host::check)) } else { routes };
    routes.layer(from_fn(host::exactly_one)).layer(map_response(uncached))
}

/// What the document says of them.
const ABOUT: &str = "What an agent of slotkeeper holds on behalf of the workload beside it, and how it is. All of it is \
                     read-only; what changes state is at the address of `control.listen`, with a document of its own. At a \
                     loopback address whoever asks for a host by a name other than `localhost` gets a 421 \
                     (`misdirected`).";

/// The read-only endpoints, for any listener.
pub(crate) fn endpoints(site: Site) -> OpenApiRouter {
    OpenApiRouter::default()
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(health::healthy))
        .routes(routes!(health::startup))
        .routes(routes!(scrape::metrics))
        .routes(routes!(api::status))
        .routes(routes!(api::semaphore))
        .routes(routes!(api::lock))
        .routes(routes!(events::events))
        .with_state(site)
}

/// Every answer is true only now, and is nothing that a browser should guess the type of.
pub(crate) async fn uncached(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
