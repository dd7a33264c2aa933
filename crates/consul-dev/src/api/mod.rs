//! Consul's HTTP API over the store: paths, parameters, and answers in Consul's words.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, StatusCode};
use tokio::time::Instant;

use self::answer::Refusal;
use super::dialect::{Dialect, Kind};
use super::options::Options;
use super::rates::Rates;
use super::shared::Shared;
use super::store::Store;
use super::store::session::Rules;
use crate::clock;
use slotkeeper_serve::Unanswered;

mod agent;
mod answer;
mod catalog;
mod json;
mod kv;
mod params;
mod path;
mod restricted;
mod session;
mod txn;

/// The state that all handlers share.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) shared: Arc<Shared>,
    options: Arc<Options>,
    rates: Arc<Rates>,
    addr: SocketAddr,
}

impl App {
    /// The state with an empty store.
    pub(crate) fn new(options: Options, addr: SocketAddr) -> Self {
        let rules = Rules { min_ttl: options.min_ttl, expiry_factor: options.expiry_factor };
        let store = Store::new(options.node.clone(), rules);
        let shared = Arc::new(Shared::new(store, options.dialect));
        let rates = Arc::new(Rates::new(options.read_rate, options.write_rate));
        Self { shared, options: Arc::new(options), rates, addr }
    }

    fn dialect(&self) -> Dialect {
        self.options.dialect
    }

    /// Counts a request that is understood and may be made. What has to be counted is Consul's matter: a request that is
    /// refused for its form costs nothing.
    fn admit(&self, kind: Kind) -> Result<(), Refusal> {
        if self.rates.admits(kind, clock::now()) {
            return Ok(());
        }
        let (status, text) = self.dialect().over_rate(kind);
        Err(Refusal::Status(status, text.to_owned()))
    }
}

/// The API's routes. The handlers check the method, to refuse it with Consul's message.
pub(crate) fn router(app: App) -> Router {
    let mut routes = Router::new();
    for verb in session::Verb::ALL {
        let path = format!("/v1/session/{}/", verb.name());
        routes = routes
            .route(
                &format!("{path}{{id}}"),
                any(move |app, id, params, method| session::with_id(verb, app, id, params, method)),
            )
            .route(&path, any(move |method| session::without_id(verb, method)));
    }
    routes
        .route("/v1/kv/", any(kv::root))
        .route("/v1/kv/{*key}", any(kv::key))
        .route("/v1/txn", any(txn::txn))
        .route("/v1/session/create", any(session::create))
        .route("/v1/session/list", any(session::list))
        .route("/v1/catalog/register", any(catalog::register))
        .route("/v1/status/leader", any(agent::leader))
        .route("/v1/status/peers", any(agent::peers))
        .route("/v1/agent/self", any(agent::this))
        .route("/v1/acl/login", any(agent::no_acl))
        .route("/v1/acl/logout", any(agent::no_acl))
        .route_layer(middleware::from_fn_with_state(app.clone(), common))
        .fallback(nothing)
        .layer(middleware::from_fn_with_state(app.clone(), path::clean))
        .layer(middleware::from_fn_with_state(app.clone(), in_time))
        .with_state(app)
}

/// The answer for an unknown path.
async fn nothing(State(app): State<App>, request: Request) -> Response {
    let text = app.dialect().no_endpoint(request.uri().path());
    Refusal::Status(StatusCode::NOT_FOUND, text.to_owned()).into_response()
}

/// What all answers of handlers have in common.
async fn common(State(app): State<App>, request: Request, next: Next) -> Response {
    let asks_methods = *request.method() == Method::OPTIONS;
    let mut answer = next.run(request).await;
    if let Some((name, value)) = app.dialect().default_policy() {
        answer.headers_mut().insert(name, value);
    }
    if let Some(value) = app.dialect().options_type().filter(|_| asks_methods) {
        answer.headers_mut().insert(CONTENT_TYPE, value);
    }
    answer
}

/// An answer later than the write time-out is lost with its connection. The request was executed.
async fn in_time(State(app): State<App>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let answer = next.run(request).await;
    match app.options.write_timeout {
        Some(bound) if began.elapsed() > bound => Unanswered.into_response(),
        Some(_) | None => answer,
    }
}
