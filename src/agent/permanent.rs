//! Ends a wait that cannot succeed: that of `run` before its command has started.

use super::{Agent, fatal};
use crate::about::log_about;
use crate::config::{LogFormat, LogLevel};
use crate::exit::Exit;
use crate::log_events::{KEY_REFUSED, WAIT_HOPELESS};
use crate::stderr::Stderr;
use slotkeeper_semaphore::{Failing, FailureKind, Machine, Moment, Name, Notice, Obstacle, Phase};

/// What waiting cannot cure, and the exit code once that is certain.
struct Fault<'a> {
    name: Option<&'a Name>,
    kind: Option<FailureKind>,
    text: String,
    verdict: Option<Exit>,
}

impl Agent {
    /// Ends `run` if its command can never start, and any agent whose key Consul accepts under no name. An agent that has
    /// held all of its slots keeps them: only its reads fail, and renewals keep the slots.
    pub(super) fn end_hopeless_wait(&mut self, now: Moment) {
        let faults = self.permanent_faults(now);
        let hold = self.is_terse() && !faults.is_empty();
        let certain = faults.into_iter().find_map(|fault| {
            let subject = fault.name.and_then(|name| self.labels.titled_by(name));
            Some((fault.verdict?, fault.kind, subject, fault.text))
        });
        if let Some(progress) = &mut self.parts.progress {
            progress.hold(hold);
        }
        let Some((exit, kind, subject, text)) = certain else { return };
        let why = match kind {
            Some(FailureKind::InvalidKey) => format!("Consul refuses the name of a key: {text}"),
            _ => text.clone(),
        };
        if self.speaks_plainly() {
            Stderr::say(&why);
        } else if kind == Some(FailureKind::InvalidKey) {
            log_about!(error, subject.as_ref(), error = %text, "{KEY_REFUSED}; correct the configuration");
        } else {
            log_about!(error, subject.as_ref(), reason = %why, "{WAIT_HOPELESS}");
        }
        self.fail(exit, &why);
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

    fn permanent_faults(&self, now: Moment) -> Vec<Fault<'_>> {
        if !self.may_end_hopeless() {
            return Vec::new();
        }
        let keeper = &self.own.keeper;
        let of_machines = keeper.machines().filter_map(|one| Some((Some(one.name()), one.failing()?)));
        let failing = keeper.failing().map(|failing| (None, failing)).into_iter().chain(of_machines);
        let counts = |name: Option<&Name>, failing: &Failing| {
            let is_needed = || self.is_run && name.is_none_or(|name| self.is_required(name));
            failing.failure.kind == FailureKind::InvalidKey || is_needed()
        };
        let failures =
            failing.filter(|(name, failing)| counts(*name, failing)).filter_map(|(name, failing)| {
                let kind = failing.failure.kind;
                fatal::exit_of_failure(kind)?;
                let (verdict, text) = (fatal::verdict_on_failure(failing), failing.failure.text.clone());
                Some(Fault { name, kind: Some(kind), text, verdict })
            });
        let obstacles = self.required_machines().filter_map(|machine| {
            let (obstacle, since) = obstacle_of(machine)?;
            let verdict = fatal::verdict_on_obstacle(&obstacle, since, now);
            Some(Fault { name: Some(machine.name()), kind: None, text: obstacle.why, verdict })
        });
        failures.chain(obstacles).collect()
    }

    /// The slots without which `run` does not start its command.
    fn required_machines(&self) -> impl Iterator<Item = &Machine> {
        self.own.keeper.machines().filter(|machine| self.is_run && self.is_required(machine.name()))
    }

    /// Whether the reason of an end is written as one line for people.
    pub(super) fn speaks_plainly(&self) -> bool {
        self.is_run && self.parts.config.log.format == LogFormat::Text
    }

    /// Whether the last line alone tells what ends the wait, since the log has only warnings.
    fn is_terse(&self) -> bool {
        let is_quiet = matches!(self.parts.config.log.level, LogLevel::Error | LogLevel::Warn);
        self.speaks_plainly() && is_quiet && !self.started_up
    }

    /// Whether the log does not have a failure of this kind, since the last line of `run` has it if it lasts.
    pub(super) fn withholds_failure(&self, kind: FailureKind) -> bool {
        self.is_terse() && fatal::exit_of_failure(kind).is_some()
    }

    /// The same of a notice. The last line also tells of the timeout of a required slot.
    pub(super) fn withholds_notice(&self, notice: &Notice) -> bool {
        if let Notice::Failing { failure, .. } = notice {
            self.withholds_failure(failure.kind)
        } else if let Notice::Blocked { name, obstacle } = notice {
            let tries_once = || self.own.keeper.machine(name).is_some_and(|one| one.settings().try_once());
            self.is_terse() && (fatal::exit_of_obstacle(obstacle.kind).is_some() || tries_once())
        } else if let Notice::TimedOut { name, .. } = notice {
            self.speaks_plainly() && self.is_required(name)
        } else {
            false
        }
    }
}

/// What keeps it from acquiring, if waiting cannot cure it.
fn obstacle_of(machine: &Machine) -> Option<(Obstacle, Moment)> {
    let Phase::Blocked { obstacle, since } = machine.phase() else { return None };
    let lasts = fatal::exit_of_obstacle(obstacle.kind).is_some() && machine.failing().is_none();
    lasts.then_some((obstacle, since))
}
