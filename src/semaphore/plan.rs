//! The one decision: given what is known, who I am and what time it is, what to write, and what to wait for.
//!
//! Everybody runs the same: joiner, waiter, holder, leaver, operator. Whoever acts takes the dead out of `.lock` on its
//! way and gives the free slots on, all in one transaction.

use std::collections::BTreeMap;
use std::time::Duration;

use super::contender::{Entry, Identity, Standing};
use super::line::{self, InLine, Kind, Own};
use super::record::{Form, NotASemaphore, Record};
use super::settings::{LimitPolicy, Settings};
use super::view::{Contender, Lock, View};
use super::{Moment, Op, SessionId};

mod draft;
mod watch;

use draft::Draft;
pub use watch::Watch;

/// How long a slot is left to a client of another kind that stands ahead. Those wait for the whole prefix to change
/// and try at once; one that does not may not be trying.
const THEIR_TURN: Duration = Duration::from_millis(300);

/// A holder whose contender is missing is looked into after this long: mostly it has just left, and `.lock`'s own
/// watch tells so in the next instant.
const SUSPICION: Duration = Duration::from_millis(50);

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
    /// Since when there have been free slots, as far as is known.
    pub free_since: Option<Moment>,
    /// How one stood when one planned last, and since when.
    pub stood: (Role, Moment),
    /// The numbers of the slots that are held.
    pub indexes: &'a [u32],
    /// Where the slots are taken together with others or not at all.
    pub together: Option<Together<'a>>,
    /// The other prefixes under which slots are held.
    pub holds: &'a [String],
}

/// Several semaphores whose slots are taken in one transaction or not at all.
///
/// All of its contenders are written by one transaction, and so have one and the same index. By that, any two parties
/// stand in the same order wherever they meet, and cannot wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together<'a> {
    /// The prefixes of all of them.
    pub prefixes: &'a [String],
    /// What is to be done next, by all of them at once.
    pub step: Step,
}

/// What a party does at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Stand in line anew.
    Enter,
    /// Take the slots.
    Take,
}

/// In which role one waits for changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Not in line yet, or behind another of ours.
    #[default]
    Behind,
    /// With nobody of ours ahead.
    Head,
    /// Let in by `.lock`, while its own contender is still known as it was before.
    Entering,
    /// Holding.
    Holding,
}

/// How the one who plans stands, once the write (if any) is done or without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stand {
    /// It has all of its slots, and its contender is alive.
    Holding,
    /// It has none.
    Apart {
        /// Whether the slots are there for it, or will be once others have had their turn.
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
    /// Whether it may only be committed together with those of the party's others.
    pub joint: bool,
}

/// What has to be read before anything can be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `.lock`.
    Look,
    /// Everything.
    List,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where things stand before the write.
    pub stand: Stand,
    /// The role that `watch` is for.
    pub role: Role,
    /// What to read first. Then nothing is written.
    pub need: Option<Need>,
    /// What to write.
    pub write: Option<Write>,
    /// When to plan again although nothing has changed.
    pub recheck: Option<Moment>,
    /// The keys whose change to wait for.
    pub watch: Vec<Watch>,
}

/// Plans to have the slot: to take it, to wait for it, or to keep it.
pub fn hold(view: &View, me: Me<'_>, now: Moment) -> Plan {
    let stored = match &view.lock {
        Lock::Record { record, .. } => Some(record),
        Lock::Missing => None,
        Lock::Conflict { found, .. } => return Plan::blocked(view, conflict(view, found)),
    };
    let holding = view.holds(me.session, me.settings.slots);
    if view.was_granted(me.session) {
        if !holding {
            return Plan { need: Some(Need::Look), ..Plan::new(Stand::Apart { room: true }) };
        }
        // What is known of `.lock` is older than the grant.
        return Plan {
            watch: watch::holding(view, me, now),
            role: Role::Holding,
            ..Plan::new(Stand::Holding)
        };
    }
    let record = stored.cloned().unwrap_or_else(|| Record::new(me.settings.form, me.settings.limit));
    if holding && !view.is_complete() && view.contender(me.session).is_some_and(|one| one.says_waiting()) {
        // Its contender was written with `.lock` and has the numbers of its slots: its watch is about to tell.
        let by = me.since(Role::Entering, now) + SUSPICION;
        let need = (by <= now).then_some(Need::List);
        let watch = watch::waiting(view, &[], me, now);
        let plan = Plan::new(Stand::Apart { room: true });
        return Plan { role: Role::Entering, need, recheck: Some(by), watch, ..plan };
    }
    // Who holds stays, whatever has become of the limit.
    if let Some(why) = refusal(view, &record, me.settings).filter(|_| !holding) {
        // In line it would be let in all the same, or stand in the way.
        let write = leave(view, me, now).write;
        return Plan { write, ..Plan::blocked(view, why) };
    }
    if holding { keep(view, record, me, now) } else { ask(view, record, me, now) }
}

/// Plans of one that holds: to look after the others.
fn keep(view: &View, record: Record, me: Me<'_>, now: Moment) -> Plan {
    let role = Role::Holding;
    let mut plan = Plan { watch: watch::holding(view, me, now), role, ..Plan::new(Stand::Holding) };
    plan.recheck(watch::settles_at(me, role, now));
    let sets_limit = me.sets_limit(&record);
    if !view.is_complete() {
        plan.need = sets_limit.then_some(Need::List);
        plan.suspect(view, &record, me, now);
        if plan.need.is_none() {
            plan.write = sign(view, &record, me, now);
        }
        return plan;
    }
    let signed = sign(view, &record, me, now);
    let mut draft = Draft::new(view, record, me.wall, Some(me));
    if sets_limit {
        draft.record.limit = me.settings.limit;
    }
    plan.recheck(draft.prune(me, now));
    let line = line::line(view, None);
    plan.recheck(draft.fill(&line, &[], me.free_since, now));
    if draft.changes() {
        draft.name_next(&line);
    }
    draft.sweep();
    plan.write = draft.write(!sets_limit).or(signed);
    plan
}

/// Plans of one that does not hold: to take the slots or to stand in line for them.
fn ask(view: &View, record: Record, me: Me<'_>, now: Moment) -> Plan {
    let mut plan = Plan::new(Stand::Apart { room: false });
    if record.slots_of(me.session) > 0 {
        // A share that is no whole slot goes in a transaction of its own. Put back in the same one, the record might
        // be what it was; Consul then leaves its index as it is, and a rival's check-and-set would not notice.
        let mut draft = Draft::new(view, record, me.wall, Some(me));
        draft.take_out(me.session);
        plan.stand = Stand::Apart { room: draft.free() >= me.settings.slots };
        plan.write = draft.write(false);
        return plan;
    }
    if view.contender(me.session).is_some() && !view.is_ordered() {
        return Plan { need: Some(Need::Look), ..plan };
    }
    if me.together.is_some_and(|together| together.step == Step::Enter) {
        return enter_anew(view, record, me);
    }
    let line = line::line(view, Some(me.own()));
    let place = line.iter().position(|one| one.session == me.session).unwrap_or_default();
    let heads = line.iter().take(place).all(InLine::is_foreign);
    let in_line = me.is_in_line(view);
    plan.watch = watch::waiting(view, &line[..place], me, now);
    if heads {
        plan.role = Role::Head;
        plan.recheck(watch::settles_at(me, Role::Head, now));
    }
    if !view.is_complete() {
        let free = record.limit > record.taken();
        // Nobody else can let in one that takes its slots together with others.
        let nameable = me.settings.slots <= record.limit.min(line::NAMED_SLOTS) && me.together.is_none();
        let unnamed = nameable && record.named_first() != Some(me.session);
        plan.need = (!in_line || heads && (free || unnamed)).then_some(Need::List);
        if heads {
            plan.suspect(view, &record, me, now);
        }
        return plan;
    }
    if me.together.is_some() {
        return take_together(view, record, me, &line[..=place], now, plan);
    }
    let sets_limit = me.sets_limit(&record);
    let mut draft = Draft::new(view, record, me.wall, Some(me));
    if sets_limit {
        draft.record.limit = me.settings.limit;
    }
    plan.recheck(draft.prune(me, now));
    plan.recheck(draft.fill(&line, &[], me.free_since, now));
    let granted = draft.has_granted(me.session);
    plan.stand = Stand::Apart { room: granted || draft.left_to_foreign };
    let stays = granted || !me.settings.try_once();
    // Whoever comes to the end of a line that `.lock` names, or to where all is taken, has to ask nobody: whoever is
    // let in before it stood there before. Anybody else says so in `.lock`, and so competes with all who write there;
    // also whoever has a priority, since it may have passed somebody who entered a moment ago.
    let last = place + 1 == line.len();
    let behind_named = line[..place].iter().any(InLine::is_grantable);
    // One whose priority has changed may be named there in its old place.
    let comes = !view.contender(me.session).is_some_and(Contender::says_waiting);
    let ordinary = comes && me.settings.priority <= 0;
    let quiet = !in_line && last && ordinary && (behind_named || draft.free() == 0);
    // One that left the line and comes again may still be named in its old place.
    let misnamed = comes && draft.record.next.contains(me.session);
    if stays && (heads || !in_line) && !quiet || draft.changes() || misnamed {
        // Others may have come as quietly between our read and our write, and stand ahead.
        let named = stays && !quiet;
        let line: Vec<_> = line.iter().filter(|one| named || one.session != me.session).copied().collect();
        draft.name_next(&line);
    }
    if stays && !granted && !in_line {
        draft.write_own(me.entry(Standing::Waiting, Vec::new()));
        // Many may come at once, and each learns who is right ahead of it.
        if quiet {
            draft.list();
        }
    }
    draft.sweep();
    plan.write = draft.write(in_line && !heads && !sets_limit);
    plan
}

/// Plans of a party's member while not all of them stand in line since the same write: to stand there anew.
fn enter_anew(view: &View, record: Record, me: Me<'_>) -> Plan {
    let mut plan = Plan::new(Stand::Apart { room: false });
    if !view.is_complete() {
        plan.need = Some(Need::List);
        return plan;
    }
    let line = line::line(view, Some(me.own()));
    let mut draft = Draft::new(view, record, me.wall, Some(me));
    draft.enter_anew(me.entry(Standing::Waiting, Vec::new()));
    // It may stand at the head for long, and a key that does not exist cannot be waited for.
    draft.create_lock();
    // As for any other: whoever comes to the end of a line has to ask nobody.
    let last = line.last().is_some_and(|one| one.session == me.session);
    if !last || line.len() == 1 && draft.free() > 0 {
        draft.name_next(&line);
    }
    plan.write = draft.write(false).map(|write| Write { joint: true, ..write });
    plan
}

/// Plans of a party's member in line, or of one that tries once: to take its slots when all the others can. It looks
/// after those ahead of it only where they could not: all holders are dead.
fn take_together(
    view: &View,
    record: Record,
    me: Me<'_>,
    line_to_me: &[InLine<'_>],
    now: Moment,
    mut plan: Plan,
) -> Plan {
    let draft = |record| {
        let mut draft = Draft::new(view, record, me.wall, Some(me));
        let due = draft.prune(me, now);
        (draft, due)
    };
    if me.sets_limit(&record) {
        // At once: those ahead may be waiting for it.
        plan.write = set_limit(view, me.settings.limit, me.wall, now).ok().flatten();
        return plan;
    }
    let stands = view.contender(me.session).is_some_and(Contender::says_waiting);
    if stands && !me.is_in_line(view) && !me.settings.try_once() {
        // What it wants has changed. Others go by what it says, and would wait for it while it waits for them.
        let mut draft = Draft::new(view, record, me.wall, Some(me));
        draft.name_next(&line::line(view, Some(me.own())));
        draft.write_own(me.entry(Standing::Waiting, Vec::new()));
        plan.write = draft.write(false);
        return plan;
    }
    let (mut takes, due) = draft(record.clone());
    plan.recheck(due);
    plan.recheck(takes.fill(line_to_me, &[], me.free_since, now));
    plan.stand = Stand::Apart { room: takes.has_granted(me.session) || takes.left_to_foreign };
    plan.write = if takes.has_granted_only(me.session) {
        takes.write(false).map(|write| Write { joint: true, ..write })
    } else {
        draft(record).0.write(true)
    };
    plan
}

/// What a holder's contender says for people, and the numbers of its slots, where whoever let it in did not know.
fn sign(view: &View, record: &Record, me: Me<'_>, now: Moment) -> Option<Write> {
    let contender = view.contender(me.session)?;
    let mut entry = me.entry(Standing::Held, me.indexes.to_vec());
    if let Some(stored) = &contender.entry {
        entry.since.clone_from(&stored.since);
    }
    let differs = contender.entry.as_ref() != Some(&entry);
    (differs && watch::settles_at(me, Role::Holding, now).is_none()).then(|| {
        let (key, index) = (view.contender_key(me.session), contender.modify_index);
        // Whatever says `held` stands in `.lock`: others go by that.
        let still_in = Op::CheckIndex { key: view.lock_key(), index: view.lock_index() };
        let own = Op::Cas { key, value: entry.encode(), flags: record.flags(), index };
        Write { ops: vec![still_in, own], pruned: 0, tidy: true, joint: false }
    })
}

/// Plans to be gone: out of `.lock`, and the contender deleted, and the slots given on, in one transaction. No write
/// and no need: one is gone.
pub fn leave(view: &View, me: Me<'_>, now: Moment) -> Plan {
    let mut plan = Plan::new(Stand::Apart { room: false });
    if view.was_granted(me.session) {
        return Plan { need: Some(Need::Look), ..plan };
    }
    let contender = view.contender(me.session);
    let Some(stored) = view.record().filter(|record| record.slots_of(me.session) > 0) else {
        // Guarded: somebody may be letting it in at this moment.
        plan.write = contender.map(|one| {
            let key = view.contender_key(me.session);
            Write {
                ops: vec![Op::DeleteCas { key, index: one.modify_index }],
                pruned: 0,
                tidy: false,
                joint: false,
            }
        });
        return plan;
    };
    let mut draft = Draft::new(view, stored.clone(), me.wall, Some(me));
    draft.take_out(me.session);
    if view.is_complete() {
        draft.prune(me, now);
        let line = line::line(view, None);
        draft.fill(&line, me.indexes, me.free_since, now);
        draft.name_next(&line);
    } else {
        draft.fill_by_name(me.indexes);
    }
    if contender.is_some() {
        draft.delete(me.session);
    }
    plan.write = draft.write(false);
    plan
}

/// The record that an operator means to change.
///
/// # Errors
///
/// What lies under `.lock` is no semaphore, or there is none: what was found, and what to do.
pub fn present(view: &View) -> Result<&Record, String> {
    match &view.lock {
        Lock::Record { record, .. } => Ok(record),
        Lock::Missing => Err(format!(
            "there is no semaphore at {}: the key {} does not exist; check the prefix, and that the token may read there",
            view.prefix(),
            view.lock_key()
        )),
        Lock::Conflict { found, .. } => Err(no_semaphore(view, found)),
    }
}

/// The transaction that changes the limit and gives on what that frees; `None` where there is nothing to do. Where more
/// slots become free than one transaction can give on, others follow from the view that it leads to.
///
/// # Errors
///
/// What lies under `.lock` is no semaphore, or there is none: what was found, and what to do.
pub fn set_limit(view: &View, limit: u32, wall: &str, now: Moment) -> Result<Option<Write>, String> {
    let mut draft = Draft::new(view, present(view)?.clone(), wall, None);
    draft.record.limit = limit;
    let line = line::line(view, None);
    draft.fill(&line, &[], None, now);
    if draft.changes() {
        draft.name_next(&line);
    }
    Ok(draft.write(false))
}

impl Plan {
    fn new(stand: Stand) -> Self {
        let (role, watch) = (Role::Behind, Vec::new());
        Self { stand, role, need: None, write: None, recheck: None, watch }
    }

    fn blocked(view: &View, why: String) -> Self {
        Self { watch: vec![watch::lock(view)], ..Self::new(Stand::Blocked(why)) }
    }

    fn recheck(&mut self, at: Option<Moment>) {
        self.recheck = [self.recheck, at].into_iter().flatten().min();
    }

    /// A holder whose contender is missing makes a listing necessary, unless it has only just left.
    fn suspect(&mut self, view: &View, record: &Record, me: Me<'_>, now: Moment) {
        let missing = record.holders.iter().filter(|holder| view.is_missing(holder));
        let since = missing.map(|holder| me.dead_since.get(holder).copied().unwrap_or(now)).min();
        match since.map(|since| since + SUSPICION) {
            Some(at) if at <= now => self.need = Some(Need::List),
            at => self.recheck(at),
        }
    }
}

impl Me<'_> {
    fn entry(&self, state: Standing, indexes: Vec<u32>) -> Entry {
        let Settings { slots, priority, body, .. } = self.settings;
        let mut entry = Entry::new(state, *slots, *priority, self.wall.to_owned(), self.who.clone());
        entry.body.clone_from(body);
        entry.indexes = indexes;
        entry.together = self.together.map(|together| together.prefixes.to_vec()).unwrap_or_default();
        entry
    }

    fn own(&self) -> Own<'_> {
        Own {
            session: self.session,
            slots: self.settings.slots,
            priority: self.settings.priority,
            together: self.together.is_some(),
            anew: self.together.is_some_and(|together| together.step == Step::Enter),
            holds: self.holds,
        }
    }

    fn since(&self, role: Role, now: Moment) -> Moment {
        if self.stood.0 == role { self.stood.1 } else { now }
    }

    fn sets_limit(&self, record: &Record) -> bool {
        self.set_limit && record.limit != self.settings.limit
    }

    /// Whether its contender stands in line as is wanted now.
    fn is_in_line(&self, view: &View) -> bool {
        let entry = view.contender(self.session).and_then(|one| one.entry.as_ref());
        entry.is_some_and(|stored| stored.agrees(&self.entry(Standing::Waiting, Vec::new())))
    }
}

fn conflict(view: &View, what: &NotASemaphore) -> String {
    if *what == NotASemaphore::SingleKeyLock {
        return format!(
            "{} is a single-key lock, such as `consul lock -n 1` takes there; waiting until it is gone. Choose another \
             prefix if it is there to stay",
            view.lock_key()
        );
    }
    format!("{}; choose another prefix, or delete the key if nobody needs it", no_semaphore(view, what))
}

fn no_semaphore(view: &View, what: &NotASemaphore) -> String {
    format!("the key {} holds something that is no semaphore: {what}. It is left as it is", view.lock_key())
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

#[cfg(test)]
mod tests;
