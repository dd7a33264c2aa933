//! The machines of one keeper, by name.

use std::collections::BTreeMap;

use super::Machine;
use super::command::Name;

/// Each in an allocation of its own: a node of the map has room for eleven, and the keeper of a lease has one.
#[derive(Clone, Debug, Default)]
pub(super) struct Machines(BTreeMap<Name, Box<Machine>>);

impl Machines {
    /// Adds one, or leaves the one that has its name as it is.
    pub(super) fn add(&mut self, name: Name, machine: impl FnOnce(Name) -> Machine) {
        self.0.entry(name).or_insert_with_key(|name| Box::new(machine(Name::clone(name))));
    }

    pub(super) fn remove(&mut self, name: &Name) -> Option<Machine> {
        self.0.remove(name).map(|machine| *machine)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Machine> {
        self.0.get(name).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Machine> {
        self.0.get_mut(name).map(Box::as_mut)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.0.keys()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Machine> {
        self.0.values().map(Box::as_ref)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Machine> {
        self.0.values_mut().map(Box::as_mut)
    }
}
