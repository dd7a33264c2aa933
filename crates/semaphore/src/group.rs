//! Acquire groups: semaphores whose slots are acquired all or nothing (`acquire: together`).

use std::collections::{BTreeMap, BTreeSet};

use super::command::Name;
use super::machine::Machine;
use super::plan::{GroupMember, GroupStep};

/// The machines of a keeper. Each in an allocation of its own: a node of the map has room for eleven, and the keeper of a lease has one.
pub(super) type Machines = BTreeMap<Name, Box<Machine>>;

/// The members, and what they are to do next.
#[derive(Clone, Debug, Default)]
pub(super) struct AcquireGroup {
    names: BTreeSet<Name>,
    /// Those of the members that ask.
    prefixes: Vec<String>,
    step: Option<GroupStep>,
}

/// What the keeper has to see to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GroupAction {
    /// Nothing.
    None,
    /// All can write: in one transaction.
    Commit(Vec<Name>),
    /// All have their slots: from here on they are held.
    Begin(Vec<Name>),
    /// One of them has no slot, so that these may not keep theirs while they wait for it; or it is kept out, and these
    /// may not keep others waiting behind them.
    Release(Vec<Name>),
}

impl AcquireGroup {
    pub(super) fn of(names: impl IntoIterator<Item = Name>) -> Self {
        Self { names: names.into_iter().collect(), ..Self::default() }
    }

    /// It is no member any more, be it added again.
    pub(super) fn forget(&mut self, name: &Name) {
        self.names.remove(name);
    }

    fn members<'a>(&self, machines: &'a Machines) -> Vec<&'a Machine> {
        let members = self.names.iter().filter_map(|name| Some(&**machines.get(name)?));
        members.filter(|machine| machine.wants_slot()).collect()
    }

    /// Sees how the members stand.
    pub(super) fn look(&mut self, machines: &Machines) {
        let members = self.members(machines);

        let arrivals: BTreeSet<_> = members.iter().map(|machine| machine.arrival()).collect();
        let entered = arrivals.len() == 1 && !arrivals.contains(&None);
        let tries_once = members.iter().any(|machine| machine.settings().try_once());
        let step = if entered || tries_once { GroupStep::Acquire } else { GroupStep::Enqueue };
        // One alone is like any other.
        self.step = Some(step).filter(|_| members.len() > 1);
        self.prefixes = members.iter().map(|machine| machine.settings().prefix.clone()).collect();
    }

    /// What a semaphore is told of it, if it is a member.
    pub(super) fn of_member(&self, name: &Name) -> Option<GroupMember<'_>> {
        let step = self.step.filter(|_| self.names.contains(name))?;
        Some(GroupMember { prefixes: &self.prefixes, step })
    }

    /// Those that keep a member from taking a slot which is there for it.
    pub(super) fn blocking_members<'a>(&self, name: &Name, machines: &'a Machines) -> Vec<&'a Name> {
        let ready = machines.get(name).is_some_and(|one| one.has_proposal());
        if !ready || self.of_member(name).is_none() {
            return Vec::new();
        }
        let others = self.members(machines).into_iter().filter(|one| !one.has_proposal() && !one.holds());
        others.map(Machine::name).collect()
    }

    /// What follows from what the members would do.
    pub(super) fn next_action(&self, machines: &Machines) -> GroupAction {
        let members = self.members(machines);
        let names = |of: &dyn Fn(&Machine) -> bool| -> Vec<Name> {
            members.iter().filter(|machine| of(machine)).map(|machine| machine.name().clone()).collect()
        };
        // One of them may have given up a moment ago, and those left may not go on as if they were all.
        if self.step.is_none() || members.len() != self.prefixes.len() {
            return GroupAction::None;
        }
        if members.iter().all(|machine| machine.has_proposal()) {
            return GroupAction::Commit(names(&|_| true));
        }
        if members.iter().all(|machine| machine.has()) {
            return GroupAction::Begin(names(&|machine| !machine.holds()));
        }
        let held = names(&Machine::has);
        if members.iter().any(|machine| machine.holds_nothing()) && !held.is_empty() {
            return GroupAction::Release(held);
        }
        let stand = names(&|machine| machine.is_queued_or_holding() && !machine.is_blocked());
        if members.iter().any(|machine| machine.is_blocked()) && !stand.is_empty() {
            return GroupAction::Release(stand);
        }
        GroupAction::None
    }
}
