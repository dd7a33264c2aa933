//! The read-only endpoints, and the bounded accept loop of all HTTP servers.

pub(crate) mod api;
pub(crate) mod error;
mod events;
mod health;
pub(crate) mod host;
pub(crate) mod json;
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
use axum::routing::get;
use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use crate::clock;
use crate::metrics::Metrics;
use crate::status::Snapshot;
use crate::watchdog::Watchdog;
use error::Error;
pub use events::Following;
use slotkeeper_serve::{Limits, WhenFull};
use status_cache::StatusCache;

/// The state behind the endpoints.
#[derive(Clone, Debug)]
pub struct Site {
    /// The agent's last snapshot.
    pub status: watch::Receiver<Arc<Snapshot>>,
    /// The agent's metrics.
    pub metrics: Arc<Metrics>,
    /// The watchdog of its loop.
    pub watchdog: Arc<Watchdog>,
    /// The shared text of the status.
    status_cache: Arc<StatusCache>,
    /// The terms of event streams.
    following: Following,
    /// Permits for event streams.
    followers: Arc<Semaphore>,
}

impl Site {
    /// The state of one agent's endpoints, at all of its addresses.
    pub fn new(
        status: watch::Receiver<Arc<Snapshot>>,
        metrics: Arc<Metrics>,
        watchdog: Arc<Watchdog>,
    ) -> Self {
        let (status_cache, following) = (Arc::default(), Following::default());
        let followers = Arc::new(Semaphore::new(following.places));
        Self { status, metrics, watchdog, status_cache, following, followers }
    }

    /// The same with other terms of event streams.
    #[cfg(any(test, fuzzing))]
    #[must_use]
    pub(crate) fn followed(self, following: Following) -> Self {
        Self { following, followers: Arc::new(Semaphore::new(following.places)), ..self }
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.status.borrow())
    }

    /// The snapshot for a reader who needs the other participants: it has the agent read again what it does not watch.
    fn viewed(&self) -> Arc<Snapshot> {
        self.watchdog.view(clock::now());
        self.snapshot()
    }

    /// The status text for a request now.
    fn status_text(&self, snapshot: &Snapshot) -> Bytes {
        self.status_cache.get_or_render(snapshot, clock::now())
    }
}

/// The server's limits. All responses but the event stream are immediate, and its clients reconnect by themselves: so a probe
/// gets a connection, whatever a neighbour sends.
pub fn limits() -> Limits {
    Limits { when_full: WhenFull::Displace, ..Limits::default() }
}

/// The read-only endpoints, for a listener at `address`. A GET route answers HEAD too; other methods get 405 and `Allow`.
pub fn router(site: Site, address: IpAddr) -> Router {
    let routes = endpoints(site)
        .route("/", get(page::page))
        .merge(openapi::route(openapi::READ_ONLY))
        .fallback(async |uri: Uri| Error::no_such_path(uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Error::read_only(&method, uri.path()));
    let routes =
        if address.to_canonical().is_loopback() { routes.layer(from_fn(host::check)) } else { routes };
    routes.layer(from_fn(host::exactly_one)).layer(map_response(uncached))
}

/// The read-only endpoints, for any listener. `openapi.json` describes them.
pub(crate) fn endpoints(site: Site) -> Router {
    Router::new()
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/healthz", get(health::healthy))
        .route("/startupz", get(health::startup))
        .route("/metrics", get(scrape::metrics))
        .route("/v1/status", get(api::status))
        .route("/v1/semaphores/{name}", get(api::semaphore))
        .route("/v1/locks/{name}", get(api::lock))
        .route("/v1/events", get(events::events))
        .with_state(site)
}

/// A response is true only now, and a browser must not guess its type.
pub(crate) async fn uncached(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
