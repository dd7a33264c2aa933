//! One semaphore's state machine: what was observed goes in, commands come out.
//!
//! Whether a slot is held is never remembered from a write that was sent; it is read off the view, which a committed
//! transaction moves. So a lost answer, a restart and an operator's edit all take the same way: look again, plan again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::backoff::{Backoff, jittered};
use super::command::{Command, Commit, Failure, FailureKind, Listing, Name, Op, Part, Reading};
use super::notice::{Leader, LossReason, Notice};
use super::plan::{self, Me, Need, Plan, Role, Stand, Write};
use super::settings::{LimitPolicy, OnLost, Primitive, Settings};
use super::single::Single;
use super::unanswered::LATE;
use super::view::View;
use super::{Moment, SessionId};

mod answers;
mod context;
mod decide;
mod evicted;
mod hindsight;
mod offers;
mod resumed;
mod watches;

pub(super) use context::Context;
use hindsight::Hindsight;
use offers::Offers;
pub(super) use resumed::{Claim, settling};
use watches::Watches;

/// A semaphore that is tried once is given up after this long without any answer.
const TRY_ONCE: Duration = Duration::from_secs(10);
/// Tidying up waits for a random time up to this, so that not everybody does it.
const TIDY: Duration = Duration::from_secs(1);
/// The wait after a lost check-and-set, first and longest, for each other who may be writing at that time: each of those who were let
/// in together, or else the root of the slots that are held.
const CONTENTION: (Duration, Duration) = (Duration::from_millis(3), Duration::from_secs(2));
/// But never longer than this.
const MOST_CONTENDED: Duration = Duration::from_secs(2);
/// More than these do not make the wait after a lost check-and-set longer.
const CONTENDERS: u32 = 100;
/// For how long one that comes leaves free slots to whoever has come at the same time.
const PATIENCE: Duration = Duration::from_millis(60);
/// The same, for each write to Consul since the last one to `.lock`: so many may have come before.
const PER_WRITE: Duration = Duration::from_millis(1);
/// For how long one that is in line leaves free slots to whoever watches over all.
const TRUST: Duration = Duration::from_secs(1);
/// Writes to Consul from one's last to `.lock` to the next one's first, where nobody else is there: a session ends, and one is made.
const QUIET: u64 = 4;
/// Attempts of one that has gone to serve whoever has come meanwhile.
const FOLLOW_UPS: u32 = 3;
/// A poll waits for so long. Consul's own bound is ten minutes.
const POLL: Duration = Duration::from_secs(300);
/// A holder reads its contender and `.lock` at the latest after this long, whatever its watch tells.
const CONFIRM: Duration = Duration::from_secs(60);
/// The wait after a failed request, first and longest.
const FAILURE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Bounds of half a TTL, the time for which those wait whom others depend on: holders, and the head of the line.
const HALF_TTL: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Half a TTL, within its bounds.
fn half(ttl: Duration) -> Duration {
    (ttl / 2).clamp(HALF_TTL.0, HALF_TTL.1)
}

/// Others in line list everything at the latest after this long, and after half of it at the earliest.
const SELDOM: Duration = Duration::from_secs(600);
/// Who is looked at lists at most so often, for each that takes part.
const PER_CONTENDER: Duration = Duration::from_millis(500);

/// Where a semaphore stands, for the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is known yet, or not any more: no session, or no answer.
    Starting,
    /// In line.
    Waiting,
    /// Held.
    Held {
        /// Since when.
        since: Moment,
        /// `.lock`'s index at the grant.
        token: u64,
        /// The numbers of its slots, each from 0 and below the limit, and no other holder's. None where another
        /// program has overwritten them.
        indexes: Vec<u32>,
    },
    /// Kept out until somebody mends something.
    Blocked {
        /// What is wrong and what to do.
        why: String,
    },
    /// Being given back.
    Leaving,
    /// The bound on waiting has passed.
    GaveUp,
    /// Lost, with `on_lost: exit`: it is not asked for again.
    Lost,
    /// Given back.
    Released,
}

/// What the machine works towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    /// To hold.
    Hold,
    /// To be gone, and in which phase to end.
    Leave(Farewell),
    /// Nothing: it is gone.
    Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Farewell {
    Released,
    GaveUp,
    Lost,
    /// It asks again, together with the others of its party.
    Again,
}

/// The one request under way besides the watch.
#[derive(Clone, Debug)]
enum Flight {
    None,
    Listing,
    /// `.lock` is being read.
    Looking {
        /// The index of the latest change that was known before.
        after: u64,
        /// Whether the read proves anything.
        consistent: bool,
    },
    /// The own contender and `.lock` are being read, and that of whoever watches over all.
    Confirming {
        /// The index of the latest change that was known before.
        after: u64,
        /// Whether it is one in line, which relies on whoever watches over all.
        relies: bool,
    },
    /// The session is being renewed to see whether it lives; its answer goes on from here.
    Checking,
    Committing {
        write: Write,
        sent: Moment,
    },
    /// The session it was sent for has ended: its answer says nothing.
    Void,
}

/// A slot that was granted.
#[derive(Clone, Debug)]
struct Slot {
    since: Moment,
    session: SessionId,
    token: u64,
    indexes: Vec<u32>,
}

/// One semaphore of one agent.
#[derive(Clone, Debug)]
pub struct Machine {
    name: Name,
    settings: Settings,
    phase: Phase,
    intent: Intent,
    view: Option<View>,
    /// What must be read again, consistently, before anything is decided by the view.
    need: Option<Need>,
    /// The view comes of a consistent read or of an own commit, so that a loss may be concluded from it.
    proved: bool,
    flight: Flight,
    /// What is to be committed as soon as all others of the party can.
    offer: Option<Write>,
    /// The slots are there, but not known yet to be so for all others of the party.
    found: bool,
    /// The slots are there, and it waits for a renewal before it tells so.
    unproved: bool,
    watches: Watches,
    watch_failing_since: Option<Moment>,
    /// The role in which one waits, and since when.
    stood: (Role, Moment),
    free_since: Option<Moment>,
    offers: Offers,
    /// Everything is listed again at the latest then, whatever the watches tell.
    list_at: Option<Moment>,
    /// Somebody wants to know how things stand: everything is listed then.
    show_at: Option<Moment>,
    /// Since which index it has stood in line.
    arrival: Option<u64>,
    /// The last write that was to let it in came too late.
    crowded: bool,
    /// Free slots are left until then to whoever has come at the same time.
    patience: Option<Moment>,
    /// The index of the last `.lock` that was seen to be attended when it was read.
    trusted: Option<u64>,
    /// The last write has told who has come meanwhile, and what follows from that is done at once.
    follows_up: bool,
    /// The own contender and `.lock` have just been read.
    confirmed: bool,
    /// Nothing is sent before.
    retry_at: Option<Moment>,
    tidy_at: Option<Moment>,
    recheck_at: Option<Moment>,
    dead_since: BTreeMap<SessionId, Moment>,
    /// What is known of a lock besides its key.
    hindsight: Hindsight,
    /// Who was announced to have the lock.
    leader: Option<SessionId>,
    told_delay: bool,
    set_limit: bool,
    told_limit: Option<u32>,
    /// It was told that the record has another form than the configured one.
    told_form: bool,
    /// The stored limit that was seen last.
    seen_limit: Option<u32>,
    /// When everything was listed last.
    listed_at: Option<Moment>,
    asked_at: Moment,
    room_since: Option<Moment>,
    waited: bool,
    /// The token of a slot that an earlier process of ours left in `.lock`.
    token: Option<u64>,
    /// The slot that is held, or being given back.
    slot: Option<Slot>,
    /// The operator by whom it was told to leave, until it asks anew.
    evicted_by: Option<String>,
    /// The token of the slot that was lost, while its workload is being stopped and nobody else can have it: it was told to
    /// leave it, or does not know whether the session lives.
    stopping: Option<u64>,
    /// Of a resumed session: how far it is known to be ours alone.
    claim: Claim,
    /// Another process has taken the session over.
    displaced: bool,
    check_session: bool,
    /// The session was looked at since the contender was seen to be gone, and lives.
    session_lives: bool,
    failing: Option<Failure>,
    /// Everything is looked at once more then: a request of an earlier process may be carried out late.
    looks_again_at: Option<Moment>,
    /// What fails is a write: that reads work says nothing of it.
    write_fails: bool,
    /// The last listing left out keys that the token may not read. What else is answered does not end that.
    filtered: bool,
    failures: Backoff,
    contention: Backoff,
}

impl Machine {
    /// `token` is that of the slot which an earlier process may have left.
    pub(super) fn new(name: Name, settings: Settings, token: Option<u64>, now: Moment) -> Self {
        Self {
            name,
            set_limit: settings.limit_policy == LimitPolicy::Set,
            settings,
            phase: Phase::Starting,
            intent: Intent::Hold,
            view: None,
            need: None,
            proved: false,
            flight: Flight::None,
            offer: None,
            found: false,
            unproved: false,
            watches: Watches::default(),
            watch_failing_since: None,
            stood: (Role::default(), now),
            free_since: None,
            offers: Offers::default(),
            list_at: None,
            show_at: None,
            arrival: None,
            crowded: false,
            patience: None,
            trusted: None,
            follows_up: false,
            confirmed: false,
            retry_at: None,
            tidy_at: None,
            recheck_at: None,
            dead_since: BTreeMap::new(),
            hindsight: Hindsight::default(),
            leader: None,
            told_delay: false,
            told_limit: None,
            told_form: false,
            seen_limit: None,
            listed_at: None,
            asked_at: now,
            room_since: None,
            waited: false,
            token,
            slot: None,
            evicted_by: None,
            stopping: None,
            claim: Claim::Unknown,
            displaced: false,
            check_session: false,
            session_lives: false,
            failing: None,
            write_fails: false,
            looks_again_at: None,
            filtered: false,
            failures: Backoff::new(FAILURE.0, FAILURE.1),
            contention: Backoff::new(CONTENTION.0, CONTENTION.1),
        }
    }

    /// One that does not come before it knows who is there.
    pub(super) fn that_lists_first(self) -> Self {
        Self { need: Some(Need::List), ..self }
    }

    /// How the shell and the core call it.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// What is wanted of it.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where it stands.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// What was last seen; `None` before the first look and after the session ended.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// When everything under the prefix was looked at last. Single keys may be known as they were later.
    pub fn listed_at(&self) -> Option<Moment> {
        self.listed_at.filter(|_| self.view.is_some())
    }

    /// The single-key lock as it was last seen, where this is one and its key exists.
    pub fn single(&self) -> Option<&Single> {
        self.view.as_ref().and_then(View::single)
    }

    /// Until when Consul gives a lock that nobody has to nobody, as far as is known.
    pub fn delayed_until(&self) -> Option<Moment> {
        self.hindsight.delayed_until()
    }

    /// What fails at present, if anything does: what was tried, on what, what came back.
    pub fn trouble(&self) -> Option<&str> {
        self.failing.as_ref().map(|failure| failure.text.as_str())
    }

    /// The same, while anything is to be asked.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failing.as_ref().filter(|_| self.intent != Intent::Rest)
    }

    /// Since when the slot is being asked for.
    pub fn asked_at(&self) -> Moment {
        self.asked_at
    }

    /// Whether nothing of it is in Consul any more and nothing is asked for.
    pub fn is_gone(&self) -> bool {
        self.intent == Intent::Rest && matches!(self.flight, Flight::None)
    }

    /// Whether the session ought to be proved alive now; asked once.
    pub(super) fn take_check_session(&mut self) -> bool {
        std::mem::take(&mut self.check_session)
    }

    /// Takes over changed settings. The prefix and the slots stay: another prefix is another semaphore.
    pub(super) fn reconfigure(&mut self, settings: Settings, now: Moment) {
        let sets = settings.limit_policy == LimitPolicy::Set;
        let anew = self.settings.limit_policy != LimitPolicy::Set || settings.limit != self.settings.limit;
        self.set_limit = sets && (anew || self.set_limit);
        self.told_limit = None;
        if self.phase == Phase::GaveUp && settings.wait != self.settings.wait {
            self.ask_again(now);
        }
        self.settings = settings;
        // The same view may now lead elsewhere.
        self.tidy_at = None;
    }

    /// One that clears away what an earlier process has left under a prefix that is not wanted any more.
    pub(super) fn clearing(name: Name, settings: Settings, now: Moment) -> Self {
        let mut machine = Self::new(name, settings, None, now);
        machine.intent = Intent::Leave(Farewell::Released);
        machine.phase = Phase::Leaving;
        machine.looks_again_at = Some(now + LATE);
        machine
    }

    /// Whether it has yet to look again for what an earlier process left.
    pub(super) fn looks_again(&self) -> bool {
        self.looks_again_at.is_some()
    }

    /// Leaves it at one look: another one of the same prefix sees what is there, or the session ends.
    pub(super) fn look_no_more(&mut self) {
        self.looks_again_at = None;
    }

    /// Leaves everything as it is: the session is about to be destroyed.
    pub(super) fn abandon(&mut self, cx: &mut Context<'_>) {
        self.stop_watches(cx);
        self.intent = Intent::Rest;
        self.flight = Flight::None;
    }

    /// Somebody wants to know how things stand. Everything is listed soon, the more seldom the more take part: however many look,
    /// all of them together list about twice a second.
    pub(super) fn show(&mut self, now: Moment) {
        let Some(view) = self.view.as_ref().filter(|_| self.intent == Intent::Hold) else { return };
        let holders = view.record().map_or(0, super::Record::taken);
        let known = u32::try_from(view.contenders.len()).unwrap_or(u32::MAX).max(view.waiting()).max(holders);
        let since = self.listed_at.unwrap_or(self.asked_at);
        let pace = (PER_CONTENDER * known).clamp(PER_CONTENDER, SELDOM);
        if !self.settings.is_lock() {
            self.show_at = self.show_at.or(Some((since + pace).max(now)));
        }
    }

    /// Whether it is to hold, be it after having given back what it holds.
    pub(super) fn asks(&self) -> bool {
        matches!(self.intent, Intent::Hold | Intent::Leave(Farewell::Again))
    }

    pub(super) fn holds(&self) -> bool {
        matches!(self.phase, Phase::Held { .. })
    }

    /// Whether the slots are there, be it that it is not told because others of the party lack theirs.
    pub(super) fn has(&self) -> bool {
        self.found || self.holds()
    }

    /// Whether the session has slots of it that are to last, be they told of or not yet.
    pub(super) fn has_slots(&self) -> bool {
        self.has()
            || self.unproved
            || self.slot.is_some()
            || self.token.is_some()
            || self.claim.settles_at().is_some()
    }

    /// Whether it is known for sure to hold nothing.
    pub(super) fn is_apart(&self) -> bool {
        self.phase == Phase::Waiting
            && !self.found
            && !self.unproved
            && self.need.is_none()
            && matches!(self.flight, Flight::None)
    }

    /// Whether it is kept out until somebody mends something.
    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.phase, Phase::Blocked { .. })
    }

    /// Whether it holds or stands in line, and is not going already.
    pub(super) fn stands(&self) -> bool {
        self.intent == Intent::Hold && (self.has() || self.arrival.is_some())
    }

    /// Since which index it has stood in line.
    pub(super) fn arrival(&self) -> Option<u64> {
        self.arrival
    }

    pub(super) fn offers(&self) -> bool {
        self.offer.is_some()
    }

    /// Takes the offer up: these steps are on their way.
    pub(super) fn accept(&mut self, now: Moment) -> Option<Vec<Op>> {
        let write = self.offer.take()?;
        let ops = write.ops.clone();
        self.token = None;
        self.flight = Flight::Committing { write, sent: now };
        Some(ops)
    }

    /// How many steps of a transaction under way are its own.
    pub(super) fn steps_under_way(&self) -> usize {
        if let Flight::Committing { write, .. } = &self.flight { write.ops.len() } else { 0 }
    }

    /// Holds from now on what was found.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) {
        if let (true, Some(session), Some(view)) = (self.found, cx.session, self.view.take()) {
            self.hold(&view, session, cx);
            self.view = Some(view);
        }
    }

    /// The token of a slot that an earlier process held, and that was not looked at yet.
    pub(super) fn remembered(&self) -> Option<u64> {
        self.token
    }

    /// Gives the slots back, and asks anew.
    pub(super) fn give_back(&mut self) {
        self.depart(Farewell::Again);
    }

    /// Goes, whatever it is doing.
    pub(super) fn leave(&mut self) {
        if self.asks() {
            self.depart(Farewell::Released);
        }
    }

    /// Asks for nothing that it does not hold. What an earlier process of ours held it looks at first: its workload may be
    /// running on that.
    pub(super) fn ask_no_more(&mut self) {
        if self.intent == Intent::Hold && !self.holds() && self.token.is_none() {
            self.depart(Farewell::Released);
        }
    }

    fn depart(&mut self, farewell: Farewell) {
        if self.intent == Intent::Hold && self.slot.is_some() && !self.is_alone() {
            // Nobody knows who is next but `.lock`; and what foreign contenders were offered goes with the last of them.
            let offered = self.view.as_ref().is_some_and(View::says_offered);
            let need = if offered { Need::List } else { Need::Look };
            self.need = self.need.or(Some(need));
        } else if self.arrival.is_some() && self.looks_before_it_goes() {
            self.need = Some(Need::List);
        }
        self.intent = Intent::Leave(farewell);
        self.phase = Phase::Leaving;
        self.retry_at = None;
        // The watches go on: that of `.lock` tells at once of whoever is faster than we are.
        self.list_at = None;
    }

    /// Whether others may wait for what it does there besides waiting.
    fn looks_before_it_goes(&self) -> bool {
        let own = self.arrival.and_then(|arrival| {
            let view = self.view.as_ref()?;
            let own = view.contenders.iter().find(|one| one.create_index == arrival)?;
            Some(plan::must_look(view, &own.session, &self.settings))
        });
        own.unwrap_or_default()
    }

    /// Whether nobody else had anything to do with the semaphore when it was looked at last.
    fn is_alone(&self) -> bool {
        let Some(view) = self.view.as_ref().filter(|view| view.is_complete()) else { return false };
        let others = |record: &super::Record| {
            record.taken() > self.settings.slots || record.attended || !record.next.is_empty()
        };
        self.settings.is_lock() || view.contenders.len() == 1 && !view.record().is_some_and(others)
    }

    fn ask_again(&mut self, now: Moment) {
        self.intent = Intent::Hold;
        self.phase = Phase::Starting;
        self.evicted_by = None;
        self.asked_at = now;
        self.room_since = None;
        self.waited = false;
        self.token = None;
        // Whoever came behind it changed no key that it watched, and stands ahead of it now.
        self.need = Some(Need::List);
    }

    /// When [`Self::drive`] has something to do although nothing was observed. `claims`: the session may not be ours alone, and
    /// that is being settled.
    pub(super) fn timers(&self, watch_grace: Option<Duration>, claims: bool) -> impl Iterator<Item = Moment> {
        let watch = self.watch_fails_at(watch_grace);
        let own = [
            self.retry_at,
            self.tidy_at,
            self.recheck_at,
            self.list_at,
            self.show_at,
            self.gives_up_at().filter(|_| !claims),
            self.looks_again_at,
            self.claim.settles_at(),
            watch,
        ];
        own.into_iter().flatten().chain(self.watches.timers())
    }

    fn gives_up_at(&self) -> Option<Moment> {
        // What is about to be held again is not given up.
        let open = self.intent == Intent::Hold && self.slot.is_none() && self.claim.settles_at().is_none();
        let wait = if self.settings.try_once() { Some(TRY_ONCE) } else { self.settings.wait };
        wait.filter(|_| open).map(|wait| self.asked_at + wait)
    }

    fn watch_fails_at(&self, grace: Option<Duration>) -> Option<Moment> {
        let since = self.watch_failing_since.filter(|_| matches!(self.phase, Phase::Held { .. }))?;
        grace.map(|grace| since + grace)
    }

    /// Does whatever the present state asks for.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if self.intent == Intent::Rest && self.looks_again_at.is_some_and(|at| at <= cx.now) {
            self.looks_again_at = None;
            self.intent = Intent::Leave(Farewell::Released);
            self.phase = Phase::Leaving;
            self.need = Some(Need::List);
            self.proved = false;
        }
        self.offer = None;
        self.found = false;
        self.unproved = false;
        if let Phase::Held { .. } = self.phase {
            if !cx.lease_is_valid() {
                self.lose(LossReason::LeaseExpired, cx);
            } else if self.watch_fails_at(cx.watch_grace).is_some_and(|at| at <= cx.now) {
                self.lose(LossReason::WatchFailed, cx);
            }
        }
        if !matches!(self.flight, Flight::None) {
            return;
        }
        // Until the session is ours alone nothing is asked for. An agent that gave up would end, and the next one would begin the
        // contest anew.
        let claims = cx.contested.is_some() && cx.lease_is_valid();
        if !claims && self.gives_up_at().is_some_and(|at| at <= cx.now) {
            self.give_up(cx);
        }
        let session = match self.intent {
            Intent::Hold | Intent::Rest => cx.session,
            Intent::Leave(_) => cx.remembered,
        };
        let Some(session) = session.cloned() else {
            return self.without_session(cx);
        };
        if self.retry_at.is_some_and(|at| cx.now < at) {
            return;
        }
        self.retry_at = None;
        if self.show_at.is_some_and(|at| at <= cx.now) && self.intent == Intent::Hold {
            self.need = Some(Need::List);
        }
        match self.intent {
            Intent::Rest => {}
            // What is left in `.lock` keeps others out until the workload has ended.
            Intent::Leave(_) if cx.occupied || self.withheld().is_some() => {}
            // A lease that ran out says that nothing is known; all waits until it is renewed, and begins with a read.
            Intent::Hold if !cx.lease_is_valid() => self.need = Some(Need::List),
            Intent::Hold | Intent::Leave(_) => self.decide(&session, cx),
        }
    }

    /// Reads all there is: of a lock, its key.
    fn list(&mut self, cx: &mut Context<'_>) {
        self.flight = Flight::Listing;
        let name = self.name.clone();
        cx.out.push_back(if self.settings.is_lock() {
            Command::Look { name, key: self.settings.prefix.clone(), consistent: true }
        } else {
            Command::List { name }
        });
    }

    fn look(&mut self, key: String, after: u64, consistent: bool, cx: &mut Context<'_>) {
        self.flight = Flight::Looking { after, consistent };
        cx.out.push_back(Command::Look { name: self.name.clone(), key, consistent });
    }

    /// Whether it stands in line and relies on whoever watches over all.
    fn relies(&self, cx: &Context<'_>) -> bool {
        let attended = || self.view.as_ref().and_then(View::record).is_some_and(|record| record.attended);
        let follows = self.arrival.is_some() && self.stood.0 == Role::Behind && cx.together.is_none();
        follows && !self.filtered && self.intent == Intent::Hold && attended()
    }

    /// Reads what tells whether it still holds, or whether somebody still watches over all.
    fn confirm(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        if self.settings.is_lock() {
            return self.list(cx);
        }
        let relies = !self.holds();
        self.flight = Flight::Confirming { after: view.latest(), relies };
        let lookout = view.record().and_then(|record| record.next.last()).filter(|_| relies);
        let lookout = lookout.map(|lookout| view.contender_key(lookout));
        let keys = [view.contender_key(session), view.lock_key()].into_iter().chain(lookout).collect();
        cx.out.push_back(Command::Confirm { name: self.name.clone(), keys });
    }

    /// How long to wait after a check-and-set that came too late: the longer the more others may be writing. Those who were let
    /// in together may well leave together.
    fn contended(&mut self, cx: &mut Context<'_>) -> Duration {
        let taken = self.view.as_ref().and_then(View::record).map_or(1, super::Record::taken);
        let own = self.view.as_ref().zip(cx.remembered).and_then(|(view, session)| view.entry_of(session));
        let beside = own.and_then(|entry| entry.beside).unwrap_or(1).min(CONTENDERS);
        let others = f64::from(taken.clamp(1, CONTENDERS)).sqrt().max(f64::from(beside));
        let longest = self.contention.next(cx.rng).mul_f64(others);
        jittered(longest.min(MOST_CONTENDED), 0.9, cx.rng)
    }

    fn commit(&mut self, write: Write, cx: &mut Context<'_>) {
        self.tidy_at = None;
        // An earlier process's token is that of a slot which is found, not of one that is asked for.
        self.token = None;
        let ops = write.ops.clone();
        self.flight = Flight::Committing { write, sent: cx.now };
        cx.out.push_back(Command::Commit { parts: vec![Part { name: self.name.clone(), ops }] });
    }

    fn stop_watches(&mut self, cx: &mut Context<'_>) {
        self.watches.want(Vec::new(), Duration::ZERO, &self.name, cx);
        self.watch_failing_since = None;
        self.list_at = None;
    }
}
