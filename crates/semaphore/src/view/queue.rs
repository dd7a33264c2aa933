//! The queue as a view knows it: waiters in order, positions, and the turns of foreign clients.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Contender, View};
use crate::SessionId;
use crate::offered::{self, MAX_OFFER};
use crate::record::Record;

impl View {
    /// The waiters, by priority and then arrival. A contender that says `held` without a slot was evicted from `.lock`, and is
    /// no waiter before it has noticed. Nor is a contender that an operator evicted.
    pub fn waiters(&self) -> Vec<&Contender> {
        let holders = self.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        let holders: BTreeSet<_> = holders.iter().collect();
        let in_line =
            |one: &&Contender| !one.says_held() && !one.is_evicted() && !holders.contains(&one.session);
        let mut waiters: Vec<_> = self.contenders.iter().filter(in_line).collect();
        waiters.sort_by_key(|one| (std::cmp::Reverse(one.priority()), self.arrival(one)));
        waiters
    }

    /// The client that a waiter relies on: the lookout, or without one the slotkeeper waiter ahead.
    pub fn relies_on(&self, session: &SessionId) -> Option<&SessionId> {
        if let Some(record) = self.record().filter(|record| record.has_lookout) {
            return record.next.last();
        }
        let waiters = self.waiters();
        let ahead = waiters.get(..waiters.iter().position(|one| one.session == *session)?)?;
        ahead.iter().rfind(|one| one.entry.is_some()).map(|one| &one.session)
    }

    /// The order of a contender among those of its priority. A foreign client leaves `.lock` by one write and deletes its
    /// contender key by another. In between it is not the first waiter: its arrival is when it left `.lock`.
    pub fn arrival(&self, one: &Contender) -> u64 {
        let left = self.left.get(&one.session).filter(|_| one.entry.is_none());
        left.map_or(one.create_index, |left| one.create_index.max(*left))
    }

    /// Foreign waiters.
    pub fn foreign_waiters(&self) -> impl Iterator<Item = &Contender> {
        let holders = self.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        // Mostly there is none: then the many that may hold are not looked at.
        let any = self.contenders.iter().any(|one| one.entry.is_none());
        let holders: BTreeSet<_> = if any { holders.iter().collect() } else { BTreeSet::new() };
        self.contenders.iter().filter(move |one| one.entry.is_none() && !holders.contains(&one.session))
    }

    /// Whether the session was a slotkeeper contender that has left since the listing.
    pub(crate) fn was_ours(&self, session: &SessionId) -> bool {
        self.gone.contains(session)
    }

    /// Whether a foreign contender has ignored free slots for so long that it is passed over.
    pub fn is_idle(&self, one: &Contender) -> bool {
        one.entry.is_none() && self.was_offered(one) >= MAX_OFFER
    }

    /// How long a slot that has been free for `free` is left to the foreign waiters in all.
    pub(crate) fn foreign_turn(&self, free: Duration) -> Duration {
        let turn = |one| offered::next_turn(self.was_offered(one).saturating_sub(free));
        let in_line = self.foreign_waiters().filter(|one| !self.is_idle(one));
        in_line.map(turn).max().unwrap_or_default()
    }

    /// For how long free slots were left to a foreign contender, all in all.
    fn was_offered(&self, one: &Contender) -> Duration {
        let offers = [self.offered.0.get(&one.session), self.offers.get(&one.session)].into_iter().flatten();
        let of_it = offers.filter(|offer| offer.index == one.modify_index);
        of_it.map(|offer| offer.open).max().unwrap_or_default()
    }

    /// The number of known waiters, including all that `.lock` names.
    pub fn waiting(&self) -> u32 {
        let waiters = self.waiters();
        let known: BTreeSet<_> = waiters.iter().map(|one| &one.session).chain(self.named()).collect();
        u32::try_from(known.len()).unwrap_or(u32::MAX)
    }

    fn named(&self) -> impl Iterator<Item = &SessionId> {
        let next = self.record().map(|record| record.next.as_slice()).unwrap_or_default();
        next.iter().filter(|session| session.as_str() != Record::OTHERS)
    }

    /// Whether [`View::position`] counts all waiters ahead: the queue was listed, or `.lock` names the session and all ahead of it.
    pub(crate) fn knows_position(&self, session: &SessionId) -> bool {
        let next = self.record().map(|record| record.next.as_slice()).unwrap_or_default();
        let mut named = next.iter().take_while(|named| named.as_str() != Record::OTHERS);
        self.listed || named.any(|named| named == session)
    }

    /// A session's position in the queue, from 1. Before the first listing: its position among the waiters that `.lock` names, or
    /// right behind them, although there may be others between.
    pub fn position(&self, session: &SessionId) -> Option<u32> {
        if !self.listed {
            let mut named: Vec<_> = self.named().collect();
            named.dedup();
            let place = named.iter().position(|one| *one == session);
            return u32::try_from(place.unwrap_or(named.len())).ok()?.checked_add(1);
        }
        let place = self.waiters().iter().position(|waiter| waiter.session == *session)?;
        Some(u32::try_from(place).unwrap_or(u32::MAX).saturating_add(1))
    }
}
