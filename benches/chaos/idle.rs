//! Slots that are idle while a client waits for them that lives: for how long.
//!
//! A slot is idle that nobody holds, and one that is offered to a client which does not accept it. A slot is not idle while Consul has
//! not ended the session of its dead holder. A waiter counts that lives, also after it was stopped or cut off, once it and the servers have
//! been undisturbed for the longest back-off of a client. Its time begins anew when anything starts on the semaphore.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use slotkeeper_semaphore::Record;
use slotkeeper_semaphore::contender::{Entry, WaiterState};

use crate::faults::ask;
use crate::job::Semaphore;
use crate::plan::{Edit, Fault};
use crate::stage::{SEMAPHORES, Stage};
use crate::support::life;
use crate::verdict::{READING, Verdict};

/// How often Consul is asked.
const PACE: Duration = Duration::from_millis(250);
/// The offer to a client that is dead (2 s), the look of a waiter (2.25 s) that finds it where the one that made it is dead too, and the
/// roll call (0.4 s): `crates/semaphore/src/timing.rs`. The rest is for round trips, and for a machine that is busy.
const BOUND: f64 = 2.0 + 2.25 + 0.4 + 2.0;
/// What each fault since then may add: the next one who is offered the slot dies too.
const FOR_EACH_FAULT: f64 = 2.5;
/// The longest back-off of a client whose requests have failed.
const AFTERMATH: f64 = 10.0;

/// What was seen.
#[derive(Default)]
pub(crate) struct Watch {
    violations: RefCell<Vec<String>>,
    figures: RefCell<BTreeMap<&'static str, Figures>>,
}

/// Of one semaphore, in seconds.
#[derive(Default)]
struct Figures {
    /// How long it was looked at with the servers in order.
    calm: f64,
    /// How long slots were idle then, with a client that waits for them.
    idle: f64,
    /// The longest time of one waiter.
    longest: f64,
}

/// What is known of one semaphore from look to look.
#[derive(Default)]
struct Known {
    looked: Option<f64>,
    held: BTreeSet<String>,
    /// The jobs that could have a slot, since when.
    waiting: BTreeMap<usize, f64>,
    /// Those whose time was too long, which is told once.
    told: BTreeSet<usize>,
    /// An operator has freed a slot in `.lock`, which tells nobody: until a client begins, or reads it by itself.
    unannounced_until: f64,
}

/// What a look shows: who holds, the slots that are idle, and who is in line.
struct Look {
    held: BTreeSet<String>,
    idle: u32,
    in_line: BTreeSet<String>,
    all: String,
}

impl Watch {
    /// Looks again and again.
    pub(crate) async fn run(self: Rc<Self>, stage: Rc<Stage>) {
        let mut known: BTreeMap<_, Known> = BTreeMap::new();
        loop {
            tokio::time::sleep(PACE).await;
            let sessions = sessions(&stage).await;
            for semaphore in &SEMAPHORES {
                let known = known.entry(semaphore.prefix).or_default();
                let look = match &sessions {
                    Some(sessions) => look(&stage, semaphore, sessions).await,
                    None => None,
                };
                let is_calm = !stage.was_troubled_since(None, life::now() - AFTERMATH);
                match look.filter(|_| is_calm) {
                    Some(look) => self.see(&stage, semaphore, known, look),
                    None => *known = Known { unannounced_until: known.unannounced_until, ..Known::default() },
                }
            }
        }
    }

    fn see(&self, stage: &Stage, semaphore: &Semaphore, known: &mut Known, look: Look) {
        let now = life::now();
        let passed = now - known.looked.replace(now).unwrap_or(now);
        let jobs = stage.jobs.borrow();
        let here = |job: usize| stage.seats[jobs[job].seat].semaphore.prefix == semaphore.prefix;
        if !look.held.is_subset(&known.held) {
            known.waiting.clear();
            known.unannounced_until = 0.0;
        }
        known.held = look.held;
        let hurts = || (0..jobs.len()).filter(|job| here(*job)).flat_map(|job| &jobs[job].hurt);
        let of_lock_alone = Fault::Edit(Edit::TakeOutOfLock).name();
        let edited = hurts().filter(|hurt| hurt.fault == of_lock_alone && hurt.at > now - passed - 1.0);
        known.unannounced_until =
            edited.map(|hurt| hurt.at + READING).fold(known.unannounced_until, f64::max);
        let is_open = look.idle >= semaphore.most && known.unannounced_until < now;
        let could_begin = |job: usize| {
            let one = &jobs[job];
            let is_well = one.ended.is_none() && one.can_recover() && !one.files.has_begun();
            is_open
                && here(job)
                && is_well
                && !stage.was_troubled_since(Some(one.seat), now - AFTERMATH)
                && one.files.session().is_some_and(|session| look.in_line.contains(&session))
        };
        let could: BTreeSet<_> = (0..jobs.len()).filter(|job| could_begin(*job)).collect();
        known.waiting.retain(|job, _| could.contains(job));
        let mut figures = self.figures.borrow_mut();
        let figures = figures.entry(semaphore.prefix).or_default();
        figures.calm += passed;
        figures.idle += if known.waiting.is_empty() { 0.0 } else { passed };
        for job in could {
            let since = *known.waiting.entry(job).or_insert(now);
            let faults = hurts().filter(|hurt| hurt.at >= since).count();
            let bound = BOUND + FOR_EACH_FAULT * f64::from(u32::try_from(faults).unwrap_or(u32::MAX));
            figures.longest = figures.longest.max(now - since);
            if now - since > bound && known.told.insert(job) {
                let (one, log) = (&jobs[job], jobs[job].files.log());
                self.violations.borrow_mut().push(format!(
                    "{}: {} slots were idle for {:.1} s, of {bound:.1} s, with a client that waits, until {now:.2}: {one:#?}\n{}\n{log}",
                    semaphore.prefix,
                    look.idle,
                    now - since,
                    look.all,
                ));
            }
        }
    }

    /// Adds what was seen to the verdict.
    pub(crate) fn judge(&self, verdict: &mut Verdict) {
        for (prefix, Figures { calm, idle, longest }) in self.figures.borrow().iter() {
            verdict.lines.push(format!(
                "{prefix}: slots were idle with a living waiter for {idle:.1} of {calm:.0} s in which Consul was in order, for at most {longest:.1} s \
                 at once"
            ));
        }
        verdict.violations.append(&mut self.violations.borrow_mut());
    }
}

async fn sessions(stage: &Stage) -> Option<BTreeSet<String>> {
    let sessions = ask(stage, "GET", "/v1/session/list?consistent", "").await?.json();
    Some(sessions.as_array()?.iter().filter_map(|one| one["ID"].as_str()).map(str::to_owned).collect())
}

async fn look(stage: &Stage, semaphore: &Semaphore, sessions: &BTreeSet<String>) -> Option<Look> {
    let answer = ask(stage, "GET", &format!("/v1/kv/{}/?recurse&consistent", semaphore.prefix), "").await;
    let lock = format!("{}/.lock", semaphore.prefix);
    if semaphore.is_lock {
        // A lock has no queue in Consul. Where it is free it has no key.
        let listed = answer.map_or(Value::Null, |answer| answer.json());
        let keys = listed.as_array().into_iter().flatten();
        let owner =
            keys.filter(|pair| pair["Key"] == lock.as_str()).find_map(|pair| pair["Session"].as_str());
        let held: BTreeSet<_> = owner.map(str::to_owned).into_iter().collect();
        let idle = u32::from(held.is_empty());
        return Some(Look { held, idle, in_line: sessions.clone(), all: listed.to_string() });
    }
    let listed = answer?.json();
    let (mut record, mut states, mut all) = (None, BTreeMap::new(), String::new());
    for pair in listed.as_array()? {
        let (key, flags) = (pair["Key"].as_str()?, pair["Flags"].as_u64()?);
        let value = STANDARD.decode(pair["Value"].as_str().unwrap_or_default()).ok()?;
        all += &format!("{key} {} {}\n", pair["ModifyIndex"], String::from_utf8_lossy(&value));
        if key == lock {
            record = Record::decode(&value, flags).ok();
        } else if let (Some(session), Some(entry)) = (pair["Session"].as_str(), Entry::decode(&value)) {
            states.insert(session.to_owned(), entry.state);
        }
    }
    let record = record?;
    let holds = |session: &str| states.get(session) == Some(&WaiterState::Held);
    let holders: Vec<_> = record.holders.iter().map(|holder| holder.as_str().to_owned()).collect();
    let taken = holders.iter().filter(|holder| holds(holder)).count();
    let held = holders.iter().filter(|holder| holds(holder)).cloned().collect();
    let in_line =
        states.iter().filter(|(_, state)| **state != WaiterState::Held).map(|(session, _)| session.clone());
    let idle = record.limit.saturating_sub(u32::try_from(taken).ok()?);
    Some(Look { held, idle, in_line: in_line.collect(), all })
}
