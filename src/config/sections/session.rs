//! The section `session`.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::fields::Fields;
use crate::config::kinds::{DAY, choice, duration, line, own_file, seconds};
use crate::duration::show;
use slotkeeper_consul::Behavior;
use slotkeeper_semaphore::DEFAULT_TTL;

/// The default lock-delay, which is Consul's own.
const DEFAULT_LOCK_DELAY: Duration = seconds(15);

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

impl Session {
    pub(super) fn read(f: &mut Fields<'_>) -> Self {
        let name = f.get("name", line);
        // Consul's own bounds: `session_ttl_min`, and its maximum.
        let ttl = f.get("ttl", duration(seconds(10)..=DAY)).unwrap_or(DEFAULT_TTL);
        let watch_grace = f.get("watch_grace", duration(Duration::ZERO..=Duration::MAX));
        // A lease expires at the latest one TTL after the last renewal, whatever the watch does.
        if let Some(grace) = watch_grace.filter(|grace| *grace > ttl && !f.is_unsure("ttl")) {
            let (grace, ttl) = (show(grace), show(ttl));
            f.fault(
                "watch_grace",
                format!(
                    "{grace} is longer than session.ttl, {ttl}, after which the lease expires; write at most {ttl}"
                ),
            );
        }
        let node_checks = f.list("node_checks", "a list", usize::MAX, line);
        let service_checks = f.list("service_checks", "a list", usize::MAX, line);
        // A check belongs to a node, and that of `Auto` has none.
        let has_checks = !(node_checks.is_empty() && service_checks.is_empty());
        let node = match f.get("node", line) {
            Some(name) if name == "agent" => SessionNode::Agent,
            Some(name) if name != "auto" => SessionNode::Named(name),
            Some(_) | None if has_checks => SessionNode::Agent,
            Some(_) | None => SessionNode::Auto,
        };
        let behavior = choice(&[("delete", Behavior::Delete), ("release", Behavior::Release)]);
        // Consul reduces a longer lock-delay to 60 s without an error.
        let lock_delay = f.get("lock_delay", duration(Duration::ZERO..=seconds(60)));
        Self {
            name,
            ttl,
            behavior: f.get("behavior", behavior).unwrap_or(Behavior::Delete),
            lock_delay: lock_delay.unwrap_or(DEFAULT_LOCK_DELAY),
            watch_grace,
            node_checks,
            service_checks,
            node,
            state_file: f.get("state_file", own_file).flatten(),
        }
    }
}
