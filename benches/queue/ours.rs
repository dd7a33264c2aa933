//! slotkeeper's lives: the agent itself, many times in this process.
//!
//! All on this thread: on the few cores of one machine more threads would only take turns with Consul. An agent's
//! latency thus includes the time that it waits for the others of the thread, as it would on a busy machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use slotkeeper::agent::{self, Files, Parts};
use slotkeeper::cli::Exit;
use slotkeeper::config::{self, Environment, Faults, Loaded, Overrides};
use slotkeeper::consul::{Code, Operation};
use slotkeeper::http::servers::Servers;
use slotkeeper::metrics::Metrics;
use slotkeeper::shutdown::{Ask, Asks};
use slotkeeper::status::{Snapshot, State};
use slotkeeper::vitals::Vitals;
use slotkeeper::{clock, telemetry};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinSet, LocalSet};

use crate::play::{Hold, LIMIT, Play, Program, Stage, patience};
use crate::support::proxy::Proxy;

type Status = watch::Receiver<Arc<Snapshot>>;

pub(crate) async fn play(proxy: &Proxy, clients: u32, hold: Duration) -> Play {
    let config = format!(
        "consul: {{address: 'http://{}'}}\nhttp: {{listen: off}}\nlog: {{level: warn}}\n\
         semaphores: [{{name: s, prefix: bench/ours/{clients}, limit: {LIMIT}}}]\n",
        proxy.addr()
    );
    let stage = Stage::set(proxy);
    // An agent's future may not change threads.
    let here = LocalSet::new();
    let mut lives = JoinSet::new();
    let mut statuses = Vec::new();
    for _ in 0..clients {
        let (status, shown) = watch::channel(Arc::new(agent::before_start(clock::now())));
        lives.spawn_local_on(live(config.clone(), status, hold), &here);
        statuses.push(shown);
    }
    let all = here.run_until(lives.join_all());
    let Ok(holds) = tokio::time::timeout(patience(clients, hold), all).await else {
        panic!("slotkeeper, {clients} clients: hung with {}", standing(&statuses));
    };
    stage.clear(Program::Slotkeeper, clients, hold, holds)
}

/// One client's life.
async fn live(config: String, status: watch::Sender<Arc<Snapshot>>, hold: Duration) -> Hold {
    let (stop, stopped) = oneshot::channel();
    let asks = stream::once(stopped).filter_map(async |told| told.ok().map(|()| Ask::Stop));
    let mut shown = status.subscribe();
    let works = async {
        let ended = "the agent ended before it held";
        shown.wait_for(|status| holds(status)).await.expect(ended);
        let seen = Instant::now();
        tokio::time::sleep(hold).await;
        assert!(holds(&shown.borrow()), "the slot was lost while it was held");
        let told = Instant::now();
        stop.send(()).expect("the agent listens");
        Hold { seen, told }
    };
    // Boxed: with all that an agent is made of.
    let (exit, hold) = tokio::join!(Box::pin(agent::run(parts(config, status, Asks::of(asks)))), works);
    assert_eq!(exit.expect("the agent runs").exit, Exit::Done);
    hold
}

fn holds(status: &Snapshot) -> bool {
    status.semaphores.iter().all(|semaphore| semaphore.state == State::Held) && !status.semaphores.is_empty()
}

/// An agent as `slotkeeper agent` has it, but for the endpoints.
fn parts(text: String, status: watch::Sender<Arc<Snapshot>>, asks: Asks) -> Parts {
    let read_config = move || -> Result<Loaded, Faults> {
        config::parse("queue", &text, &Overrides::default(), &Environment::default())
    };
    let config = read_config().unwrap().config;
    let operations = Operation::ALL.map(Operation::as_str);
    let codes = Code::ALL.map(Code::as_str);
    Parts {
        progress: None,
        control: None,
        files: Files::open(&config).unwrap(),
        log: telemetry::start(config.log),
        config,
        read_config: Arc::new(read_config),
        source: agent::Fingerprints::default(),
        metrics: Arc::new(Metrics::new(&operations, &codes).unwrap()),
        vitals: Arc::new(Vitals::new(clock::now())),
        status,
        asks,
        command: None,
        servers: Servers::default(),
    }
}

/// How many agents are in which state, and what is wrong with the first with which something is.
fn standing(statuses: &[Status]) -> String {
    let mut states = BTreeMap::new();
    let mut reason = None;
    for status in statuses {
        let ended = status.has_changed().is_err();
        let snapshot = status.borrow();
        let semaphore = snapshot.semaphores.first().filter(|_| !ended);
        reason = reason.or_else(|| semaphore.and_then(|semaphore| semaphore.reason.clone()));
        let state = if ended { "ended" } else { semaphore.map_or("starting", |one| one.state.as_str()) };
        *states.entry(state).or_insert(0) += 1;
    }
    format!("{states:?}; {}", reason.as_deref().unwrap_or("no reason given"))
}
