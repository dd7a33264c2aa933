//! `slotkeeper dev`: the embedded Consul-compatible server alone.

use std::io::{self, Write};
use std::net::SocketAddr;

use anyhow::Context;
use clap::Args;

use super::Exit;
use crate::embedded::{BindError, Server};
use crate::shutdown::{Ask, Asks};

/// Run a Consul-compatible server in memory, for development: several agents on one machine can share it.
#[derive(Debug, Args)]
pub(super) struct Dev {
    /// Where to listen; loopback addresses only
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8500", value_parser = loopback)]
    listen: SocketAddr,
}

impl Dev {
    /// Serves until SIGTERM or SIGINT.
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<Exit> {
        // Before the address is told: whoever reads it may send a signal at once.
        let mut asks = Asks::listen().context("cannot listen for signals")?;
        let server = Server::bind(self.listen)?;
        announce(server.addr()).context("cannot write to the standard output")?;
        let stop = async move {
            // There is no configuration to be read again.
            while asks.next().await == Ask::Reload {}
        };
        server.run(stop).await.context("the development server failed")?;
        Ok(Exit::Done)
    }
}

/// Refused where it is read, so that it counts as wrong usage.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let addr: SocketAddr =
        text.parse().map_err(|_| "expected an address such as 127.0.0.1:8500".to_owned())?;
    if addr.ip().is_loopback() { Ok(addr) } else { Err(BindError::NotLoopback(addr).to_string()) }
}

fn announce(addr: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "Consul-compatible server on http://{addr}, for development only: all state is in memory")?;
    writeln!(out, "export CONSUL_HTTP_ADDR=http://{addr}")?;
    out.flush()
}
