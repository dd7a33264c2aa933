//! The embedded server, inside the test's process.

use std::net::{Ipv4Addr, SocketAddr};

use slotkeeper_consul_dev::{Options, Server};
use tokio::task::JoinHandle;

/// A running embedded server; it ends with this value.
#[derive(Debug)]
pub struct Embedded {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Embedded {
    /// One that keeps Consul's own times. Needs a tokio runtime.
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// One with times of the test's own.
    pub fn start_with(options: Options) -> Self {
        let server = Server::bind_with((Ipv4Addr::LOCALHOST, 0).into(), options).unwrap();
        let addr = server.addr();
        let task = tokio::spawn(async move { server.run(std::future::pending()).await.unwrap() });
        Self { addr, task }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its address as clients are configured with it.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.task.abort();
    }
}
