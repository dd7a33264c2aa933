//! A Consul-compatible server in memory, for development and fast tests.
//!
//! The server has sessions, the key/value store, transactions and blocking queries. It listens on loopback alone and answers in the
//! [`Dialect`] of Consul 1.8 or of 1.22. Its state is lost when it ends. The conformance suite runs the same scenarios against this
//! server and a real Consul and compares the answers.
//!
//! Limitations:
//!
//! - There are no peers, no elections, no forwarding to a leader, no `?stale` that is stale, no disk, no snapshots.
//! - Access control is one token that has fewer rights than the others ([`Restricted`]). There are no policies, no logins, no
//!   namespaces or partitions, no TLS.
//! - The catalogue is one node with one check that always passes, and the nodes that were registered for sessions. Services,
//!   health, events, prepared queries and the operations of a transaction on anything but keys do not exist.
//! - Answers are never compressed. HTTP is 1.1 alone.
//! - The [time-outs](Options::write_timeout) are those of Go's HTTP server, with which they were compared; no Consul that
//!   has these settings was tried. The one for reads bounds a request's body, not its head. Idle connections stay for 11
//!   minutes.
//! - Request limits are those of one server that leads, in mode `enforcing`; there are none per address.
//! - A chunked value above the limit of size is refused; Consul 1.8 takes it.
//! - There is no dialect between the two: each version from 1.9 to 1.21 has a part of the newer behaviour. Only Consul 1.21.5
//!   refuses most punctuation in keys.

#![warn(missing_docs, unreachable_pub)]

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use slotkeeper_serve::{Limits, PerClient, serve};

mod api;
mod clock;
mod dialect;
pub mod duration;
mod options;
mod rates;
mod shared;
/// The state of the server. Public for the simulation alone; it is no API.
#[doc(hidden)]
pub mod store;

pub use dialect::{Dialect, UnknownDialect};
pub use options::{Options, Restricted};

/// Each agent keeps a few long polls open, and tests start many agents.
const CONNECTIONS: usize = 1024;
/// Long polls last up to ten minutes, so the server cuts them off when it stops.
const GRACE: Duration = Duration::from_millis(100);
/// A client may send many requests on one connection.
const LIFE: Duration = Duration::from_secs(86_400);
/// Clients keep connections open between polls that last up to ten minutes.
const IDLE: Duration = Duration::from_secs(660);

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The server has no access control, so it is reachable from its own machine alone.
    #[error(
        "the development server has no access control and listens on loopback addresses only: \
         {0} is not one; use 127.0.0.1 or ::1"
    )]
    NotLoopback(SocketAddr),
    /// The system refuses the address.
    #[error(
        "cannot listen on {address} (is another Consul or development server running there?); choose another port by --listen, and name it by \
         CONSUL_HTTP_ADDR for the clients"
    )]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// A server that listens at its address, and answers once it is [run](Server::run).
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    options: Options,
}

impl Server {
    /// Listens at `listen`, in the dialect of Consul 1.22. Port 0 selects a free port. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// The address is not loopback, or the system refuses it.
    pub fn bind(listen: SocketAddr) -> Result<Self, BindError> {
        Self::bind_with(listen, Options::default())
    }

    /// [`Server::bind`] with another dialect, or with settings.
    ///
    /// # Errors
    ///
    /// As for [`Server::bind`].
    pub fn bind_with(listen: SocketAddr, options: Options) -> Result<Self, BindError> {
        if !listen.ip().is_loopback() {
            return Err(BindError::NotLoopback(listen));
        }
        let failed = |source| BindError::Listen { address: listen, source };
        let listener = slotkeeper_serve::listen(listen).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, addr, options })
    }

    /// The address that clients use.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until `stop` resolves. Then all connections end and the state is lost.
    ///
    /// # Errors
    ///
    /// An error of the listening socket that does not pass by itself.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let per_client = self
            .options
            .max_connections_per_client
            .map(|most| PerClient { most, refusal: self.options.dialect.too_many_connections() });
        let app = api::App::new(self.options, self.addr);
        let shared = Arc::clone(&app.shared);
        let limits = Limits {
            connections: CONNECTIONS,
            per_client,
            grace: GRACE,
            header_timeout: IDLE,
            life: LIFE,
            ..Limits::default()
        };
        let router = api::router(app);
        tokio::select! {
            ended = serve(self.listener, router, limits, stop) => ended,
            () = shared.keep_time() => Ok(()),
        }
    }
}

/// The routes with an empty store, for tests that bring connections of their own.
#[doc(hidden)]
pub fn router_alone() -> axum::Router {
    api::router(api::App::new(Options::default(), (std::net::Ipv4Addr::LOCALHOST, 8500).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_loopback_addresses_are_listened_on() {
        for refused in ["0.0.0.0:0", "192.0.2.1:0", "[::]:0"] {
            let addr = refused.parse().unwrap();
            assert!(matches!(Server::bind(addr), Err(BindError::NotLoopback(refused)) if refused == addr));
        }
        assert_ne!(Server::bind("127.0.0.1:0".parse().unwrap()).unwrap().addr().port(), 0);
    }
}
