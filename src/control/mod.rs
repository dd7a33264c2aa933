//! The endpoints that change state, for the workload beside us: on a unix socket, which only those can reach who share
//! its folder, or at a loopback address, where every request bears a token. They turn HTTP into [`request`]s to the
//! agent's loop and its answers back; what is granted is decided there.

mod acquire;
mod agent_handle;
mod gate;
mod lease;
pub mod request;
mod socket;
mod token;

use std::time::Duration;

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware::{from_fn, map_response};
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;

use crate::http::error::Error;
use crate::http::{Site, endpoints, host, openapi, uncached};
use request::Request;
use slotkeeper_serve::Limits;

pub use gate::Gate;
pub use socket::Socket;
pub use token::Token;

/// The longest wait that a client may ask for.
const MAX_WAIT: Duration = Duration::from_secs(60 * 60);
/// Time that a client has for its request's head. It is on the same machine.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections beside those that wait: for renewing, releasing and looking.
const EXTRA_CONNECTIONS: usize = 256;
/// Time that a connection lasts beside its wait: for its request, the agent's last words on it and the answer.
const EXTRA_LIFE: Duration = Duration::from_secs(60);

/// What the document says of them.
const ABOUT: &str = "Takes and gives back slots and locks on behalf of the workload beside the agent, and tells how they \
                     are. A slot or lock that is configured with `mode: on_demand` is had as a *lease*: acquired, \
                     renewed in good time, and released. A lease that is not renewed is given back by itself.";

/// The endpoints, and the read-only ones beside them, so that a workload needs one address.
pub fn router(requests: mpsc::Sender<Request>, site: Site, gate: Gate) -> Router {
    let own = OpenApiRouter::default().merge(acquire::endpoints()).merge(lease::endpoints());
    let own = own.merge(agent_handle::endpoints()).with_state(agent_handle::AgentHandle::new(requests));
    let (routes, mut document) = openapi::begin(ABOUT).merge(own).merge(endpoints(site)).split_for_parts();
    openapi::add_schema::<lease::Lease>(&mut document);
    openapi::add_schema::<request::Reloaded>(&mut document);
    lease::link(&mut document);
    gate.describe(&mut document);
    let routes = openapi::finish(routes, &document)
        .fallback(async |uri: Uri| Error::no_such_path(uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            Error::method_not_allowed(&method, uri.path())
        });
    gate.close(routes).layer(from_fn(host::exactly_one)).layer(map_response(uncached))
}

/// What their server allows, where so many may wait.
pub fn limits(max_waits: usize) -> Limits {
    Limits {
        connections: max_waits + EXTRA_CONNECTIONS,
        life: MAX_WAIT + EXTRA_LIFE,
        // A connection's life is then that of its request, and ends no other one's wait before its time.
        keep_alive: false,
        // Whoever can connect takes a place before it has shown a token. One that sends nothing gives it back soon.
        header_timeout: HEADER_TIMEOUT,
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests;
