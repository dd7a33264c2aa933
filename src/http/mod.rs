//! The read-only endpoints, and the bounded accept loop beneath every HTTP server of ours.

mod api;
pub(crate) mod error;
mod health;
mod scrape;
pub mod serve;

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::status::Snapshot;
use crate::vitals::Vitals;
use error::Error;

/// What the endpoints read from.
#[derive(Clone, Debug)]
pub struct Site {
    /// The agent as it last told of itself.
    pub status: watch::Receiver<Arc<Snapshot>>,
    /// Its metrics.
    pub metrics: Arc<Metrics>,
    /// Its pulse.
    pub vitals: Arc<Vitals>,
}

impl Site {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.status.borrow())
    }
}

/// The read-only endpoints. A GET route answers HEAD too, and other methods with 405 and `Allow`.
pub fn router(site: Site) -> Router {
    Router::new()
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/healthz", get(health::ready))
        .route("/startupz", get(health::startup))
        .route("/metrics", get(scrape::metrics))
        .route("/v1/status", get(api::status))
        .route("/v1/semaphores/{name}", get(api::semaphore))
        .route("/v1/locks/{name}", get(api::lock))
        .fallback(async |uri: Uri| Error::no_such_path(uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            Error::method_not_allowed(&method, uri.path())
        })
        .with_state(site)
        .layer(map_response(uncached))
}

/// Every answer is true only now, and is nothing that a browser should guess the type of.
async fn uncached(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
