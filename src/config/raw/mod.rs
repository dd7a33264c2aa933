//! The configuration file as it is written: every field optional, nothing checked but its type.
//!
//! The comments on the fields are the descriptions of the JSON Schema, which is why they speak to the user.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::choice::{Acquire, LogFormat, LogLevel, Release};

mod consul;
mod scalar;
mod semaphore;
mod session;

pub(super) use consul::{Consul, Login, Tls};
pub(super) use scalar::{Argv, WrittenAddresses, WrittenDuration};
pub(super) use semaphore::{Lock, Semaphore};
pub(super) use session::Session;

/// Configuration of the slotkeeper agent. Flags and environment variables win over what is written here.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, title = "slotkeeper")]
pub(super) struct Config {
    /// How to reach Consul.
    pub(super) consul: Option<Consul>,
    /// The Consul session that all slots of this agent belong to.
    pub(super) session: Option<Session>,
    /// The semaphores to hold slots of.
    #[schemars(with = "Option<Vec<Semaphore>>", length(max = 256))]
    pub(super) semaphores: Option<Vec<Option<Semaphore>>>,
    /// Single-key locks: mutual exclusion, leader election.
    #[schemars(with = "Option<Vec<Lock>>", length(max = 256))]
    pub(super) locks: Option<Vec<Option<Lock>>>,
    /// `independently`: each slot is taken as soon as it is to be had. `together`: all required ones in one
    /// transaction, or none; these must have the same `wait` and `priority`.
    #[schemars(extend("default" = "independently"))]
    pub(super) acquire: Option<Acquire>,
    /// The read-only HTTP endpoints.
    pub(super) http: Option<Http>,
    /// The endpoints that change state; off unless set.
    pub(super) control: Option<Control>,
    /// The file that stands while all required slots are held.
    pub(super) readiness: Option<Readiness>,
    /// Commands run when slots come and go.
    pub(super) hooks: Option<Hooks>,
    /// The workload beside the agent, where its processes can be seen.
    pub(super) workload: Option<Workload>,
    /// How the agent stops.
    pub(super) drain: Option<Drain>,
    /// How a running agent takes over what has changed.
    pub(super) reload: Option<Reload>,
    /// What the agent writes to standard error.
    pub(super) log: Option<Log>,
}

/// The read-only HTTP endpoints.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Http {
    /// IP address and port to listen on, or `off`.
    #[schemars(extend("default" = "127.0.0.1:9377"))]
    pub(super) listen: Option<String>,
}

/// The endpoints that change state.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Control {
    /// `unix:/path/to/socket`, which needs no token; or a loopback address and port, where every request bears one.
    pub(super) listen: Option<String>,
    /// The file with the token that requests at a loopback address must bear. One that is missing is made, with a new
    /// token. Without effect for a unix socket.
    #[schemars(extend("default" = "/run/slotkeeper/control.token"))]
    pub(super) token_file: Option<PathBuf>,
    /// Leases held and waited for together, at most. An agent has at most 72 connections to Consul, however many leases
    /// there are; of more than 64 some see changes later, at most a third of the TTL.
    #[schemars(range(min = 1, max = 1000), extend("default" = 64))]
    pub(super) max_leases: Option<i64>,
    /// Requests that wait for a lease at once, at most.
    #[schemars(range(min = 1, max = 1000), extend("default" = 32))]
    pub(super) max_waits: Option<i64>,
}

/// The readiness file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Readiness {
    /// The file. It appears when all required slots are held, and is gone before the first one is
    /// given back. None is written unless this is set; an empty text is none.
    pub(super) file: Option<PathBuf>,
}

/// Commands run when slots come and go.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Hooks {
    /// Command and arguments, run each time a slot has been taken.
    pub(super) on_acquired: Option<Argv>,
    /// Command and arguments, run each time a slot has been lost.
    pub(super) on_lost: Option<Argv>,
    /// Command and arguments, run each time one of `locks` has another owner, or none.
    pub(super) on_leader_changed: Option<Argv>,
}

/// The workload beside the agent, where its processes can be seen: in a pod with `shareProcessNamespace: true`. No slot is given
/// back while one of them lives.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Workload {
    /// A folder that lies on a volume of the pod. The workload is every process outside the agent's own container that has that
    /// volume mounted.
    pub(super) volume: Option<PathBuf>,
    /// Whether the agent ends the workload where the lease runs out, the slot is lost, or the workload runs without it: SIGTERM,
    /// then SIGKILL before anybody else can have the slot. The agent has to run as the same user.
    #[schemars(extend("default" = false))]
    pub(super) stop: Option<bool>,
    /// From SIGTERM to SIGKILL, at most what the session's TTL leaves.
    #[schemars(extend("default" = "5s"))]
    pub(super) kill_after: Option<WrittenDuration>,
}

/// How the agent stops.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Drain {
    /// The longest that stopping may take, more than 0s and at most 24h. The surroundings' own grace period (such as
    /// `terminationGracePeriodSeconds`) must be longer.
    #[schemars(extend("default" = "25s"))]
    pub(super) timeout: Option<WrittenDuration>,
    /// `at_once`: give the slots back as soon as the agent is told to stop. `after_workload`: hold them until the
    /// workload says that it is done (`POST /v1/drain` at `control.listen`), a second signal comes, or the timeout ends.
    #[schemars(extend("default" = "at_once"))]
    pub(super) release: Option<Release>,
    /// With `at_once`: how long the slots stay held all the same once a signal tells the agent to stop, at most 24h, and besides
    /// `timeout`. Whatever sends it may do so while the workload still has some seconds to live. A second signal leaves without
    /// giving anything back.
    #[schemars(extend("default" = "0s"))]
    pub(super) hold: Option<WrittenDuration>,
}

/// How a running agent takes over what has changed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Reload {
    /// Whether changes of this file and of the files of `consul.tls` are taken over without a signal, once the files have been
    /// unchanged for 2s. Such a reload releases no slot. A token file is read again in any case.
    #[schemars(extend("default" = true))]
    pub(super) watch: Option<bool>,
}

/// What the agent writes to standard error.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Log {
    /// `text` for people, `json` for machines.
    #[schemars(extend("default" = "text"))]
    pub(super) format: Option<LogFormat>,
    /// The least severe level that is written.
    #[schemars(extend("default" = "info"))]
    pub(super) level: Option<LogLevel>,
}
