//! The agent: one loop that executes the core's commands against Consul and passes the core the answers as events.
//!
//! The loop owns all mutable state. Snapshots for the endpoints leave by one channel.

mod announce;
mod beside;
mod confirms;
mod control;
mod driver;
mod ending;
mod eviction;
mod execute;
mod fatal;
mod files;
mod journal;
mod labels;
mod leases;
mod listings;
mod notices;
mod observer;
mod outage;
mod permanent;
mod publish;
mod reload;
mod snapshot;
mod state_file;
mod timeout;
mod translate;
mod watches;
mod workload;

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tracing::{info, warn};

use crate::clock::{self, Alarm};
use crate::config::{Config, Faults, Loaded, LogFormat, LogLevel, Mode};
use crate::control::request::Request;
use crate::exit::{Ended, Exit};
use crate::http::servers::Servers;
use crate::log_events::{AGENT_STARTED, STOP_REPEATED, STOPPED_DURING_START};
use crate::metrics::Metrics;
use crate::session_node::Sessions;
use crate::shutdown::{SignalRequest, SignalRequests};
use crate::status::{Configuration, ReloadSignals, Snapshot, pid_namespace};
use crate::telemetry;
use crate::waiting::Wait;
use crate::watchdog::{HEARTBEAT, Watchdog};
use crate::workload::hooks::Hooks;
use crate::workload::orphans::Orphans;
use crate::workload::{Command, Running, signals, terminal};
use slotkeeper_consul::Client;
use slotkeeper_semaphore::{Event, Keeper, Moment, Name, Start};

#[cfg(test)]
pub(crate) use reload::is_fixed;

use beside::Beside;
use driver::{Done, Driver, Owner, Requests};
use ending::Ending;
use eviction::Evictions;
pub use files::Files;
use journal::Journal;
use labels::Labels;
use leases::Leases;
use observer::client;
use outage::Outage;
pub use publish::before_start;
use publish::{PUBLISH_INTERVAL, Unpublished};
use reload::{Deferred, Reload, Watch};
pub use reload::{Fingerprints, fingerprints};
use state_file::Left;

/// Answers that are handled before the rest of the round.
const MAX_ANSWERS_PER_ROUND: usize = 256;

/// Reads the configuration again. It may block on a file system, so it runs on a thread of its own.
pub type ReadConfig = Arc<dyn Fn() -> Result<Loaded, Faults> + Send + Sync>;

/// The inputs of an agent.
pub struct Parts {
    /// The configuration.
    pub config: Config,
    /// Its files.
    pub files: Files,
    /// Reads it again, for a reload.
    pub read_config: ReadConfig,
    /// The fingerprint of the configuration file, taken before the file was read.
    pub source: Fingerprints,
    /// The metrics, which the endpoints share.
    pub metrics: Arc<Metrics>,
    /// The watchdog, which the endpoints share.
    pub watchdog: Arc<Watchdog>,
    /// The snapshots that the endpoints serve.
    pub status: watch::Sender<Arc<Snapshot>>,
    /// Whether the agent ends, for the service manager.
    pub stopping: watch::Sender<bool>,
    /// Requests to stop or reload: the process's signals.
    pub signals: SignalRequests,
    /// Requests of the control endpoints.
    pub control: Option<mpsc::Receiver<Request>>,
    /// The command of `slotkeeper run`. `None`: the workload is a process of its own.
    pub command: Option<Command>,
    /// The log level's handle.
    pub log: telemetry::Handle,
    /// The agent fails if one of its servers ends before it.
    pub servers: Servers,
}

/// Runs an agent until it has drained.
///
/// # Errors
///
/// Something that the start needs is missing: a certificate, a folder, a file descriptor. Or one of the agent's tasks ended,
/// which is a defect.
pub async fn run(mut parts: Parts) -> anyhow::Result<Ended> {
    let (config, metrics) = (parts.config.clone(), Arc::clone(&parts.metrics));
    let read = move || {
        let seen = fingerprints(reload::tls_files(&config.consul.tls));
        client(&config, &metrics).map(|client| (client, seen))
    };
    match parts.signals.unless_stopped(read).await {
        Ok(read) => {
            let (client, seen) = read?;
            let mut agent = Agent::start(parts, client)?;
            agent.watch(agent.parts.source.clone().into_iter().chain(seen).collect());
            Box::pin(agent.run()).await
        }
        Err(request) => Ok(ended_before_start(request)),
    }
}

/// The end of a process that is stopped before its agent runs, as while a file system does not answer.
pub fn ended_before_start(request: SignalRequest) -> Ended {
    info!("{STOPPED_DURING_START}; no slot is held");
    match request {
        SignalRequest::Stop | SignalRequest::Reload => Exit::Done.into(),
        SignalRequest::Signal(signal) => {
            let exit = Exit::PassedOn(u8::try_from(signal).unwrap_or(0).saturating_add(128));
            Ended::because(exit, format!("ended by {} during the start", signals::name(signal)))
        }
    }
}

struct Agent {
    parts: Parts,
    client: Client,
    sessions: Sessions,
    /// The keeper of the slots that the agent holds itself.
    own: Driver,
    /// The configured names of those semaphores and locks.
    labels: Labels,
    /// Entries of the configuration that cannot be acquired yet, by the core's names.
    pending: BTreeSet<Name>,
    reload: Reload,
    /// Watches the configuration files (`reload.watch`).
    watch: Option<Watch>,
    /// Changes that automatic reloads have left to an explicit one.
    deferred: Deferred,
    configuration: Configuration,
    /// The agent runs a command. No reload releases the slots that the command was started on.
    is_run: bool,
    /// The leases of the control endpoints' clients.
    leases: Leases,
    requests: Requests,
    alarm: Alarm,
    hooks: Hooks,
    /// Recent events.
    journal: Journal,
    /// When the last snapshot was published, and what has changed since.
    published_at: Moment,
    unpublished: Unpublished,
    outage: Outage,
    /// The wait for the command's slots, where standard error tells it.
    wait: Option<Wait>,
    /// The command that runs on the slots.
    running: Option<Running>,
    /// The guard of the command that has ended.
    guard: Option<Running>,
    /// The guard has taken on what was left to do in Consul.
    handed_over: bool,
    /// Since a command was started.
    orphans: Option<Orphans>,
    /// The workload of the section `workload`.
    beside: Option<Beside>,
    /// The agent has resumed the session of an earlier process.
    resumes: bool,
    /// When the session was created; `None` for a resumed one.
    session_created_at: Option<Moment>,
    started_at: Moment,
    started_up: bool,
    ready: bool,
    ending: Ending,
    /// Lost slots that are kept while their workload is being stopped.
    evictions: Evictions,
    /// When a terminating signal was last acted on or passed on.
    signalled_at: Option<Moment>,
}

impl Agent {
    fn start(mut parts: Parts, client: Client) -> anyhow::Result<Self> {
        let now = clock::now();
        let before = Arc::clone(&parts.status.borrow());
        let is_run = parts.command.is_some();
        // Under `slotkeeper run`, SIGHUP goes to the command.
        let file = parts.source.keys().next().and_then(|path| std::path::absolute(path).ok());
        let pid_namespace = pid_namespace();
        let signals = (!is_run).then(|| ReloadSignals { file, pid_namespace, ..ReloadSignals::default() });
        let (begun, configuration) = (before.id, Configuration { signals, ..before.configuration.clone() });
        let config = &parts.config;
        let beside = config.workload.as_ref().map(Beside::of).transpose()?;
        let left = parts.files.left.take();
        if let Some(Left { resume, ttl }) = &left {
            client.remember(resume.session.as_str(), *ttl);
        }
        let resume = left.map(|left| left.resume);
        let together = translate::together(config, resume.as_ref());
        let resumes = resume.is_some();
        let start = translate::start(config, translate::held(config), resume);
        let start = Start { together, ..start };
        let mut labels = Labels::new(config.naming);
        for entry in config.entries() {
            if entry.mode == Mode::Hold {
                labels.set(entry.id(), &entry.name);
            }
            reload::add_series(&parts.metrics, entry);
        }
        // The log tells a wait at `info`, but not in one place.
        let log = config.log;
        let is_told =
            parts.command.is_some() && log.format == LogFormat::Text && log.level != LogLevel::Error;
        let wait = is_told.then(|| Wait::begin(log.level == LogLevel::Warn, now)).flatten();
        if wait.is_some() {
            // In the background, the kernel would stop a process that draws (`stty tostop`).
            terminal::may_be_set()?;
        }
        let agent = Self {
            client,
            sessions: translate::sessions(config),
            own: Driver::new(Owner::Agent, Keeper::new(start, now)),
            labels,
            pending: BTreeSet::new(),
            reload: Reload::default(),
            watch: None,
            deferred: Deferred::new(),
            configuration,
            is_run,
            leases: Leases::new(control::bounds(config), config.session.ttl),
            requests: Requests::new(config.session.ttl),
            alarm: Alarm::new().context("cannot create a timer")?,
            hooks: Hooks::default(),
            journal: Journal::new(begun),
            published_at: now,
            unpublished: Unpublished::All,
            outage: Outage::default(),
            wait,
            running: None,
            guard: None,
            handed_over: false,
            orphans: None,
            beside,
            resumes,
            session_created_at: None,
            started_at: now,
            started_up: false,
            ready: false,
            ending: Ending::default(),
            evictions: Evictions::default(),
            signalled_at: None,
            parts,
        };
        info!(
            consul = agent.client.address(),
            semaphores = agent.parts.config.semaphores.len(),
            locks = agent.parts.config.locks.len(),
            version = env!("CARGO_PKG_VERSION"),
            "{AGENT_STARTED}"
        );
        Ok(agent)
    }

    async fn run(mut self) -> anyhow::Result<Ended> {
        loop {
            let now = clock::now();
            self.parts.watchdog.heartbeat(now);
            if self.wait.as_ref().is_some_and(|wait| wait.reads(now)) {
                self.own.keeper.refresh_soon(now);
            }
            self.check_reload_timeout(now);
            self.carry_out(now);
            let may_be_hopeless = self.end_hopeless_wait(now);
            self.advance_leases(now);
            self.check_pending(now);
            let hands_over = self.may_hand_over();
            if !hands_over {
                let client = self.client_for_now();
                self.requests.ask_for_listings(&client);
                self.requests.ask_for_confirmations(&client);
                self.requests.ask_for_watches(&client, now);
            }
            // Requests are sent before the rest of the round: another client may be about to acquire the same slot.
            tokio::task::yield_now().await;
            if !self.may_publish_later(now) {
                self.publish(now);
            }
            self.publish_stop();
            self.tell_wait(may_be_hopeless, now);
            self.leases.give_answers();
            self.check_tasks()?;
            self.advance_command(now);
            self.advance_drain_deadlines(now);
            self.advance_beside(now);
            self.advance_evictions(now).await;
            let runs = self.running.is_some() || self.withholds() || self.workload_lives();
            if self.ending.awaits_workload() && !runs {
                self.begin_drain().await;
                self.unpublished = Unpublished::All;
                continue;
            }
            let is_over = self.ending.drain().is_some_and(|drain| drain.ends <= now);
            if hands_over {
                self.hand_over().await;
                if !self.handed_over {
                    continue;
                }
            }
            if self.everything_has_ended() || is_over {
                return Ok(self.finish().await);
            }
            let is_left = self.ending.drain().is_some() && !self.is_released();
            if self.ending.abandon(now, is_left, !self.only_awaits_takers()) {
                self.own.keeper.abandon(now);
                self.leases.abandon(now);
                self.unpublished = Unpublished::All;
                continue;
            }
            let drain = self.ending.drain_deadline();
            let command = self.running.as_ref().map(Running::deadline);
            let hold = self.holds_on().map(|deadlines| deadlines.hold_until);
            let (own, leases) = (self.own.keeper.deadline(), self.leases.deadline());
            let (evictions, watches) = (self.evictions_deadline(), self.requests.deadline());
            let others =
                [evictions, watches, self.reload.deadline(), self.outage.deadline(), self.beside_deadline()];
            let own =
                [own, drain, command, hold, self.hopeless_at()].into_iter().chain(others).flatten().min();
            let seen =
                (self.unpublished > Unpublished::Nothing).then_some(self.published_at + PUBLISH_INTERVAL);
            let told = self.wait.as_ref().map(Wait::next);
            let wake =
                own.into_iter().chain(leases).chain(seen).chain(told).fold(now + HEARTBEAT, Moment::min);
            // Unless the event says otherwise, everything may have changed.
            let unpublished = std::mem::replace(&mut self.unpublished, Unpublished::All);
            tokio::select! {
                Some(ended) = self.requests.tasks.join_next() => {
                    let mut news = self.answered(ended)?;
                    // One change answers the watches of many leases at once; one snapshot shows all of them.
                    for _ in 0..MAX_ANSWERS_PER_ROUND {
                        let Some(ended) = self.requests.tasks.try_join_next() else { break };
                        news = news.max(self.answered(ended)?);
                    }
                    self.unpublished = unpublished.max(news);
                }
                rung = self.alarm.until(wake) => {
                    rung.context("the timer failed")?;
                    let now = clock::now();
                    self.own.keeper.tick(now);
                    self.leases.tick(now);
                    // By time alone change the client's view of Consul's addresses and the freshness of the lease.
                    if own.is_none_or(|own| own > now) {
                        self.unpublished = unpublished.max(Unpublished::Leases);
                    }
                }
                Some(request) = control::next(&mut self.parts.control) => {
                    if request.is_of_a_lease() {
                        self.unpublished = unpublished.max(Unpublished::Leases);
                    }
                    self.asked(request);
                }
                () = self.parts.watchdog.viewed() => {
                    let now = clock::now();
                    self.own.keeper.refresh_soon(now);
                    self.leases.look(now);
                    // Nothing has changed yet: the answers will tell.
                    self.unpublished = unpublished.max(Unpublished::Leases);
                }
                Some(key) = self.leases.absent() => self.leases.client_gone(key, clock::now()),
                read = self.reload.ended() => self.reload_read(read).await,
                files = reload::changed(&mut self.watch) => self.files_changed(&files),
                Some((number, how)) = self.evictions.stopped() => self.hook_ended(number, how),
                told = workload::next(&mut self.running) => self.command_told(told),
                () = workload::orphan_ended(&mut self.orphans) => self.reap_orphans(),
                () = self.hooks.ended() => {}
                // The next round passes the token to the guard.
                () = self.client.login_token_changed(), if self.running.is_some() => {}
                () = self.client.cut_loose() => self.change_cluster(),
                request = self.parts.signals.next() => match request {
                    SignalRequest::Reload => self.sighup_received(),
                    SignalRequest::Signal(signal) => if self.signalled(signal).await {
                        self.dismiss_guard().await;
                        let exit = self.ending.exit().unwrap_or(Exit::Failed);
                        return Ok(self.ending.ended(exit));
                    },
                    SignalRequest::Stop if !self.ending.stop_was_requested() => self.stop(),
                    SignalRequest::Stop if self.awaits_done() => self.wait_no_longer(STOP_REPEATED),
                    SignalRequest::Stop => {
                        warn!("{STOP_REPEATED}: exiting at once; slots that are not released yet end with the session's TTL");
                        return Ok(Ended::because(
                            Exit::Failed,
                            "stop requested again during the drain; what is left in Consul ends with the session's TTL",
                        ));
                    }
                },
                Some(ended) = self.parts.servers.ended() => {
                    ended.context("a server's task failed")?.context("a server failed")?;
                    anyhow::bail!("a server ended by itself");
                }
            }
        }
    }

    /// Handles an answer. Returns what it may have changed.
    fn answered(&mut self, ended: Result<Done, JoinError>) -> anyhow::Result<Unpublished> {
        let now = clock::now();
        let events: Vec<_> = match ended.context("a request's task failed")? {
            Done::Event(owner, event) => return Ok(self.take_in(owner, event, now)),
            Done::Listed(prefix, answer) => self.requests.listed(&prefix, &answer).collect(),
            Done::Confirmed(events) => events,
            Done::Watches(answer) => self.requests.watched(answer, now),
        };
        let news = events.into_iter().map(|(owner, event)| self.take_in(owner, event, now));
        Ok(news.max().unwrap_or(Unpublished::Nothing))
    }

    fn take_in(&mut self, owner: Owner, event: Event, now: Moment) -> Unpublished {
        match owner {
            Owner::Agent => {
                self.own.answered(event, now);
                Unpublished::All
            }
            Owner::Lease(key) => {
                self.leases.answered(key, event, now);
                Unpublished::Leases
            }
        }
    }

    /// A file's task that ended unnoticed would leave the file wrong for ever.
    fn check_tasks(&self) -> anyhow::Result<()> {
        let mut tasks = self.parts.files.tasks();
        anyhow::ensure!(tasks.all(|task| !task.is_finished()), "a task that keeps a file ended by itself");
        Ok(())
    }

    /// Executes the core's commands.
    fn carry_out(&mut self, now: Moment) {
        let client = self.client_for_now();
        loop {
            let notices = self.own.carry_out(&client, &self.sessions, &mut self.requests, now);
            if notices.is_empty() {
                break;
            }
            // Handling a notice may lead to further commands.
            for notice in notices {
                self.tell(&notice);
            }
        }
    }

    /// The address in use may belong to another cluster than the one before. No lease is valid any more.
    fn change_cluster(&mut self) {
        self.client = self.client.bound();
        let now = clock::now();
        self.own.keeper.change_cluster(now);
        self.leases.change_cluster(now);
    }

    /// A dead connection must not use up the time of a drain.
    fn client_for_now(&self) -> Client {
        match self.ending.drain() {
            Some(drain) => self.client.within(drain.request_timeout),
            None => self.client.clone(),
        }
    }
}
