//! The only place where the core and the client meet: one loop carries out what the core decides and tells it what
//! came of it. It owns all state that changes; what the world sees leaves by one channel.

mod announce;
mod beside;
mod client_observer;
mod confirms;
mod control;
mod driver;
mod ending;
mod eviction;
mod execute;
mod files;
mod journal;
mod labels;
mod leases;
mod listings;
mod outage;
mod reload;
mod snapshot;
mod state_file;
mod translate;
mod watches;
mod workload;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tracing::{error, info, warn};

use crate::clock::{self, Alarm};
use crate::config::duration::show;
use crate::config::{Config, Faults, Loaded, Mode, Wait};
use crate::control::request::Request;
use crate::exit::{Ended, Exit};
use crate::files::claimant::Signals;
use crate::http::servers::Servers;
use crate::metrics::Metrics;
use crate::progress::{Progress, View};
use crate::shutdown::{Ask, Asks};
use crate::status::{Configuration, Id, LastReload, Snapshot, Stage, What};
use crate::telemetry;
use crate::vitals::{BEAT, Vitals};
use crate::workload::hooks::Hooks;
use crate::workload::orphans::Orphans;
use crate::workload::{Command, Running, signals};
use slotkeeper_consul::{self, Client, SessionSpec};
use slotkeeper_semaphore::{Event, FailureKind, Keeper, Moment, Name, Notice, OnLost, Start};

use beside::Beside;
use client_observer::{ClientLog, ClientObserver};
use driver::{Done, Driver, Owner, Requests};
use ending::{Drain, Patience};
use eviction::Evictions;
pub use files::Files;
use journal::Journal;
use labels::Labels;
use leases::Leases;
use outage::Outage;
pub use reload::{CHANGE_DEFERRED, FILES_CHANGED, Fingerprints, fingerprints};
use reload::{Deferred, Reload, Watch};
use snapshot::Entries;

/// Logged where another address of Consul's is used from then on.
pub const CONSUL_ADDRESS_CHANGED: &str = "consul address changed";
/// Logged once of an address that may belong to another cluster.
pub const CONSUL_ADDRESS_FOREIGN: &str = "consul address not used, since it may belong to another cluster";

/// Answers that are taken in before anything else is looked after.
const MOST_AT_ONCE: usize = 256;

/// What leases alone have come to, and no client is told of yet, is shown so often at most: to show hundreds takes longer
/// than what happens to one of them.
const LULL: Duration = Duration::from_millis(50);

/// Reads the configuration again. A file system may let it wait, so it is called on a thread of its own.
pub type ReadConfig = Arc<dyn Fn() -> Result<Loaded, Faults> + Send + Sync>;

/// What an agent is made of.
pub struct Parts {
    /// The configuration.
    pub config: Config,
    /// Its files.
    pub files: Files,
    /// Reads it again, for a reload.
    pub read_config: ReadConfig,
    /// What it was read from, as that was before: its file, where it has one.
    pub source: Fingerprints,
    /// The metrics, which the endpoints share.
    pub metrics: Arc<Metrics>,
    /// The pulse, which the endpoints share.
    pub vitals: Arc<Vitals>,
    /// Where what the world sees goes.
    pub status: watch::Sender<Arc<Snapshot>>,
    /// What it is asked for: the signals, where it is alone in its process.
    pub asks: Asks,
    /// What is asked for at the control endpoints, where there are any.
    pub control: Option<mpsc::Receiver<Request>>,
    /// What to run on the slots once they are held, and to end with; none: a workload of its own is beside us.
    pub command: Option<Command>,
    /// What tells people of the wait for the slots, where it does.
    pub progress: Option<Progress>,
    /// The log level's handle.
    pub log: telemetry::Handle,
    /// Servers that run beside the agent. None may end before it.
    pub servers: Servers,
}

/// The agent before its first round, for the endpoints that are served already.
pub fn before_start(now: Moment) -> Snapshot {
    // What one life has told must not be taken for another's.
    let (id, changes) = (Id::first(fastrand::u64(..)), Arc::default());
    let (stage, started_up) = (Stage::Starting, false);
    let (consul, session, semaphores, locks) = (Vec::new(), None, Vec::new(), Vec::new());
    let configuration = Configuration { loaded_at: now, last_reload: LastReload::None };
    Snapshot {
        id,
        changes,
        stage,
        started_at: now,
        started_up,
        configuration,
        consul,
        session,
        semaphores,
        locks,
    }
}

/// Runs an agent until it has drained.
///
/// # Errors
///
/// What it needs at its start cannot be had: the client's certificates, the files' folders, a descriptor. Or one of
/// its own tasks ended, which is a defect.
pub async fn run(mut parts: Parts) -> anyhow::Result<Ended> {
    let (config, metrics) = (parts.config.clone(), Arc::clone(&parts.metrics));
    let read = move || {
        let seen = fingerprints(reload::tls_files(&config.consul.tls));
        client(&config, &metrics).map(|client| (client, seen))
    };
    match parts.asks.unless_told_to_end(read).await {
        Ok(read) => {
            let (client, seen) = read?;
            let mut agent = Agent::start(parts, client)?;
            agent.tell_of_signals();
            agent.watch(agent.parts.source.clone().into_iter().chain(seen).collect());
            Box::pin(agent.run()).await
        }
        Err(ask) => Ok(ended_before_start(ask)),
    }
}

/// How a process ends that is told to before its agent has begun, as while a file system does not answer.
pub fn ended_before_start(ask: Ask) -> Ended {
    info!("told to stop during the start; nothing is held");
    match ask {
        Ask::Stop | Ask::Reload => Exit::Done.into(),
        Ask::Signal(signal) => {
            let exit = Exit::PassedOn(u8::try_from(signal).unwrap_or(0).saturating_add(128));
            Ended::because(exit, format!("ended by {} during the start", signals::name(signal)))
        }
    }
}

/// What the world has not been shown yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unseen {
    Nothing,
    /// Something of leases, or what changes with the time.
    Leases,
    /// Whatever there is.
    All,
}

struct Agent {
    parts: Parts,
    client: Client,
    spec: SessionSpec,
    /// Of what it holds by itself.
    own: Driver,
    /// What people call that.
    labels: Labels,
    /// The entries of the configuration that cannot be taken over yet, as the core will call them.
    pending: BTreeSet<Name>,
    reload: Reload,
    /// Notices changed files, where that is wanted.
    watch: Option<Watch>,
    /// What automatic reloads have not changed, and an explicit one would.
    deferred: Deferred,
    configuration: Configuration,
    /// What SIGHUP has asked for.
    signals: Signals,
    /// Whether it is there for a command. What that was started on is not released by any reload.
    is_run: bool,
    /// What its clients take and give back.
    leases: Leases,
    requests: Requests,
    alarm: Alarm,
    hooks: Hooks,
    /// What has happened lately.
    journal: Journal,
    /// When the world was shown where things stand, and what has happened since.
    shown_at: Moment,
    unseen: Unseen,
    outage: Outage,
    /// The command that runs on the slots.
    running: Option<Running>,
    /// Where there is one, or has been.
    orphans: Option<Orphans>,
    /// The workload beside us, where it can be seen.
    beside: Option<Beside>,
    /// It goes on with what a process before it has left.
    resumes: bool,
    started_at: Moment,
    started_up: bool,
    ready: bool,
    /// How to end, once something has asked for it.
    ending: Option<Exit>,
    /// Why, where that is to be explained.
    why: Option<String>,
    drain: Option<Drain>,
    /// What it was told to leave and keeps while its workload is being stopped.
    evictions: Evictions,
    /// For how long a workload that is not done yet is waited for, once told to stop.
    patience: Option<Patience>,
    /// A signal has asked for the end; another one ends at once. A drain of our own accord counts for none.
    told_to_stop: bool,
    /// When a signal that ends things was last acted on or passed on.
    signalled_at: Option<Moment>,
    /// Something could not be given back and was left.
    abandoned: bool,
}

impl Agent {
    fn start(mut parts: Parts, client: Client) -> anyhow::Result<Self> {
        let now = clock::now();
        let before = Arc::clone(&parts.status.borrow());
        let (begun, configuration) = (before.id, before.configuration);
        let config = &parts.config;
        let beside = config.workload.as_ref().map(Beside::of).transpose()?;
        let together = translate::together(config);
        let resume = parts.files.resume.take();
        let resumes = resume.is_some();
        if let Some(resume) = &resume {
            // An older version has not written down which TTL the session has.
            let ttl = parts.files.resumed_ttl.unwrap_or(config.session.ttl);
            client.remember(resume.session.as_str(), Some(ttl));
        }
        let start = translate::start(config, translate::held(config), resume);
        let start = Start { together, contested: parts.files.contested, ..start };
        let mut labels = Labels::default();
        for entry in labels::entries(config).filter(|entry| entry.mode == Mode::Hold) {
            labels.set(entry.id(), entry.name);
        }
        for semaphore in &config.semaphores {
            parts.metrics.add_semaphore(&semaphore.name);
        }
        for lock in &config.locks {
            parts.metrics.add_lock(&lock.name, lock.mode == Mode::Hold);
        }
        let agent = Self {
            client,
            spec: translate::session_spec(&config.session),
            own: Driver::new(Owner::Agent, Keeper::new(start, now)),
            labels,
            pending: BTreeSet::new(),
            reload: Reload::default(),
            watch: None,
            deferred: Deferred::new(),
            configuration,
            signals: Signals::default(),
            is_run: parts.command.is_some(),
            leases: Leases::new(control::bounds(config), config.session.ttl),
            requests: Requests::new(config.session.ttl),
            alarm: Alarm::new().context("cannot make a timer")?,
            hooks: Hooks::default(),
            journal: Journal::new(begun),
            shown_at: now,
            unseen: Unseen::All,
            outage: Outage::default(),
            running: None,
            orphans: None,
            beside,
            resumes,
            started_at: now,
            started_up: false,
            ready: false,
            ending: None,
            why: None,
            drain: None,
            evictions: Evictions::default(),
            patience: None,
            told_to_stop: false,
            signalled_at: None,
            abandoned: false,
            parts,
        };
        info!(
            consul = agent.client.address(),
            semaphores = agent.parts.config.semaphores.len(),
            locks = agent.parts.config.locks.len(),
            "slotkeeper {} started",
            env!("CARGO_PKG_VERSION")
        );
        Ok(agent)
    }

    async fn run(mut self) -> anyhow::Result<Ended> {
        loop {
            let now = clock::now();
            self.parts.vitals.beat(now);
            if self.parts.progress.as_mut().is_some_and(|progress| progress.looks(now)) {
                self.own.keeper.show(now);
            }
            self.mind_reload(now);
            self.carry_out(now);
            self.mind_leases(now);
            self.mind_pending(now);
            let client = self.client_for_now();
            self.requests.ask_for_listings(&client);
            self.requests.ask_for_confirmations(&client);
            self.requests.ask_for_watches(&client, now);
            // What is asked for is sent before anything else is looked after: others may be about to take the same slot.
            tokio::task::yield_now().await;
            if !self.may_show_later(now) {
                self.publish(now);
            }
            self.leases.give_answers();
            self.check_tasks()?;
            self.mind_command(now).await;
            self.mind_patience(now);
            self.mind_beside(now);
            self.mind_evictions(now).await;
            let runs = self.running.is_some() || self.withholds() || self.workload_lives();
            if self.ending.is_some() && self.drain.is_none() && !runs {
                self.begin_drain().await;
                self.unseen = Unseen::All;
                continue;
            }
            let in_vain = self.leaves_contested(now) || self.drain.is_some_and(|drain| drain.ends <= now);
            if self.everything_has_ended() || in_vain {
                self.forget_contested().await;
                return Ok(self.finish().await);
            }
            if !self.abandoned && self.drain.is_some_and(|drain| drain.abandon_at <= now) {
                self.abandoned = true;
                self.own.keeper.abandon(now);
                self.leases.abandon(now);
                self.unseen = Unseen::All;
                continue;
            }
            let bounds = self.drain.map(|drain| if self.abandoned { drain.ends } else { drain.abandon_at });
            let command = self.running.as_ref().map(Running::deadline);
            let patience = self.patience.filter(|_| self.holds_on()).map(|patience| patience.holds_until);
            let (own, leases) = (self.own.keeper.deadline(), self.leases.deadline());
            let (evictions, watches) = (self.evictions_deadline(), self.requests.deadline());
            let others =
                [evictions, watches, self.reload.deadline(), self.outage.deadline(), self.beside_deadline()];
            let own = [own, bounds, command, patience].into_iter().chain(others).flatten().min();
            let seen = (self.unseen > Unseen::Nothing).then_some(self.shown_at + LULL);
            let wake = own.into_iter().chain(leases).chain(seen).fold(now + BEAT, Moment::min);
            // Where it is not said otherwise.
            let unseen = std::mem::replace(&mut self.unseen, Unseen::All);
            tokio::select! {
                Some(ended) = self.requests.tasks.join_next() => {
                    let mut news = self.answered(ended)?;
                    // One change answers the watches of many leases at once, and the world is told once.
                    for _ in 0..MOST_AT_ONCE {
                        let Some(ended) = self.requests.tasks.try_join_next() else { break };
                        news = news.max(self.answered(ended)?);
                    }
                    self.unseen = unseen.max(news);
                }
                rung = self.alarm.until(wake) => {
                    rung.context("the timer failed")?;
                    let now = clock::now();
                    self.own.keeper.tick(now);
                    self.leases.tick(now);
                    // Of the time alone: what the client knows of Consul's addresses, and whether the lease is fresh.
                    if own.is_none_or(|own| own > now) {
                        self.unseen = unseen.max(Unseen::Leases);
                    }
                }
                Some(request) = control::next(&mut self.parts.control) => {
                    if request.is_of_a_lease() {
                        self.unseen = unseen.max(Unseen::Leases);
                    }
                    self.asked(request);
                }
                () = self.parts.vitals.viewed() => {
                    let now = clock::now();
                    self.own.keeper.show(now);
                    self.leases.look(now);
                    // Nothing is another by that: what it asks for tells.
                    self.unseen = unseen.max(Unseen::Leases);
                }
                Some(key) = self.leases.absent() => self.leases.client_gone(key, clock::now()),
                read = self.reload.ended() => self.reload_read(read).await,
                files = reload::changed(&mut self.watch) => self.files_changed(&files),
                Some((number, how)) = self.evictions.stopped() => self.hook_ended(number, how),
                told = workload::next(&mut self.running) => self.command_told(told),
                () = workload::orphan_ended(&mut self.orphans) => self.reap_orphans(),
                () = self.hooks.ended() => {}
                // The guard is told with the next round.
                () = self.client.login_token_changed(), if self.running.is_some() => {}
                () = self.client.cut_loose() => self.change_cluster(),
                ask = self.parts.asks.next() => match ask {
                    Ask::Reload => self.told_to_reload(),
                    Ask::Signal(signal) => if self.signalled(signal).await {
                        return Ok(Ended { exit: self.ending.unwrap_or(Exit::Failed), why: self.why });
                    },
                    Ask::Stop if !self.told_to_stop => self.stop(),
                    Ask::Stop if self.awaits_word() => self.wait_no_longer("told to stop again"),
                    Ask::Stop => {
                        warn!("told to stop again: leaving at once; what is not given back yet ends with the session's TTL");
                        return Ok(Ended::because(
                            Exit::Failed,
                            "told to stop again while it gave everything back; what is left ends with the session's TTL",
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

    /// Takes in an answer; what it may have changed.
    fn answered(&mut self, ended: Result<Done, JoinError>) -> anyhow::Result<Unseen> {
        let now = clock::now();
        let events: Vec<_> = match ended.context("a request's task failed")? {
            Done::Event(owner, event) => return Ok(self.take_in(owner, event, now)),
            Done::Listed(prefix, answer) => self.requests.listed(&prefix, &answer).collect(),
            Done::Confirmed(events) => events,
            Done::Watches(answer) => self.requests.watched(answer, now),
        };
        let news = events.into_iter().map(|(owner, event)| self.take_in(owner, event, now));
        Ok(news.max().unwrap_or(Unseen::Nothing))
    }

    fn take_in(&mut self, owner: Owner, event: Event, now: Moment) -> Unseen {
        match owner {
            Owner::Agent => {
                self.own.answered(event, now);
                Unseen::All
            }
            Owner::Lease(key) => {
                self.leases.answered(key, event, now);
                Unseen::Leases
            }
        }
    }

    /// A task of ours that ends unnoticed would leave a file as it should not be for ever.
    fn check_tasks(&self) -> anyhow::Result<()> {
        let mut tasks = self.parts.files.tasks();
        anyhow::ensure!(tasks.all(|task| !task.is_finished()), "a task that keeps a file ended by itself");
        Ok(())
    }

    /// Carries out what the core has decided.
    fn carry_out(&mut self, now: Moment) {
        let client = self.client_for_now();
        loop {
            let notices = self.own.carry_out(&client, &self.spec, &mut self.requests, now);
            if notices.is_empty() {
                break;
            }
            // Which may lead to something to be done at once.
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
        match self.drain {
            Some(drain) => self.client.within(drain.request),
            None => self.client.clone(),
        }
    }

    fn tell(&mut self, notice: &Notice) {
        let labelled = self.labels.put_on(notice);
        if self.outage.logs(Owner::Agent, notice) {
            announce::log(&labelled);
        }
        self.journal.follow(&labelled);
        self.parts.metrics.observe(&labelled);
        let hook = announce::call_hook(notice, &self.labels, &self.parts.config.hooks, &mut self.hooks);
        if let Notice::Removed { name } = notice {
            let label = self.labels.forget(name);
            self.forget_removed(&label);
        }
        if let Notice::SessionTaken { .. } = notice {
            // The next process would resume that session at once, while another one holds its slots.
            if let Some(state) = &self.parts.files.state {
                state.forget();
            }
        }
        if let Notice::Evicted { name, held, by } = notice {
            self.evicted(name, *held, by);
        }
        if let Notice::Lost { name, reason, .. } = notice {
            self.keep(name, hook);
            let lost = format!("the slot of {} was lost ({})", self.labels.of(name), reason.as_str());
            if self.running.is_some() && self.is_required(name) {
                self.fail(Exit::SlotLost, &format!("{lost}, on which the command runs"));
            } else if self.runs_beside_on(name) {
                self.fail(Exit::SlotLost, &format!("{lost}, on which the workload runs"));
            } else if self.own.keeper.machine(name).is_some_and(|one| one.settings().on_lost == OnLost::Exit)
            {
                self.fail(Exit::SlotLost, &format!("{lost}, and on_lost is `exit`"));
            }
        }
        if let Notice::Trouble { name: Some(_), failure } = notice
            && failure.kind == FailureKind::InvalidKey
            && !self.started_up
        {
            // Waiting does not help: Consul refuses the same name tomorrow too. An agent that has had all of its slots
            // keeps them: only its reads fail, and renewals keep the slots.
            error!("this is a fault of the configuration: {}", failure.text);
            self.fail(Exit::Config, &format!("Consul does not take the name of a key: {}", failure.text));
        }
        if let Notice::GaveUp { name, reached, trouble } = notice
            && self.is_required(name)
        {
            let exit = if *reached { Exit::NotInTime } else { Exit::Unavailable };
            self.fail(exit, &self.waited_in_vain(name, *reached, trouble.as_deref()));
        }
    }

    /// What is said of a required slot that was not to be had in time.
    fn waited_in_vain(&self, name: &Name, reached: bool, trouble: Option<&str>) -> String {
        let label = self.labels.of(name);
        let entry = labels::entries(&self.parts.config).find(|entry| entry.id() == *name);
        let wait = match entry.map(|entry| entry.wait) {
            Some(Wait::AtMost(time)) => time,
            Some(Wait::Forever) | None => Duration::ZERO,
        };
        let in_vain = match self.awaited() {
            _ if !reached => format!("no answer from Consul in {}, and so no slot of {label}", show(wait)),
            Some(awaited) if wait > Duration::ZERO => {
                format!("timed out after {} waiting for {awaited}", show(wait))
            }
            _ => format!("no slot of {label} at once, and none is waited for"),
        };
        trouble.map_or(in_vain.clone(), |trouble| format!("{in_vain}; the last trouble was: {trouble}"))
    }

    /// The required slots that are waited for, in words, as they were seen last.
    fn awaited(&self) -> Option<String> {
        let shown = Arc::clone(&self.parts.status.borrow());
        View::of(&shown, clock::now()).awaited()
    }

    fn is_required(&self, name: &Name) -> bool {
        translate::required(&self.parts.config).any(|required| required == *name)
    }

    /// Whether what has happened may be shown a little later. What is told to clients is shown before.
    fn may_show_later(&self, now: Moment) -> bool {
        match self.unseen {
            Unseen::All => false,
            Unseen::Leases => !self.leases.has_answers() && now < self.shown_at + LULL,
            Unseen::Nothing => !self.leases.has_answers(),
        }
    }

    /// Lets the world see where things stand.
    fn publish(&mut self, now: Moment) {
        self.shown_at = now;
        let (unseen, changed) =
            (std::mem::replace(&mut self.unseen, Unseen::Nothing), self.leases.take_unshown());
        let leases = &self.leases;
        let is_there = |owner| match owner {
            Owner::Agent => true,
            Owner::Lease(key) => leases.is_running(key),
        };
        self.outage.follow(self.own.keeper.failures().chain(leases.failures()), is_there, now);
        let pending = self.pending_reasons();
        let shown = Arc::clone(&self.parts.status.borrow());
        let before = snapshot::Before {
            shown: &shown,
            // What is in the way of one that is pending may be anything.
            changed: (unseen < Unseen::All && pending.is_empty()).then_some(&changed),
        };
        let mut snapshot = snapshot::snapshot(
            &self.own.keeper,
            &self.leases,
            &Entries {
                config: &self.parts.config,
                labels: &self.labels,
                pending: &pending,
                deferred: &self.deferred,
            },
            &before,
            // While it holds for a workload that lives, it is as good as before.
            if self.ending.is_some() && !self.workload_lives() { Stage::Draining } else { Stage::Running },
            self.started_at,
        );
        let ready = snapshot.is_ready(now);
        self.started_up |= ready;
        snapshot.started_up = self.started_up;
        snapshot.consul = snapshot::addresses(&self.client);
        snapshot.configuration = self.configuration;
        if ready != self.ready {
            self.ready = ready;
            info!("{}", if ready { "ready" } else { "not ready" });
            self.journal.note(if ready { What::Ready } else { What::NotReady }, None, None);
        }
        if let Some(readiness) = &self.parts.files.readiness {
            readiness.set(ready.then(|| format!("{}\n", snapshot.file())));
        }
        if let Some(state) = self.parts.files.state.as_ref().filter(|_| self.drain.is_none()) {
            state.save(&self.own.keeper);
        }
        snapshot.changes = self.journal.changes();
        self.parts.status.send_if_modified(|shown| {
            let changed = **shown != snapshot;
            if changed {
                snapshot.id = self.journal.next_id();
                *shown = Arc::new(snapshot);
            }
            changed
        });
    }
}

fn client(config: &Config, metrics: &Arc<Metrics>) -> anyhow::Result<Client> {
    let observer = ClientObserver { metrics: Arc::clone(metrics), log: ClientLog };
    Client::new(&config.consul, Arc::new(observer)).context("cannot make a client of Consul")
}
