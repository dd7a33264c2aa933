//! A Consul-compatible server in memory, for development and fast tests.
//!
//! Sessions, the key/value store, transactions and blocking queries as Consul 1.8 answers them, on loopback alone. It
//! has no peers, no access control, no disk: nothing that matters is to be kept in it. The conformance suite runs the
//! same scenarios against this server and a real Consul and compares what both say.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::http::serve::{self, Limits, serve};

mod api;
pub(crate) mod duration;
mod shared;
pub(crate) mod store;

use shared::Shared;
use store::Store;
use store::session::Rules;

/// Each agent keeps a few long polls open and tests bring many agents.
const CONNECTIONS: usize = 1024;
/// Long polls do not end by themselves soon, so they are cut off.
const GRACE: Duration = Duration::from_millis(100);
/// A client may ask again and again on one connection.
const LIFE: Duration = Duration::from_secs(86_400);
/// Clients keep connections open between polls that last up to ten minutes.
const IDLE: Duration = Duration::from_secs(660);

/// How the server differs from a real one, for tests that cannot wait.
#[derive(Clone, Debug)]
pub struct Options {
    /// A session ends this many TTLs after its last renewal. Consul's leader uses 2.
    pub expiry_factor: u32,
    /// The shortest TTL that is accepted. Consul's `session_ttl_min` is 10 s.
    pub min_ttl: Duration,
    /// The name of the one node in the catalogue, and the node of every session.
    pub node: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { expiry_factor: 2, min_ttl: Duration::from_secs(10), node: "slotkeeper-dev".to_owned() }
    }
}

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Anyone who reaches the server may do anything, so it is reachable from its own machine alone.
    #[error(
        "the development server has no access control and listens on loopback addresses only: \
         {0} is not one; use 127.0.0.1 or ::1"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be had.
    #[error("cannot listen on {address} (is another Consul or development server running there?)")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// A server that has its address and answers once it is [run](Server::run).
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    options: Options,
}

impl Server {
    /// Takes the address `listen`; port 0 takes a free one. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// An address that is not loopback, or that the system does not give.
    pub fn bind(listen: SocketAddr) -> Result<Self, BindError> {
        Self::bind_with(listen, Options::default())
    }

    /// [`Server::bind`] with other rules than Consul's.
    ///
    /// # Errors
    ///
    /// As for [`Server::bind`].
    pub fn bind_with(listen: SocketAddr, options: Options) -> Result<Self, BindError> {
        if !listen.ip().is_loopback() {
            return Err(BindError::NotLoopback(listen));
        }
        let failed = |source| BindError::Listen { address: listen, source };
        let listener = serve::listen(listen).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, addr, options })
    }

    /// The address that clients use.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Answers until `stop` resolves. Then all connections end and the state is gone.
    ///
    /// # Errors
    ///
    /// An error of the listening socket that does not pass by itself.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let Options { expiry_factor, min_ttl, node } = self.options;
        let store = Store::new(node.clone(), Rules { min_ttl, expiry_factor });
        let shared = Arc::new(Shared::new(store));
        let router =
            api::router(api::App { shared: Arc::clone(&shared), node: node.into(), addr: self.addr });
        let limits = Limits {
            connections: CONNECTIONS,
            grace: GRACE,
            header_timeout: IDLE,
            life: LIFE,
            ..Limits::default()
        };
        tokio::select! {
            ended = serve(self.listener, router, limits, stop) => ended,
            () = shared.keep_time() => Ok(()),
        }
    }
}

/// The routes before an empty store, for whoever brings connections of its own.
#[cfg(any(test, fuzzing))]
pub(crate) fn router_alone() -> axum::Router {
    let Options { expiry_factor, min_ttl, node } = Options::default();
    let store = Store::new(node.clone(), Rules { min_ttl, expiry_factor });
    let addr = (std::net::Ipv4Addr::LOCALHOST, 8500).into();
    api::router(api::App { shared: Arc::new(Shared::new(store)), node: node.into(), addr })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_loopback_addresses_are_listened_on() {
        for refused in ["0.0.0.0:0", "192.0.2.1:0", "[::]:0"] {
            let addr = refused.parse().unwrap();
            assert!(matches!(Server::bind(addr), Err(BindError::NotLoopback(told)) if told == addr));
        }
        assert_ne!(Server::bind("127.0.0.1:0".parse().unwrap()).unwrap().addr().port(), 0);
    }
}
