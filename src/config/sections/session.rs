//! The section `session`.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::scalar::DurationString;
use crate::config::value::{self, DAY};
use crate::duration::show;
use slotkeeper_semaphore::DEFAULT_TTL;

/// The default lock-delay, which is Consul's own.
pub(super) const DEFAULT_LOCK_DELAY: Duration = Duration::from_secs(15);

/// The Consul session that all slots of this agent belong to.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawSession {
    /// The beginning of the names of its sessions, by default `slotkeeper` with the first semaphore or lock. The agent's identity
    /// follows.
    pub(super) name: Option<String>,
    /// 10s to 24h. The lease lasts at most this long after Consul's last answer. The slot of an agent that died is free again
    /// after up to twice this.
    #[schemars(extend("default" = "45s"))]
    pub(super) ttl: Option<DurationString>,
    /// What Consul does with the contender keys when the session ends.
    #[schemars(extend("default" = "delete"))]
    behavior: Option<Behavior>,
    /// 0s to 60s. How long Consul refuses a single-key lock after its holder's session was ended. No effect on semaphores.
    #[schemars(extend("default" = "15s"))]
    pub(super) lock_delay: Option<DurationString>,
    /// How long a failing watch is tolerated before the slot counts as lost, at most the TTL. By default until the lease
    /// expires; `0s` is the strict rule of Consul's semaphore guide. No effect on semaphores and locks on demand.
    watch_grace: Option<DurationString>,
    /// Health checks of the node that end the session when they fail. Without any, only the TTL ends it.
    pub(super) node_checks: Option<Vec<String>>,
    /// Health checks of services, by check id, that end the session when they fail.
    pub(super) service_checks: Option<Vec<String>>,
    /// The catalog node that the session is tied to, and ends with. `auto`: the node `slotkeeper`, which is registered where it is
    /// missing and the token allows it; else, and with checks, as `agent`. `agent`: the addressed agent's. Or a name.
    #[schemars(extend("default" = "auto"))]
    node: Option<String>,
    /// The file from which a restarted agent resumes its session and its slots. None by default; an empty text is none.
    pub(super) state_file: Option<PathBuf>,
}

/// The session that all slots belong to.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// The beginning of its name, for people; none: a text that names the first semaphore or lock.
    pub name: Option<String>,
    /// Consul's TTL: 10 s to 24 h.
    pub ttl: Duration,
    /// What Consul does with its keys when it ends.
    pub behavior: Behavior,
    /// Consul's lock-delay: 0 s to 60 s. Single-key locks only.
    pub lock_delay: Duration,
    /// How long a failing watch is tolerated, at most the TTL; none: until the lease expires.
    pub watch_grace: Option<Duration>,
    /// Checks of the node that end the session.
    pub node_checks: Vec<String>,
    /// Checks of services that end the session.
    pub service_checks: Vec<String>,
    /// The catalog node it is tied to.
    pub node: SessionNode,
    /// The file that keeps the session's id for a restarted agent; none: no file is written.
    pub state_file: Option<PathBuf>,
}

/// The catalog node that the session is tied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionNode {
    /// A node of its own, if the token allows it.
    Auto,
    /// The addressed agent's.
    Agent,
    /// This one, which must exist.
    Named(String),
}

impl SessionNode {
    /// `has_checks`: a check belongs to a node, and that of `Auto` has none.
    fn of(written: Option<String>, has_checks: bool) -> Self {
        match written {
            Some(name) if name == "agent" => Self::Agent,
            Some(name) if name != "auto" => Self::Named(name),
            Some(_) | None if has_checks => Self::Agent,
            Some(_) | None => Self::Auto,
        }
    }
}

/// What Consul does with the session's keys when the session ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Behavior {
    /// Consul deletes them.
    #[default]
    Delete,
    /// Consul leaves them, unlocked.
    Release,
}

impl RawSession {
    pub(super) fn check(self, at: &FieldPath, findings: &mut Findings) -> Session {
        let Self {
            name,
            ttl,
            behavior,
            lock_delay,
            watch_grace,
            node_checks,
            service_checks,
            node,
            state_file,
        } = self;
        let seconds = Duration::from_secs;
        // Consul's own bounds: `session_ttl_min`, and its maximum.
        let ttl_at = at.key("ttl");
        let ttl = value::duration(ttl, DEFAULT_TTL, seconds(10)..=DAY, &ttl_at, findings);
        let watch_grace = watch_grace.map(|DurationString(grace)| grace);
        let grace_at = at.key("watch_grace");
        // A lease expires at the latest one TTL after the last renewal, whatever the watch does.
        if let Some(grace) = watch_grace.filter(|grace| *grace > ttl && !findings.is_unsure(&ttl_at)) {
            let (grace, ttl) = (show(grace), show(ttl));
            findings.fault(
                &grace_at,
                format!(
                    "{grace} is longer than session.ttl, {ttl}, after which the lease expires; write at most {ttl}"
                ),
            );
        }
        let node_checks = value::lines(node_checks, &at.key("node_checks"), findings);
        let service_checks = value::lines(service_checks, &at.key("service_checks"), findings);
        let has_checks = !(node_checks.is_empty() && service_checks.is_empty());
        Session {
            name: value::line(name, &at.key("name"), findings),
            ttl,
            behavior: behavior.unwrap_or_default(),
            // Consul reduces a longer lock-delay to 60 s without an error.
            lock_delay: value::duration(
                lock_delay,
                DEFAULT_LOCK_DELAY,
                Duration::ZERO..=seconds(60),
                &at.key("lock_delay"),
                findings,
            ),
            watch_grace,
            node_checks,
            service_checks,
            node: SessionNode::of(value::line(node, &at.key("node"), findings), has_checks),
            state_file: value::own_file(state_file, &at.key("state_file"), findings),
        }
    }
}
