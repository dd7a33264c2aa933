//! What a machine does for others besides its own turn: it sees to the offers that it has made, and looks whether the queue is served.
//!
//! A waiter that is served by others needs somebody who lives. So some waiters of each queue, chosen by chance, watch the names below its
//! prefix: a session that ends changes them. The others read a few keys now and then. Each waiter looks once more before its wait ends.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Context, InFlight, Machine, Timer};
use crate::backoff::jittered;
use crate::command::Command;
use crate::plan::{self, Want, Watch};
use crate::timing::{LAST_LOOK, LOOK_PAUSE, MAX_LIST_INTERVAL, MAX_OBSERVERS, OFFER_PATIENCE, WATCH_DELAY};
use crate::view::{View, contender_key};
use crate::{Moment, SessionId};

/// The maximum number of offers whose takers are watched. Of more, the next listing tells.
const MAX_WATCHED_OFFERS: usize = 4;
/// The number of offers, one after the other, after which a client that has left leaves the rest to others.
const MAX_ROUNDS: u32 = 6;

/// Offers that were made and are not known to be accepted: the index of each, and when it is taken back.
#[derive(Clone, Debug, Default)]
pub(super) struct Owed {
    pub(super) offers: BTreeMap<SessionId, (u64, Moment)>,
    /// How many times a client that has left has looked after them.
    rounds: u32,
}

impl Owed {
    pub(super) fn add(&mut self, sessions: &[SessionId], index: u64, now: Moment) {
        self.offers.extend(sessions.iter().map(|session| (session.clone(), (index, now + OFFER_PATIENCE))));
    }

    /// When the first offer is overdue.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.offers.values().map(|(_, until)| *until).min()
    }

    /// The contender key of a session has another index, or is gone.
    pub(super) fn see(&mut self, session: &SessionId, index: Option<u64>) {
        if self.offers.get(session).is_some_and(|(offered, _)| index != Some(*offered)) {
            self.offers.remove(session);
        }
    }

    /// Whether a client that has left has looked after them often enough: nobody seems to live.
    pub(super) fn gives_up(&mut self) -> bool {
        self.rounds += 1;
        self.rounds > MAX_ROUNDS
    }

    /// The keys that tell of the acceptance.
    pub(super) fn watches(&self, prefix: &str) -> impl Iterator<Item = Watch> {
        let watched = self.offers.iter().filter(|_| self.offers.len() <= MAX_WATCHED_OFFERS);
        watched.map(|(session, (index, _))| Watch { key: contender_key(prefix, session), after: *index })
    }
}

/// The looks of a waiter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    stage: Stage,
    /// How many times the waiter has looked.
    times: u32,
    /// The time of the last look is set.
    plans_last: bool,
    /// The index of the names below the prefix when they were last seen to have changed. What was read since may have a lower one: it is of a
    /// few keys alone.
    told: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Until the next look.
    #[default]
    Rests,
    /// The keys are being read.
    Looks,
    /// The names below the prefix are watched.
    Observes,
}

impl Machine {
    /// A client that has left sees to the offers that it made, also when its session has ended.
    pub(super) fn tend(&mut self, cx: &mut Context<'_>) {
        if self.known.want.take_if(|want| *want == Want::All).is_some() {
            cx.out.push_back(Command::List { name: self.name.clone() });
            self.in_flight = InFlight::Reading { want: Want::All, look: false };
            return;
        }
        let Some(view) = self.known.seen.take() else { return };
        self.known.decided_by_listing = true;
        if view.is_listed() {
            let wall = cx.agent.wall.text(cx.now);
            let (write, _) =
                plan::pass_on(&view, &self.known.sightings, Some(self.settings.prune_delay), &wall, cx.now);
            if let Some(write) = write {
                return self.commit(write, cx);
            }
        }
        self.watch_takers(cx);
    }

    pub(super) fn watch_takers(&mut self, cx: &mut Context<'_>) {
        let watches = self.owed.watches(&self.settings.prefix).collect();
        self.watch(watches, cx);
    }

    /// Follows a waiter's looks: when the next one is due, or that it is time to observe.
    pub(super) fn plan_looks(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        if let Some(ends) = self.times_out_at().filter(|_| !self.looks.plans_last) {
            let before = jittered(LAST_LOOK, 0.5, cx.rng).min(ends.since(cx.now) / 2);
            self.timers.set(Timer::LastLook, ends.back(before));
            self.looks.plans_last = true;
        }
        if self.timers.is_set(Timer::Look) {
            return;
        }
        let observer = is_observer(session, view.waiting());
        // What a holder that was not looked at did before, no later change of the names tells.
        let sees_all = observer && self.looks.stage == Stage::Looks && plan::covers(view, session);
        self.looks.stage = if sees_all { Stage::Observes } else { Stage::Rests };
        let next = match (observer, self.looks.times) {
            (true, 0) => WATCH_DELAY + jittered(LOOK_PAUSE.0, 0.9, cx.rng),
            // Holders that come and go all the time let no look see all there is.
            (true, times) if !sees_all => {
                jittered((LOOK_PAUSE.0 * (1 << (times - 1).min(3))).min(LOOK_PAUSE.1), 0.5, cx.rng)
            }
            (false, 0) => jittered(LOOK_PAUSE.1, 0.5, cx.rng),
            (false, 1) => cx.agent.session.ttl * 2,
            // What a watch told of alone may be wrong.
            (true, _) if self.looks.told > view.index() => jittered(cx.agent.session.ttl * 2, 0.5, cx.rng),
            // Watches may fail to tell.
            (true | false, _) => jittered(MAX_LIST_INTERVAL.min(cx.agent.session.ttl * 8), 0.5, cx.rng),
        };
        self.timers.set(Timer::Look, cx.now + next);
    }

    /// It is time to look.
    pub(super) fn begin_look(&mut self) {
        self.looks.times += 1;
        self.looks.stage = Stage::Looks;
    }

    /// The names below the prefix have changed, by the write of that index.
    pub(super) fn end_observation(&mut self, index: u64) {
        self.looks.stage = Stage::Rests;
        self.looks.told = index;
        self.timers.clear([Timer::Look]);
    }

    /// The watch of all names, for an observer.
    pub(super) fn observation(&self, view: &View) -> Option<Watch> {
        let key = format!("{}/", view.prefix());
        let after = view.index().max(self.looks.told);
        (self.looks.stage == Stage::Observes).then_some(Watch { key, after })
    }
}

/// Whether the waiter is one of the observers of a queue with so many waiters.
fn is_observer(session: &SessionId, waiting: u32) -> bool {
    let mut hasher = DefaultHasher::new();
    session.hash(&mut hasher);
    hasher.finish() % u64::from(waiting.max(1)) < u64::from(MAX_OBSERVERS)
}
