//! What is done once for a semaphore, although each lease has a keeper of its own: writing the configured limit, and warning
//! that another one applies.

use std::collections::BTreeMap;

use slotkeeper_semaphore::{Keeper, LimitPolicy, Name, Notice, Settings};

/// What was done, by the core's names.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// The configured limit that is written under `limit_policy: set`.
    set: BTreeMap<Name, u32>,
    /// The limits whose difference was logged: stored and configured.
    told: BTreeMap<Name, (u32, u32)>,
}

impl Limits {
    /// The settings of another keeper. It does not write a limit that is written already.
    pub(super) fn settings(&mut self, name: &Name, settings: Settings) -> Settings {
        if settings.limit_policy != LimitPolicy::Set {
            self.set.remove(name);
        }
        match self.set.get(name) {
            Some(limit) if *limit == settings.limit => {
                Settings { limit_policy: LimitPolicy::Adopt, ..settings }
            }
            Some(_) | None => settings,
        }
    }

    /// A notice of a keeper, unless it was logged for another keeper of the semaphore.
    pub(super) fn noticed(&mut self, keeper: &Keeper, notice: Notice) -> Option<Notice> {
        for machine in keeper.machines() {
            let (name, settings) = (machine.name(), machine.settings());
            let stored = machine.view().and_then(|view| view.record()).map(|record| record.limit);
            if stored == Some(settings.limit) {
                self.told.remove(name);
                if settings.limit_policy == LimitPolicy::Set {
                    self.set.insert(Name::clone(name), settings.limit);
                }
            }
        }
        let Notice::LimitDiffers { name, policy, stored, configured } = notice else { return Some(notice) };
        let told = self.told.insert(Name::clone(&name), (stored, configured));
        let policy = if self.set.contains_key(&name) { LimitPolicy::Set } else { policy };
        let news = told != Some((stored, configured));
        news.then_some(Notice::LimitDiffers { name, policy, stored, configured })
    }

    /// Forgets all other semaphores.
    pub(super) fn retain(&mut self, is_of_use: impl Fn(&Name) -> bool) {
        self.set.retain(|id, _| is_of_use(id));
        self.told.retain(|id, _| is_of_use(id));
    }
}
