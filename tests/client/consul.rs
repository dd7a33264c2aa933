//! The shared Consul, with its address as the client takes it.

use std::path::Path;

use slotkeeper_consul::Address;

pub(crate) use crate::support::consul::Setup;
use crate::support::{consul, ports::Ports};

/// A server of the test's own; ends with the value.
pub(crate) struct Consul {
    server: consul::Consul,
    address: Address,
}

impl Consul {
    /// Starts one with the defaults.
    pub(crate) async fn start() -> Self {
        Self::start_with(Setup::default()).await
    }

    /// Starts one as `setup` says.
    pub(crate) async fn start_with(setup: Setup) -> Self {
        let server = consul::Consul::start_with(setup).await;
        let address = server.url().parse().unwrap();
        Self { server, address }
    }

    /// Starts one that is asked by a unix socket.
    pub(crate) async fn start_on_socket(socket: &Path) -> Self {
        let url = format!("unix://{}", socket.display());
        let config = format!("addresses {{ http = \"127.0.0.1 {url}\" }}");
        let server = consul::Consul::start_with(Setup { config, ..Setup::default() }).await;
        Self { server, address: url.parse().unwrap() }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> &Address {
        &self.address
    }

    /// The same as a proxy takes it.
    pub(crate) fn http_addr(&self) -> std::net::SocketAddr {
        self.server.addr()
    }

    /// The port where it listens for HTTPS.
    pub(crate) fn https_port(&self) -> u16 {
        self.server.https_addr().port()
    }
}

/// An address at which no server listens while the ports are reserved.
pub(crate) fn nobody() -> (Ports, String) {
    let ports = Ports::reserve();
    let address = ports.addr(0).to_string();
    (ports, address)
}
