//! One agent's whole core: the session, and a machine for each semaphore that hangs on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::command::{Command, Commit, Event, Failure, LossReason, Name, Notice, Part};
use super::machine::{Context, Machine};
use super::party::{Move, Party};
use super::session::{Change, Session};
use super::settings::Settings;
use super::{Identity, Lease, Moment, SessionId, Wall};

/// What an earlier process of the same agent left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Its session.
    pub session: SessionId,
    /// The prefixes that it had to do with, each with the fencing token of the slot that it held there, if it did.
    pub prefixes: BTreeMap<String, Option<u64>>,
}

/// What a keeper begins with.
#[derive(Clone, Debug)]
pub struct Start {
    /// The session's TTL.
    pub ttl: Duration,
    /// How long a failing watch is tolerated while a slot is held; `None`: to the lease's end.
    pub watch_grace: Option<Duration>,
    /// Who it is, for people.
    pub who: Identity,
    /// For dates that people read.
    pub wall: Wall,
    /// Where all chance comes from.
    pub seed: u64,
    /// What was left behind by an earlier process.
    pub resume: Option<Resume>,
    /// The semaphores to be held.
    pub semaphores: Vec<(Name, Settings)>,
    /// Those of them whose slots are taken together or not at all.
    pub together: Vec<Name>,
}

/// Takes [`Event`]s in and gives [`Command`]s out. Time moves only by the `now` that it is given.
#[derive(Clone, Debug)]
pub struct Keeper {
    session: Session,
    ttl: Duration,
    watch_grace: Option<Duration>,
    who: Identity,
    wall: Wall,
    machines: BTreeMap<Name, Machine>,
    party: Party,
    /// The prefixes under which slots are held.
    held: Vec<String>,
    /// Those on whose slots a workload runs: nothing of them is given back.
    occupied: BTreeSet<Name>,
    /// Taken out of the configuration, and to be forgotten once gone.
    removed: Vec<Name>,
    draining: bool,
    /// Consul has answered something.
    reached: bool,
    settled_at: Moment,
    rng: fastrand::Rng,
    out: VecDeque<Command>,
}

impl Keeper {
    /// A keeper that begins to ask for the semaphores. What an earlier process left under other prefixes is cleared
    /// away, while its session lives.
    pub fn new(start: Start, now: Moment) -> Self {
        let (session, mut left) = match start.resume {
            Some(Resume { session, prefixes }) => (Some(session), prefixes),
            None => (None, BTreeMap::new()),
        };
        let mut machines = BTreeMap::new();
        for (name, settings) in start.semaphores {
            let token = left.remove(&settings.prefix).flatten();
            machines.insert(name.clone(), Machine::new(name, settings, token, now));
        }
        let mut removed = Vec::new();
        for prefix in left.into_keys() {
            // No configured name has a blank.
            let name = Name::from(format!("left behind: {prefix}"));
            removed.push(name.clone());
            machines.insert(name.clone(), Machine::clearing(name, Settings::of_prefix(prefix), now));
        }
        let mut keeper = Self {
            rng: fastrand::Rng::with_seed(start.seed),
            session: Session::new(start.ttl, session, now),
            ttl: start.ttl,
            watch_grace: start.watch_grace,
            who: start.who,
            wall: start.wall,
            machines,
            party: Party::of(start.together),
            held: Vec::new(),
            occupied: BTreeSet::new(),
            removed,
            draining: false,
            reached: false,
            settled_at: now,
            out: VecDeque::new(),
        };
        keeper.settle(now);
        keeper
    }

    /// Begins to ask for a slot of one more semaphore. A name that is there already is left as it is.
    pub fn add(&mut self, name: Name, settings: Settings, now: Moment) {
        self.machines.entry(name.clone()).or_insert_with(|| Machine::new(name, settings, None, now));
        self.settle(now);
    }

    /// Takes over changed settings; prefix and slots must be the same.
    pub fn reconfigure(&mut self, name: &Name, settings: Settings, now: Moment) {
        if let Some(machine) = self.machines.get_mut(name) {
            machine.reconfigure(settings, now);
        }
        self.settle(now);
    }

    /// Gives the slot back and forgets the semaphore; [`Notice::Removed`] tells when.
    pub fn remove(&mut self, name: &Name, now: Moment) {
        if !self.removed.contains(name) {
            self.removed.push(name.clone());
        }
        self.with(name, now, |machine, _| machine.leave());
        self.settle(now);
    }

    /// A workload runs on the slots of these from here on, or on none. It can lose a slot, but until it has ended nothing
    /// of it is given back: whoever were let in then would run beside it. What is lost meanwhile is not asked for again.
    pub fn occupy(&mut self, names: BTreeSet<Name>, now: Moment) {
        self.occupied = names;
        self.settle(now);
    }

    /// The slots on which a workload runs count as lost from here on, since it is being stopped for want of a renewal.
    pub fn forfeit(&mut self, now: Moment) {
        for name in self.occupied.clone() {
            self.with(&name, now, |machine, cx| machine.lose(LossReason::LeaseExpired, cx));
        }
        self.settle(now);
    }

    /// Gives everything back, then destroys the session; [`Keeper::has_ended`] tells when that is done.
    pub fn drain(&mut self, now: Moment) {
        self.draining = true;
        for name in self.names() {
            self.with(&name, now, |machine, _| machine.leave());
        }
        self.settle(now);
    }

    /// Ends a drain that does not come to its end: what could not be given back stays in `.lock` until somebody prunes
    /// it, but the session is destroyed, so that it may be pruned at once.
    pub fn abandon(&mut self, now: Moment) {
        for name in self.names() {
            self.with(&name, now, |machine, cx| machine.abandon(cx));
        }
        self.settle(now);
    }

    /// Whether a drain is complete.
    pub fn has_ended(&self) -> bool {
        self.session.has_ended()
    }

    /// Takes in what was observed.
    pub fn handle(&mut self, event: Event, now: Moment) {
        self.reached |= event.is_answer();
        match event {
            Event::SessionCreated(answer) => {
                let change = self.session.created(answer, now, &mut self.rng, &mut self.out);
                self.session_changed(&change, now);
            }
            Event::SessionRenewed(answer) => {
                let change = self.session.renewed(answer, now, &mut self.rng, &mut self.out);
                self.session_changed(&change, now);
            }
            Event::SessionDestroyed(answer) => {
                self.session.destroyed(answer, now, &mut self.rng, &mut self.out);
            }
            Event::Listed(name, answer) => {
                self.with(&name, now, |machine, cx| machine.listed(answer, cx));
            }
            Event::Looked(name, answer) => {
                self.with(&name, now, |machine, cx| machine.looked(answer, cx));
            }
            Event::Watched(name, key, answer) => {
                self.with(&name, now, |machine, cx| machine.watched(&key, answer, cx));
            }
            Event::Committed(names, answer) => self.committed(&names, &answer, now),
        }
        self.settle(now);
    }

    /// Does what is due at `now`.
    pub fn tick(&mut self, now: Moment) {
        self.settle(now);
    }

    /// When [`Keeper::tick`] is wanted next.
    pub fn deadline(&self) -> Option<Moment> {
        let machines = self.machines.values().flat_map(|machine| machine.timers(self.watch_grace));
        let lease = self.session.lease().map(Lease::ends);
        let timers = machines.chain(lease).chain(self.session.deadline());
        // What was due by then has been looked at; if it was not done, it waits for an answer and not for the clock.
        timers.filter(|at| *at > self.settled_at).min()
    }

    /// The next thing to do.
    pub fn next_command(&mut self) -> Option<Command> {
        self.out.pop_front()
    }

    /// The semaphores.
    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }

    /// One semaphore.
    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.get(name)
    }

    /// The session, once it is known to live.
    pub fn session(&self) -> Option<&SessionId> {
        self.session.id()
    }

    /// Who it says it is, for people.
    pub fn who(&self) -> &Identity {
        &self.who
    }

    /// Whether Consul has answered anything yet.
    pub fn has_reached_consul(&self) -> bool {
        self.reached
    }

    /// The other semaphores for which one of a party waits, although it could take its own slot.
    pub fn hindrances(&self, name: &Name) -> Vec<&Name> {
        self.party.hindrances(name, &self.machines)
    }

    /// What fails with the session at present, if anything does: what was tried, on what, what came back.
    pub fn trouble(&self) -> Option<&str> {
        self.session.trouble().map(|failure| failure.text.as_str())
    }

    /// The session's lease, valid or run out.
    pub fn lease(&self) -> Option<Lease> {
        self.session.lease()
    }

    /// Begins chance anew, so that what comes next follows from the rest of the state alone.
    #[cfg(test)]
    pub(crate) fn reseed(&mut self) {
        self.rng = fastrand::Rng::with_seed(0);
    }

    /// Tells each of a transaction's semaphores how its own part ended.
    fn committed(&mut self, names: &[Name], answer: &Result<Commit, Failure>, now: Moment) {
        let mut before = 0;
        for name in names {
            let part = before..before + self.machines.get(name).map_or(0, Machine::steps_under_way);
            let own = match answer {
                Ok(Commit::Stale { steps }) => {
                    let own = steps.iter().filter(|step| part.contains(step)).map(|step| step - part.start);
                    Ok(Commit::Stale { steps: own.collect() })
                }
                other => other.clone(),
            };
            before = part.end;
            self.with(name, now, |machine, cx| machine.committed(own, cx));
        }
    }

    fn act_together(&mut self, now: Moment) {
        match self.party.next_move(&self.machines) {
            Move::None => {}
            Move::Commit(names) => {
                let part = |name: Name| {
                    let ops = self.machines.get_mut(&name)?.accept(now)?;
                    Some(Part { name, ops })
                };
                let parts = names.into_iter().filter_map(part).collect();
                self.out.push_back(Command::Commit { parts });
            }
            Move::Begin(names) => {
                for name in names {
                    self.with(&name, now, |machine, cx| {
                        machine.begin(cx);
                        machine.drive(cx);
                    });
                }
            }
            Move::GiveBack(names) => {
                for name in names {
                    self.with(&name, now, |machine, cx| {
                        machine.give_back();
                        machine.drive(cx);
                    });
                }
            }
        }
    }

    fn names(&self) -> Vec<Name> {
        self.machines.keys().cloned().collect()
    }

    fn session_changed(&mut self, change: &Change, now: Moment) {
        for name in self.names() {
            self.with(&name, now, |machine, cx| match change {
                Change::Gone => machine.session_gone(cx),
                Change::Proved | Change::Unproved => machine.session_checked(),
                Change::None => {}
            });
        }
    }

    /// Lets everything act on what has become of the state.
    fn settle(&mut self, now: Moment) {
        self.settled_at = now;
        self.party.look(&self.machines);
        let held = self.machines.values().filter(|machine| machine.holds());
        self.held = held.map(|machine| machine.settings().prefix.clone()).collect();
        for name in self.names() {
            self.with(&name, now, Machine::drive);
            let wants_check = self.machines.get_mut(&name).is_some_and(Machine::take_check_session);
            if wants_check {
                self.session.check(now);
            }
        }
        self.act_together(now);
        let (machines, out) = (&mut self.machines, &mut self.out);
        self.removed.retain(|name| {
            let gone = machines.get(name).is_none_or(Machine::is_gone);
            if gone && machines.remove(name).is_some() {
                out.push_back(Command::Tell(Notice::Removed { name: name.clone() }));
            }
            !gone
        });
        // Who drains needs no new session, whatever became of the old one.
        if self.draining && (self.session.is_none() || self.machines.values().all(Machine::is_gone)) {
            self.session.end(now);
        }
        self.session.act(now, &mut self.out);
    }

    fn with<T>(
        &mut self,
        name: &Name,
        now: Moment,
        act: impl FnOnce(&mut Machine, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let machine = self.machines.get_mut(name)?;
        let mut cx = Context {
            session: self.session.id(),
            remembered: self.session.remembered(),
            reached: self.reached,
            trouble: self.session.trouble(),
            lease: self.session.lease(),
            now,
            who: &self.who,
            wall: self.wall,
            ttl: self.ttl,
            watch_grace: self.watch_grace,
            together: self.party.of_member(name),
            holds: &self.held,
            occupied: self.occupied.contains(name),
            rng: &mut self.rng,
            out: &mut self.out,
        };
        Some(act(machine, &mut cx))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::semaphore::command::{Listing, Op, Reading};
    use crate::semaphore::contender::{Entry, Standing};
    use crate::semaphore::settings::{LimitPolicy, OnLost};
    use crate::semaphore::view::Pair;
    use crate::semaphore::{Form, Phase};

    const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));

    fn settings(prefix: &str, wait: Option<Duration>) -> Settings {
        Settings {
            limit: 1,
            wait,
            on_lost: OnLost::Reacquire,
            limit_policy: LimitPolicy::Refuse,
            form: Form::List,
            ..Settings::of_prefix(prefix.into())
        }
    }

    /// One that wants a slot of `a` and one of `b` together, and is about to have a session.
    fn begun(wait: Option<Duration>, resume: Option<Resume>) -> Keeper {
        wanting(&["a", "b"], &["a", "b"], wait, resume)
    }

    /// One that wants a slot of each.
    fn wanting(names: &[&str], together: &[&str], wait: Option<Duration>, resume: Option<Resume>) -> Keeper {
        let start = Start {
            ttl: Duration::from_secs(30),
            watch_grace: None,
            who: Identity::default(),
            wall: Wall::new(SystemTime::UNIX_EPOCH, NOW),
            seed: 0,
            resume,
            semaphores: names.iter().map(|name| ((*name).into(), settings(name, wait))).collect(),
            together: together.iter().map(|name| Name::from(*name)).collect(),
        };
        Keeper::new(start, NOW)
    }

    fn party(wait: Option<Duration>) -> Keeper {
        let mut keeper = begun(wait, None);
        keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
        keeper
    }

    fn lock(name: &str, limit: u32, holders: &str, index: u64) -> Pair {
        let value = format!(r#"{{"Limit":{limit},"Holders":[{holders}]}}"#).into_bytes();
        let key = format!("{name}/.lock");
        Pair { key, value, flags: 0, session: None, create_index: 1, modify_index: index }
    }

    fn contender(name: &str, session: &str, standing: Option<Standing>, index: u64) -> Pair {
        let mut entry = standing.map(|it| Entry::new(it, 1, 0, String::new(), Identity::default()));
        if let Some(entry) = entry.as_mut().filter(|_| session == "me") {
            entry.together = vec!["a".into(), "b".into()];
        }
        Pair {
            key: format!("{name}/{session}"),
            value: entry.map(|entry| entry.encode()).unwrap_or_default(),
            flags: 0,
            session: Some(session.into()),
            create_index: index,
            modify_index: index,
        }
    }

    fn listed(keeper: &mut Keeper, name: &str, pairs: Vec<Pair>) {
        keeper.handle(Event::Listed(name.into(), Ok(Listing { pairs, index: 30 })), NOW);
    }

    /// What it writes, each transaction by the keys of its steps.
    fn writes(keeper: &mut Keeper) -> Vec<Vec<String>> {
        let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
        let commits = commands
            .into_iter()
            .filter_map(|command| if let Command::Commit { parts } = command { Some(parts) } else { None });
        let ops = |parts: Vec<Part>| parts.into_iter().flat_map(|part| part.ops);
        let said = |op: Op| {
            let deletes = matches!(op, Op::Delete { .. } | Op::DeleteCas { .. });
            format!("{}{}", if deletes { "-" } else { "" }, op.key())
        };
        commits.map(|parts| ops(parts).map(said).collect()).collect()
    }

    /// The semaphores whose slots it says that it has, and the keys of what it writes.
    fn acquired(keeper: &mut Keeper) -> (Vec<String>, Vec<String>) {
        let (mut names, mut keys) = (Vec::new(), Vec::new());
        while let Some(command) = keeper.next_command() {
            if let Command::Tell(Notice::Acquired { name, .. }) = &command {
                names.push(name.to_string());
            }
            if let Command::Commit { parts } = command {
                keys.extend(parts.iter().flat_map(|part| &part.ops).map(|op| op.key().to_owned()));
            }
        }
        (names, keys)
    }

    /// A party whose session an earlier process had, which held a slot of `a`.
    fn resumed() -> Keeper {
        let prefixes = BTreeMap::from([("a".to_owned(), Some(3)), ("b".to_owned(), None)]);
        let mut keeper = begun(None, Some(Resume { session: "me".into(), prefixes }));
        keeper.handle(Event::SessionRenewed(Ok(Duration::from_secs(30))), NOW);
        let own = contender("a", "me", Some(Standing::Held), 5);
        listed(&mut keeper, "a", vec![lock("a", 1, r#""me""#, 5), own]);
        assert_eq!(acquired(&mut keeper), (vec![], vec![]));
        keeper
    }

    #[test]
    fn a_party_that_is_found_whole_is_taken_up_at_once() {
        let mut keeper = resumed();
        let own = contender("b", "me", Some(Standing::Held), 5);
        listed(&mut keeper, "b", vec![lock("b", 1, r#""me""#, 5), own]);
        assert_eq!(acquired(&mut keeper).0, ["a", "b"]);
        let token = |name| match keeper.machine(name).map(Machine::phase) {
            Some(Phase::Held { token, .. }) => Some(*token),
            Some(_) | None => None,
        };
        assert_eq!((token("a"), token("b")), (Some(3), Some(5)));
    }

    #[test]
    fn a_party_that_is_found_in_part_is_given_back_without_having_been_held() {
        let mut keeper = resumed();
        listed(&mut keeper, "b", vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4)]);
        assert_eq!(acquired(&mut keeper), (vec![], vec!["a/.lock".into(), "a/me".into()]));
    }

    #[test]
    fn a_limit_that_another_has_set_is_not_told_as_our_own_doing() {
        let mut keeper = party(None);
        keeper.remove(&"b".into(), NOW);
        let held = |limit| vec![lock("a", limit, r#""x""#, 5), contender("a", "x", None, 4)];
        listed(&mut keeper, "a", held(1));
        while keeper.next_command().is_some() {}
        let listing = Some(Listing { pairs: held(2), index: 31 });
        keeper.handle(Event::Committed(vec!["a".into()], Ok(Commit::Done { index: 31, listing })), NOW);
        let told: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
        assert!(!told.iter().any(|it| matches!(it, Command::Tell(Notice::LimitSet { .. }))), "{told:?}");
    }

    #[test]
    fn who_asks_again_after_having_given_up_looks_first() {
        let mut keeper = party(Some(Duration::ZERO));
        keeper.remove(&"b".into(), NOW);
        listed(&mut keeper, "a", vec![lock("a", 1, r#""x""#, 5), contender("a", "x", None, 4)]);
        assert_eq!(keeper.machine("a").map(Machine::phase), Some(&Phase::GaveUp));
        while keeper.next_command().is_some() {}
        keeper.reconfigure(&"a".into(), settings("a", Some(Duration::from_secs(1))), NOW);
        assert_eq!(keeper.next_command(), Some(Command::List { name: "a".into() }));
    }

    #[test]
    fn a_party_with_a_member_that_is_kept_out_leaves_every_line() {
        let mut keeper = party(None);
        for name in ["a", "b"] {
            let pairs = vec![
                lock(name, 1, r#""x""#, 5),
                contender(name, "me", Some(Standing::Waiting), 7),
                contender(name, "x", None, 4),
            ];
            listed(&mut keeper, name, pairs);
        }
        assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
        let pair = Some(lock("a", 2, r#""x""#, 40));
        keeper.handle(Event::Watched("a".into(), "a/.lock".into(), Ok(Reading { pair, index: 40 })), NOW);
        assert_eq!(writes(&mut keeper), [["-a/me"], ["-b/me"]]);
        let gone = || Ok(Commit::Done { index: 0, listing: None });
        for name in ["a", "b"] {
            keeper.handle(Event::Committed(vec![name.into()], gone()), NOW);
        }
        assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
        // Once it is mended they enter together.
        let pair = Some(lock("a", 1, r#""x""#, 50));
        keeper.handle(Event::Watched("a".into(), "a/.lock".into(), Ok(Reading { pair, index: 50 })), NOW);
        listed(&mut keeper, "a", vec![lock("a", 1, r#""x""#, 50), contender("a", "x", None, 4)]);
        listed(&mut keeper, "b", vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4)]);
        assert_eq!(writes(&mut keeper), [["a/me", "a/me", "b/me", "b/me"]]);
    }

    /// What it tells of a semaphore's limit, and of where it begins to wait.
    fn told(keeper: &mut Keeper) -> Vec<String> {
        let commands = std::iter::from_fn(|| keeper.next_command());
        let said = |command| {
            let Command::Tell(notice) = command else { return None };
            if let Notice::LimitDiffers { stored, policy, .. } = notice {
                Some(format!("{stored} governs under {policy:?}"))
            } else if let Notice::LimitChanged { from, to, .. } = notice {
                Some(format!("{from} to {to}"))
            } else if let Notice::Waiting { name, position, .. } = notice {
                Some(format!("{name} at {position}"))
            } else {
                matches!(notice, Notice::Blocked { .. }).then(|| "blocked".to_owned())
            }
        };
        commands.filter_map(said).collect()
    }

    #[test]
    fn one_of_a_party_tells_for_which_other_it_waits_and_counts_places_from_1() {
        let mut keeper = party(None);
        listed(&mut keeper, "a", vec![lock("a", 1, "", 5)]);
        listed(&mut keeper, "b", vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4)]);
        assert_eq!(told(&mut keeper), ["a at 1", "b at 1"]);
        let mut keeper = party(None);
        let me = |name| contender(name, "me", Some(Standing::Waiting), 7);
        listed(&mut keeper, "a", vec![lock("a", 1, "", 5), me("a")]);
        listed(&mut keeper, "b", vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4), me("b")]);
        assert_eq!(keeper.hindrances(&"a".into()), [&Name::from("b")]);
        assert!(keeper.hindrances(&"b".into()).is_empty());
    }

    #[test]
    fn every_change_of_the_stored_limit_is_told_once() {
        for (policy, said) in [
            (LimitPolicy::Adopt, ["2 governs under Adopt", "2 to 1"]),
            (LimitPolicy::Set, ["2 governs under Set", "2 to 1"]),
            (LimitPolicy::Refuse, ["1 to 2", "2 to 1"]),
        ] {
            let mut keeper = wanting(&["a"], &[], None, None);
            keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
            let settings = Settings { limit_policy: policy, ..settings("a", None) };
            keeper.reconfigure(&"a".into(), settings, NOW);
            listed(&mut keeper, "a", vec![lock("a", 1, r#""me""#, 5), contender("a", "me", None, 5)]);
            assert!(keeper.machine("a").unwrap().holds(), "{policy:?}");
            assert_eq!(told(&mut keeper), [""; 0], "{policy:?}");
            let mut watched = |limit, index| {
                let reading = Reading { pair: Some(lock("a", limit, r#""me""#, index)), index };
                keeper.handle(Event::Watched("a".into(), "a/.lock".into(), Ok(reading)), NOW);
                told(&mut keeper)
            };
            assert_eq!([watched(2, 40), watched(1, 50)].concat(), said, "{policy:?}");
        }
    }

    #[test]
    fn a_limit_that_keeps_out_is_told_as_the_reason_and_not_besides() {
        let mut keeper = wanting(&["a"], &[], None, None);
        keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
        let pairs = |limit, index| vec![lock("a", limit, r#""x""#, index), contender("a", "x", None, 4)];
        listed(&mut keeper, "a", pairs(2, 5));
        assert_eq!(told(&mut keeper), ["blocked"]);
        let pair = pairs(3, 40).swap_remove(0);
        keeper.handle(
            Event::Watched("a".into(), "a/.lock".into(), Ok(Reading { pair: Some(pair), index: 40 })),
            NOW,
        );
        assert_eq!(told(&mut keeper), ["blocked"]);
    }

    #[test]
    fn where_one_of_a_party_that_tries_once_finds_no_slot_none_is_taken() {
        let mut keeper = party(Some(Duration::ZERO));
        listed(&mut keeper, "a", vec![lock("a", 1, "", 5)]);
        assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
        listed(&mut keeper, "b", vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4)]);
        assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
    }

    #[test]
    fn a_newcomer_that_is_outrun_goes_to_the_end_of_the_line_without_another_look() {
        let mut keeper = wanting(&["a"], &[], None, None);
        keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
        listed(&mut keeper, "a", vec![lock("a", 1, "", 5)]);
        assert_eq!(writes(&mut keeper), [["a/.lock", "a/me", "a/me"]]);
        let stale =
            |steps: &[usize]| Event::Committed(vec!["a".into()], Ok(Commit::Stale { steps: steps.to_vec() }));
        keeper.handle(stale(&[0]), NOW);
        // A check that it is not there, its contender, and the listing.
        assert_eq!(writes(&mut keeper), [["a/me", "a/me", "a/"]]);
        // Somebody has written its contender: only a look tells who.
        keeper.handle(stale(&[0]), NOW);
        assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
    }
}
