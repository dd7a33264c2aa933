//! The queue as a view knows it: waiters in order, positions, and the turns of foreign clients.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Contender, View};
use crate::SessionId;
use crate::offered::{self, MAX_OFFER};
use crate::record::Record;

impl View {
    /// Live contenders in line, in the order in which slotkeeper serves: priority, then arrival. One of ours that says
    /// that it holds and does not was taken out; it is not in line before it has noticed. One that was told to leave is not
    /// either.
    pub fn waiters(&self) -> Vec<&Contender> {
        let holders = self.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        let holders: BTreeSet<_> = holders.iter().collect();
        let in_line =
            |one: &&Contender| !one.says_held() && !one.is_evicted() && !holders.contains(&one.session);
        let mut waiters: Vec<_> = self.contenders.iter().filter(in_line).collect();
        waiters.sort_by_key(|one| (std::cmp::Reverse(one.priority()), self.arrival(one)));
        waiters
    }

    /// On whom a session in line relies: on whoever watches over all, and where nobody does on the one of ours ahead.
    pub fn relies_on(&self, session: &SessionId) -> Option<&SessionId> {
        if let Some(record) = self.record().filter(|record| record.has_lookout) {
            return record.next.last();
        }
        let waiters = self.waiters();
        let ahead = waiters.get(..waiters.iter().position(|one| one.session == *session)?)?;
        ahead.iter().rfind(|one| one.entry.is_some()).map(|one| &one.session)
    }

    /// A contender's place among its priority. A foreign client leaves `.lock` by one write and deletes its contender by
    /// another: in between it is no first waiter, and one that stays has come when it left.
    pub fn arrival(&self, one: &Contender) -> u64 {
        let left = self.left.get(&one.session).filter(|_| one.entry.is_none());
        left.map_or(one.create_index, |left| one.create_index.max(*left))
    }

    /// Foreign clients in line.
    pub fn foreign_waiters(&self) -> impl Iterator<Item = &Contender> {
        let holders = self.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        // Mostly there is none: then the many that may hold are not looked at.
        let any = self.contenders.iter().any(|one| one.entry.is_none());
        let holders: BTreeSet<_> = if any { holders.iter().collect() } else { BTreeSet::new() };
        self.contenders.iter().filter(move |one| one.entry.is_none() && !holders.contains(&one.session))
    }

    /// Whether a contender of ours had that session, and has gone since everything was listed.
    pub(crate) fn was_ours(&self, session: &SessionId) -> bool {
        self.gone.contains(session)
    }

    /// Whether a foreign contender has let slots pass for so long that it is passed over.
    pub fn is_idle(&self, one: &Contender) -> bool {
        one.entry.is_none() && self.was_offered(one) >= MAX_OFFER
    }

    /// For how long a slot that has been free for `free` is left, in all, to the foreign clients in line.
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

    /// How many wait, as far as is known: those whom `.lock` names at least.
    pub fn waiting(&self) -> u32 {
        let waiters = self.waiters();
        let known: BTreeSet<_> = waiters.iter().map(|one| &one.session).chain(self.named()).collect();
        u32::try_from(known.len()).unwrap_or(u32::MAX)
    }

    fn named(&self) -> impl Iterator<Item = &SessionId> {
        let next = self.record().map(|record| record.next.as_slice()).unwrap_or_default();
        next.iter().filter(|session| session.as_str() != Record::OTHERS)
    }

    /// A session's place in the line, from 1. Of one that has not seen the line: its place among those whom `.lock` names, or
    /// right behind them, although others may stand between.
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
