//! What the agent does about a notice of the core: it logs, counts, calls hooks, and fails where a required slot is not held.

use std::time::Duration;

use tracing::error;

use super::driver::Owner;
use super::{Agent, announce, translate};
use crate::clock;
use crate::config::Wait;
use crate::duration::show;
use crate::exit::Exit;
use crate::log_events::KEY_REFUSED;
use slotkeeper_semaphore::{FailureKind, Name, Notice, OnLost};

impl Agent {
    pub(super) fn tell(&mut self, notice: &Notice) {
        let labelled = self.labels.put_on(notice);
        if self.outage.logs(Owner::Agent, notice) {
            announce::log(&labelled);
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
        if let Notice::SessionTaken { .. } = notice {
            // The next process would resume that session at once, while another one holds its slots.
            if let Some(state) = &self.parts.files.state {
                state.forget();
            }
        }
        if let Notice::Evicted { name, held, by } = notice {
            self.evicted(name, *held, by);
        }
        if let Notice::Lost { name, reason, .. } = notice {
            self.keep(name, hook);
            let lost = format!("the slot of {} was lost ({})", self.labels.of(name), reason.as_str());
            if self.running.is_some() && self.is_required(name) {
                self.fail(Exit::SlotLost, &format!("{lost}, on which the command runs"));
            } else if self.runs_beside_on(name) {
                self.fail(Exit::SlotLost, &format!("{lost}, on which the workload runs"));
            } else if self.own.keeper.machine(name).is_some_and(|one| one.settings().on_lost == OnLost::Exit)
            {
                self.fail(Exit::SlotLost, &format!("{lost}, and on_lost is `exit`"));
            }
        }
        if let Notice::Failing { name: Some(name), failure } = notice
            && failure.kind == FailureKind::InvalidKey
            && !self.started_up
        {
            // Retrying does not help. An agent that has held all of its slots keeps them: only its reads fail, and renewals
            // keep the slots.
            error!(semaphore = %self.labels.of(name), error = %failure.text, "{KEY_REFUSED}; correct the configuration");
            self.fail(Exit::Config, &format!("Consul refuses the name of a key: {}", failure.text));
        }
        if let Notice::TimedOut { name, reached, failure: trouble } = notice
            && self.is_required(name)
        {
            let exit = if *reached { Exit::Timeout } else { Exit::Unavailable };
            self.fail(exit, &self.explain_timeout(name, *reached, trouble.as_deref()));
        }
    }

    /// Explains why a required slot was not acquired in time.
    fn explain_timeout(&self, name: &Name, reached: bool, trouble: Option<&str>) -> String {
        let label = self.labels.of(name);
        let entry = self.parts.config.entries().find(|entry| entry.id() == *name);
        let wait = match entry.map(|entry| entry.wait) {
            Some(Wait::AtMost(time)) => time,
            Some(Wait::Forever) | None => Duration::ZERO,
        };
        let in_vain = match self.awaited() {
            _ if !reached => {
                format!("timed out after {} waiting for Consul, without a slot of {label}", show(wait))
            }
            Some(awaited) if wait > Duration::ZERO => {
                format!("timed out after {} waiting for {awaited}", show(wait))
            }
            _ => format!("no slot of {label} is free, and the wait is 0"),
        };
        trouble.map_or(in_vain.clone(), |trouble| format!("{in_vain}; the last failure was: {trouble}"))
    }

    pub(super) fn is_required(&self, name: &Name) -> bool {
        translate::required(&self.parts.config).any(|required| required == *name)
    }
}
