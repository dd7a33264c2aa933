//! The session table, with the expiry of each session.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::duration;
use slotkeeper_semaphore::Moment;

/// Consul's maximum TTL.
const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// Consul's maximum lock-delay. A longer one is stored unchanged and applied as this.
const MAX_LOCK_DELAY: Duration = Duration::from_secs(60);
/// The node's only check, as on a Consul agent.
pub const SERF_HEALTH: &str = "serfHealth";

/// The effect of a session's end on its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// The keys are released.
    Release,
    /// The keys are deleted.
    Delete,
}

impl Behavior {
    pub fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Delete => "delete",
        }
    }
}

/// A service check of a session. It is stored and returned, never run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCheck {
    pub id: String,
    pub namespace: String,
}

/// The request of a client, not checked yet.
#[derive(Clone, Debug)]
pub struct Request {
    pub name: String,
    /// `None`: the server's own node.
    pub node: Option<String>,
    /// Nanoseconds. Consul accepts and returns negative ones too.
    pub lock_delay: i64,
    pub behavior: String,
    /// In Go's notation; empty for a session that does not expire.
    pub ttl: String,
    pub node_checks: Option<Vec<String>>,
    pub service_checks: Option<Vec<ServiceCheck>>,
    /// The older name of `node_checks`.
    pub checks: Vec<String>,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub id: String,
    pub name: String,
    pub node: String,
    pub lock_delay: i64,
    pub behavior: Behavior,
    pub ttl: String,
    pub node_checks: Option<Vec<String>>,
    pub service_checks: Option<Vec<ServiceCheck>>,
    pub checks: Vec<String>,
    pub create_index: u64,
}

impl Session {
    /// How long after the session's end its keys cannot be locked.
    pub fn lock_delay(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.lock_delay).unwrap_or(0)).min(MAX_LOCK_DELAY)
    }
}

/// Why a session is not created or found. The texts are Consul's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    #[error("Missing node registration")]
    UnknownNode,
    #[error("Missing check '{0}' registration")]
    UnknownCheck(String),
    #[error("Invalid Behavior setting '{0}'")]
    Behavior(String),
    #[error("Session TTL '{text}' invalid: {source}")]
    TtlText { text: String, source: duration::NotADuration },
    #[error("Invalid Session TTL '{nanos}', must be between [{min}=24h0m0s]")]
    TtlRange { nanos: i64, min: String },
}

/// Why a text is not a session ID. The texts are those of Consul's database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnId {
    #[error("UUID must be 36 characters")]
    Length,
    #[error("UUID should have maximum of 4 \"-\"; got {0}")]
    Hyphens(usize),
    #[error("Input (without hyphens) must be even length")]
    Odd,
    #[error("Invalid UUID: encoding/hex: invalid byte: U+{code:04X} '{digit}'", code = u32::from(*digit))]
    Digit { digit: char },
}

/// A normalized session ID, for lookup and order: its digits, without hyphens, in one case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(String);

impl SessionId {
    /// The IDs that Consul accepts: UUIDs and some similar texts.
    pub fn parse(text: &str) -> Result<Self, NotAnId> {
        if text.len() != 36 {
            return Err(NotAnId::Length);
        }
        let digits = text.replace('-', "");
        let hyphens = text.len() - digits.len();
        if hyphens > 4 {
            return Err(NotAnId::Hyphens(hyphens));
        }
        if !digits.len().is_multiple_of(2) {
            return Err(NotAnId::Odd);
        }
        match digits.chars().find(|c| !c.is_ascii_hexdigit()) {
            Some(digit) => Err(NotAnId::Digit { digit }),
            None => Ok(Self(digits.to_ascii_lowercase())),
        }
    }
}

impl From<Uuid> for SessionId {
    fn from(id: Uuid) -> Self {
        Self(id.simple().to_string())
    }
}

/// The settings of TTLs.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The minimum TTL.
    pub min_ttl: Duration,
    /// A session ends this many TTLs after its last renewal.
    pub expiry_factor: u32,
}

#[derive(Clone, Debug)]
struct Living {
    session: Arc<Session>,
    ttl: Option<Duration>,
    expires: Option<Moment>,
}

/// The table.
#[derive(Clone, Debug)]
pub struct Sessions {
    node: String,
    /// The other nodes of the catalogue, on which nothing runs, in lower case: Consul compares their names so.
    nodes: BTreeSet<String>,
    rules: Rules,
    living: BTreeMap<SessionId, Living>,
    index: u64,
}

impl Sessions {
    pub fn new(node: String, rules: Rules) -> Self {
        Self { node, nodes: BTreeSet::new(), rules, living: BTreeMap::new(), index: 0 }
    }

    /// The index of the latest change to any session.
    pub fn index(&self) -> u64 {
        self.index
    }

    pub fn get(&self, id: &SessionId) -> Option<&Arc<Session>> {
        self.living.get(id).map(|living| &living.session)
    }

    pub fn list(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.living.values().map(|living| &living.session)
    }

    pub fn create(&mut self, id: Uuid, asked: Request, index: u64, now: Moment) -> Result<(), SessionError> {
        let behavior = match asked.behavior.as_str() {
            "" | "release" => Behavior::Release,
            "delete" => Behavior::Delete,
            _ => return Err(SessionError::Behavior(asked.behavior)),
        };
        let ttl = self.ttl(&asked.ttl)?;
        let node = asked.node.filter(|node| !node.is_empty()).unwrap_or_else(|| self.node.clone());
        let is_own = node.eq_ignore_ascii_case(&self.node);
        if !is_own && !self.nodes.contains(&node.to_lowercase()) {
            return Err(SessionError::UnknownNode);
        }
        let service_checks = asked.service_checks.iter().flatten().map(|check| &check.id);
        let mut named = asked.checks.iter().chain(asked.node_checks.iter().flatten()).chain(service_checks);
        if let Some(unknown) = named.find(|check| !is_own || *check != SERF_HEALTH) {
            return Err(SessionError::UnknownCheck(unknown.clone()));
        }
        let Request { name, lock_delay, ttl: text, node_checks, service_checks, checks, .. } = asked;
        let session = Arc::new(Session {
            id: id.to_string(),
            name,
            node,
            lock_delay,
            behavior,
            ttl: text,
            node_checks,
            service_checks,
            checks,
            create_index: index,
        });
        let expires = ttl.map(|ttl| now + ttl * self.rules.expiry_factor);
        self.living.insert(id.into(), Living { session, ttl, expires });
        self.index = index;
        Ok(())
    }

    /// Adds a node without checks to the catalogue.
    pub fn register(&mut self, node: &str) {
        self.nodes.insert(node.to_lowercase());
    }

    /// Renews a session. No index changes.
    pub fn renew(&mut self, id: &SessionId, now: Moment) -> Option<Arc<Session>> {
        let factor = self.rules.expiry_factor;
        let living = self.living.get_mut(id)?;
        living.expires = living.ttl.map(|ttl| now + ttl * factor);
        Some(Arc::clone(&living.session))
    }

    pub fn remove(&mut self, id: &SessionId, index: u64) -> Option<Arc<Session>> {
        let removed = self.living.remove(id)?;
        self.index = index;
        Some(removed.session)
    }

    /// The sessions that have expired.
    pub fn expired(&self, now: Moment) -> Vec<SessionId> {
        let over = |living: &Living| living.expires.is_some_and(|expires| expires <= now);
        self.living.iter().filter(|(_, living)| over(living)).map(|(id, _)| id.clone()).collect()
    }

    pub fn next_expiry(&self) -> Option<Moment> {
        self.living.values().filter_map(|living| living.expires).min()
    }

    fn ttl(&self, text: &str) -> Result<Option<Duration>, SessionError> {
        if text.is_empty() {
            return Ok(None);
        }
        let nanos = duration::parse(text)
            .map_err(|source| SessionError::TtlText { text: text.to_owned(), source })?;
        if nanos == 0 {
            return Ok(None);
        }
        match u64::try_from(nanos).map(Duration::from_nanos) {
            Ok(ttl) if (self.rules.min_ttl..=MAX_TTL).contains(&ttl) => Ok(Some(ttl)),
            Ok(_) | Err(_) => Err(SessionError::TtlRange { nanos, min: duration::show(self.rules.min_ttl) }),
        }
    }
}
