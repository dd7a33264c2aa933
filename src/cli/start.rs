//! Starts an agent with its endpoints in this process, for `agent` and `run`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use rustix::io::Errno;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::run::{CommandFlags, OutputFiles};
use super::{Ended, Exit, exit_of_faults};
use crate::agent::{self, Files, Fingerprints, Parts, ReadConfig, ended_before_start};
use crate::clock;
use crate::config::{Config, Control, Listen, Loaded, LogFormat};
use crate::control::request::Request;
use crate::control::{self, Gate, Socket};
use crate::files::FileError;
use crate::http::servers::Servers;
use crate::http::{Site, limits, router};
use crate::log_events::{
    CONFIGURATION_WARNING, CONTROL_ENDPOINTS_SERVED, DEVELOPMENT_ADDRESS_IN_USE, DEVELOPMENT_SERVER_STARTED,
    ENDPOINTS_SERVED, RUN_IN_RUN,
};
use crate::metrics::Metrics;
use crate::service_manager::Reporter;
use crate::shutdown::SignalRequests;
use crate::telemetry::{self, ALWAYS};
use crate::watchdog::Watchdog;
use crate::workload::beside::Unfit;
use crate::workload::{HELD_VARIABLE, open_files};
use slotkeeper_consul::{self, Address, SetupError};
use slotkeeper_consul_dev as embedded;
use slotkeeper_serve::{listen, serve};

/// The agent's purpose.
pub(super) enum Purpose<'a> {
    /// A workload beside it; `dev`: with a Consul-compatible server in this process.
    Agent {
        /// Whether to start that server.
        dev: bool,
    },
    /// A command that it runs itself, and the files that are written meanwhile.
    Command(CommandFlags, &'a mut OutputFiles),
}

/// Runs the agent to its end. `file` is the configuration file, if there is one.
pub(super) fn run(
    file: Option<PathBuf>,
    read_config: ReadConfig,
    purpose: Purpose<'_>,
) -> anyhow::Result<Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(read_and_start(file, read_config, purpose));
    // A read or write that hangs on a slow disk is abandoned.
    runtime.shutdown_background();
    ended
}

async fn read_and_start(
    file: Option<PathBuf>,
    read_config: ReadConfig,
    purpose: Purpose<'_>,
) -> anyhow::Result<Ended> {
    // Each semaphore needs several connections: raise the limit of open files here, so that no operator has to.
    open_files::raise();
    let signals = match &purpose {
        Purpose::Agent { .. } => SignalRequests::listen(),
        Purpose::Command(..) => SignalRequests::to_pass_on(),
    };
    let mut signals = signals.context("cannot listen for signals")?;
    let read = Arc::clone(&read_config);
    let read = move || {
        // Watch before the first read, so that no change is missed.
        let source = agent::fingerprints(file.clone());
        let read = read();
        if let (Err(_), Some(file)) = (&read, file) {
            Files::forget(&file);
        }
        read.map(|loaded| (loaded, source))
    };
    let (Loaded { config, warnings }, source) = match signals.unless_stopped(read).await {
        Ok(Ok(read)) => read,
        Ok(Err(faults)) => {
            if faults.log_format == LogFormat::Json {
                telemetry::start_json();
            }
            return Ok(Ended::because(exit_of_faults(&faults), faults.to_string()));
        }
        Err(request) => return Ok(ended_before_start(request)),
    };
    let log = telemetry::start(config.log);
    for warning in warnings {
        warn!(%warning, "{CONFIGURATION_WARNING}");
    }
    if matches!(purpose, Purpose::Command(..)) {
        warn_if_nested(&config);
    }
    let ended = Box::pin(start(config, (read_config, source), purpose, signals, log)).await;
    Ok(ended.unwrap_or_else(|failure| {
        let is_config =
            FileError::is_misplaced(&failure) || failure.is::<Unfit>() || failure.is::<SetupError>();
        let exit = if is_config { Exit::Config } else { Exit::Failed };
        Ended::because(exit, format!("{failure:#}"))
    }))
}

/// Warns of a `run` that waits without a bound inside a command that holds a slot already, of `consul lock` too: for itself, if that
/// is the same slot. Two such jobs that take their slots in opposite order wait for each other.
fn warn_if_nested(config: &Config) {
    let held = std::env::var(HELD_VARIABLE).unwrap_or_default();
    let outside = ["SLOTKEEPER_SESSION", "CONSUL_LOCK_HELD"];
    let variable =
        outside.into_iter().find(|name| std::env::var_os(name).is_some_and(|held| !held.is_empty()));
    let waits = config.entries().filter(|entry| entry.is_required() && entry.wait.is_none());
    let mut waits = waits.peekable();
    let Some(variable) = variable.filter(|_| waits.peek().is_some()) else { return };
    let is_held = |key: &str| held.split(' ').any(|one| one == key);
    if let Some(own) = waits.find(|entry| is_held(&entry.key)) {
        let name = config.naming.of(&own.name, &own.key);
        warn!(
            target: ALWAYS,
            "{RUN_IN_RUN}: the command that started it holds a slot of {name}, which is not free before both have ended; \
             start the inner command without `slotkeeper run`, or bound the wait with --timeout"
        );
    } else {
        warn!(
            variable,
            "{RUN_IN_RUN}; two such jobs in opposite order wait for each other for ever: write all semaphores in one file and use \
             one `slotkeeper run --config FILE`, or bound the wait with --timeout"
        );
    }
}

async fn start(
    mut config: Config,
    (mut read_config, source): (ReadConfig, Fingerprints),
    purpose: Purpose<'_>,
    mut signals: SignalRequests,
    log: telemetry::Handle,
) -> anyhow::Result<Ended> {
    let (command, written, dev) = match purpose {
        Purpose::Agent { dev } => (None, None, dev),
        Purpose::Command(flags, files) => (Some(flags.command(config.session.ttl)), Some(files), false),
    };
    // Remove the files of a killed process first: a later step may fail, and stale files would mislead.
    let wanted = config.clone();
    let files = match signals.unless_stopped(move || Files::open(&wanted)).await {
        Ok(files) => files?,
        Err(request) => return Ok(ended_before_start(request)),
    };
    let mut servers = Servers::default();
    if dev {
        let mut authority = String::new();
        servers.start(|stop| {
            let server = development_server(config.consul.address.first())?;
            authority = server.addr().to_string();
            Ok(server.run(stop))
        })?;
        let address = Address::Http { https: false, authority, path: String::new() };
        let settings =
            slotkeeper_consul::Settings { address: address.into(), ..slotkeeper_consul::Settings::default() };
        config.consul = settings.clone();
        let own = read_config;
        read_config = Arc::new(move || {
            let mut loaded = own()?;
            loaded.config.consul = settings.clone();
            Ok(loaded)
        });
    }
    let now = clock::now();
    let metrics = Arc::new(Metrics::new().context("cannot register the metrics")?);
    if let Some(files) = written {
        files.follow(&metrics);
    }
    let watchdog = Arc::new(Watchdog::new(now));
    let (status, shown) = watch::channel(Arc::new(agent::before_start(now)));
    let (stopping, stops) = watch::channel(false);
    if let Some(reporter) = Reporter::of_process(shown.clone(), stops, Arc::clone(&watchdog), config.naming) {
        servers.start(|stop| Ok(reporter.run(stop)))?;
    }
    let site = Site::new(shown, Arc::clone(&metrics), Arc::clone(&watchdog));
    if let Some(address) = config.http.listen {
        let routes = router(site.clone(), address.ip());
        servers.start(|stop| {
            let listener = listen(address)
                .map_err(|error| cannot_listen("http.listen", address, "SLOTKEEPER_HTTP_LISTEN", error))?;
            let address = listener.local_addr().unwrap_or(address);
            info!(address = %format_args!("http://{address}"), "{ENDPOINTS_SERVED}");
            Ok(serve(listener, routes, limits(), stop))
        })?;
    }
    let wanted = config.control.clone();
    let serve_control = move || {
        let control = wanted.map(|control| control_server(&control, site, &mut servers)).transpose();
        (control, servers)
    };
    let (control, servers) = match signals.unless_stopped(serve_control).await {
        Ok((control, servers)) => (control?, servers),
        Err(request) => return Ok(ended_before_start(request)),
    };
    let parts = Parts {
        config,
        files,
        read_config,
        source,
        metrics,
        watchdog,
        status,
        stopping,
        signals,
        control,
        command,
        log,
        servers,
    };
    Box::pin(agent::run(parts)).await
}

/// Serves the control endpoints, and returns the receiver of their requests.
fn control_server(
    control: &Control,
    site: Site,
    servers: &mut Servers,
) -> anyhow::Result<mpsc::Receiver<Request>> {
    let (requests, receiver) = control::request::requests();
    let limits = control::limits(control.max_waits);
    match &control.listen {
        Listen::Unix(path) => {
            servers.start(|stop| {
                let socket = Socket::bind(path).context("control.listen")?;
                info!(address = %format_args!("unix:{}", path.display()), "{CONTROL_ENDPOINTS_SERVED}");
                Ok(serve(socket, control::router(requests, site, Gate::Open), limits, stop))
            })?;
        }
        Listen::Tcp(address) => {
            let token = control::token_of_file(&control.token_file).context("control.token_file")?;
            servers.start(|stop| {
                let listener = listen(*address).map_err(|error| {
                    cannot_listen("control.listen", *address, "SLOTKEEPER_CONTROL_LISTEN", error)
                })?;
                let address = listener.local_addr().unwrap_or(*address);
                info!(
                    address = %format_args!("http://{address}"),
                    token_file = %control.token_file.display(),
                    "{CONTROL_ENDPOINTS_SERVED}"
                );
                Ok(serve(listener, control::router(requests, site, Gate::Token(token)), limits, stop))
            })?;
        }
    }
    Ok(receiver)
}

/// Explains why the system does not give an address.
pub(super) fn cannot_listen(
    key: &str,
    address: SocketAddr,
    variable: &str,
    error: io::Error,
) -> anyhow::Error {
    let advice = match Errno::from_io_error(&error) {
        Some(Errno::ADDRINUSE) => "another process listens there, perhaps another agent; choose another port",
        Some(Errno::ACCESS) => "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one",
        Some(Errno::ADDRNOTAVAIL) => "this machine does not have that IP address; choose one that it has",
        Some(_) | None => "choose another address",
    };
    anyhow::anyhow!(
        "cannot listen at {key} {address}: {error}: {advice}, in the configuration or by {variable}"
    )
}

/// Starts the development server at the configured Consul address if that is on this machine and free. A second agent with the same
/// configuration then uses it without `--dev`.
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
                error = %taken,
                "{DEVELOPMENT_ADDRESS_IN_USE}, which takes another port and shares nothing with the server there"
            );
            embedded::Server::bind(any)?
        }
        None => embedded::Server::bind(any)?,
    };
    warn!(
        address = %format_args!("http://{}", server.addr()),
        "{DEVELOPMENT_SERVER_STARTED}: in memory, for this machine only, never for production"
    );
    Ok(server)
}
