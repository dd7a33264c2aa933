//! The decision: from what was read of a semaphore, the caller's settings and the time, what to write, to read or to wait for.
//!
//! Every participant runs the same functions: newcomer, waiter, holder, leaving client, operator. What is decided upon was read at one
//! instant. A transaction that changes `.lock` also prunes dead holders and shares out every free slot, as far as its writer knows of
//! them.

use super::contender::{Entry, Identity, WaiterState};

use super::obstacle::Obstacle;
use super::record::Record;
use super::settings::Settings;
use super::sightings::Sightings;
use super::view::{LockKeyState, View, contender_key, lock_key};
use super::{Moment, Op, SessionId, printable};

mod accept;
mod draft;
mod evict;
mod hold;
mod join;
mod lock;
mod obstacles;
mod operate;
mod release;
mod serve;
mod together;
mod wait;

pub use evict::{Membership, MembershipKind, force_eviction, request_eviction};
pub(crate) use hold::is_watched_by_holders;
pub(crate) use join::looks;
pub use obstacles::{acl_rule, hidden_keys_error};
use obstacles::{conflict, no_semaphore, occupied, refusal};
pub use operate::{check_visible, destroy, existing_record, prune, queue, set_limit};
pub use release::{Leave, leave, pass_on, release};
pub(crate) use wait::wake;

/// The maximum length of an operator's name in a message, in bytes. The name is untrusted input.
const OPERATOR: usize = 100;

/// The planning client.
#[derive(Clone, Copy, Debug)]
pub struct Me<'a> {
    /// Its session.
    pub session: &'a SessionId,
    /// The settings of the semaphore.
    pub settings: &'a Settings,
    /// The identity that the contender key shows.
    pub who: &'a Identity,
    /// The time of the plan.
    pub now: Moment,
    /// The same by the wall clock, RFC 3339, for people.
    pub wall: &'a str,
    /// The acquire group, if the semaphore belongs to one.
    pub together: Option<GroupMember<'a>>,
    /// The other prefixes at which the agent holds slots.
    pub holds: &'a [String],
    /// Whether the client had slots before this view: of its own, or of an earlier process.
    pub had: bool,
}

/// What the client remembers of former views and of its own doing.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// Since when things have stood as they stand.
    pub sightings: &'a Sightings,
    /// The configured limit is still to be written (policy `set`).
    pub set_limit: bool,
    /// Until when free slots are left to clients that act at the same time. `None`: nothing was left to them yet.
    pub yields_until: Option<Moment>,
    /// The wait ends soon: what is to be looked at is looked at now.
    pub ends_soon: bool,
    /// A check-and-set of `.lock` came too late since the slots were asked for.
    pub lost_race: bool,
    /// The index of `.lock` when a listing last showed that nothing is to be done for others.
    pub settled_at: Option<u64>,
    /// When to try again to acquire the lock, which is free but in lock-delay.
    pub delayed_until: Option<Moment>,
    /// Since when the slots are held; `None` if they are not.
    pub held_since: Option<Moment>,
    /// The view was read to see whether all is well.
    pub confirms: bool,
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
}

/// What an acquire group does next, in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupStep {
    /// Move to the end of each queue, by one write.
    Enqueue,
    /// Acquire the slots, by one write.
    Acquire,
}

/// How the client stands, before what it does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has all of its slots.
    Holds(Grant),
    /// It has no slot that it may use.
    Waits {
        /// Whether its slots are free, or will be once others have had their turn.
        room: bool,
    },
    /// It cannot proceed until a person acts: what is wrong, and what to do.
    Blocked(Obstacle),
    /// An operator evicted it: the operator's name, made safe to print.
    Evicted(String),
}

/// Slots that a client has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token: the index of the write that gave the slots. `None`: that of the client's own write, which is not committed yet.
    pub token: Option<u64>,
    /// The numbers of the slots.
    pub indexes: Vec<u32>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait until one of these keys changes.
    Wait(Vec<Watch>),
    /// The same, but act soon: others may do it, and one is enough.
    Yield(Vec<Watch>),
    /// Read this first.
    Read(Want),
    /// Commit this.
    Write(Write),
}

/// What has to be read before anything can be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// The own contender key and `.lock`, and the contender keys of these clients.
    Some(Vec<SessionId>),
    /// All keys below the prefix.
    All,
}

/// A key to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The full key.
    pub key: String,
    /// The index up to which the key is known. Consul compares it with the index of the key's last change, so that any later index is right
    /// too.
    pub after: u64,
}

/// A transaction to be committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// Its steps.
    pub ops: Vec<Op>,
    /// What it means for the client itself.
    pub own: Own,
    /// The waiters that it offers slots to.
    pub offered: Vec<SessionId>,
    /// The waiters that it asks for a sign of life.
    pub asked: Vec<SessionId>,
    /// Whether its writer serves those that have answered.
    pub asks: bool,
    /// Dead holders that it prunes.
    pub pruned: u32,
    /// Whether it may only be committed together with the rest of the acquire group.
    pub joint: bool,
}

/// What a transaction means for the client that commits it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Own {
    /// Nothing that its keys do not tell.
    #[default]
    Nothing,
    /// It shows signs of life, and has to see whether it stands where it stood.
    Answers,
    /// It has its slots.
    Holds(Grant),
}

/// What a client does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What was found, before the next step.
    pub standing: Standing,
    /// The next step.
    pub next: Next,
    /// When to plan again, by a new reading, although nothing has changed.
    pub again: Option<Moment>,
}

/// Plans to acquire the slots, to wait for them, or to hold them.
pub fn hold(view: &View, me: Me<'_>, memory: Memory<'_>) -> Plan {
    if let Some(by) = view.evicted_by(me.session) {
        return Plan::new(Standing::Evicted(printable(by, OPERATOR)), Next::Wait(Vec::new()));
    }
    if me.settings.is_lock() {
        return lock::hold(view, me, memory);
    }
    if let LockKeyState::Conflict { found, owner, .. } = &view.lock {
        return Plan::blocked(view, me, memory, conflict(view, found, owner.as_ref()));
    }
    let record = view.record().cloned().unwrap_or_else(|| Record::new(me.settings.form, me.settings.limit));
    let has = view.slots_of(me.session) == me.settings.slots;
    let own = view.contender(me.session);
    let holds = has && own.is_some_and(|one| matches!(one.state(), None | Some(WaiterState::Held)));
    // A holder stays, whatever the limit is now.
    if let Some(why) = refusal(view, &record, me, memory).filter(|_| !holds || !me.had) {
        return Plan::blocked(view, me, memory, why);
    }
    match own {
        Some(one) if holds => hold::keep(view, record, one, me, memory),
        Some(one) if has => accept::accept(view, &record, one, me),
        _ if view.slots_of(me.session) > 0 => release::give_up(view, record, me),
        Some(_) | None if me.together.is_some() => together::ask(view, record, me, memory),
        Some(one) => wait::wait(view, record, one, me, memory),
        None => join::ask(view, record, me, memory),
    }
}

/// Whether a view tells of each of these holders whether it lives.
pub(crate) fn covers(view: &View, me: &SessionId) -> bool {
    let tells = |holder: &SessionId| view.contender(holder).is_some() || view.is_missing(holder);
    view.is_listed() || view.record().is_none_or(|record| looks(record, me).iter().all(tells))
}

/// The keys whose change makes another plan: the own contender key, and `.lock`.
pub(crate) fn changes(view: &View, me: &SessionId) -> Vec<Watch> {
    Watch::contender(view, me).into_iter().chain(Watch::lock(view)).collect()
}

impl Plan {
    fn new(standing: Standing, next: Next) -> Self {
        Self { standing, next, again: None }
    }

    fn waits(room: bool, next: Next) -> Self {
        Self::new(Standing::Waits { room }, next)
    }

    /// A client that is blocked stands in no queue: it could be offered a slot all the same, or would be in the way.
    fn blocked(view: &View, me: Me<'_>, memory: Memory<'_>, obstacle: Obstacle) -> Self {
        let next = match leave(view, me, memory.sightings) {
            Leave::Read(want) => Next::Read(want),
            Leave::Write(write) => Next::Write(write),
            Leave::Gone => Next::Wait(Watch::lock(view).into_iter().collect()),
        };
        Self::new(Standing::Blocked(obstacle), next)
    }

    fn again(self, at: impl IntoIterator<Item = Moment>) -> Self {
        Self { again: self.again.into_iter().chain(at).min(), ..self }
    }
}

impl Next {
    /// Commits the transaction, if there is one.
    fn of(write: Option<Write>) -> Self {
        write.map_or(Self::Wait(Vec::new()), Self::Write)
    }
}

impl Watch {
    /// The watch of the key that all go by, if it exists: the watch of a key that does not exist wakes for any write (Consul up to 1.9).
    fn lock(view: &View) -> Option<Self> {
        let after = Some(view.lock_index()).filter(|index| *index > 0)?;
        Some(Self { key: view.lock_key(), after })
    }

    /// The watch of a contender key, if it exists.
    pub(crate) fn contender(view: &View, session: &SessionId) -> Option<Self> {
        let after = view.contender(session)?.modify_index;
        Some(Self { key: view.contender_key(session), after })
    }
}

impl Write {
    /// A write of these steps alone.
    fn of(ops: Vec<Op>) -> Self {
        Self { ops, ..Self::default() }
    }
}

impl Me<'_> {
    fn entry(&self, state: WaiterState, indexes: Vec<u32>) -> Entry {
        let Settings { slots, priority, body, .. } = self.settings;
        let together = self.together.map(|together| together.prefixes.to_vec()).unwrap_or_default();
        let entry = Entry::new(state, *slots, *priority, self.wall.to_owned(), self.who.clone());
        Entry { body: body.clone(), indexes, together, ..entry }
    }

    /// The transaction of these steps, which then reads `.lock` and the own contender key. A step that reads one key would fail where the
    /// key does not exist.
    fn write(&self, own: Own, steps: impl IntoIterator<Item = Op>) -> Write {
        let prefix = &self.settings.prefix;
        let keys = [lock_key(prefix), contender_key(prefix, self.session)];
        let reads = keys.map(|prefix| Op::List { prefix });
        Write { own, ..Write::of(steps.into_iter().chain(reads).collect()) }
    }
}

impl Memory<'_> {
    fn sets_limit(&self, record: &Record, me: Me<'_>) -> bool {
        self.set_limit && record.limit != me.settings.limit
    }

    fn set_limit(&self, record: &mut Record, me: Me<'_>) {
        if self.set_limit {
            record.limit = me.settings.limit;
        }
    }
}

#[cfg(test)]
mod tests;
