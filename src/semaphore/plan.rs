//! The one decision: given what was seen, who I am and what time it is, what to write.
//!
//! Everybody runs the same: joiner, waiter, holder, leaver. A plan takes the dead out of `.lock` on its way, so that
//! whoever acts also prunes.

use std::collections::{BTreeMap, BTreeSet};

use super::contender::{Entry, Identity, Standing};
use super::record::{Form, Record};
use super::settings::{LimitPolicy, Settings};
use super::view::{Contender, Lock, View};
use super::{Moment, Op, SessionId};

/// Leftover entries swept up by one transaction, which may have 64 steps in all (Consul up to 1.13).
const SWEEP: usize = 16;

/// Who plans.
#[derive(Clone, Copy, Debug)]
pub struct Me<'a> {
    /// The own session.
    pub session: &'a SessionId,
    /// What is wanted.
    pub settings: &'a Settings,
    /// What the contender entry says for people.
    pub who: &'a Identity,
    /// The wall clock's time, RFC 3339, for people.
    pub wall: &'a str,
    /// Whether the configured limit is still to be written (policy `set`).
    pub set_limit: bool,
    /// Since when each holder without a live contender has been seen so.
    pub dead_since: &'a BTreeMap<SessionId, Moment>,
}

/// How the one who plans stands, once the write (if any) is done or without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stand {
    /// In `.lock` with all of its slots, and its contender alive.
    Holding,
    /// Not in `.lock`.
    Apart {
        /// Whether its slots are free.
        room: bool,
    },
    /// Kept out until somebody mends something: what is wrong, and what to do.
    Blocked(String),
}

/// A transaction to be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its steps.
    pub ops: Vec<Op>,
    /// Dead holders that it takes out.
    pub pruned: u32,
    /// Whether it only tidies up, which anybody can do: then a short random wait spares Consul a crowd of the same.
    pub tidy: bool,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where things stand before the write.
    pub stand: Stand,
    /// What to write.
    pub write: Option<Write>,
    /// When to plan again although nothing has changed: a dead holder's slot is resting until then.
    pub recheck: Option<Moment>,
}

/// Plans to have the slot: to take it, to wait for it, or to keep it.
pub fn hold(view: &View, me: Me<'_>, now: Moment) -> Plan {
    let mut record = match &view.lock {
        Lock::Record { record, .. } => record.clone(),
        Lock::Missing => Record::new(me.settings.form, me.settings.limit),
        Lock::Conflict(what) => return Plan::blocked(conflict(view, what)),
    };
    let contender = view.contender(me.session);
    let mine = record.slots_of(me.session);
    let holding = mine == me.settings.slots && contender.is_some();
    // Who holds stays, whatever has become of the limit.
    if let Some(why) = refusal(view, &record, me.settings).filter(|_| !holding) {
        return Plan::blocked(why);
    }
    let set_limit = me.set_limit && record.limit != me.settings.limit;
    if set_limit {
        record.limit = me.settings.limit;
    }
    let pruning = prune(&mut record, view, me, now);
    let mut ops = Vec::new();
    let (stand, urgent) = if holding {
        (Stand::Holding, set_limit)
    } else {
        record.holders.retain(|holder| holder != me.session);
        let room = record.limit.saturating_sub(record.taken()) >= me.settings.slots;
        // A share that is no whole slot goes in a transaction of its own. Put back in the same one, the record might
        // be what it was; Consul then leaves its index as it is, and a rival's check-and-set would not notice.
        if mine == 0 && room {
            record.holders.extend(std::iter::repeat_n(me.session, me.settings.slots as usize).cloned());
            ops.push(me.contend(view, &record, Standing::Held));
        } else if mine == 0 && !me.settings.try_once() && contender.is_none_or(Contender::says_held) {
            ops.push(me.contend(view, &record, Standing::Waiting));
        }
        (Stand::Apart { room }, !ops.is_empty() || mine > 0 || set_limit)
    };
    let rewrite = match view.record() {
        Some(stored) => *stored != record,
        None => record.taken() > 0,
    };
    if rewrite {
        ops.push(replace(view, &record));
    }
    Plan { stand, write: pruning.write(view, me, ops, urgent), recheck: pruning.recheck }
}

/// Plans to be gone: out of `.lock`, and the contender deleted, in one transaction. No write: one is gone.
pub fn leave(view: &View, me: Me<'_>, now: Moment) -> Plan {
    let mut ops = Vec::new();
    let mut pruning = Pruning::default();
    if let Some(stored) = view.record()
        && stored.slots_of(me.session) > 0
    {
        let mut record = stored.clone();
        pruning = prune(&mut record, view, me, now);
        record.holders.retain(|holder| holder != me.session);
        ops.push(replace(view, &record));
    }
    if view.contender(me.session).is_some() {
        ops.push(Op::Delete { key: view.contender_key(me.session) });
    }
    let write = (!ops.is_empty()).then_some(Write { ops, pruned: pruning.dead, tidy: false });
    Plan { stand: Stand::Apart { room: false }, write, recheck: None }
}

impl Plan {
    fn blocked(why: String) -> Self {
        Self { stand: Stand::Blocked(why), write: None, recheck: None }
    }
}

impl Me<'_> {
    fn contend(&self, view: &View, record: &Record, state: Standing) -> Op {
        let Settings { slots, priority, body, .. } = self.settings;
        let mut entry = Entry::new(state, *slots, *priority, self.wall.to_owned(), self.who.clone());
        entry.body.clone_from(body);
        Op::Lock {
            key: view.contender_key(self.session),
            value: entry.encode(),
            flags: record.flags(),
            session: self.session.clone(),
        }
    }
}

fn replace(view: &View, record: &Record) -> Op {
    Op::Cas { key: view.lock_key(), value: record.encode(), flags: record.flags(), index: view.lock_index() }
}

fn conflict(view: &View, what: &super::NotASemaphore) -> String {
    if *what == super::NotASemaphore::SingleKeyLock {
        return format!(
            "{} is a single-key lock, such as `consul lock -n 1` takes there; waiting until it is gone. Choose another \
             prefix if it is there to stay",
            view.lock_key()
        );
    }
    format!(
        "the key {} holds something that is no semaphore: {what}. It is left as it is; choose another prefix, or \
         delete the key if nobody needs it",
        view.lock_key()
    )
}

/// Why the record as it stands keeps us out, if it does.
fn refusal(view: &View, record: &Record, settings: &Settings) -> Option<String> {
    let key = view.lock_key();
    if record.limit != settings.limit && settings.limit_policy == LimitPolicy::Refuse {
        return Some(format!(
            "the limit stored in {key} is {}, the configured one {}, and limit_policy is `refuse`; make them equal",
            record.limit, settings.limit
        ));
    }
    if record.form() == Form::Map && settings.slots > 1 {
        return Some(format!(
            "{key} is in the form that `consul lock` writes, which cannot say that a session takes {} slots; set \
             slots to 1 or use another prefix with format `list`",
            settings.slots
        ));
    }
    None
}

#[derive(Debug, Default)]
struct Pruning {
    dead: u32,
    recheck: Option<Moment>,
}

impl Pruning {
    fn write(&self, view: &View, me: Me<'_>, mut ops: Vec<Op>, urgent: bool) -> Option<Write> {
        let own = view.contender_key(me.session);
        let sweep = view.leftovers.iter().filter(|leftover| leftover.key != own).take(SWEEP);
        ops.extend(sweep.map(|leftover| Op::DeleteCas { key: leftover.key.clone(), index: leftover.index }));
        (!ops.is_empty()).then_some(Write { ops, pruned: self.dead, tidy: !urgent })
    }
}

/// Takes holders without a live contender out, each once `prune_delay` has passed since it was first seen so. The own
/// session is never taken for dead: it is planning.
fn prune(record: &mut Record, view: &View, me: Me<'_>, now: Moment) -> Pruning {
    let mut gone = BTreeSet::new();
    let mut recheck: Option<Moment> = None;
    for holder in record.holders.iter().filter(|holder| *holder != me.session && !view.is_alive(holder)) {
        let rests_until = me.dead_since.get(holder).copied().unwrap_or(now) + me.settings.prune_delay;
        if rests_until <= now {
            gone.insert(holder.clone());
        } else {
            recheck = Some(recheck.map_or(rests_until, |earlier| earlier.min(rests_until)));
        }
    }
    record.holders.retain(|holder| !gone.contains(holder));
    Pruning { dead: u32::try_from(gone.len()).unwrap_or(u32::MAX), recheck }
}

#[cfg(test)]
mod tests;
