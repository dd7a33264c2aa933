//! The state of the agent's end: which part of the way it has gone, and what is known there.

use std::time::Duration;

use crate::control::request::Draining;
use crate::exit::{Ended, Exit};
use slotkeeper_semaphore::Moment;

/// How long slots stay held for the workload after a stop was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) struct DrainDeadlines {
    /// The workload is not waited for any longer.
    pub(in crate::agent) hold_until: Moment,
    /// The drain has ended.
    pub(super) ends: Moment,
    /// The workload says when it is done (`drain.release: after_workload`); otherwise nothing is known of it (`drain.hold`).
    pub(super) until_done: bool,
}

/// The bounds of a drain that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Drain {
    /// What is not released by then is abandoned, and its session destroyed. `None`: that time is over.
    pub(super) abandon_at: Option<Moment>,
    /// Something was abandoned.
    pub(super) abandoned: bool,
    pub(in crate::agent) ends: Moment,
    /// The time that one request has.
    pub(in crate::agent) request_timeout: Duration,
}

/// A requested stop, as from SIGTERM. An end that the agent decides on by itself is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    NotRequested,
    Requested(Option<DrainDeadlines>),
}

/// How the agent ends.
#[derive(Debug, PartialEq, Eq)]
struct Decision {
    exit: Exit,
    why: Option<String>,
    stop: Stop,
}

/// The agent's end, from none in sight to the drain.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The end is not decided. The explanation is that of a command which is about to end with its own exit code. With deadlines a
    /// stop was requested, and the agent holds its slots for the workload.
    Undecided { why: Option<String>, holding: Option<DrainDeadlines> },
    /// The end is decided, and nothing new is acquired. The drain begins when no workload is left.
    Decided(Decision),
    /// Everything is being released.
    Draining(Decision, Drain),
}

#[derive(Debug)]
pub(in crate::agent) struct Ending(State);

impl Default for Ending {
    fn default() -> Self {
        Self(State::Undecided { why: None, holding: None })
    }
}

impl Ending {
    /// Requests a stop that the agent answers by holding its slots until the deadlines.
    pub(super) fn hold(&mut self, deadlines: DrainDeadlines) {
        match &mut self.0 {
            State::Undecided { holding, .. } => *holding = Some(deadlines),
            State::Decided(decision) | State::Draining(decision, _) => {
                decision.stop = Stop::Requested(Some(deadlines));
            }
        }
    }

    /// Notes that a stop was requested after the end was decided.
    pub(super) fn note_stop(&mut self) {
        if let State::Decided(decision) | State::Draining(decision, _) = &mut self.0
            && decision.stop == Stop::NotRequested
        {
            decision.stop = Stop::Requested(None);
        }
    }

    /// Decides on the end, with an explanation where it is not the workload's doing. The first decision counts.
    pub(super) fn decide(&mut self, exit: Exit, why: Option<&str>) {
        if let State::Undecided { why: before, holding } = &mut self.0 {
            let why = why.map(str::to_owned).or_else(|| before.take());
            let stop = holding.map_or(Stop::NotRequested, |deadlines| Stop::Requested(Some(deadlines)));
            self.0 = State::Decided(Decision { exit, why, stop });
        }
    }

    /// Explains an end that is not decided yet.
    pub(in crate::agent) fn explain(&mut self, explanation: &str) {
        if let State::Undecided { why, .. } = &mut self.0 {
            *why = Some(explanation.to_owned());
        }
    }

    /// Explains what was left in Consul, unless the exit code says something else.
    pub(super) fn explain_left(&mut self, left: String) {
        match &mut self.0 {
            State::Undecided { why, .. }
            | State::Decided(Decision { exit: Exit::Done, why, .. })
            | State::Draining(Decision { exit: Exit::Done, why, .. }, _) => *why = Some(left),
            State::Decided(_) | State::Draining(..) => {}
        }
    }

    /// Begins the drain of a decided end.
    pub(super) fn begin_drain(&mut self, drain: Drain) {
        self.0 = match std::mem::take(self).0 {
            State::Decided(decision) => State::Draining(decision, drain),
            other @ (State::Undecided { .. } | State::Draining(..)) => other,
        };
    }

    /// Whether what is not released has to be abandoned now; says so once. `is_left`: there is something; `is_own`: and not only slots that
    /// were offered to others.
    pub(in crate::agent) fn abandon(&mut self, now: Moment, is_left: bool, is_own: bool) -> bool {
        match &mut self.0 {
            State::Draining(_, drain) if drain.abandon_at.is_some_and(|at| at <= now) => {
                drain.abandon_at = None;
                drain.abandoned = is_left && is_own;
                is_left
            }
            State::Undecided { .. } | State::Decided(_) | State::Draining(..) => false,
        }
    }

    fn decision(&self) -> Option<&Decision> {
        match &self.0 {
            State::Decided(decision) | State::Draining(decision, _) => Some(decision),
            State::Undecided { .. } => None,
        }
    }

    pub(in crate::agent) fn is_decided(&self) -> bool {
        self.decision().is_some()
    }

    /// Whether the end is decided, and the drain has not begun.
    pub(in crate::agent) fn awaits_workload(&self) -> bool {
        matches!(self.0, State::Decided(_))
    }

    pub(in crate::agent) fn exit(&self) -> Option<Exit> {
        self.decision().map(|decision| decision.exit)
    }

    pub(in crate::agent) fn drain(&self) -> Option<&Drain> {
        match &self.0 {
            State::Draining(_, drain) => Some(drain),
            State::Undecided { .. } | State::Decided(_) => None,
        }
    }

    pub(super) fn has_abandoned(&self) -> bool {
        self.drain().is_some_and(|drain| drain.abandoned)
    }

    /// The next bound of the drain.
    pub(in crate::agent) fn drain_deadline(&self) -> Option<Moment> {
        self.drain().map(|drain| drain.abandon_at.unwrap_or(drain.ends))
    }

    pub(in crate::agent) fn stop_was_requested(&self) -> bool {
        match &self.0 {
            State::Undecided { holding, .. } => holding.is_some(),
            State::Decided(decision) | State::Draining(decision, _) => decision.stop != Stop::NotRequested,
        }
    }

    /// What clients of leases are told of the end, once it is certain.
    pub(in crate::agent) fn draining(&self, now: Moment) -> Option<Draining> {
        let ends = self.drain().map(|drain| drain.ends).or(self.deadlines().map(|deadlines| deadlines.ends));
        (self.is_decided() || ends.is_some()).then(|| Draining { ends_in: ends.map(|ends| ends.since(now)) })
    }

    /// The deadlines of the requested stop, where slots were held for the workload.
    pub(in crate::agent) fn deadlines(&self) -> Option<DrainDeadlines> {
        match &self.0 {
            State::Undecided { holding, .. } => *holding,
            State::Decided(decision) | State::Draining(decision, _) => match decision.stop {
                Stop::Requested(deadlines) => deadlines,
                Stop::NotRequested => None,
            },
        }
    }

    /// What is told of an end with this code.
    pub(in crate::agent) fn ended(self, exit: Exit) -> Ended {
        let why = match self.0 {
            State::Undecided { why, .. } => why,
            State::Decided(decision) | State::Draining(decision, _) => decision.why,
        };
        Ended { exit, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    const REQUEST: Duration = Duration::from_secs(1);

    fn deadlines() -> DrainDeadlines {
        DrainDeadlines { hold_until: at(20), ends: at(30), until_done: true }
    }

    fn drain() -> Drain {
        Drain { abandon_at: Some(at(40)), abandoned: false, ends: at(50), request_timeout: REQUEST }
    }

    #[test]
    fn the_first_decision_counts() {
        let mut ending = Ending::default();
        assert!(!ending.is_decided() && !ending.stop_was_requested());
        ending.decide(Exit::SlotLost, Some("lost"));
        ending.decide(Exit::Done, Some("later"));
        ending.begin_drain(drain());
        ending.decide(Exit::Failed, Some("last"));
        ending.explain("not any more");
        ending.explain_left("the code says something else".into());
        assert_eq!(ending.exit(), Some(Exit::SlotLost));
        assert_eq!(ending.ended(Exit::SlotLost), Ended::because(Exit::SlotLost, "lost"));
    }

    #[test]
    fn a_requested_stop_holds_and_its_deadlines_outlast_the_decision() {
        let mut ending = Ending::default();
        ending.hold(deadlines());
        assert!(ending.stop_was_requested() && !ending.is_decided());
        ending.decide(Exit::Done, None);
        ending.note_stop();
        assert!(ending.awaits_workload() && ending.stop_was_requested());
        assert_eq!(ending.deadlines(), Some(deadlines()));
        ending.begin_drain(drain());
        assert!(!ending.awaits_workload() && ending.is_decided());
        assert_eq!(ending.deadlines(), Some(deadlines()));
    }

    #[test]
    fn an_own_decision_is_no_requested_stop() {
        let mut ending = Ending::default();
        ending.note_stop();
        assert!(!ending.stop_was_requested(), "a stop either holds or decides");
        ending.decide(Exit::Timeout, Some("timed out"));
        assert!(!ending.stop_was_requested() && ending.deadlines().is_none());
        ending.note_stop();
        assert!(ending.stop_was_requested() && ending.deadlines().is_none());
        ending.hold(deadlines());
        assert_eq!(ending.deadlines(), Some(deadlines()));
    }

    #[test]
    fn a_drain_abandons_once_and_begins_only_after_the_decision() {
        let mut ending = Ending::default();
        ending.begin_drain(drain());
        assert!(ending.drain().is_none() && !ending.abandon(at(60), true, true));
        ending.decide(Exit::Done, None);
        ending.begin_drain(drain());
        assert!(!ending.abandon(at(39), true, true) && !ending.has_abandoned());
        assert_eq!(ending.drain_deadline(), Some(at(40)));
        assert!(ending.abandon(at(40), true, true) && ending.has_abandoned());
        assert!(!ending.abandon(at(41), true, true));
        assert_eq!(ending.drain_deadline(), Some(at(50)));
        ending.explain_left("two keys are left".into());
        assert_eq!(ending.ended(Exit::Failed), Ended::because(Exit::Failed, "two keys are left"));
    }

    #[test]
    fn a_drain_that_waits_for_clients_alone_abandons_nothing() {
        let mut ending = Ending::default();
        assert_eq!(ending.draining(at(30)), None);
        ending.decide(Exit::Done, None);
        assert_eq!(ending.draining(at(30)), Some(Draining { ends_in: None }), "the workload is waited for");
        ending.begin_drain(drain());
        assert_eq!(ending.draining(at(30)), Some(Draining { ends_in: Some(Duration::from_secs(20)) }));
        assert!(!ending.abandon(at(45), false, true) && !ending.has_abandoned());
        assert_eq!(ending.drain_deadline(), Some(at(50)));
    }

    #[test]
    fn a_command_that_overstays_explains_its_own_exit_code() {
        let mut ending = Ending::default();
        ending.explain("killed");
        ending.decide(Exit::PassedOn(137), None);
        assert_eq!(ending.ended(Exit::PassedOn(137)), Ended::because(Exit::PassedOn(137), "killed"));
    }

    #[test]
    fn an_explanation_outlasts_a_requested_stop() {
        let mut ending = Ending::default();
        ending.explain("killed");
        ending.hold(deadlines());
        ending.decide(Exit::PassedOn(137), None);
        assert_eq!(ending.deadlines(), Some(deadlines()));
        assert_eq!(ending.ended(Exit::PassedOn(137)), Ended::because(Exit::PassedOn(137), "killed"));
    }
}
