//! The endpoints that change state, for the workload beside the agent: on a unix socket in a folder that both share, or at a
//! loopback address, where every request needs a token. They translate HTTP into [`request`]s to the agent's loop, which decides
//! on grants, and its answers back.

mod acquire;
mod agent_handle;
mod document;
mod gate;
mod lease;
pub mod request;
mod socket;
mod token;

use std::time::Duration;

use axum::Router;
use axum::extract::Request as HttpRequest;
use axum::http::{Method, Uri};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;

use crate::http::error::{Code, Error};
use crate::http::{Site, endpoints, host, openapi, uncached};
use request::Request;
use slotkeeper_serve::Limits;

pub use gate::Gate;
pub use socket::Socket;
pub use token::of_file as token_of_file;

/// The longest wait of a request.
const MAX_WAIT: Duration = Duration::from_secs(60 * 60);
/// Time in which the request's head must arrive, from a client on the same machine.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections in addition to waiting ones: to renew, release and show leases.
const EXTRA_CONNECTIONS: usize = 256;
/// Lifetime of a connection in addition to its wait: for the request, the agent's last answer and the response.
const EXTRA_LIFE: Duration = Duration::from_secs(60);

/// The endpoints, with the read-only ones, so that a workload needs one address.
pub fn router(requests: mpsc::Sender<Request>, site: Site, gate: Gate) -> Router {
    let own = acquire::endpoints().merge(lease::endpoints()).merge(agent_handle::endpoints());
    let own = own.with_state(agent_handle::AgentHandle::new(requests)).layer(from_fn(without_query));
    let routes = own
        .merge(endpoints(site))
        .merge(openapi::route(document::text(&gate)))
        .fallback(async |uri: Uri| Error::no_such_path(uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            Error::method_not_allowed(&method, uri.path())
        });
    gate.close(routes).layer(from_fn(host::exactly_one)).layer(map_response(uncached))
}

/// Refuses a query, which these endpoints would ignore.
async fn without_query(request: HttpRequest, next: Next) -> Response {
    if request.uri().query().is_none() {
        return next.run(request).await;
    }
    let text =
        "no query is supported here; the body of an acquire has its options, such as {\"wait\":\"30s\"}";
    Error::new(Code::BadRequest, text).into_response()
}

/// The server's limits for that many waiting clients.
pub fn limits(max_waits: usize) -> Limits {
    Limits {
        connections: max_waits + EXTRA_CONNECTIONS,
        life: MAX_WAIT + EXTRA_LIFE,
        // One request per connection, so that its lifetime never ends another request's wait.
        keep_alive: false,
        // A client occupies a connection before it has shown a token, so an idle connection is closed soon.
        header_timeout: HEADER_TIMEOUT,
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests;
