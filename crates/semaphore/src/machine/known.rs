//! What a machine has learnt: the view of its next decision, and what lasts beyond it.

use super::watches::Watches;
use crate::plan::{GroupStep, Want};
use crate::record::Record;
use crate::sightings::Sightings;
use crate::view::View;
use crate::{Moment, SessionId};

/// What is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The view of the next decision.
    pub(super) seen: Option<View>,
    /// What is to be read before it.
    pub(super) want: Option<Want>,
    /// The last view, with what was learnt of `.lock` since. It is what people are shown, and what a release may begin with.
    pub(super) last: Option<View>,
    /// When everything was looked at last; of a lock, its key.
    pub(super) listed_at: Option<Moment>,
    pub(super) sightings: Sightings,
    /// The index of `.lock` when a listing last showed that nothing is to be done for others.
    pub(super) settled_at: Option<u64>,
    /// The index of the contender key at which the client joined the queue.
    pub(super) arrival: Option<u64>,
    /// Consul refused the free lock, which is in lock-delay: when to try again.
    pub(super) delayed_until: Option<Moment>,
    /// A check-and-set of `.lock` came too late since the slots were asked for: many clients may have come at once.
    pub(super) lost_race: bool,
    /// The last decision was made on a listing.
    pub(super) decided_by_listing: bool,
    /// What was left to other clients for a moment is not left to them any more.
    pub(super) yields_over: bool,
    /// The next view is read to see whether all is well.
    pub(super) confirms: bool,
    /// The step of the acquire group for which the last plan was made.
    pub(super) planned_for: Option<(GroupStep, usize)>,
    /// At how many other prefixes the agent held slots when the last plan was made.
    pub(super) planned_holding: usize,
    /// The session was looked at since the contender key was seen to be gone, and lives.
    pub(super) session_lives: bool,
}

impl Known {
    /// Nothing is known. `.lock` and the own contender key are read first.
    pub(super) fn nothing() -> Self {
        Self { want: Some(Want::Some(Vec::new())), ..Self::default() }
    }

    /// The next decision needs a new reading. A wish for all keys is not lost by a smaller one.
    pub(super) fn want(&mut self, want: Want) {
        self.seen = None;
        if self.want != Some(Want::All) {
            self.want = Some(want);
        }
    }

    pub(super) fn wants_anything(&self) -> bool {
        self.want.is_some() || self.seen.is_some()
    }

    /// Takes in a view, on which the next decision is made.
    pub(super) fn see(&mut self, view: View, session: Option<&SessionId>, now: Moment) {
        self.sightings.see(&view, now);
        if view.shows_all() {
            self.listed_at = Some(now);
        }
        let own = session.and_then(|session| view.contender(session));
        self.arrival = own.filter(|one| !one.says_held()).map(|one| one.create_index);
        if own.is_some() {
            self.session_lives = false;
        }
        // A smaller view that is newer says nothing of the others, and people are shown these as they were last.
        self.last = Some(match self.last.take() {
            Some(last) if last.is_listed() && !view.is_listed() => last.updated(&view),
            _ => view.clone(),
        });
        self.want = None;
        self.seen = Some(view);
    }

    /// A slot is held from here on.
    pub(super) fn begin_anew(&mut self) {
        (self.lost_race, self.yields_over, self.confirms) = (false, false, false);
        (self.settled_at, self.arrival) = (None, None);
        self.session_lives = false;
    }

    /// Decides by what was seen last, which may not be all there is by now.
    pub(super) fn decide_by_last(&mut self) {
        self.seen = self.last.clone().map(View::of_few);
    }

    /// Decides by the last listing, with what a watch has told of `.lock` since: beside foreign clients, which do not wait.
    pub(super) fn decide_by_listing(&mut self, now: Moment) {
        self.seen = self.last.clone().and_then(View::of_past);
        if let Some(view) = &self.seen {
            self.sightings.see(view, now);
        }
        self.want = if self.seen.is_some() { None } else { Some(Want::All) };
    }

    /// What a release may begin with, without another read: a `.lock` that is watched, or that names no other client.
    pub(super) fn prepare_to_leave(&mut self, watches: &Watches) {
        let knows = |view: &View| {
            let names_no_other = |record: &Record| {
                let one = record.holders.windows(2).all(|two| two[0] == two[1]);
                one && !record.is_attended() && record.hints.is_some()
            };
            view.record().is_some_and(names_no_other) || watches.follows(&view.lock_key())
        };
        match self.last.as_ref().filter(|view| self.want.is_none() && knows(view)) {
            Some(last) => self.seen = Some(last.clone().of_few()),
            None => self.want(Want::Some(Vec::new())),
        }
    }

    /// Forgets the other participants.
    pub(super) fn forget_others(&mut self, session: &SessionId) {
        if let Some(last) = self.last.take() {
            self.last = Some(last.of_own(session));
            self.listed_at = None;
        }
    }
}
