//! What a keeper starts with, and what it leaves to the next process.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Keeper;
use crate::command::Name;
use crate::machine::{Machine, Phase};
use crate::settings::Settings;
use crate::{Identity, SessionId, Wall};

/// What an earlier process of the same agent left in Consul.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Its session.
    pub session: SessionId,
    /// The prefixes that it had to do with, each with the fencing token of the slot that it held there, if it did.
    pub prefixes: BTreeMap<String, Option<u64>>,
    /// The same of the keys of single-key locks.
    pub locks: BTreeMap<String, Option<u64>>,
}

impl Resume {
    /// What a keeper would leave behind, were its process killed now; `None` while it has no session.
    pub fn of(keeper: &Keeper) -> Option<Self> {
        let session = keeper.session()?.clone();
        let (mut prefixes, mut locks) = (BTreeMap::new(), BTreeMap::new());
        // Where there is another look to come, the next process takes it.
        let may_have = |machine: &&Machine| !machine.is_gone() || machine.looks_again();
        for machine in keeper.machines().filter(may_have) {
            let held = if let Phase::Held { token, .. } = machine.phase() { Some(token) } else { None };
            let token = held.or(machine.withheld()).or(machine.remembered());

            let of_its_kind = if machine.settings().is_lock() { &mut locks } else { &mut prefixes };
            of_its_kind.insert(machine.settings().prefix.clone(), token);
        }
        Some(Self { session, prefixes, locks })
    }
}

/// The input of [`Keeper::new`].
#[derive(Clone, Debug)]
pub struct Start {
    /// The session's TTL.
    pub ttl: Duration,
    /// How long a failing watch is tolerated while a slot is held; `None`: to the lease's end.
    pub watch_grace: Option<Duration>,
    /// The identity that is written into contender keys.
    pub who: Identity,
    /// For dates that people read.
    pub wall: Wall,
    /// The seed of all random choices.
    pub seed: u64,
    /// What an earlier process left behind. That process has ended: no two processes may use one session.
    pub resume: Option<Resume>,
    /// The semaphores to be held.
    pub semaphores: Vec<(Name, Settings)>,
    /// Those of them whose slots are acquired all or nothing.
    pub together: Vec<Name>,
}
