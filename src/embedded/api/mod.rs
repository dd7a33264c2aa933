//! Consul's HTTP API over the store: paths, parameters, and answers in Consul's words.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use hyper::StatusCode;
use hyper::header::LOCATION;

use super::shared::Shared;

mod agent;
mod answer;
mod json;
mod kv;
mod params;
mod session;
mod txn;

/// What every handler has.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) shared: Arc<Shared>,
    pub(crate) node: Arc<str>,
    pub(crate) addr: SocketAddr,
}

/// The API's routes. Methods are the handlers' matter, since a refused one is told in Consul's words.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/v1/kv/", any(kv::root))
        .route("/v1/kv/{*key}", any(kv::key))
        .route("/v1/txn", any(txn::txn))
        .route("/v1/session/create", any(session::create))
        .route("/v1/session/list", any(session::list))
        .route("/v1/session/{verb}/", any(session::without_id))
        .route("/v1/session/{verb}/{id}", any(session::with_id))
        .route("/v1/status/leader", any(agent::leader))
        .route("/v1/status/peers", any(agent::peers))
        .route("/v1/agent/self", any(agent::this))
        .route("/v1/acl/login", any(agent::no_acl))
        .route("/v1/acl/logout", any(agent::no_acl))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(middleware::from_fn(clean_path))
        .with_state(app)
}

/// Go's router answers a path with empty or dot segments by a redirect to the clean one, so such keys cannot be
/// reached, and a client that follows redirects ends at another key than it asked for.
async fn clean_path(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let odd = |segment: &str| segment.is_empty() || segment == "." || segment == "..";
    let inner = path.strip_prefix('/').unwrap_or(path);
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if inner.is_empty() || !inner.split('/').any(odd) {
        return next.run(request).await;
    }
    let mut clean: Vec<&str> = Vec::new();
    for segment in inner.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(clean.pop()),
            plain => clean.push(plain),
        }
    }
    let mut target = format!("/{}", clean.join("/"));
    if path.ends_with('/') && !clean.is_empty() {
        target.push('/');
    }
    if let Some(query) = request.uri().query() {
        target.push('?');
        target.push_str(query);
    }
    (StatusCode::MOVED_PERMANENTLY, [(LOCATION, target)]).into_response()
}
