//! The invariants, checked after every step on what really stands in the store.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::configuration::Configuration;
use super::rules::{self, Sight};
use super::store_state::{Change, StoreState};
use slotkeeper_semaphore::contender::Entry;
use slotkeeper_semaphore::offered::MAX_OFFER;
use slotkeeper_semaphore::{LimitPolicy, LockKeyState, Moment, SessionId, Settings};

use super::world::{Chaos, Game, Watches};

/// A free slot and a waiter that fits meet within this where nothing goes wrong, but for clients of other kinds that
/// are left their turn.
const IDLE_IN_CALM: Duration = Duration::from_millis(500);
/// Where anything goes wrong: a head that is cut off keeps its place until its session ends, answers are waited for,
/// and what was not told is found by the next listing.
const IDLE: Duration = Duration::from_secs(660);
/// What is lost besides to foreign clients that never act, until everybody knows.
const OFFERS: Duration = Duration::from_secs(2);
/// One that tries once and has got no answer gives up after this.
const NO_ANSWER: Duration = Duration::from_secs(10);

/// One of those who write, and what it may do.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// The sessions that it has had.
    pub(super) sessions: HashSet<SessionId>,
    /// The limits that it was configured with, and what it was to do where another is in force.
    terms: Vec<(LimitPolicy, u32)>,
    /// How often it has set one.
    pub(super) sets: usize,
}

impl Client {
    /// From now on it may do what that says.
    pub(super) fn may(&mut self, configuration: &Configuration) {
        self.terms.push((configuration.terms.limit_policy, configuration.terms.limit));
    }

    /// Whether what it was told last, to set that limit, it was told before: it may have done so then, and does not do it again.
    pub(super) fn may_have_set(&self) -> bool {
        let [.., before, last] = self.terms.as_slice() else { return false };
        last.0 == LimitPolicy::Set && before == last
    }

    /// How often it was told to set a limit.
    pub(super) fn orders(&self) -> usize {
        self.terms.iter().filter(|(policy, _)| *policy == LimitPolicy::Set).count()
    }
}

/// What somebody who came found from then on.
struct Room {
    since: Moment,
    /// All where there are some in line or something else lies there.
    taken: u32,
    limit: Option<u32>,
}

/// Looks at every state of the semaphore in turn.
pub(super) struct Referee {
    seed: u64,
    pub(super) name: &'static str,
    game: Game,
    before: StoreState,
    /// What stands there.
    pub(super) after: StoreState,
    /// Believers may be as many, after the limit was lowered.
    ceiling: u32,
    idle_since: Option<Moment>,
    /// A slot stands open for foreign clients that stand before ours, since when, and how long that has been so in all.
    open_since: Option<Moment>,
    open: Duration,
    /// The fencing token under which each session holds.
    tokens: HashMap<SessionId, u64>,
    /// The last token that each session was told.
    told: HashMap<SessionId, u64>,
    /// Holdings that have ended: the index at which they did, in order, and the highest token of all by then.
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
            open: Duration::ZERO,
            tokens: HashMap::new(),
            told: HashMap::new(),
            ended: Vec::new(),
            dead_since: HashMap::new(),
            rooms: Vec::new(),
        }
    }

    /// An agent says that it holds.
    pub(super) fn acquired(&mut self, session: SessionId, token: u64) {
        // An answer may come long after the grant: what counts is what had ended by the grant.
        let before = self.ended.partition_point(|(end, _)| *end <= token);
        let highest = self.ended[..before].last().map(|(_, token)| *token);
        assert!(highest.is_none_or(|highest| highest < token), "{}: {token} after {highest:?}", self.seed);
        let told = self.told.insert(session.clone(), token);
        assert!(told.is_none_or(|told| told <= token), "{}: {token} after {told:?}", self.seed);
        self.tokens.insert(session, token);
    }

    /// One of ours gives up that has asked since then: not before its time, and one that tries once not where all the
    /// time there was room for it and nobody in line. `has_set`: its limit it may have set already; so it has where it found it
    /// set.
    pub(super) fn gave_up(&self, settings: &Settings, has_set: bool, asked_at: Moment, now: Moment) {
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
                // Somebody may have set another one since.
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
            "seed {}: {} was given up after {waited:?}, of {settings:?}",
            self.seed,
            self.name
        );
    }

    /// These have changed at once; whose transaction did it, and the index of the latest write to anything. The sessions of
    /// whom there is something new.
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
        // Who writes nonsense keeps to nothing.
        if by.is_some() || self.game.chaos.spoil == 0.0 {
            self.keep(rules::record(&self.before, &self.after));
        }
        if let Some(by) = by {
            self.check_terms(by);
        }
        self.check_prunes(by, now);
        self.note_room(now);
        if !self.game.chaos.deceives() {
            self.keep(rules::order(&self.before, &self.after));
        }
        if self.game.chaos.spoil == 0.0 {
            self.keep(rules::numbers(&self.after));
        }
        self.note_idle(now);
        self.note_ended(index);
        for change in &changes {
            self.before.apply(change);
        }
        concerned
    }

    /// After each step: so many slots are believed to be held.
    pub(super) fn check(&mut self, believed: u32, now: Moment) {
        self.check_idle(now);
        self.check_believers(believed);
    }

    /// Slots of dead holders that have rested for long enough.
    pub(super) fn rested(&self, now: Moment) -> u32 {
        let over = |(_, since): &(&SessionId, &Moment)| now.since(**since) >= self.game.prune_delay;
        self.dead_since.iter().filter(over).map(|(holder, _)| self.after.slots_of(holder)).sum()
    }

    fn keep(&self, rule: Result<(), String>) {
        if let Err(broken) = rule {
            panic!("seed {}: {broken}", self.seed);
        }
    }

    fn check_believers(&mut self, believed: u32) {
        match self.after.record() {
            Some(record) => self.ceiling = record.limit.max(self.ceiling.min(record.taken().max(believed))),
            None if self.game.is_of_locks() => self.ceiling = 1,
            None => return,
        }
        assert!(
            self.game.chaos.deceives() || believed <= self.ceiling,
            "seed {}: {believed} slots are believed to be held, of {}",
            self.seed,
            self.ceiling
        );
    }

    /// No lost wake-up: a free slot and the first in line, if it fits, find each other.
    fn check_idle(&self, now: Moment) {
        let idle = self.idle_since.map(|since| now.since(since)).unwrap_or_default();
        let bound = match self.game.watches {
            // Until somebody looks.
            Watches::Never => return,
            // Who looks out for what those of before do not say begins after a second, and looks once a second.
            Watches::Usual | Watches::Arrive
                if self.game.chaos == Chaos::CALM && self.game.earlier_clients > 0 =>
            {
                IDLE_IN_CALM * 6
            }
            // And so does who looks out for groups that give up: they leave without a write of `.lock`.
            Watches::Usual | Watches::Arrive
                if self.game.chaos == Chaos::CALM && self.game.groups && self.game.waits =>
            {
                IDLE_IN_CALM * 4
            }
            Watches::Usual | Watches::Arrive if self.game.chaos == Chaos::CALM => IDLE_IN_CALM,
            Watches::Usual | Watches::Arrive => IDLE,
        };
        assert!(idle <= bound, "seed {}: a slot was idle for {idle:?}", self.seed);
    }

    /// What is no semaphore is left alone; only who is told to changes the limit; nobody takes a slot under a limit
    /// that it refuses.
    fn check_terms(&self, by: &Client) {
        if let LockKeyState::Conflict { .. } = self.before.lock() {
            assert_eq!(self.before.lock(), self.after.lock(), "seed {}: it was written over", self.seed);
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
            "seed {}: {by:?} entered {record:?}",
            self.seed
        );
    }

    /// The dead rest for as long as is configured, unless it is they who go.
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
        let taken = if self.after.line().next().is_none() { taken } else { u32::MAX };
        self.rooms.push(Room { since: now, taken, limit });
    }

    fn note_idle(&mut self, now: Moment) {
        let free = self.after.record().map_or(0, |record| record.limit.saturating_sub(record.taken()));
        let fits = |entry: &Entry| entry.slots <= free;
        let first = self.after.line().next().and_then(|one| one.entry.as_ref());
        // One that takes its slots together with others may have to wait for those.
        let idle = free > 0 && first.is_some_and(|entry| fits(entry) && entry.together.is_empty());
        self.idle_since = idle.then(|| self.idle_since.unwrap_or(now));
        self.open += self.open_since.map(|since| now.since(since)).unwrap_or_default();
        let waits = self.after.line().find_map(|one| one.entry.as_ref()).is_some_and(fits);
        self.open_since = (free > 0 && first.is_none() && waits).then_some(now);
        let longest = MAX_OFFER + OFFERS;
        let counts = self.game.chaos == Chaos::CALM && self.game.foreigners == 0;
        assert!(!counts || self.open <= longest, "seed {}: slots stood open for {:?}", self.seed, self.open);
    }

    fn note_ended(&mut self, index: u64) {
        if matches!(self.after.lock(), LockKeyState::Record { .. }) || self.game.is_of_locks() {
            // What is deleted has no index of its own.
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

    /// One of limit 2 and policy `set` that tries once gives up where the stored limit, 1, is taken.
    fn gives_up(has_set: bool) {
        let mut rng = fastrand::Rng::with_seed(0);
        let terms = Configuration::new(GAME, false, &mut rng).of("one");
        let (wait, limit_policy) = (Some(Duration::ZERO), LimitPolicy::Set);
        let settings = Settings { limit: 2, slots: 1, limit_policy, wait, ..terms };
        let entry = Entry::new(
            slotkeeper_semaphore::contender::WaiterState::Held,
            1,
            0,
            String::new(),
            Identity::default(),
        );
        let stored = |key: &str, value: Vec<u8>, session: Option<&str>| {
            let (key, session) = (key.to_owned(), session.map(str::to_owned));
            let (lock_index, create_index) = (0, 5);
            let value = value.into();
            Arc::new(Stored { key, value, flags: 0, lock_index, session, create_index, modify_index: 5 })
        };
        let lock = stored("one/.lock", br#"{"Limit":1,"Holders":["a"]}"#.to_vec(), None);
        let held = stored("one/a", entry.held(vec![0], "").encode(), Some("a"));
        let mut referee = Referee::new(0, "one", Game { waits: true, policies: true, ..GAME });
        referee.learn(&changes(&[], &[lock, held]), None, 5, NOW);
        referee.gave_up(&settings, has_set, NOW, NOW + Duration::from_millis(3));
    }

    #[test]
    fn whose_limit_is_set_already_goes_by_the_one_that_somebody_has_set_since() {
        gives_up(true);
    }

    #[test]
    #[should_panic(expected = "was given up")]
    fn who_has_yet_to_set_its_limit_finds_room_by_it() {
        gives_up(false);
    }

    #[test]
    fn what_one_is_told_twice_it_may_have_done_before() {
        let told = |terms: &[(LimitPolicy, u32)]| Client { terms: terms.to_vec(), ..Client::default() };
        let (set, adopt) = (LimitPolicy::Set, LimitPolicy::Adopt);
        assert!(told(&[(set, 2), (set, 2)]).may_have_set());
        for anew in
            [&[(set, 2)][..], &[(set, 2), (set, 3)], &[(adopt, 2), (set, 2)], &[(adopt, 2), (adopt, 2)]]
        {
            assert!(!told(anew).may_have_set(), "{anew:?}");
        }
    }
}
