//! Translates the configuration into settings of the core and of a session, and into the configured part of the status. The patterns
//! have no `..`, so that no key is forgotten.

use crate::config::{self, Entry, Mode, SessionNode};
use crate::log_events::GROUP_HELD_IN_PART;
use crate::session_node::Sessions;
use crate::status;
use crate::{clock, user};
use slotkeeper_consul::{self, Behavior, SessionSpec};
use slotkeeper_semaphore::{Identity, Name, Primitive, Resume, Settings, Start, printable};
use tracing::warn;

/// The maximum size of a prefix in a session's name.
const MAX_TITLE_BYTES: usize = 150;

pub(super) fn settings(semaphore: &config::Semaphore) -> Settings {
    let config::Semaphore { entry, limit, slots, priority, limit_policy, prune_delay, format } = semaphore;
    let Entry { kind: _, name: _, mode: _, required: _, key, wait, on_lost, body } = entry;
    Settings {
        primitive: Primitive::Semaphore,
        prefix: key.clone(),
        limit: *limit,
        slots: *slots,
        priority: *priority,
        wait: *wait,
        on_lost: *on_lost,
        limit_policy: *limit_policy,
        prune_delay: *prune_delay,
        form: *format,
        body: body.clone(),
    }
}

pub(super) fn lock(lock: &Entry, session: &config::Session) -> Settings {
    let Entry { kind: _, name: _, mode: _, required: _, key, wait, on_lost, body } = lock;
    let stays = session.behavior == Behavior::Release;
    Settings { wait: *wait, on_lost: *on_lost, body: body.clone(), ..Settings::of_lock(key.clone(), stays) }
}

/// The part of a semaphore's status that is configured.
pub(super) fn semaphore_status(semaphore: &config::Semaphore) -> status::Semaphore {
    let config::Semaphore { priority: _, limit_policy: _, prune_delay: _, format: _, entry, limit, slots } =
        semaphore;
    status::Semaphore {
        entry: entry_status(entry),
        prefix: entry.key.clone(),
        slots: *slots,
        configured_limit: *limit,
        ..status::Semaphore::default()
    }
}

/// The part of a lock's status that is configured.
pub(super) fn lock_status(lock: &Entry) -> status::Lock {
    status::Lock { entry: entry_status(lock), key: lock.key.clone(), ..status::Lock::default() }
}

fn entry_status(entry: &Entry) -> status::Entry {
    let Entry { kind, key: _, wait: _, on_lost: _, body: _, name, required, mode } = entry;
    status::Entry {
        kind: *kind,
        name: name.clone(),
        required: *required,
        mode: match mode {
            Mode::Hold => status::Mode::Hold,
            Mode::OnDemand => status::Mode::OnDemand,
        },
        ..status::Entry::default()
    }
}

/// The start of a keeper of these, each acquired independently, with a random seed of its own.
pub(super) fn start(
    config: &config::Config,
    semaphores: Vec<(Name, Settings)>,
    resume: Option<Resume>,
) -> Start {
    Start {
        ttl: config.session.ttl,
        watch_grace: config.session.watch_grace,
        who: identity(&config.identity),
        wall: clock::wall(),
        seed: fastrand::u64(..),
        resume,
        semaphores,
        together: Vec::new(),
    }
}

/// All entries, each with its settings.
pub(super) fn all(config: &config::Config) -> impl Iterator<Item = (&Entry, Settings)> {
    let semaphores = config.semaphores.iter().map(|one| (&one.entry, settings(one)));
    semaphores.chain(config.locks.iter().map(|one| (one, lock(one, &config.session))))
}

/// The semaphores and locks that the agent holds by itself, by the core's names.
pub(super) fn held(config: &config::Config) -> Vec<(Name, Settings)> {
    let held = all(config).filter(|(entry, _)| entry.mode == Mode::Hold);
    held.map(|(entry, settings)| (entry.id(), settings)).collect()
}

/// Those of [`held`] that readiness and a command depend on.
pub(super) fn required(config: &config::Config) -> impl Iterator<Item = Name> {
    config.entries().filter(|entry| entry.is_required()).map(Entry::id)
}

/// The semaphores of the acquire group: all required ones, if they are acquired together.
///
/// A resumed agent that holds only a part of a group that no key asks for keeps it: a workload may run on it.
pub(super) fn together(config: &config::Config, resume: Option<&Resume>) -> Vec<Name> {
    let entries = config.semaphores.iter().map(|one| &one.entry);
    let required: Vec<_> = entries.filter(|one| one.required && config.acquire.together).collect();
    let held =
        |one: &&&Entry| resume.is_some_and(|resume| matches!(resume.prefixes.get(&one.key), Some(Some(_))));
    let is_part = (1..required.len()).contains(&required.iter().filter(held).count());
    if is_part && config.acquire.written.is_none() {
        warn!("{GROUP_HELD_IN_PART}");
        return Vec::new();
    }
    required.into_iter().map(Entry::id).collect()
}

/// The beginning of the names of the agent's sessions: the configured one, or the first semaphore or lock.
pub(super) fn session_title(config: &config::Config) -> String {
    let title = || {
        let first = config.entries().next();
        let first = first.map(|entry| config.naming.of(&entry.name, &entry.key));
        first.map_or("slotkeeper".to_owned(), |first| {
            format!("slotkeeper {}", printable(first, MAX_TITLE_BYTES))
        })
    };
    config.session.name.clone().unwrap_or_else(title)
}

/// How its sessions are created.
pub(super) fn sessions(config: &config::Config) -> Sessions {
    let config::Session {
        watch_grace: _,
        state_file: _,
        name,
        ttl,
        behavior,
        lock_delay,
        node,
        node_checks,
        service_checks,
    } = &config.session;
    let colon = if name.is_some() { "" } else { ":" };
    let who = identity(&config.identity).in_words().unwrap_or_default();
    let spec = SessionSpec {
        name: format!("{}{colon} {who}", session_title(config)).trim_end().to_owned(),
        ttl: *ttl,
        behavior: *behavior,
        lock_delay: *lock_delay,
        node: if let SessionNode::Named(node) = node { Some(node.clone()) } else { None },
        node_checks: node_checks.clone(),
        service_checks: service_checks.clone(),
    };
    if *node == SessionNode::Auto { Sessions::on_auto_node(spec) } else { Sessions::on_named_node(spec) }
}

/// The agent's identity, from the environment and the machine. Overlong names are cut, since each contender key contains them.
pub(super) fn identity(identity: &config::Identity) -> Identity {
    Identity {
        name: identity.name.clone(),
        command: identity.command.clone(),
        user: Some(user::name().to_owned()),
        pod: identity.pod.clone(),
        namespace: identity.namespace.clone(),
        node: identity.node.clone(),
        host: Some(rustix::system::uname().nodename().to_string_lossy().into_owned()),
        pid: Some(std::process::id()),
    }
    .shown()
}
