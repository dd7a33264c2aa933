//! The shared Consul, and the embedded server, for tests that do not wait asynchronously.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::process::Signal;
use slotkeeper_consul_dev::{Options, Server};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::support::consul::{self, Setup};
use crate::support::http::{self, Body};

/// A server of the test's own; ends with the value.
pub(crate) struct Consul {
    server: consul::Consul,
    runtime: Runtime,
}

impl Consul {
    /// Starts one with its state in memory.
    pub(crate) fn start() -> Self {
        Self::start_with(Setup::default())
    }

    /// Starts one that keeps its state over [`Self::stop`] and [`Self::restart`].
    pub(crate) fn start_persistent() -> Self {
        Self::start_with(Setup { keeps_data: true, ..Setup::default() })
    }

    /// Starts one as `setup` says.
    pub(crate) fn start_with(setup: Setup) -> Self {
        let (has_plain_http, token) = (setup.https_only.is_none(), setup.token.clone());
        let consul = Self::start_unused(setup);
        if has_plain_http {
            consul.runtime.block_on(register_node(consul.addr(), &token.unwrap_or_default()));
        }
        consul
    }

    /// Starts one that no client has used, and so without the sessions' node.
    pub(crate) fn start_unused(setup: Setup) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(consul::Consul::start_with(setup));
        Self { server, runtime }
    }

    pub(crate) fn address(&self) -> String {
        self.server.addr().to_string()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    pub(crate) fn https_addr(&self) -> SocketAddr {
        self.server.https_addr()
    }

    /// Where it serves something else than HTTP.
    pub(crate) fn other_ports(&self) -> [(&'static str, String); 2] {
        [("RPC", self.server.rpc_addr().to_string()), ("gossip", self.server.gossip_addr().to_string())]
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.server.signal(signal);
    }

    /// Kills it.
    pub(crate) fn stop(&mut self) {
        self.runtime.block_on(self.server.stop(Signal::KILL));
    }

    pub(crate) fn restart(&mut self) {
        self.runtime.block_on(self.server.restart());
    }
}

/// Registers the sessions' node, which is there but for the first session of all.
async fn register_node(consul: SocketAddr, token: &str) {
    let body = br#"{"Node":"slotkeeper","Address":"127.0.0.1"}"#;
    let headers = [("X-Consul-Token", token)];
    let answer = http::request(consul, "PUT", "/v1/catalog/register", &headers, Body::Sized(body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// The embedded server, which answers as Consul 1.22 does: for tests of what is ours alone, whatever Consul there is.
pub(crate) struct Newer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    serves: Option<JoinHandle<()>>,
}

impl Newer {
    /// Starts one; ends with the value.
    pub(crate) fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// Starts one with such settings.
    pub(crate) fn start_with(options: Options) -> Self {
        let newer = Self::start_unused(options);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(register_node(newer.addr(), ""));
        newer
    }

    /// Starts one that no client has used, and so without the sessions' node.
    pub(crate) fn start_unused(options: Options) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let serves = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = Server::bind_with((Ipv4Addr::LOCALHOST, 0).into(), options).unwrap();
                tell.send(server.addr()).unwrap();
                server.run(async { drop(stopped.await) }).await.unwrap();
            });
        });
        Self { address: told.recv().unwrap(), stop: Some(stop), serves: Some(serves) }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Newer {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.serves.take().map(JoinHandle::join);
    }
}
