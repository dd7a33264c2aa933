//! Ends a wait that cannot succeed: that of `run` before its command has started.

use super::{Agent, fatal, labels};
use crate::config::{LogFormat, LogLevel};
use crate::exit::Exit;
use crate::log_events::KEY_REFUSED;
use slotkeeper_semaphore::{Failing, Failure, FailureKind, Machine, Moment, Name, Notice, Obstacle, Phase};

impl Agent {
    /// Ends `run` if its command can never start, and any agent whose key Consul accepts under no name. An agent that has
    /// held all of its slots keeps them: only its reads fail, and renewals keep the slots. Returns whether that may follow.
    pub(super) fn end_hopeless_wait(&mut self, now: Moment) -> bool {
        let faults = self.permanent_faults(now);
        let may_follow = !faults.is_empty();
        if let Some((exit, why)) = faults.into_iter().find_map(|(verdict, why)| Some((verdict?, why))) {
            self.fail(exit, &why);
        }
        may_follow
    }

    /// When the wait may turn out to be hopeless without any further answer.
    pub(super) fn hopeless_at(&self) -> Option<Moment> {
        if !self.may_end_hopeless() {
            return None;
        }
        let at = |machine: &Machine| obstacle_of(machine).map(|(_, since)| fatal::certain_at(since));
        self.required_machines().filter_map(at).min()
    }

    fn may_end_hopeless(&self) -> bool {
        !self.started_up && !self.ending.is_decided()
    }

    /// What waiting cannot cure, with the exit code once that is certain.
    fn permanent_faults(&self, now: Moment) -> Vec<(Option<Exit>, String)> {
        if !self.may_end_hopeless() {
            return Vec::new();
        }
        let keeper = &self.own.keeper;
        let of_machines = keeper.machines().filter_map(|one| Some((Some(one.name()), one.failing()?)));
        let failing = keeper.failing().map(|failing| (None, failing)).into_iter().chain(of_machines);
        let failures = failing.filter_map(|(name, failing): (Option<&Name>, &Failing)| {
            let Failure { kind, text } = &failing.failure;
            let is_key = *kind == FailureKind::InvalidKey;
            let is_needed = is_key || self.is_run && name.is_none_or(|name| self.is_required(name));
            fatal::exit_of_failure(*kind).filter(|_| is_needed)?;
            let why = if is_key { format!("{KEY_REFUSED}: {text}") } else { text.clone() };
            let why = name.map_or(why.clone(), |name| format!("{}: {why}", self.labels.title(name)));
            Some((fatal::verdict_on_failure(failing), why))
        });
        let obstacles = self.required_machines().filter_map(|machine| {
            let (obstacle, since) = obstacle_of(machine)?;
            let why = format!("{}: {}", self.labels.title(machine.name()), obstacle.why);
            Some((fatal::verdict_on_obstacle(&obstacle, since, now), why))
        });
        failures.chain(obstacles).collect()
    }

    /// The slots without which `run` does not start its command.
    fn required_machines(&self) -> impl Iterator<Item = &Machine> {
        self.own.keeper.machines().filter(|machine| self.is_run && self.is_required(machine.name()))
    }

    /// Whether the log has only what the lines of the wait and of the end do not tell: that of a `run` at `warn` or `error`.
    fn is_terse(&self) -> bool {
        let log = self.parts.config.log;
        let is_quiet = matches!(log.level, LogLevel::Error | LogLevel::Warn);
        self.is_run && log.format == LogFormat::Text && is_quiet
    }

    /// Whether those lines tell what fails during the wait.
    pub(super) fn tells_failures(&self) -> bool {
        self.is_terse() && !self.started_up
    }

    /// Whether those lines tell a notice.
    pub(super) fn tells_itself(&self, notice: &Notice) -> bool {
        let is_other = labels::id_of(notice).is_some_and(|name| !self.is_required(&name));
        if !self.is_terse() || is_other {
            false
        } else if let Notice::Failing { .. } | Notice::TimedOut { .. } = notice {
            !self.started_up
        } else if let Notice::Blocked { name, obstacle } = notice {
            let tries_once = || self.own.keeper.machine(name).is_some_and(|one| one.settings().try_once());
            let is_told = self.wait.is_some() || fatal::exit_of_obstacle(obstacle.kind).is_some();
            !self.started_up && (is_told || tries_once())
        } else if let Notice::Lost { .. } | Notice::SessionEnded { .. } = notice {
            self.running.is_some()
        } else {
            matches!(notice, Notice::Evicted { .. })
        }
    }
}

/// What keeps it from acquiring, if waiting cannot cure it.
fn obstacle_of(machine: &Machine) -> Option<(Obstacle, Moment)> {
    let Phase::Blocked { obstacle, since } = machine.phase() else { return None };
    let lasts = fatal::exit_of_obstacle(obstacle.kind).is_some() && machine.failing().is_none();
    lasts.then_some((obstacle, since))
}
