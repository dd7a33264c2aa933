//! `slotkeeper agent`: the long-running sidecar.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::{ConsulFlags, Exit};
use crate::agent::{self, Files, Parts};
use crate::config::{self, Config, Environment, Faults, Loaded, Overrides};
use crate::consul::{self, Address, Code, Operation};
use crate::http::serve::{Limits, serve};
use crate::http::{Site, router};
use crate::metrics::Metrics;
use crate::shutdown::Asks;
use crate::vitals::Vitals;
use crate::{clock, embedded, telemetry};

/// Hold slots on behalf of the workload beside this process, until SIGTERM.
///
/// On SIGTERM and SIGINT everything is given back and the exit code is 0; a second signal ends at once. SIGHUP reads
/// the configuration again.
#[derive(Debug, Args)]
pub(super) struct Agent {
    /// Configuration file.
    #[arg(long, value_name = "FILE", env = "SLOTKEEPER_CONFIG")]
    config: PathBuf,
    /// Start a Consul-compatible server in this process and use it: for development, in memory, on loopback only.
    ///
    /// It listens where the configuration has Consul if that is on this machine and free, else on any free port.
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    consul: ConsulFlags,
}

impl Agent {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let mut overrides = Overrides::default();
        self.consul.lay_over(&mut overrides);
        let path = self.config.clone();
        let read_config = move || config::load(&path, &overrides, &Environment::of_process());
        let Loaded { config, warnings } = match read_config() {
            Ok(loaded) => loaded,
            Err(faults) => {
                Files::forget(&self.config);
                writeln!(io::stderr(), "{faults}")?;
                return Ok(Exit::Config);
            }
        };
        let log = telemetry::start(config.log);
        for warning in warnings {
            warn!("{warning}");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(start(config, read_config, self.dev, log));
        // A write that hangs on a slow disk is left behind.
        runtime.shutdown_background();
        Ok(ended.unwrap_or_else(|failure| {
            tracing::error!("{failure:#}");
            Exit::Failed
        }))
    }
}

async fn start(
    mut config: Config,
    read_config: impl Fn() -> Result<Loaded, Faults> + 'static,
    dev: bool,
    log: telemetry::Handle,
) -> anyhow::Result<Exit> {
    let asks = Asks::listen().context("cannot listen for signals")?;
    // Before anything that may fail: nobody may be misled by what a killed process has left.
    let files = Files::open(&config)?;
    let mut servers = JoinSet::new();
    let mut read_config: Box<dyn Fn() -> Result<Loaded, Faults>> = Box::new(read_config);
    if dev {
        let server = development_server(&config.consul.address)?;
        let authority = server.addr().to_string();
        let address = Address::Http { https: false, authority, path: String::new() };
        let settings = consul::Settings { address, ..consul::Settings::default() };
        config.consul = settings.clone();
        servers.spawn(server.run(std::future::pending()));
        read_config = Box::new(move || {
            let mut loaded = read_config()?;
            loaded.config.consul = settings.clone();
            Ok(loaded)
        });
    }
    let now = clock::now();
    let metrics = metrics().context("cannot make the metrics")?;
    let vitals = Arc::new(Vitals::new(now));
    let (status, shown) = watch::channel(Arc::new(agent::before_start(now)));
    if let Some(address) = config.http.listen {
        let site = Site { status: shown, metrics: Arc::clone(&metrics), vitals: Arc::clone(&vitals) };
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| {
                format!(
                    "cannot listen at http.listen {address}: is another agent running there? Choose another address, \
                     in the configuration or by SLOTKEEPER_HTTP_LISTEN"
                )
            })?;
        info!("endpoints at http://{}", listener.local_addr().unwrap_or(address));
        servers.spawn(serve(listener, router(site), Limits::default(), std::future::pending()));
    }
    agent::run(Parts { config, files, read_config, metrics, vitals, status, asks, log, servers }).await
}

fn metrics() -> prometheus::Result<Arc<Metrics>> {
    let operations = Operation::ALL.map(Operation::as_str);
    let codes = Code::ALL.map(Code::as_str);
    Metrics::new(&operations, &codes).map(Arc::new)
}

/// The development server where the configuration has Consul, if that is on this machine and free: a second agent then
/// finds it with the same configuration and without `--dev`.
fn development_server(wanted: &Address) -> anyhow::Result<embedded::Server> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let wanted = match wanted {
        Address::Http { authority, .. } => {
            authority.parse().ok().filter(|address: &SocketAddr| address.ip().is_loopback())
        }
        Address::Unix(_) => None,
    };
    let server = match wanted.map(embedded::Server::bind) {
        Some(Ok(server)) => server,
        Some(Err(taken)) => {
            warn!(
                "{taken}; the development server takes another port, and shares nothing with what is there"
            );
            embedded::Server::bind(any)?
        }
        None => embedded::Server::bind(any)?,
    };
    warn!(
        "development server at http://{}: in memory, for this machine only, never for production",
        server.addr()
    );
    Ok(server)
}
