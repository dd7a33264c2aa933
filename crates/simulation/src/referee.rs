//! The invariants, checked on the store after every step.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::configuration::Configuration;
use super::rules::{self, Sight};
use super::store_state::{Change, Decoded, StoreState};
use slotkeeper_semaphore::contender::{Entry, WaiterState};
use slotkeeper_semaphore::{LimitPolicy, LockKeyState, Moment, SessionId, Settings};

use super::world::{Chaos, Game, Watches};

/// The maximum time that a free slot waits for a waiter that fits, without faults. The turns of foreign clients do not count.
const IDLE_IN_CALM: Duration = Duration::from_millis(500);
/// The same with faults: a partitioned head of the queue keeps its position until its session ends, requests time out, and a
/// listing finds what no watch reported.
const IDLE: Duration = Duration::from_secs(660);
/// The time that slots stay free for foreign clients that do not take them.
const TURNS: Duration = Duration::from_millis(600);
/// The time after which an agent that tries once gives up without an answer.
const NO_ANSWER: Duration = Duration::from_secs(10);

/// A client that writes, and what it may do.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// All sessions of the client so far.
    pub(super) sessions: HashSet<SessionId>,
    /// The configured limits so far, each with its limit policy.
    terms: Vec<(LimitPolicy, u32)>,
    /// How often the client has set a limit.
    pub(super) sets: usize,
}

impl Client {
    /// Permits what this configuration says from now on.
    pub(super) fn may(&mut self, configuration: &Configuration) {
        self.terms.push((configuration.terms.limit_policy, configuration.terms.limit));
    }

    /// Whether the last configuration repeats an order to set the limit. The client may have set it before, and does not set it
    /// again.
    pub(super) fn may_have_set(&self) -> bool {
        let [.., before, last] = self.terms.as_slice() else { return false };
        last.0 == LimitPolicy::Set && before == last
    }

    /// The number of configurations that order to set a limit.
    pub(super) fn orders(&self) -> usize {
        self.terms.iter().filter(|(policy, _)| *policy == LimitPolicy::Set).count()
    }
}

/// The room at the semaphore from a point in time, as a new client finds it.
struct Room {
    since: Moment,
    /// The taken slots; the maximum if the queue is not empty or `.lock` is invalid.
    taken: u32,
    limit: Option<u32>,
}

/// Checks each state of a semaphore in turn.
pub(super) struct Referee {
    seed: u64,
    pub(super) name: &'static str,
    game: Game,
    before: StoreState,
    /// The current state in the store.
    pub(super) after: StoreState,
    /// The maximum number of slots that may be considered held, also after the limit was lowered.
    ceiling: u32,
    idle_since: Option<Moment>,
    /// Since when a slot has been left free for foreign clients ahead of a waiting agent, and for how long in all.
    open_since: Option<Moment>,
    /// The fencing token under which each session holds.
    tokens: HashMap<SessionId, u64>,
    /// The fencing tokens of the slots that each session has accepted or taken, by a transaction that Consul has committed.
    accepted: HashSet<(SessionId, u64)>,
    /// The last fencing token that each session reported.
    reported: HashMap<SessionId, u64>,
    /// For each slot that was given up: the index of that write, in order, and the highest token up to then.
    ended: Vec<(u64, u64)>,
    /// Since when each holder has been dead.
    dead_since: HashMap<SessionId, Moment>,
    rooms: Vec<Room>,
}

impl Referee {
    pub(super) fn new(seed: u64, name: &'static str, game: Game) -> Self {
        Self {
            seed,
            name,
            game,
            before: StoreState::new(name, game.primitive),
            after: StoreState::new(name, game.primitive),
            ceiling: 0,
            idle_since: None,
            open_since: None,
            tokens: HashMap::new(),
            accepted: HashSet::new(),
            reported: HashMap::new(),
            ended: Vec::new(),
            dead_since: HashMap::new(),
            rooms: Vec::new(),
        }
    }

    /// Checks the fencing token of an acquired slot.
    pub(super) fn acquired(&mut self, session: SessionId, token: u64) {
        // An answer may come long after the grant, so only slots that were given up before the grant count.
        let accepted = self.accepted.contains(&(session.clone(), token)) || self.game.is_of_locks();
        assert!(
            accepted || self.game.chaos.deceives(),
            "seed {}: {session} began at {token}, which it has not accepted",
            self.seed
        );
        let before = self.ended.partition_point(|(end, _)| *end <= token);
        let highest = self.ended[..before].last().map(|(_, token)| *token);
        assert!(highest.is_none_or(|highest| highest < token), "{}: {token} after {highest:?}", self.seed);
        let reported = self.reported.insert(session.clone(), token);
        assert!(reported.is_none_or(|last| last <= token), "{}: {token} after {reported:?}", self.seed);
        self.tokens.insert(session, token);
    }

    /// Checks an acquire that timed out: not before its wait, and with a single try only if there was no room or a queue at some
    /// time. `has_set`: the agent may have set its limit already; a limit that was in force counts as set.
    pub(super) fn timed_out(&self, settings: &Settings, has_set: bool, asked_at: Moment, now: Moment) {
        let bound = if settings.try_once() { NO_ANSWER } else { settings.wait.unwrap_or(Duration::MAX) };
        let found = self.rooms.iter().rev().scan(false, |over, room| {
            let shown = !*over;
            *over = room.since <= asked_at;
            shown.then_some(room)
        });
        let found: Vec<_> = found.collect();
        let has_set = has_set || found.iter().any(|room| room.limit == Some(settings.limit));
        let keeps_out = |room: &Room| {
            let stored = room.limit.unwrap_or(settings.limit);
            let (limit, refused) = match settings.limit_policy {
                LimitPolicy::Adopt => (stored, false),
                // Another client may have changed the limit since.
                LimitPolicy::Set if has_set => (stored.min(settings.limit), false),
                LimitPolicy::Set => (settings.limit, false),
                LimitPolicy::Refuse => (stored, stored != settings.limit),
            };
            refused || room.taken.saturating_add(settings.slots) > limit
        };
        let kept_out = settings.try_once() && (found.is_empty() || found.into_iter().any(keeps_out));
        let waited = now.since(asked_at);
        assert!(
            waited >= bound || kept_out,
            "seed {}: {} timed out after {waited:?}, with {settings:?}",
            self.seed,
            self.name
        );
    }

    /// Checks the changes of one step. `by`: the client whose transaction made them; `index`: the latest index of the store.
    /// Returns the sessions that the changes concern.
    pub(super) fn learn(
        &mut self,
        changes: &[Change],
        by: Option<&Client>,
        index: u64,
        now: Moment,
    ) -> Vec<SessionId> {
        let changes: Vec<_> = changes.iter().filter_map(|change| self.after.decode(change)).collect();
        if changes.is_empty() && !self.rooms.is_empty() {
            return Vec::new();
        }
        let concerned = changes.iter().flat_map(|change| self.after.apply(change)).collect();
        // A write of an invalid value follows no rule.
        if by.is_some() || self.game.chaos.spoil == 0.0 {
            self.keep(rules::record(&self.before, &self.after));
        }
        if let Some(by) = by {
            self.check_terms(by);
        }
        self.check_prunes(by, now);
        self.note_room(now);
        if !self.game.chaos.deceives() {
            let is_writer = |session: &SessionId| {
                self.game.chaos.reload > 0.0 && by.is_some_and(|by| by.sessions.contains(session))
            };
            self.keep(rules::order(&self.before, &self.after, &is_writer));
        }
        if self.game.chaos.spoil == 0.0 {
            self.keep(rules::numbers(&self.after));
        }
        self.note_idle(now);
        self.note_ended(index);
        self.note_accepted(&changes);
        for change in &changes {
            self.before.apply(change);
        }
        concerned
    }

    /// Checks each step. `held`: the number of slots that clients consider held.
    pub(super) fn check(&mut self, held: u32, now: Moment) {
        self.check_idle(now);
        self.check_holders(held);
    }

    /// The slots that are neither free nor idle: their holders have accepted them, or are dead and may not be pruned yet.
    pub(super) fn running(&self, now: Moment) -> u32 {
        let rests = |since: &Moment| now.since(*since) < self.game.prune_delay;
        let runs = |holder: &SessionId| match self.dead_since.get(holder) {
            Some(since) => rests(since),
            None => {
                let contender = self.after.contender(holder);
                contender.is_none_or(|one| one.state() != Some(WaiterState::Offered))
            }
        };
        self.after.holders().filter(|(holder, _)| runs(holder)).map(|(_, slots)| slots).sum()
    }

    /// For how long a holder has been dead.
    pub(super) fn dead_for(&self, now: Moment) -> Option<Duration> {
        self.dead_since.values().map(|since| now.since(*since)).max()
    }

    fn keep(&self, rule: Result<(), String>) {
        if let Err(broken) = rule {
            panic!("seed {}: {broken}", self.seed);
        }
    }

    fn check_holders(&mut self, held: u32) {
        match self.after.record() {
            Some(record) => self.ceiling = record.limit.max(self.ceiling.min(record.taken().max(held))),
            None if self.game.is_of_locks() => self.ceiling = 1,
            None => return,
        }
        assert!(
            self.game.chaos.deceives() || held <= self.ceiling,
            "seed {}: {held} slots are considered held, of {}",
            self.seed,
            self.ceiling
        );
    }

    /// No wake-up is lost: the head of the queue acquires a free slot that suffices for it.
    fn check_idle(&self, now: Moment) {
        let idle = self.idle_since.map(|since| now.since(since)).unwrap_or_default();
        let bound = match self.game.watches {
            // A free slot waits for a listing.
            Watches::Never => return,
            // The bounds after deaths are in the promises.
            _ if self.game.run.is_some() => return,
            // A lookout for acquire groups that time out, which leave without a write of `.lock`, begins after a second, and looks
            // once a second.
            Watches::Usual | Watches::Arrive
                if self.game.chaos == Chaos::CALM && self.game.groups && self.game.waits =>
            {
                IDLE_IN_CALM * 4
            }
            // Where hundreds write at one instant.
            Watches::Usual | Watches::Arrive if self.game.chaos == Chaos::CALM && self.game.agents > 100 => {
                IDLE_IN_CALM * 2
            }
            Watches::Usual | Watches::Arrive if self.game.chaos == Chaos::CALM => IDLE_IN_CALM,
            Watches::Usual | Watches::Arrive => IDLE,
        };
        assert!(idle <= bound, "seed {}: a slot was idle for {idle:?}: {:?}", self.seed, self.after);
    }

    /// An invalid `.lock` is left alone. Only a client with the order to set the limit changes it. No client takes a slot under a
    /// limit that it refuses.
    fn check_terms(&self, by: &Client) {
        if let LockKeyState::Conflict { .. } = self.before.lock() {
            assert_eq!(
                self.before.lock(),
                self.after.lock(),
                "seed {}: an invalid .lock was overwritten",
                self.seed
            );
        }
        let Some(record) = self.after.record() else { return };
        let before = self.before.record().map(|record| record.limit);
        let writes = |policy: LimitPolicy| before.is_none() || policy == LimitPolicy::Set;
        let may = by.terms.iter().any(|(policy, limit)| *limit == record.limit && writes(*policy));
        assert!(before == Some(record.limit) || may, "seed {}: {before:?} → {record:?} by {by:?}", self.seed);
        let enters = |one: &SessionId| self.before.slots_of(one) == 0 && self.after.slots_of(one) > 0;
        let bears = |(policy, limit): &(_, _)| *policy != LimitPolicy::Refuse || *limit == record.limit;
        assert!(
            by.terms.iter().any(bears) || !by.sessions.iter().any(enters),
            "seed {}: {by:?} took a slot of {record:?}, whose limit it refuses",
            self.seed
        );
    }

    /// A dead holder is pruned only after the prune delay, unless its own process releases the slot.
    fn check_prunes(&mut self, by: Option<&Client>, now: Moment) {
        for (session, since) in &self.dead_since {
            let own = by.is_some_and(|by| by.sessions.contains(session));
            let rested = now.since(*since);
            assert!(
                self.after.slots_of(session) > 0
                    || own
                    || rested >= self.game.prune_delay
                    || self.game.chaos.deceives(),
                "seed {}: {session} was pruned after {rested:?}",
                self.seed
            );
        }
        let since = |holder: &SessionId| self.dead_since.get(holder).copied().unwrap_or(now);
        self.dead_since = self.after.dead().map(|holder| (holder.clone(), since(holder))).collect();
    }

    fn note_room(&mut self, now: Moment) {
        let (taken, limit) = match self.after.lock() {
            LockKeyState::Record { record, .. } => (record.taken(), Some(record.limit)),
            LockKeyState::Missing => (0, None),
            LockKeyState::Single(single) => (single.owner.iter().len() as u32, None),
            LockKeyState::Conflict { .. } => (u32::MAX, None),
        };
        let taken = if self.after.queue().next().is_none() { taken } else { u32::MAX };
        self.rooms.push(Room { since: now, taken, limit });
    }

    fn note_idle(&mut self, now: Moment) {
        let free = self.after.record().map_or(0, |record| record.limit.saturating_sub(record.taken()));
        let fits = |entry: &Entry| entry.slots <= free;
        let first = self.after.queue().next().and_then(|one| one.entry.as_ref());
        // An acquire group may have to wait for its other semaphores.
        let idle = free > 0 && first.is_some_and(|entry| fits(entry) && entry.together.is_empty());
        self.idle_since = idle.then(|| self.idle_since.unwrap_or(now));
        let open = self.open_since.map(|since| now.since(since)).unwrap_or_default();
        let waits = self.after.queue().find_map(|one| one.entry.as_ref()).is_some_and(fits);
        let is_open = free > 0 && first.is_none() && waits;
        self.open_since = is_open.then(|| self.open_since.unwrap_or(now));
        let counts = self.game.chaos == Chaos::CALM && self.game.foreigners == 0;
        assert!(
            !counts || open <= TURNS,
            "seed {}: slots were left to foreign clients for {:?}",
            self.seed,
            open
        );
    }

    /// A slot that another client gave is accepted only while it is offered.
    fn note_accepted(&mut self, changes: &[Decoded]) {
        for change in changes {
            let Decoded::Contender { session, now: Some(now), .. } = change else { continue };
            let Some(entry) = now.entry.as_ref().filter(|entry| entry.state == WaiterState::Held) else {
                continue;
            };
            let before = self.before.contender(session);
            let held = before.is_some_and(|before| before.state() == Some(WaiterState::Held));
            let offer = before.filter(|before| before.state() == Some(WaiterState::Offered));
            let token = entry.token.unwrap_or(now.modify_index);
            assert!(
                held || entry.token.is_none()
                    || self.game.chaos.deceives()
                    || offer.is_some_and(|offer| offer.modify_index == token)
                        && self.before.slots_of(session) > 0,
                "seed {}: {session} accepted {token}, which was not offered: {:?}",
                self.seed,
                self.before
            );
            self.accepted.insert((session.clone(), token));
        }
    }

    fn note_ended(&mut self, index: u64) {
        if matches!(self.after.lock(), LockKeyState::Record { .. }) || self.game.is_of_locks() {
            // A deleted key has no index of its own.
            let index = Some(self.after.lock_index()).filter(|own| *own > 0).unwrap_or(index);
            let (after, ended) = (&self.after, &mut self.ended);
            self.tokens.retain(|session, token| {
                let holds = after.slots_of(session) > 0;
                if !holds {
                    let highest = ended.last().map_or(*token, |(_, highest)| (*token).max(*highest));
                    ended.push((index, highest));
                }
                holds
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::GAME;
    use crate::store_state::changes;
    use slotkeeper_consul_dev::store::kv::Entry as Stored;
    use slotkeeper_semaphore::Identity;

    const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));

    /// An agent with limit 2, policy `set` and a single try gives up if the stored limit of 1 is taken.
    fn gives_up(has_set: bool) {
        let mut rng = fastrand::Rng::with_seed(0);
        let terms = Configuration::new(GAME, false, &mut rng).of("one");
        let (wait, limit_policy) = (Some(Duration::ZERO), LimitPolicy::Set);
        let settings = Settings { limit: 2, slots: 1, limit_policy, wait, ..terms };
        let mut entry = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default());
        entry.indexes = vec![0];
        let stored = |key: &str, value: Vec<u8>, session: Option<&str>| {
            let (key, session) = (key.to_owned(), session.map(str::to_owned));
            let (lock_index, create_index) = (0, 5);
            let value = value.into();
            Arc::new(Stored { key, value, flags: 0, lock_index, session, create_index, modify_index: 5 })
        };
        let lock = stored("one/.lock", br#"{"Limit":1,"Holders":["a"]}"#.to_vec(), None);
        let held = stored("one/a", entry.encode(), Some("a"));
        let mut referee = Referee::new(0, "one", Game { waits: true, policies: true, ..GAME });
        referee.learn(&changes(&[], &[lock, held]), None, 5, NOW);
        referee.timed_out(&settings, has_set, NOW, NOW + Duration::from_millis(3));
    }

    #[test]
    fn an_agent_that_has_set_its_limit_has_room_by_the_limit_in_force() {
        gives_up(true);
    }

    #[test]
    #[should_panic(expected = "timed out after")]
    fn an_agent_that_has_not_set_its_limit_has_room_by_that_limit() {
        gives_up(false);
    }

    #[test]
    fn a_repeated_order_may_have_been_carried_out_before() {
        let ordered = |terms: &[(LimitPolicy, u32)]| Client { terms: terms.to_vec(), ..Client::default() };
        let (set, adopt) = (LimitPolicy::Set, LimitPolicy::Adopt);
        assert!(ordered(&[(set, 2), (set, 2)]).may_have_set());
        for anew in
            [&[(set, 2)][..], &[(set, 2), (set, 3)], &[(adopt, 2), (set, 2)], &[(adopt, 2), (adopt, 2)]]
        {
            assert!(!ordered(anew).may_have_set(), "{anew:?}");
        }
    }
}
