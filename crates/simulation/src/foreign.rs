//! Foreign clients: Consul's Go API, which drops unknown fields, and the client of Consul's guide, which may keep them. They wait
//! for changes of the whole prefix, prune dead holders, and have no queue. Some are killed, and some poll.

use std::time::Duration;

use uuid::Uuid;

use super::consul::{Consul, SEMAPHORES, TTL};
use serde_json::{Map, Value};
use slotkeeper_consul_dev::store::kv::Write;
use slotkeeper_consul_dev::store::session::SessionId;
use slotkeeper_semaphore::{Form, Moment, Record, SessionId as Id, View};

/// The next step of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Enter,
    /// Read, and if a slot is free, write a moment later.
    Read,
    Leave,
    /// Keep the contender key, and never act.
    Idle,
}

/// How a foreign client waits for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Habit {
    /// The client waits for any change.
    Waits,
    /// The client polls.
    Polls,
    /// The client has a contender key as long as the game lasts, and never acts.
    Idles,
}

/// The semaphore that these clients use.
const NAME: &str = SEMAPHORES[0];

pub(super) struct Foreign {
    id: Uuid,
    form: Form,
    limit: u32,
    /// Whether the client keeps unknown fields.
    keeps: bool,
    habit: Habit,
    step: Step,
    /// The state that the next write is based on.
    read: Option<View>,
    /// The index of the last read. The client waits until the index changes.
    seen: u64,
    /// Whether the client was woken by a change.
    told: bool,
    work: Duration,
    /// The number of the valid timer.
    pub(super) timer: u64,
    pub(super) holds: bool,
    pub(super) done: bool,
}

impl Foreign {
    pub(super) fn new(form: Form, limit: u32, habit: Habit, rng: &mut fastrand::Rng) -> Self {
        let (id, work) = (Uuid::from_u128(rng.u128(..)), Duration::from_millis(rng.u64(1..800)));
        let keeps = form == Form::List && rng.bool();
        Self {
            id,
            form,
            limit,
            keeps,
            habit,
            step: Step::Enter,
            read: None,
            seen: 0,
            told: false,
            work,
            timer: 0,
            holds: false,
            done: false,
        }
    }

    /// The client that replaces this one.
    pub(super) fn next(&self, rng: &mut fastrand::Rng) -> Self {
        let habit = if self.habit == Habit::Idles { Habit::Waits } else { self.habit };
        Self::new(self.form, self.limit, habit, rng)
    }

    pub(super) fn session(&self) -> Id {
        Id::from(self.id.to_string())
    }

    /// Whether a change wakes the client before its timer.
    pub(super) fn hears(&mut self) -> bool {
        let waits = self.habit == Habit::Waits && self.step == Step::Read && self.read.is_none();
        waits && !std::mem::replace(&mut self.told, true)
    }

    /// Plays the next step. Returns the time until the following one. `over`: no new client joins.
    pub(super) fn step(
        &mut self,
        consul: &mut Consul,
        rng: &mut fastrand::Rng,
        over: bool,
        now: Moment,
    ) -> Duration {
        let near = Duration::from_micros(rng.u64(200..5000));
        self.told = false;
        match self.step {
            Step::Enter => {
                // The session has no TTL and never expires, so the client never considers a slot held that it has lost.
                consul.create_lasting_session(self.id, now);
                let key = format!("{NAME}/{}", self.id);
                let write = Write { key, value: "opaque".into(), flags: self.form.flags() };
                consul.store.lock(write, &self.id.to_string(), now).expect("a new session");
                self.step = if self.habit == Habit::Idles { Step::Idle } else { Step::Read };
                near
            }
            Step::Idle => {
                if over {
                    self.leave(consul, now);
                }
                Duration::from_millis(100)
            }
            Step::Read => match self.read.take() {
                Some(view) => {
                    self.take(&view, consul, now);
                    if self.holds { self.work } else { near }
                }
                None if self.seen == consul.store.index() => self.rest(rng),
                None => {
                    self.seen = consul.store.index();
                    self.read = Some(consul.view(NAME)).filter(has_room);
                    if self.read.is_some() { near } else { self.rest(rng) }
                }
            },
            Step::Leave => {
                self.holds = false;
                self.leave(consul, now);
                near
            }
        }
    }

    /// The time until the next read without a wake-up.
    fn rest(&self, rng: &mut fastrand::Rng) -> Duration {
        match self.habit {
            Habit::Waits => TTL,
            Habit::Polls | Habit::Idles => Duration::from_millis(rng.u64(500..3000)),
        }
    }

    fn take(&mut self, view: &View, consul: &mut Consul, now: Moment) {
        let mut record = view.record().cloned().unwrap_or_else(|| Record::new(self.form, self.limit));
        record.holders.retain(|holder| view.lives(holder) == Some(true));
        record.holders.push(self.session());
        self.holds = self.write(record, view.lock_index(), consul, now);
        if self.holds {
            self.step = Step::Leave;
        }
    }

    fn leave(&mut self, consul: &mut Consul, now: Moment) {
        let view = consul.view(NAME);
        if let Some(record) = view.record() {
            let mut record = record.clone();
            let me = self.session();
            record.holders.retain(|holder| *holder != me);
            assert!(
                self.write(record, view.lock_index(), consul, now),
                "no write comes between the read and the transaction"
            );
        }
        consul.store.destroy_session(&SessionId::parse(&self.id.to_string()).expect("an id"), now);
        self.done = true;
    }

    fn write(&self, mut record: Record, index: u64, consul: &mut Consul, now: Moment) -> bool {
        record.hints = None;
        let (key, flags) = (format!("{NAME}/.lock"), record.flags());
        let mut value = record.encode();
        if let (true, Some(stored)) = (self.keeps, consul.store.key(&key).found) {
            let mut fields: Map<String, Value> = serde_json::from_slice(&stored.value).unwrap_or_default();
            fields.extend(serde_json::from_slice::<Map<_, _>>(&value).expect("a record is an object"));
            // Its holders may be those of an earlier record, whose hints hold again. That is a documented limit.
            let encoded = serde_json::to_vec(&fields).expect("JSON");
            if Record::decode(&encoded, flags).is_ok_and(|record| record.hints.is_none()) {
                value = encoded;
            }
        }
        consul.store.cas(Write { key, value: value.into(), flags }, index, now)
    }
}

fn has_room(view: &View) -> bool {
    let taken =
        |record: &Record| record.holders.iter().filter(|holder| view.lives(holder) == Some(true)).count();
    view.record().is_none_or(|record| taken(record) < record.limit as usize)
}
