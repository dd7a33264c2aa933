//! The decision: from what is known of a semaphore, the caller's settings and the time, what to write and what to watch.
//!
//! Every participant runs the same functions: newcomer, waiter, holder, leaving client, operator. Any transaction that changes
//! `.lock` also prunes dead holders and grants every free slot.

use crate::timing::MISSING_HOLDER_GRACE;
use std::collections::BTreeMap;

use super::contender::{Entry, Identity, WaiterState};
use super::obstacle::{Obstacle, ObstacleKind};
use super::queue::{self, OwnWaiter, Waiter, WaiterKind};
use super::record::{Form, NotASemaphore, Record, excerpt};
use super::settings::{LimitPolicy, Settings};
use super::size::Acquisition;
use super::view::{Contender, LockKeyState, View};
use super::{Moment, Op, SessionId, printable};

mod acquire;
mod draft;
mod evict;
mod hold;
mod join;
mod lock;
mod operate;
mod release;
mod watch;

use draft::Draft;
pub use evict::{Membership, MembershipKind, force_eviction, request_eviction};
pub use join::join;
pub use operate::{check_visible, destroy, existing_record, prune, queue, set_limit};
pub use release::{leave, must_list_to_leave, release, resign};
pub use watch::{Watch, own};

/// The maximum length of a key in a message, in bytes.
const KEY: usize = 500;

/// The maximum length of an operator's name in a message, in bytes. The name is untrusted input.
const OPERATOR: usize = 100;

/// The input of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The client's session.
    pub session: &'a SessionId,
    /// The settings of the semaphore.
    pub settings: &'a Settings,
    /// The identity that the contender key shows.
    pub who: &'a Identity,
    /// The wall clock's time, RFC 3339, for people.
    pub wall: &'a str,
    /// Whether the configured limit is still to be written (policy `set`).
    pub set_limit: bool,
    /// For each holder without a live contender key, since when it was seen so.
    pub dead_since: &'a BTreeMap<SessionId, Moment>,
    /// Whether the last check-and-set of `.lock` was lost: other clients join at the same time.
    pub lost_cas_race: bool,
    /// Until when free slots are left to the clients that joined at the same time.
    pub yield_until: Option<Moment>,
    /// The client has just written, and the same transaction listed the keys: it continues at once.
    pub follows_up: bool,
    /// `.lock` and the own contender have just been read.
    pub confirmed: bool,
    /// Since when slots are free, as far as is known.
    pub free_since: Option<Moment>,
    /// The role of the last plan, and since when the client has it.
    pub last_role: (Role, Moment),
    /// When to try again to acquire the lock, which is free but in lock-delay.
    pub delayed_until: Option<Moment>,
    /// The slot indexes, as far as they are known, if the client holds slots.
    pub held: Option<&'a [u32]>,
    /// The acquire group, if the semaphore belongs to one.
    pub together: Option<GroupMember<'a>>,
    /// The other prefixes at which the agent holds slots.
    pub holds: &'a [String],
    /// Whether an earlier process made the session.
    pub resumed: bool,
}

/// A semaphore's place in an acquire group, whose slots are acquired in one transaction.
///
/// One transaction writes all contender keys of the group, so all have the same index. Two groups are therefore in the same
/// order in every queue in which they meet, and cannot wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMember<'a> {
    /// The prefixes of all members.
    pub prefixes: &'a [String],
    /// The next step of the group.
    pub step: GroupStep,
    /// The maximum size of this member's part of the transaction, in bytes. `None` if the holders in the `.lock` keys make the transaction
    /// larger than Consul accepts.
    pub room: Option<usize>,
}

/// What an acquire group does next, in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupStep {
    /// Move to the end of each queue, by one write.
    Enqueue,
    /// Acquire the slots, by one write.
    Acquire,
}

/// The role in which a client waits for changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Not in the queue yet, or behind another slotkeeper client.
    #[default]
    Behind,
    /// The first slotkeeper client of the queue.
    Head,
    /// Listed in `.lock`, while the own contender key is still known as it was before.
    Entering,
    /// Holding.
    Holding,
}

/// What a plan finds of the client itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanOutcome {
    /// It has all of its slots, and its contender key exists.
    Holding,
    /// It has no slot.
    NotHolding {
        /// Whether its slots are free, or will be once foreign clients have had their turn.
        room: bool,
    },
    /// It cannot proceed until a person acts: what is wrong, and what to do.
    Blocked(Obstacle),
    /// An operator evicted it: the operator's name, made safe to print.
    Evicted(String),
}

/// A transaction to be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its steps.
    pub ops: Vec<Op>,
    /// Dead holders that it prunes.
    pub pruned: u32,
    /// Whether it is a cleanup that any client can do. Then a short random wait keeps many clients from doing the same.
    pub tidy: bool,
    /// Whether it may only be committed together with the rest of the acquire group.
    pub joint: bool,
}

/// What has to be read before anything can be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// The `.lock` key, from any server.
    LockKey,
    /// The `.lock` key, by a consistent read.
    LockKeyConsistent,
    /// All keys below the prefix.
    Prefix,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What was found, before the write.
    pub outcome: PlanOutcome,
    /// The role that `watch` is for.
    pub role: Role,
    /// What to read first. Then nothing is written.
    pub refresh: Option<Refresh>,
    /// What to write.
    pub write: Option<Write>,
    /// When to plan again although nothing has changed.
    pub recheck: Option<Moment>,
    /// The keys whose change to wait for.
    pub watch: Vec<Watch>,
}

/// Plans to acquire the slot, to wait for it, or to hold it.
pub fn hold(view: &View, input: PlanInput<'_>, now: Moment) -> Plan {
    if let Some(by) = view.evicted_by(input.session) {
        return Plan::new(PlanOutcome::Evicted(printable(by, OPERATOR)));
    }
    if input.settings.is_lock() {
        return lock::hold(view, input, now);
    }
    let stored = match &view.lock {
        LockKeyState::Record { record, .. } => Some(record),
        // The view of a semaphore has no single-key lock.
        LockKeyState::Missing | LockKeyState::Single(_) => None,
        LockKeyState::Conflict { found, owner, .. } => {
            // A client that enqueued before it read `.lock` has left its contender key there.
            let Plan { write, .. } = leave(view, input, now);
            return Plan { write, ..Plan::blocked(view, conflict(view, found, owner.as_ref())) };
        }
    };
    let holding = view.holds(input.session, input.settings.slots);
    if view.was_granted(input.session) {
        if !holding {
            return Plan {
                refresh: Some(Refresh::LockKey),
                ..Plan::new(PlanOutcome::NotHolding { room: true })
            };
        }
        if input.settings.limit_policy == LimitPolicy::Refuse && input.is_new() {
            // The limit may be another one by now.
            return Plan {
                refresh: Some(Refresh::LockKey),
                ..Plan::new(PlanOutcome::NotHolding { room: true })
            };
        }
        // What is known of `.lock` is older than the grant.
        return Plan {
            watch: watch::holding(view, input, now),
            recheck: watch::settles_at(input, Role::Holding, now),
            role: Role::Holding,
            write: hold::sign(view, stored.map_or(input.settings.form.flags(), Record::flags), input, now),
            ..Plan::new(PlanOutcome::Holding)
        };
    }
    let record = stored.cloned().unwrap_or_else(|| Record::new(input.settings.form, input.settings.limit));
    let says_waiting = || view.contender(input.session).is_some_and(|one| one.says_waiting());
    if holding && input.held.is_none() && !view.is_complete() && says_waiting() {
        // The grant also wrote the contender key with the slot indexes. Its watch will report that soon.
        let by = input.since(Role::Entering, now) + MISSING_HOLDER_GRACE;
        let refresh = (by <= now).then_some(Refresh::Prefix);
        let watch = watch::waiting(view, &[], Role::Entering, input, now);
        let plan = Plan::new(PlanOutcome::NotHolding { room: true });
        return Plan { role: Role::Entering, refresh, recheck: Some(by), watch, ..plan };
    }
    // A holder stays, whatever the limit is now.
    if let Some(why) = refusal(view, &record, input).filter(|_| !holding || input.is_new()) {
        // A waiter in the queue could be granted a slot all the same, or would be in the way.
        let Plan { write, refresh, .. } = leave(view, input, now);
        return Plan { write, refresh, ..Plan::blocked(view, why) };
    }
    if holding { hold::keep(view, record, input, now) } else { acquire::ask(view, record, input, now) }
}

impl Plan {
    fn new(outcome: PlanOutcome) -> Self {
        let (role, watch) = (Role::Behind, Vec::new());
        Self { outcome, role, refresh: None, write: None, recheck: None, watch }
    }

    fn blocked(view: &View, obstacle: Obstacle) -> Self {
        // A key that does not exist is not watched.
        let watch = (view.lock_index() > 0).then(|| watch::lock(view)).into_iter().collect();
        Self { watch, ..Self::new(PlanOutcome::Blocked(obstacle)) }
    }

    fn recheck(&mut self, at: Option<Moment>) {
        self.recheck = [self.recheck, at].into_iter().flatten().min();
    }

    /// Requires a listing if the contender key of a holder is missing, unless the holder may have just left.
    fn check_missing_holders(&mut self, view: &View, record: &Record, input: PlanInput<'_>, now: Moment) {
        let missing = record.holders.iter().filter(|holder| view.is_missing(holder));
        let since = missing.map(|holder| input.dead_since.get(holder).copied().unwrap_or(now)).min();
        match since.map(|since| since + MISSING_HOLDER_GRACE) {
            Some(at) if at <= now => self.refresh = Some(Refresh::Prefix),
            at => self.recheck(at),
        }
    }
}

impl Write {
    /// A write of these steps alone.
    fn of(ops: Vec<Op>) -> Self {
        Self { ops, pruned: 0, tidy: false, joint: false }
    }
}

impl PlanInput<'_> {
    fn entry(&self, state: WaiterState, indexes: Vec<u32>) -> Entry {
        let Settings { slots, priority, body, .. } = self.settings;
        let mut entry = Entry::new(state, *slots, *priority, self.wall.to_owned(), self.who.clone());
        entry.body.clone_from(body);
        entry.indexes = indexes;
        entry.together = self.together.map(|together| together.prefixes.to_vec()).unwrap_or_default();
        entry
    }

    /// Whether the client has no slot, neither its own nor one of an earlier process.
    fn is_new(&self) -> bool {
        self.held.is_none() && !self.resumed
    }

    fn own(&self) -> OwnWaiter<'_> {
        OwnWaiter {
            session: self.session,
            slots: self.settings.slots,
            priority: self.settings.priority,
            together: self.together.is_some(),
            anew: self.together.is_some_and(|together| together.step == GroupStep::Enqueue),
            holds: self.holds,
        }
    }

    fn since(&self, role: Role, now: Moment) -> Moment {
        if self.last_role.0 == role { self.last_role.1 } else { now }
    }

    fn sets_limit(&self, record: &Record) -> bool {
        self.set_limit && record.limit != self.settings.limit
    }

    /// Whether the client's contender key is in the queue as it is wanted now.
    fn is_in_line(&self, view: &View) -> bool {
        let entry = view.contender(self.session).and_then(|one| one.entry.as_ref());
        entry.is_some_and(|stored| stored.agrees(&self.entry(WaiterState::Waiting, Vec::new())))
    }
}

fn conflict(view: &View, what: &NotASemaphore, owner: Option<&SessionId>) -> Obstacle {
    Obstacle::other_content(owner.is_some(), conflict_in_words(view, what, owner))
}

fn conflict_in_words(view: &View, what: &NotASemaphore, owner: Option<&SessionId>) -> String {
    if *what == NotASemaphore::SingleKeyLock {
        let (key, prefix) = (view.lock_key(), view.prefix());
        return match owner {
            Some(owner) => format!(
                "{key} is a single-key lock, such as `consul lock -n 1` takes there, held by session {}; waiting until the \
                 key is deleted. If the lock is there to stay, run without --limit, or choose another prefix",
                excerpt(owner.as_str())
            ),
            None => format!(
                "{key} is a single-key lock, such as `consul lock -n 1` takes there, and has no holder: `slotkeeper \
                 destroy {prefix}` deletes it; or run without --limit to acquire the lock"
            ),
        };
    }
    format!("{}; choose another prefix, or delete the key if it is not needed", no_semaphore(view, what))
}

fn no_semaphore(view: &View, what: &NotASemaphore) -> String {
    format!("the key {} is not a semaphore: {what}; slotkeeper leaves it unchanged", view.lock_key())
}

/// The error for a listing that leaves out keys, on which no client may act. The token's rule must grant `policy`.
pub fn hidden_keys_error(prefix: &str, policy: &str) -> String {
    let below = printable(&format!("{prefix}/"), KEY);
    format!(
        "Consul hides keys below {below} from the token, and a holder whose key is hidden looks dead; the token needs \
         {}",
        acl_rule(prefix, policy)
    )
}

/// The ACL rule that allows a token to read, or to write, all keys below a prefix.
pub fn acl_rule(prefix: &str, policy: &str) -> String {
    let below = printable(&format!("{prefix}/"), KEY);
    format!("`key_prefix \"{below}\" {{ policy = \"{policy}\" }}`")
}

/// The reason why the client must not join this record, if there is one.
fn refusal(view: &View, record: &Record, input: PlanInput<'_>) -> Option<Obstacle> {
    let (key, settings) = (view.lock_key(), input.settings);
    if record.limit != settings.limit && settings.limit_policy == LimitPolicy::Refuse {
        return Some(Obstacle::limit(format!(
            "the limit stored in {key} is {}, the configured one {}, and limit_policy is `refuse`; make them equal",
            record.limit, settings.limit
        )));
    }
    if record.form() == Form::Map && settings.slots > 1 {
        return Some(Obstacle::limit(format!(
            "{key} is in the form that `consul lock` writes, which cannot say that a session takes {} slots; set \
             slots to 1 or use another prefix with format `list`",
            settings.slots
        )));
    }
    let unserved = settings.slots > record.limit && !input.sets_limit(record);
    if input.together.is_some() && unserved && !view.holds(input.session, settings.slots) {
        // Alone it is passed over. A member would keep others waiting in the queues of the rest of its group.
        let kind = ObstacleKind::LimitBelowGroup;
        let why = format!(
            "the limit stored in {key} is {}, below the {} slots that are wanted together with those of other semaphores; waiting \
             outside of all their queues: raise the limit with `slotkeeper set-limit {} {}`, or set slots to {} or fewer",
            record.limit,
            settings.slots,
            printable(view.prefix(), KEY),
            settings.slots,
            record.limit
        );
        return Some(Obstacle { kind, why });
    }
    input.together.filter(|together| together.room.is_none())?;
    Some(Obstacle::too_large(format!(
        "{} lists {} holders, and with those of the other semaphores whose slots are acquired together the transaction would be larger \
         than Consul takes; waiting until some of them leave. Use fewer slots, lower limits, or `acquire: independently`",
        view.lock_key(),
        record.taken()
    )))
}

/// The size in bytes of a semaphore's part in the transaction that acquires the slots of the group `prefixes`, as far as its `.lock` is
/// known.
pub(super) fn part_of_all(
    view: Option<&View>,
    settings: &Settings,
    who: &Identity,
    prefixes: &[String],
) -> usize {
    let Settings { slots, priority, body, .. } = settings;
    let mut entry = Entry::new(WaiterState::Held, *slots, *priority, String::new(), who.clone());
    entry.body.clone_from(body);
    entry.together = prefixes.to_vec();
    let none = Record::new(settings.form, settings.limit);
    let record = view.and_then(View::record).unwrap_or(&none);
    Acquisition::by(record.form(), &settings.prefix, entry).beside(record, *slots)
}

/// The reason why a waiter is not granted free slots: the holders in `.lock` leave no room for it.
fn too_large(view: &View, record: &Record) -> Obstacle {
    Obstacle::too_large(format!(
        "{} lists so many holders ({}) that the transaction that adds this agent's own slots would be larger than Consul \
         takes; waiting until some of them leave. Use a lower limit, a shorter prefix or a shorter body",
        view.lock_key(),
        record.taken()
    ))
}

#[cfg(test)]
mod tests;
