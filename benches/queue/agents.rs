//! Agents in this process, as `slotkeeper agent` has them, but for the endpoints.
//!
//! All on one thread: on the few cores of one machine more threads would only take turns with Consul. An agent's latency
//! thus includes the time that it waits for the others of the thread, as it would on a busy machine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use slotkeeper::internals::agent::{self, Files, Parts};
use slotkeeper::internals::config::{self, Environment, Faults, Loaded, Overrides};
use slotkeeper::internals::exit::Exit;
use slotkeeper::internals::http::servers::Servers;
use slotkeeper::internals::metrics::Metrics;
use slotkeeper::internals::shutdown::SignalRequests;
use slotkeeper::internals::status::{Snapshot, State};
use slotkeeper::internals::watchdog::Watchdog;
use slotkeeper::internals::{clock, telemetry};
use tokio::sync::watch;

/// What an agent shows of itself.
pub(crate) type Status = watch::Receiver<Arc<Snapshot>>;

/// An agent that has not begun.
pub(crate) struct Agent {
    config: String,
    status: watch::Sender<Arc<Snapshot>>,
}

impl Agent {
    /// One that takes a slot of `prefix`.
    pub(crate) fn new(consul: SocketAddr, prefix: &str, limit: u32) -> Self {
        let config = format!(
            "consul: {{address: 'http://{consul}'}}\nhttp: {{listen: off}}\nlog: {{level: error}}\n\
             semaphores: [{{name: s, prefix: {prefix}, limit: {limit}}}]\n"
        );
        Self { config, status: watch::channel(Arc::new(agent::before_start(clock::now()))).0 }
    }

    pub(crate) fn status(&self) -> Status {
        self.status.subscribe()
    }

    /// Runs until it is asked to stop, and says what was wrong where it could not release its slot.
    pub(crate) async fn run(self, signals: SignalRequests) -> Result<(), String> {
        // Boxed: with all that an agent is made of.
        let ended = Box::pin(agent::run(parts(self.config, self.status, signals))).await;
        let exit = ended.map_err(|error| format!("{error:#}"))?.exit;
        if exit == Exit::Done { Ok(()) } else { Err(format!("the agent ended with {exit:?}")) }
    }
}

pub(crate) fn holds(status: &Snapshot) -> bool {
    status.semaphores.first().is_some_and(|semaphore| semaphore.entry.state == State::Held)
}

/// How many agents are in which state, and what is wrong with the first with which something is.
pub(crate) fn standing(statuses: &[Status]) -> String {
    let mut states = BTreeMap::new();
    let mut reason = None;
    for status in statuses {
        let ended = status.has_changed().is_err();
        let snapshot = status.borrow();
        let semaphore = snapshot.semaphores.first().filter(|_| !ended);
        reason = reason.or_else(|| semaphore.and_then(|semaphore| semaphore.entry.reason.clone()));
        let state =
            if ended { "ended" } else { semaphore.map_or("starting", |one| one.entry.state.as_str()) };
        *states.entry(state).or_insert(0) += 1;
    }
    format!("{states:?}; {}", reason.as_deref().unwrap_or("no reason given"))
}

fn parts(text: String, status: watch::Sender<Arc<Snapshot>>, signals: SignalRequests) -> Parts {
    let read_config = move || -> Result<Loaded, Faults> {
        config::parse("queue", &text, &Overrides::default(), &Environment::default())
    };
    let config = read_config().unwrap().config;
    Parts {
        control: None,
        files: Files::open(&config).unwrap(),
        log: telemetry::start(config.log),
        config,
        read_config: Arc::new(read_config),
        source: agent::Fingerprints::default(),
        metrics: Arc::new(Metrics::new().unwrap()),
        watchdog: Arc::new(Watchdog::new(clock::now())),
        status,
        stopping: watch::Sender::default(),
        signals,
        command: None,
        servers: Servers::default(),
    }
}
