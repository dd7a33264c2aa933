//! What the agent does about a notice of the core: it logs, counts, calls hooks, and fails where a required slot is not held.

use super::driver::Owner;
use super::{Agent, announce, translate};
use crate::clock;
use crate::exit::Exit;
use slotkeeper_semaphore::{LossReason, Machine, Name, Notice, OnLost};

impl Agent {
    pub(super) fn tell(&mut self, notice: &Notice) {
        let labelled = self.labels.put_on(notice);
        if !self.tells_itself(notice) && self.outage.logs(Owner::Agent, notice) {
            announce::log(notice, self.labels.titled(notice).as_ref());
        }
        self.journal.follow(&labelled, self.labels.subject(notice));
        self.parts.metrics.observe(&labelled);
        let hook = announce::call_hook(notice, &self.labels, &self.parts.config.hooks, &mut self.hooks);
        if let Notice::SessionStarted { resumed, .. } = notice {
            self.session_created_at = (!resumed).then(clock::now);
        }
        if let Notice::Removed { name } = notice {
            let label = self.labels.forget(name);
            self.forget_removed(&label);
        }
        if let Notice::Renewed { .. } = notice {
            self.parts.files.look();
        }
        if let Notice::Evicted { name, held, by } = notice {
            self.evicted(name, *held, by);
        }
        if let Notice::Lost { name, reason, .. } = notice {
            self.keep(name, hook);
            let by = self.own.keeper.machine(name).and_then(Machine::evicted_by);
            let evicted = by.map(|by| format!("evicted by {by}"));
            let why = evicted.clone().unwrap_or_else(|| reason.as_str().to_owned());
            let title = self.labels.title(name);
            let lost = format!("the slot of {title} was lost ({why})");
            if self.running.is_some() && self.is_required(name) {
                let why = evicted.unwrap_or_else(|| format!("slot lost: {} ({why})", in_words(*reason)));
                self.fail(Exit::SlotLost, &format!("{title}: {why}"));
            } else if self.runs_beside_on(name) {
                self.fail(Exit::SlotLost, &format!("{lost}, on which the workload runs"));
            } else if self.own.keeper.machine(name).is_some_and(|one| one.settings().on_lost == OnLost::Exit)
            {
                self.fail(Exit::SlotLost, &format!("{lost}, and on_lost is `exit`"));
            }
        }
        if let Notice::TimedOut { name, reached, failure, obstacle } = notice
            && self.is_required(name)
        {
            self.timed_out(name, *reached, failure.as_ref(), obstacle.as_ref());
        }
    }

    pub(super) fn is_required(&self, name: &Name) -> bool {
        translate::required(&self.parts.config).any(|required| required == *name)
    }
}

/// Why a slot was lost, for a person.
fn in_words(reason: LossReason) -> &'static str {
    match reason {
        LossReason::SessionGone => "its session has ended in Consul",
        LossReason::Evicted => "another client has removed its holder from `.lock`",
        LossReason::ContenderGone => "its key in Consul was deleted, or locked by another session",
        LossReason::LeaseExpired => "Consul answered no renewal before the lease expired",
        LossReason::WatchFailed => "its watch failed for longer than session.watch_grace",
        LossReason::GroupLost => "another slot of its acquire group was lost",
    }
}
