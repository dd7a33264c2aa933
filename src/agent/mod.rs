//! The only place where the core and the client meet: one loop carries out what the core decides and tells it what
//! came of it. It owns all state that changes; what the world sees leaves by one channel.

mod announce;
mod execute;
mod reload;
mod snapshot;
mod state_file;
mod translate;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{error, info, warn};

use crate::cli::Exit;
use crate::clock::{self, Alarm};
use crate::config::{self, Config, Faults, Loaded};
use crate::consul::{self, Client, Code, Operation, SessionSpec};
use crate::files::KeptFile;
use crate::metrics::Metrics;
use crate::semaphore::{Event, Keeper, Moment, Name, Notice, OnLost, Start};
use crate::shutdown::{Ask, Asks};
use crate::status::{Snapshot, Stage};
use crate::telemetry;
use crate::vitals::{BEAT, Vitals};
use crate::workload::hooks::Hooks;

pub use state_file::{StateFile, StateFileError};

/// Anybody may read the readiness file; it holds no secret.
const READABLE: u32 = 0o644;
/// Time that the readiness file has to go before the slots are given back all the same.
const FILE_PATIENCE: Duration = Duration::from_secs(1);

/// What an agent is made of.
pub struct Parts {
    /// The configuration.
    pub config: Config,
    /// Reads it again, for a reload.
    pub read_config: Box<dyn Fn() -> Result<Loaded, Faults>>,
    /// The metrics, which the endpoints share.
    pub metrics: Arc<Metrics>,
    /// The pulse, which the endpoints share.
    pub vitals: Arc<Vitals>,
    /// Where what the world sees goes.
    pub status: watch::Sender<Arc<Snapshot>>,
    /// The signals.
    pub asks: Asks,
    /// The log level's handle.
    pub log: telemetry::Handle,
    /// Servers that run beside the agent. None may end before it.
    pub servers: JoinSet<io::Result<()>>,
}

/// The agent before its first round, for the endpoints that are served already.
pub fn before_start(now: Moment) -> Snapshot {
    let (session, semaphores) = (None, Vec::new());
    Snapshot { stage: Stage::Starting, started_at: now, started_up: false, session, semaphores }
}

/// Runs an agent until it has drained.
///
/// # Errors
///
/// What it needs at its start cannot be had: the client's certificates, the files' folders, a descriptor. Or one of
/// its own tasks ended, which is a defect.
pub async fn run(parts: Parts) -> anyhow::Result<Exit> {
    Agent::start(parts)?.run().await
}

struct Agent {
    parts: Parts,
    client: Client,
    spec: SessionSpec,
    keeper: Keeper,
    requests: JoinSet<Event>,
    watches: HashMap<Name, AbortHandle>,
    alarm: Alarm,
    readiness: Option<KeptFile>,
    state: Option<StateFile>,
    hooks: Hooks,
    started_at: Moment,
    started_up: bool,
    ready: bool,
    stage: Stage,
    /// How to end, once something has asked for it.
    ending: Option<Exit>,
    drain_ends: Option<Moment>,
}

impl Agent {
    fn start(parts: Parts) -> anyhow::Result<Self> {
        let now = clock::now();
        let config = &parts.config;
        let client = client(config, &parts.metrics)?;
        // Before the readiness file is touched: it tells whether another agent has these files now.
        let state = config.session.state_file.clone().map(StateFile::open).transpose()?;
        let (state, resume) = state.map_or((None, None), |(state, resume)| (Some(state), resume));
        let readiness = config.readiness.clone().map(|path| KeptFile::start_absent(path, READABLE));
        let readiness = readiness.transpose()?;
        let keeper = Keeper::new(
            Start {
                ttl: config.session.ttl,
                watch_grace: config.session.watch_grace,
                who: translate::identity(&config.identity),
                wall: clock::wall(),
                seed: fastrand::u64(..),
                resume,
            },
            now,
        );
        let mut agent = Self {
            client,
            spec: translate::session_spec(&config.session),
            keeper,
            requests: JoinSet::new(),
            watches: HashMap::new(),
            alarm: Alarm::new().context("cannot make a timer")?,
            readiness,
            state,
            hooks: Hooks::start(),
            started_at: now,
            started_up: false,
            ready: false,
            stage: Stage::Running,
            ending: None,
            drain_ends: None,
            parts,
        };
        for semaphore in agent.parts.config.semaphores.clone() {
            agent.add(&semaphore, now);
        }
        info!(
            consul = agent.client.address(),
            semaphores = agent.parts.config.semaphores.len(),
            "slotkeeper {} started",
            env!("CARGO_PKG_VERSION")
        );
        Ok(agent)
    }

    async fn run(mut self) -> anyhow::Result<Exit> {
        loop {
            let now = clock::now();
            self.parts.vitals.beat(now);
            self.carry_out();
            self.publish(now);
            if self.stage == Stage::Running && self.ending.is_some() {
                self.drain().await;
                continue;
            }
            if self.keeper.has_ended() || self.drain_ends.is_some_and(|ends| ends <= now) {
                return Ok(self.finish().await);
            }
            let wake = [self.keeper.deadline(), self.drain_ends].into_iter().flatten();
            let wake = wake.min().unwrap_or(now + BEAT).min(now + BEAT);
            tokio::select! {
                Some(ended) = self.requests.join_next() => match ended {
                    Ok(event) => self.keeper.handle(event, clock::now()),
                    // A watch that was called off.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => return Err(error).context("a request's task failed"),
                },
                rung = self.alarm.until(wake) => {
                    rung.context("the timer failed")?;
                    self.keeper.tick(clock::now());
                }
                ask = self.parts.asks.next() => match ask {
                    Ask::Reload => self.reload(),
                    Ask::Stop if self.stage == Stage::Running => self.end(Exit::Done, "told to stop"),
                    Ask::Stop => {
                        warn!("told to stop again: leaving at once; what is not given back yet ends with the session's TTL");
                        return Ok(Exit::Failed);
                    }
                },
                Some(ended) = self.parts.servers.join_next() => {
                    ended.context("a server's task failed")?.context("a server failed")?;
                    anyhow::bail!("a server ended by itself");
                }
            }
        }
    }

    /// Carries out what the core has decided.
    fn carry_out(&mut self) {
        while let Some(command) = self.keeper.next_command() {
            match execute::work(command, &self.keeper, &self.client, &self.spec) {
                execute::Work::Request(request) => {
                    self.requests.spawn(request);
                }
                execute::Work::Watch(name, watch) => {
                    self.watches.insert(name, self.requests.spawn(watch));
                }
                execute::Work::StopWatch(name) => {
                    if let Some(watch) = self.watches.remove(&name) {
                        watch.abort();
                    }
                }
                execute::Work::Tell(notice) => self.tell(&notice),
            }
        }
    }

    fn tell(&mut self, notice: &Notice) {
        announce::log(notice);
        self.parts.metrics.observe(notice);
        announce::call_hook(notice, &self.keeper, &self.parts.config.hooks, &self.hooks);
        if let Notice::Lost { name, .. } = notice
            && self.keeper.machine(name).is_some_and(|one| one.settings().on_lost == OnLost::Exit)
        {
            self.end(Exit::SlotLost, "the slot was lost and on_lost is `exit`");
        }
        if let Notice::GaveUp { name, reached } = notice
            && self.parts.config.semaphores.iter().any(|one| one.required && *one.name == **name)
        {
            let exit = if *reached { Exit::NotInTime } else { Exit::Unavailable };
            self.end(exit, "a required slot was not to be had in time");
        }
    }

    /// Lets the world see where things stand.
    fn publish(&mut self, now: Moment) {
        let mut snapshot = snapshot::snapshot(&self.keeper, &self.parts.config, self.stage, self.started_at);
        let ready = self.ending.is_none() && snapshot.is_ready(now);
        self.started_up |= ready;
        snapshot.started_up = self.started_up;
        if ready != self.ready {
            self.ready = ready;
            info!("{}", if ready { "ready" } else { "not ready" });
        }
        if let Some(readiness) = &self.readiness {
            readiness.set(ready.then(|| format!("{}\n", snapshot.file())));
        }
        if let Some(state) = self.state.as_ref().filter(|_| self.stage == Stage::Running) {
            state.save(&self.keeper);
        }
        self.parts.status.send_if_modified(|shown| {
            let changed = **shown != snapshot;
            if changed {
                *shown = Arc::new(snapshot);
            }
            changed
        });
    }

    fn end(&mut self, exit: Exit, why: &str) {
        if self.ending.is_none() {
            info!("draining: {why}");
            self.ending = Some(exit);
        }
    }

    /// Begins to give everything back: nobody may take us for ready when the first slot goes.
    async fn drain(&mut self) {
        let now = clock::now();
        self.stage = Stage::Draining;
        self.drain_ends = Some(now + self.parts.config.drain.timeout);
        self.publish(now);
        if let Some(readiness) = &mut self.readiness {
            readiness.settled(FILE_PATIENCE.min(self.parts.config.drain.timeout / 4)).await;
        }
        self.keeper.drain(clock::now());
    }

    async fn finish(mut self) -> Exit {
        let clean = self.keeper.has_ended();
        let exit = match self.ending {
            Some(Exit::Done) | None if !clean => Exit::Failed,
            ending => ending.unwrap_or(Exit::Done),
        };
        if clean {
            if let Some(state) = &mut self.state {
                state.clear(FILE_PATIENCE).await;
            }
            info!("drained: nothing is left in Consul");
        } else {
            error!(
                "drain.timeout ({} s) has passed before everything was given back; Consul ends the session by its TTL",
                self.parts.config.drain.timeout.as_secs()
            );
        }
        let left = self.drain_ends.map_or(Duration::ZERO, |ends| ends.since(clock::now()));
        self.hooks.finish(left).await;
        exit
    }

    fn add(&mut self, semaphore: &config::Semaphore, now: Moment) {
        self.parts.metrics.add_semaphore(&semaphore.name);
        self.keeper.add(semaphore.name.as_str().into(), translate::settings(semaphore), now);
    }

    fn reload(&mut self) {
        if self.stage != Stage::Running {
            return warn!("not reloading: draining");
        }
        let Loaded { config: mut new, warnings } = match (self.parts.read_config)() {
            Ok(loaded) => loaded,
            Err(faults) => {
                self.parts.metrics.reloaded(false);
                return error!("nothing is changed, since the configuration is wrong:\n{faults}");
            }
        };
        for warning in warnings {
            warn!("{warning}");
        }
        let is_leaving = |name: &str| {
            self.keeper.machine(name).is_some()
                && !self.parts.config.semaphores.iter().any(|semaphore| semaphore.name == name)
        };
        let changes = reload::compare(&self.parts.config, &mut new, is_leaving);
        match client(&new, &self.parts.metrics) {
            Ok(client) => self.client = client,
            Err(failure) => {
                self.parts.metrics.reloaded(false);
                return error!("nothing is changed: {failure:#}");
            }
        }
        for refused in &changes.refused {
            warn!("not changed: {refused}");
        }
        let now = clock::now();
        for name in &changes.removed {
            self.keeper.remove(&name.as_str().into(), now);
        }
        for semaphore in &changes.changed {
            self.keeper.reconfigure(&semaphore.name.as_str().into(), translate::settings(semaphore), now);
        }
        self.parts.log.set_level(new.log.level);
        self.parts.config = new;
        for semaphore in &changes.added {
            self.add(semaphore, now);
        }
        self.parts.metrics.reloaded(true);
        info!(
            added = changes.added.len(),
            removed = changes.removed.len(),
            changed = changes.changed.len(),
            "configuration reloaded"
        );
    }
}

fn client(config: &Config, metrics: &Arc<Metrics>) -> anyhow::Result<Client> {
    let observer: Arc<dyn consul::Observer> = Arc::<Metrics>::clone(metrics);
    Client::new(&config.consul, observer).context("cannot make a client of Consul")
}

impl consul::Observer for Metrics {
    fn finished(&self, operation: Operation, code: Code, took: Duration) {
        self.consul_request(operation.as_str(), code.as_str(), took);
    }
}
