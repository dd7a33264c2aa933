//! The decisions, each on a view that is written down here. Below the prefix `p`, `me` is the planning client.

#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at a few of many cases")]

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::record::{Form, Hints};
use crate::settings::LimitPolicy;
use crate::timing::{FOREIGN_TURN, GROUP_PATIENCE, OFFER_PATIENCE, ROLL_CALL, UNSERVED};
use crate::view::Pair;
use crate::view::tests::pair;

mod acquire;
mod lock;
mod operate;
mod release;
mod serve;

pub(super) const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));

/// The index of the views. Each `.lock` has the index 50.
const READ: u64 = 100;

fn id(session: &str) -> SessionId {
    session.into()
}

fn settings(limit: u32) -> Settings {
    Settings { limit, ..Settings::of_prefix("p".into()) }
}

/// `.lock` as a slotkeeper client writes it.
fn lock_of(limit: u32, holders: &[&str], next: &[&str], waiting: u32) -> Pair {
    let mut record = Record::new(Form::List, limit);
    record.holders = holders.iter().map(|one| id(one)).collect();
    let indexes = (0..record.taken()).collect();
    let next = next.iter().map(|one| id(one)).collect();
    record.hints = Some(Hints { indexes, next, waiting, ..Hints::default() });
    pair("p/.lock", &record.encode(), None, 50)
}

/// `.lock` as a foreign client writes it.
fn foreign_lock(limit: u32, holders: &[&str]) -> Pair {
    let value = format!(r#"{{"Limit":{limit},"Holders":{holders:?}}}"#);
    pair("p/.lock", value.as_bytes(), None, 50)
}

/// A contender key of one slot. Those that hold or are offered have the slot index 0.
fn key(session: &str, state: WaiterState, index: u64) -> Pair {
    key_with(session, state, index, |_| {})
}

fn key_with(session: &str, state: WaiterState, index: u64, change: impl FnOnce(&mut Entry)) -> Pair {
    let mut entry = Entry::new(state, 1, 0, String::new(), Identity::default());
    if state != WaiterState::Waiting {
        entry.indexes = vec![0];
    }
    change(&mut entry);
    pair(&format!("p/{session}"), &entry.encode(), Some(session), index)
}

fn waits(session: &str, index: u64) -> Pair {
    key(session, WaiterState::Waiting, index)
}

fn asked(session: &str, index: u64) -> Pair {
    key_with(session, WaiterState::Waiting, index, |entry| entry.asked = true)
}

fn holds(session: &str, index: u64) -> Pair {
    key(session, WaiterState::Held, index)
}

fn offered(session: &str, index: u64) -> Pair {
    key(session, WaiterState::Offered, index)
}

fn foreign(session: &str, index: u64) -> Pair {
    pair(&format!("p/{session}"), b"", Some(session), index)
}

fn listed(pairs: Vec<Pair>) -> View {
    View::new("p", pairs, READ)
}

/// What a client reads that asks for its own key and those of some holders.
fn some(pairs: Vec<Pair>, holders: &[&str]) -> View {
    let sessions: Vec<_> = holders.iter().map(|one| id(one)).chain([id("me")]).collect();
    View::of_some("p", pairs, &sessions, READ)
}

static NOBODY: Identity = Identity {
    name: None,
    command: None,
    user: None,
    pod: None,
    namespace: None,
    node: None,
    host: None,
    pid: None,
};

/// A client that plans.
struct Client {
    session: SessionId,
    settings: Settings,
    sightings: Sightings,
    had: bool,
    together: Option<(Vec<String>, GroupStep)>,
}

fn client(settings: Settings) -> Client {
    Client { session: id("me"), settings, sightings: Sightings::default(), had: false, together: None }
}

impl Client {
    /// One that has seen a view before.
    fn that_saw(mut self, view: &View, ago: Duration) -> Self {
        self.sightings.see(view, NOW.back(ago));
        self
    }

    fn me(&self) -> Me<'_> {
        let together = self.together.as_ref().map(|(prefixes, step)| GroupMember { prefixes, step: *step });
        let (session, settings) = (&self.session, &self.settings);
        Me { session, settings, who: &NOBODY, now: NOW, wall: "", together, holds: &[], had: self.had }
    }

    fn memory(&self) -> Memory<'_> {
        Memory {
            sightings: &self.sightings,
            set_limit: false,
            yields_until: None,
            ends_soon: false,
            lost_race: false,
            settled_at: None,
            delayed_until: None,
            held_since: None,
            confirms: false,
        }
    }

    fn plan(&self, view: &View) -> Plan {
        hold(view, self.me(), self.memory())
    }

    /// The next step, in words.
    fn next(&self, view: &View) -> String {
        said(&self.plan(view).next)
    }

    fn write(&self, view: &View) -> Write {
        let Next::Write(write) = self.plan(view).next else { panic!("{:?}", self.plan(view)) };
        write
    }

    fn leave(&self, view: &View) -> Leave {
        leave(view, self.me(), &self.sightings)
    }
}

fn said(next: &Next) -> String {
    let keys = |watches: &[Watch]| watches.iter().map(|watch| name(&watch.key)).collect::<Vec<_>>().join(" ");
    match next {
        Next::Wait(watches) => format!("watch {}", keys(watches)),
        Next::Yield(watches) => format!("yield {}", keys(watches)),
        Next::Read(Want::All) => "list".into(),
        Next::Read(Want::Some(others)) => format!("read {others:?}"),
        Next::Write(write) => steps(write),
    }
}

fn left(leave: &Leave) -> String {
    match leave {
        Leave::Read(Want::All) => "list".into(),
        Leave::Read(Want::Some(others)) => format!("read {others:?}"),
        Leave::Write(write) => steps(write),
        Leave::Gone => "gone".into(),
    }
}

fn name(key: &str) -> &str {
    key.strip_prefix("p/").unwrap()
}

fn steps(write: &Write) -> String {
    let step = |op: &Op| {
        let does = match op {
            Op::Lock { .. } => "lock",
            Op::Unlock { .. } => "unlock",
            Op::Cas { .. } => "cas",
            Op::Delete { .. } | Op::DeleteCas { .. } => "delete",
            Op::CheckIndex { .. } => "check",
            Op::CheckNotExists { .. } => "new",
            Op::CheckSession { .. } => "session",
            Op::List { .. } => "list",
        };
        format!("{does} {}", name(op.key())).trim_end().to_owned()
    };
    write.ops.iter().map(step).collect::<Vec<_>>().join(", ")
}

/// What a transaction writes under a key.
fn value_of<'a>(write: &'a Write, of: &str) -> Option<&'a [u8]> {
    write.ops.iter().find_map(|op| match op {
        Op::Cas { key, value, .. } | Op::Lock { key, value, .. } if name(key) == of => Some(value.as_slice()),
        _ => None,
    })
}

fn entry_of(write: &Write, session: &str) -> Entry {
    Entry::decode(value_of(write, session).unwrap()).unwrap()
}

fn record_of(write: &Write) -> Record {
    Record::decode(value_of(write, ".lock").unwrap(), 0).unwrap()
}

/// The holders, the handoff list and the number of waiters that a transaction writes.
fn written(write: &Write) -> String {
    let record = record_of(write);
    let names = |all: &[SessionId]| all.iter().map(SessionId::as_str).collect::<Vec<_>>().join(" ");
    let waiting = record.hints.as_ref().map(|hints| hints.waiting.to_string());
    let waiting = waiting.unwrap_or_else(|| "no hints".into());
    format!("{} | {} | {waiting}", names(&record.holders), names(record.next()))
}
