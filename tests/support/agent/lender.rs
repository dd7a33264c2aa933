//! An agent in a thread of this process, asked as the control endpoints ask it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::stream;
use slotkeeper::internals::agent::{self, Files, Parts};
use slotkeeper::internals::config::{self, Environment, Faults, Loaded, Overrides};
use slotkeeper::internals::control::request::{Grant, Kind, NoLease, Refusal, Released, Request, requests};
use slotkeeper::internals::exit::Exit;
use slotkeeper::internals::http::servers::Servers;
use slotkeeper::internals::metrics::Metrics;
use slotkeeper::internals::shutdown::{SignalRequest, SignalRequests};
use slotkeeper::internals::status::{Snapshot, State, Status};
use slotkeeper::internals::watchdog::Watchdog;
use slotkeeper::internals::{clock, telemetry};
use tokio::sync::{mpsc, oneshot, watch};

use crate::consul::Consul;
use crate::wait_for;

/// An agent, and the channel by which it is asked.
pub(super) struct Lender {
    requests: mpsc::Sender<Request>,
    pub(super) signals: mpsc::UnboundedSender<SignalRequest>,
    shown: watch::Receiver<Arc<Snapshot>>,
    metrics: Arc<Metrics>,
    watchdog: Arc<Watchdog>,
    pub(super) file: std::path::PathBuf,
    _folder: tempfile::TempDir,
    thread: Option<JoinHandle<Exit>>,
}

/// A client that waits for its lease.
pub(super) struct Waiting {
    pub(super) answer: oneshot::Receiver<Result<Grant, Refusal>>,
    pub(super) present: oneshot::Sender<()>,
}

impl Waiting {
    pub(super) fn answer(self) -> Result<Grant, Refusal> {
        let answer = self.answer.blocking_recv().expect("an answer");
        let _ = self.present.send(());
        answer
    }

    pub(super) fn goes_away(self) {
        drop((self.answer, self.present));
    }
}

pub(super) fn text(consul: &str, rest: &str) -> String {
    format!(
        "consul: {{address: 'http://{}'}}\nhttp: {{listen: off}}\ncontrol: {{listen: 'unix:/nowhere'}}\n{rest}",
        consul.trim_start_matches("http://")
    )
}

impl Lender {
    /// One that lends slots of `s`, of which there are `limit`.
    pub(super) fn of(consul: &Consul, limit: u32) -> Self {
        let rest = format!(
            "session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: service/s, limit: {limit}, mode: on_demand}}]"
        );
        Self::start(consul, &rest)
    }

    pub(super) fn start(consul: &Consul, rest: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        std::fs::write(&file, text(&consul.address(), rest)).unwrap();
        let (sender, receiver) = requests();
        let (signals, mut asked) = mpsc::unbounded_channel();
        let (status, shown) = watch::channel(Arc::new(agent::before_start(clock::now())));
        let metrics = Arc::new(Metrics::new().unwrap());
        let watchdog = Arc::new(Watchdog::new(clock::now()));
        let (counted, looked_at, path) = (Arc::clone(&metrics), Arc::clone(&watchdog), file.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let read_config = move || -> Result<Loaded, Faults> {
                    config::load(&path, &Overrides::default(), &Environment::default())
                };
                let config = read_config().unwrap_or_else(|faults| panic!("{faults}")).config;
                let parts = Parts {
                    files: Files::open(&config).unwrap(),
                    log: telemetry::start(config.log),
                    config,
                    read_config: Arc::new(read_config),
                    source: agent::Fingerprints::default(),
                    metrics: counted,
                    watchdog: looked_at,
                    status,
                    stopping: watch::Sender::default(),
                    signals: SignalRequests::of(stream::poll_fn(move |cx| asked.poll_recv(cx))),
                    control: Some(receiver),
                    command: None,
                    servers: Servers::default(),
                };
                Box::pin(agent::run(parts)).await.expect("the agent runs").exit
            })
        });
        let lender = Self {
            requests: sender,
            signals,
            shown,
            metrics,
            watchdog,
            file,
            _folder: folder,
            thread: Some(thread),
        };
        wait_for("the agent to run", || !lender.snapshot().semaphores.is_empty());
        lender
    }

    pub(super) fn ask(&self, request: Request) {
        self.requests.blocking_send(request).expect("the agent listens");
    }

    pub(super) fn asks_for(&self, kind: Kind, name: &str, wait: Duration) -> Waiting {
        let (present, presence) = oneshot::channel();
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Acquire { kind, name: name.into(), wait, present: presence, reply });
        Waiting { answer, present }
    }

    pub(super) fn waits(&self, seconds: u64) -> Waiting {
        self.asks_for(Kind::Semaphore, "s", Duration::from_secs(seconds))
    }

    pub(super) fn acquire(&self, seconds: u64) -> Result<Grant, Refusal> {
        self.waits(seconds).answer()
    }

    pub(super) fn renew(&self, lease: &str) -> Result<Grant, NoLease> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Renew { lease: lease.into(), reply });
        answer.blocking_recv().expect("an answer")
    }

    pub(super) fn show(&self, lease: &str) -> Result<Grant, NoLease> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Show { lease: lease.into(), reply });
        answer.blocking_recv().expect("an answer")
    }

    pub(super) fn release(&self, lease: &str) -> Result<Released, NoLease> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Release { lease: lease.into(), reply });
        answer.blocking_recv().expect("an answer")
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.shown.borrow())
    }

    pub(super) fn state(&self) -> State {
        self.snapshot().semaphores[0].entry.state
    }

    /// As `/v1/status` has the first semaphore, for whoever looks there.
    pub(super) fn looked_at(&self) -> serde_json::Value {
        self.watchdog.view(clock::now());
        self.report()
    }

    /// The same, and nobody looks.
    pub(super) fn report(&self) -> serde_json::Value {
        let snapshot = self.snapshot();
        let report: Status = snapshot.report(clock::now(), clock::wall());
        serde_json::to_value(report).unwrap()["semaphores"][0].clone()
    }

    pub(super) fn metric(&self, series: &str) -> f64 {
        let text = self.metrics.text(&self.snapshot(), clock::now(), clock::wall()).unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{series} ")));
        let line = line.unwrap_or_else(|| panic!("no series {series} in\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub(super) fn has_series(&self, part: &str) -> bool {
        self.metrics.text(&self.snapshot(), clock::now(), clock::wall()).unwrap().contains(part)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    pub(super) fn ended(mut self) -> Exit {
        wait_for("the agent to end", || self.has_ended());
        self.thread.take().unwrap().join().unwrap()
    }

    pub(super) fn stop(self) -> Exit {
        self.signals.send(SignalRequest::Stop).unwrap();
        self.ended()
    }
}
