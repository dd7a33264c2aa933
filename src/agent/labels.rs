//! The configured names of semaphores and locks.
//!
//! The core knows each by its place in Consul. So an entry that a reload renames keeps its machine, and with it session, slot,
//! fencing token, position and the requests under way.

use std::collections::BTreeMap;

use crate::config::{Entry, Kind, Naming};
use crate::status::Subject;
use slotkeeper_semaphore::{Name, Notice};

/// The core's name. Prefixes and keys are unique in a configuration.
pub(super) fn id(kind: Kind, key: &str) -> Name {
    format!("{} {key}", kind.as_str()).into()
}

/// The semaphore or lock with that name of the core, and its configured name.
pub(super) fn subject(id: &Name, label: &str) -> Option<Subject> {
    let (kind, key) = id.split_once(' ')?;
    let kind = [Kind::Semaphore, Kind::Lock].into_iter().find(|one| one.as_str() == kind)?;
    Some(Subject { kind, name: label.to_owned(), key: key.to_owned() })
}

impl Entry {
    /// The core's name.
    pub(super) fn id(&self) -> Name {
        id(self.kind, &self.key)
    }

    /// What changes and log lines about it say.
    pub(super) fn subject(&self) -> Subject {
        Subject { kind: self.kind, name: self.name.clone(), key: self.key.clone() }
    }
}

/// The names by which people know the machines of a keeper: those of the configuration, and those that a configuration
/// before it had for what is still being released.
#[derive(Debug)]
pub(super) struct Labels {
    names: BTreeMap<Name, Name>,
    naming: Naming,
}

impl Labels {
    pub(super) fn new(naming: Naming) -> Self {
        Self { names: BTreeMap::new(), naming }
    }

    /// Sets the configured name.
    pub(super) fn set(&mut self, id: Name, label: &str) {
        self.names.insert(id, label.into());
    }

    /// Removes the entry and returns its configured name.
    pub(super) fn forget(&mut self, id: &Name) -> Name {
        self.names.remove(id).unwrap_or_else(|| Name::clone(id))
    }

    /// The configured name. What an earlier process has left behind has only the core's name.
    pub(super) fn of(&self, id: &Name) -> Name {
        Name::clone(self.names.get(id).unwrap_or(id))
    }

    /// The text for messages.
    pub(super) fn title(&self, id: &Name) -> Name {
        let name = self.of(id);
        let key = id.split_once(' ').map_or(&**id, |(_, key)| key);
        self.naming.of(&name, key).into()
    }

    /// The semaphore or lock that a notice of the core is about.
    pub(super) fn subject(&self, notice: &Notice) -> Option<Subject> {
        let id = id_of(notice)?;
        subject(&id, &self.of(&id))
    }

    /// Whether a machine has this configured name.
    pub(super) fn has(&self, label: &str) -> bool {
        self.names.values().any(|known| **known == *label)
    }

    /// The notice with the configured name.
    pub(super) fn put_on(&self, notice: &Notice) -> Notice {
        named(notice, |id| self.of(id))
    }

    /// The same, with the name that messages have.
    pub(super) fn titled(&self, notice: &Notice) -> Option<Subject> {
        self.titled_by(&id_of(notice)?)
    }

    /// The semaphore or lock with that name of the core, and the name that messages have.
    pub(super) fn titled_by(&self, id: &Name) -> Option<Subject> {
        subject(id, &self.title(id))
    }
}

/// The core's name of the semaphore or lock that a notice is about.
pub(super) fn id_of(notice: &Notice) -> Option<Name> {
    notice.clone().name_mut().cloned()
}

/// The notice with another name in it.
pub(super) fn named(notice: &Notice, name: impl FnOnce(&Name) -> Name) -> Notice {
    let mut notice = notice.clone();
    if let Some(id) = notice.name_mut() {
        *id = name(id);
    }
    notice
}
