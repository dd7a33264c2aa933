//! The configuration as the rest of the code uses it: every value within its bounds, the rules between them kept.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::choice::{Acquire, Behavior, Format, LimitPolicy, LogFormat, LogLevel, Mode, OnLost, Release};

/// A whole configuration. Two that are equal ask for the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How to reach Consul.
    pub consul: slotkeeper_consul::Settings,
    /// The session that all slots belong to.
    pub session: Session,
    /// The semaphores; names and prefixes are unique and no prefix lies below another.
    pub semaphores: Vec<Semaphore>,
    /// The single-key locks; names are unique among the semaphores' too.
    pub locks: Vec<Lock>,
    /// How several slots are taken.
    pub acquire: Acquire,
    /// The read-only endpoints.
    pub http: Http,
    /// The endpoints that change state; none: there are none.
    pub control: Option<Control>,
    /// The readiness file, where one is wanted.
    pub readiness: Option<PathBuf>,
    /// Commands run when slots come and go.
    pub hooks: Hooks,
    /// The workload beside us, where its processes can be seen; none: they are not looked for.
    pub workload: Option<Workload>,
    /// How the agent stops.
    pub drain: Drain,
    /// How it takes over what has changed.
    pub reload: Reload,
    /// What is logged.
    pub log: Log,
    /// Who we are, for people.
    pub identity: Identity,
}

impl Config {
    /// The names of the semaphores and locks that readiness waits for, and that a command runs on.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        let semaphores = self.semaphores.iter().map(|one| (one.required, one.mode, one.name.as_str()));
        let locks = self.locks.iter().map(|one| (one.required, one.mode, one.name.as_str()));
        let all = semaphores.chain(locks);
        all.filter(|(required, mode, _)| *required && *mode == Mode::Hold).map(|(.., name)| name)
    }
}

/// The session that all slots belong to.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Its name, for people.
    pub name: String,
    /// Consul's TTL: 10 s to 24 h.
    pub ttl: Duration,
    /// What Consul does with its keys when it ends.
    pub behavior: Behavior,
    /// Consul's lock-delay: 0 s to 60 s. Single-key locks only.
    pub lock_delay: Duration,
    /// How long a failing watch is tolerated, at most the TTL; none: to the lease's end.
    pub watch_grace: Option<Duration>,
    /// Checks of the node that end the session.
    pub node_checks: Vec<String>,
    /// Checks of services that end the session.
    pub service_checks: Vec<String>,
    /// The catalog node it is tied to; none: the addressed agent's.
    pub node: Option<String>,
    /// Where the session's id is kept for a restarted agent, where it is.
    pub state_file: Option<PathBuf>,
}

/// One semaphore.
#[derive(Clone, Debug, PartialEq)]
pub struct Semaphore {
    /// Metric label and URL segment.
    pub name: String,
    /// Key prefix, without a slash at either end.
    pub prefix: String,
    /// Slots there are, at least 1.
    pub limit: u32,
    /// Slots we take: 1 to `limit`.
    pub slots: u32,
    /// Higher goes first.
    pub priority: i32,
    /// Whether readiness waits for it; not where it is taken on demand.
    pub required: bool,
    /// Who takes the slot and when.
    pub mode: Mode,
    /// How long to wait for it.
    pub wait: Wait,
    /// What follows its loss.
    pub on_lost: OnLost,
    /// What is done where the stored limit differs.
    pub limit_policy: LimitPolicy,
    /// How long a dead holder's slot rests.
    pub prune_delay: Duration,
    /// How a new `.lock` is written; `List` where `slots` is above 1.
    pub format: Format,
    /// Text for operators in the contender entry.
    pub body: Option<String>,
}

/// One single-key lock.
#[derive(Clone, Debug, PartialEq)]
pub struct Lock {
    /// Metric label and URL segment.
    pub name: String,
    /// The key, without a slash at either end.
    pub key: String,
    /// Whether readiness waits for it; not where it is taken on demand.
    pub required: bool,
    /// Who takes the lock and when.
    pub mode: Mode,
    /// How long to wait for it.
    pub wait: Wait,
    /// What follows its loss.
    pub on_lost: OnLost,
    /// Text for operators in the lock's value.
    pub body: Option<String>,
}

/// How long to wait for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Until it is to be had.
    #[default]
    Forever,
    /// At most so long; zero tries once.
    AtMost(Duration),
}

/// The read-only endpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct Http {
    /// Where they listen; none: they are off.
    pub listen: Option<SocketAddr>,
}

/// The endpoints that change state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Where they listen: never where another machine gets.
    pub listen: Listen,
    /// The file with the token that requests must bear where that is TCP.
    pub token_file: PathBuf,
    /// Leases held and waited for together, at most: 1 to 1000.
    pub max_leases: usize,
    /// Requests that wait for a lease at once, at most: 1 to 1000.
    pub max_waits: usize,
}

/// Where a server of ours listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// Commands run when slots come and go. Each is a command and its arguments, never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// After a slot has been taken.
    pub on_acquired: Option<Vec<String>>,
    /// After a slot has been lost.
    pub on_lost: Option<Vec<String>>,
    /// After a lock has been taken by another one, by us, or is nobody's any more.
    pub on_leader_changed: Option<Vec<String>>,
}

/// The workload beside us, whose processes are in our process namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// A folder on the volume that its containers have mounted, as ours has.
    pub volume: PathBuf,
    /// How long it has for stopping where we end it; none: we do not.
    pub kill_after: Option<Duration>,
}

/// How the agent stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The longest that it may take: above 0, at most 24 h.
    pub timeout: Duration,
    /// When the slots are given back.
    pub release: Release,
    /// How long they stay held once a signal has asked for the end, where nothing says when the workload is done: at most 24 h.
    pub hold: Duration,
}

/// How a running agent takes over what has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reload {
    /// Whether changed files are taken over without a signal.
    pub watch: bool,
}

/// What is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Its form.
    pub format: LogFormat,
    /// Its least severe level.
    pub level: LogLevel,
}

/// Who we are, for people who read contender entries: what the environment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The pod's name.
    pub pod: Option<String>,
    /// The pod's Kubernetes namespace.
    pub namespace: Option<String>,
    /// The machine's or Kubernetes node's name.
    pub node: Option<String>,
}
