//! `slotkeeper status`: the local agent's semaphores and locks as tables.

mod lock;

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::sleep;

use super::interrupt::interruptible;
use super::local::{LocalAgent, NOT_AN_AGENT, get};
use super::show::{Show, View};
use super::table::{Column, Layout, NONE, always, table, unless, wide};
use super::{Exit, live, window};
use crate::duration;
use crate::escape::{escape_control_chars, printable};
use crate::status::{Agent, Entry, Health, Holder, Mode, Semaphore, State, Status};
use slotkeeper_semaphore::Identity;

/// Time for one response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two reads of the status, in which the agent may list what it shows, and the most reads. Of a semaphore with many
/// participants each agent lists seldom.
const LISTING_TIME: Duration = Duration::from_millis(400);
const MAX_LOOKS: u32 = 5;
/// Time between two requests of --watch.
const EVERY: Duration = Duration::from_secs(1);
/// Age in seconds up to which the age is not shown.
const FRESH: f64 = 3.0;
/// The most holders listed per semaphore.
const LISTED: usize = 10;

/// Show the local agent's semaphores and locks.
#[derive(Debug, Args)]
pub(super) struct StatusCommand {
    #[command(flatten)]
    show: Show,
    #[command(flatten)]
    agent: LocalAgent,
}

/// The slots that this agent holds, or the clients with a lease.
fn slots(semaphore: &Semaphore) -> String {
    let lent = semaphore.entry.leases.iter().flat_map(|lease| &lease.slot_indexes);
    let slots: Vec<_> = semaphore.slot_indexes.iter().chain(lent).map(u32::to_string).collect();
    if slots.is_empty() { NONE.into() } else { slots.join(",") }
}

fn required(entry: &Entry) -> String {
    if entry.required { "yes".into() } else { "no".into() }
}

fn token(entry: &Entry) -> String {
    entry.fencing_token.map_or(NONE.into(), |token| token.to_string())
}

/// How long this agent has held it, or has waited for it.
fn age_of(entry: &Entry) -> String {
    entry.age_seconds.map_or(NONE.into(), duration::of_seconds)
}

/// The leases, in numbers.
fn leases(entry: &Entry) -> String {
    if entry.mode != Mode::OnDemand {
        return NONE.into();
    }
    let count = |state: State| entry.leases.iter().filter(|lease| lease.state == state).count();
    match (count(State::Held), count(State::Waiting)) {
        (held, 0) => format!("{held} held"),
        (held, waiting) => format!("{held} held, {waiting} waiting"),
    }
}

/// The reasons below a table.
fn remarks<'a>(entries: impl Iterator<Item = &'a Entry>, columns: usize) -> String {
    let remarks = entries.flat_map(|entry| entry.remarks().map(|remark| format!("{}: {remark}", entry.name)));
    remarks.map(|remark| window::wrap(&remark, columns)).collect()
}

/// A line with its holders, if it has any. After its lease has expired this agent may still be listed in `.lock`, but it
/// holds nothing.
fn held_by(semaphore: &Semaphore) -> String {
    let counts = |holder: &&Holder| !holder.mine || semaphore.entry.state == State::Held;
    let holders: Vec<_> = semaphore.holders.iter().filter(counts).collect();
    let mut text = String::new();
    if !holders.is_empty() {
        let named: Vec<_> = holders
            .iter()
            .take(LISTED)
            .map(|holder| {
                let foreign = holder.foreign == Some(true);
                let who = describe(&holder.session, holder.who.as_ref(), holder.mine, foreign, holder.health);
                for_(who, age_in_text(&semaphore.entry, holder.mine, holder.age_seconds))
            })
            .collect();
        text.push_str(&format!("{} is held by {}", semaphore.entry.name, named.join(", ")));
        let more = holders.len() - named.len() + semaphore.unlisted();
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
        // What this agent holds it knows without a read.
        let all_mine = holders.iter().all(|holder| holder.mine);
        if let Some(age) = semaphore.entry.seen_seconds_ago.filter(|age| *age > FRESH && !all_mine) {
            text.push_str(&format!("; as of {} ago", duration::of_seconds(age)));
        }
        text.push('\n');
    }
    if holders.len() < semaphore.holders.len() {
        text.push_str(&format!(
            "{}: .lock still names this agent, whose lease has expired\n",
            semaphore.entry.name
        ));
    }
    text
}

/// The age of a holder. That of this agent is the one of its row: the time stamp that others see is in whole seconds.
fn age_in_text(entry: &Entry, mine: bool, age_seconds: Option<f64>) -> Option<f64> {
    if mine && entry.mode == Mode::Hold { entry.age_seconds } else { age_seconds }
}

/// A holder, and for how long it has held.
fn for_(who: String, age_seconds: Option<f64>) -> String {
    match age_seconds {
        Some(age) => format!("{who} for {}", duration::of_seconds(age)),
        None => who,
    }
}

/// A holder in words.
fn describe(session: &str, who: Option<&Identity>, mine: bool, foreign: bool, health: Health) -> String {
    let words = who.and_then(Identity::in_words);
    let mut text = words.unwrap_or_else(|| format!("session {}", printable(session)));
    let dead = health == Health::Dead;
    for (applies, remark) in [(mine, "this agent"), (dead, "dead"), (foreign && !dead, "foreign client")] {
        if applies {
            text.push_str(&format!(" ({remark})"));
        }
    }
    text
}

/// A status, as the agent answered it.
#[derive(Clone, Serialize)]
#[serde(transparent)]
struct Seen {
    answer: Value,
    /// The same, unless the answer is printed as it is.
    #[serde(skip)]
    status: Option<Status>,
}

/// The passage of time is no change.
impl PartialEq for Seen {
    fn eq(&self, other: &Self) -> bool {
        without_times(self.answer.clone()) == without_times(other.answer.clone())
    }
}

/// The answer without the fields that change by the passage of time.
fn without_times(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let is_time = |name: &str| name == "now" || name.contains("_seconds");
            let fields = fields.into_iter().filter(|(name, _)| !is_time(name));
            fields.map(|(name, value)| (name, without_times(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(without_times).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

impl StatusCommand {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let address = self.agent.address().map_err(anyhow::Error::msg)?;
        let mut looks_again = false;
        let next = async || {
            if !self.show.watch {
                return self.look_again(&address).await;
            }
            if std::mem::replace(&mut looks_again, true) {
                sleep(EVERY.saturating_sub(live::PACE)).await;
            }
            self.look(&address).await
        };
        interruptible(self.show.print("", next), async {})?
    }

    async fn look(&self, address: &str) -> anyhow::Result<Seen> {
        let answer = get(address, "/v1/status", ANSWER_TIMEOUT).await.map_err(|error| {
            anyhow!(
                "{error} `slotkeeper run` has no address by default: slotkeeper list and slotkeeper inspect PREFIX show its slots"
            )
        })?;
        let not_an_agent = |_| anyhow!(NOT_AN_AGENT);
        let answer: Value = serde_json::from_str(&answer.text).map_err(not_an_agent)?;
        let status = (!self.show.is_document()).then(|| Status::deserialize(&answer));
        let status = status.transpose().map_err(not_an_agent)?;
        Ok(Seen { answer, status })
    }

    /// The status. Each read has the agent list in Consul what it shows, so one that shows old knowledge is followed by others.
    async fn look_again(&self, address: &str) -> anyhow::Result<Seen> {
        let is_old = |one: &Semaphore| {
            let active = matches!(one.entry.state, State::Starting | State::Waiting | State::Held);
            let unnamed = |holder: &Holder| holder.who.is_none() && holder.foreign.is_none();
            // A grant is known before `.lock` was read, which still names the former holder.
            let precedes = one.entry.state == State::Held && !one.holders.iter().any(|holder| holder.mine);
            let is_stale = one.entry.seen_seconds_ago.is_none_or(|age| age > FRESH);
            active && (is_stale || precedes || one.holders.iter().any(unnamed))
        };
        for _ in 1..MAX_LOOKS {
            let seen = self.look(address).await?;
            if !Status::deserialize(&seen.answer).is_ok_and(|status| status.semaphores.iter().any(is_old)) {
                return Ok(seen);
            }
            sleep(LISTING_TIME).await;
        }
        self.look(address).await
    }
}

impl View for Seen {
    fn table(&self, layout: Layout) -> String {
        let table = self.status.as_ref().map(|status| table_of(status, layout));
        escape_control_chars(&table.unwrap_or_default())
    }

    fn names(&self) -> Vec<String> {
        let status = || self.status.iter();
        let semaphores = status().flat_map(|status| &status.semaphores).map(|one| &one.entry);
        let entries = semaphores.chain(status().flat_map(|status| &status.locks).map(|lock| &lock.entry));
        entries.map(|entry| escape_control_chars(&entry.name)).collect()
    }
}

fn table_of(report: &Status, layout: Layout) -> String {
    let tables = [semaphores(&report.semaphores, layout), lock::table_of(&report.locks, layout)];
    let tables: Vec<_> = tables.into_iter().filter(|table| !table.is_empty()).collect();
    let session = report.session.as_ref().map_or("no session".into(), |session| {
        let left = duration::of_seconds(session.expires_in_seconds);
        format!("session {}, {left} of its lease left", session.id)
    });
    let ready = if report.agent.ready { "ready" } else { "not ready" };
    let Agent { version, state, .. } = &report.agent;
    let state = state.as_str();
    let mut agent = window::wrap(&format!("agent {version} {state}, {ready}; {session}"), layout.columns);
    if let Some(why) = &report.consul.session_node_refusal {
        let remark = format!("sessions are on the addressed agent's node, and end when it leaves: {why}");
        agent.push_str(&window::wrap(&remark, layout.columns));
    }
    format!("{}\n{agent}", tables.join("\n"))
}

fn semaphores(semaphores: &[Semaphore], layout: Layout) -> String {
    if semaphores.is_empty() {
        return String::new();
    }
    let queue = |one: &Semaphore| match (one.position, one.queue_length) {
        (Some(position), Some(length)) => format!("{position} of {length}"),
        (None, Some(length)) => length.to_string(),
        (_, None) => NONE.into(),
    };
    let taken = |one: &Semaphore| match (one.slots_taken, one.limit) {
        (Some(taken), Some(limit)) => format!("{taken}/{limit}"),
        (_, _) => NONE.into(),
    };
    let columns: [Column<'_, Semaphore>; 11] = [
        always("SEMAPHORE", |one: &Semaphore| one.entry.name.clone()),
        always("STATE", |one: &Semaphore| one.entry.state.as_str().into()),
        unless("yes", "REQUIRED", |one: &Semaphore| required(&one.entry)),
        always("TAKEN", taken),
        always("QUEUE", queue),
        always("SLOT", slots),
        always("AGE", |one: &Semaphore| age_of(&one.entry)),
        unless(NONE, "LEASES", |one: &Semaphore| leases(&one.entry)),
        wide("TOKEN", |one: &Semaphore| token(&one.entry)),
        wide("SINCE", |one: &Semaphore| one.entry.since.clone().unwrap_or(NONE.into())),
        wide("PREFIX", |one: &Semaphore| one.prefix.clone()),
    ];
    let mut text = table(&columns, semaphores, layout);
    for semaphore in semaphores {
        text.push_str(&window::wrap(&held_by(semaphore), layout.columns));
    }
    text + &remarks(semaphores.iter().map(|semaphore| &semaphore.entry), layout.columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_slots_queue_and_holders() {
        let report = r#"{"agent":{"version":"1.2.3","state":"running","ready":false},
            "session":{"id":"5e55","expires_in_seconds":26.6},
            "semaphores":[
              {"name":"writers","mode":"hold","leases":[],"state":"waiting","required":true,"limit":5,"slots_taken":5,"queue_length":4,
               "position":2,"since":"2026-01-02T03:04:05Z","age_seconds":12.3,"slot_indexes":[],"seen_seconds_ago":8.2,"holders":[
                 {"session":"5e55","mine":false,"health":"live","who":{"pod":"batch-7","pid":1}},
                 {"session":"dead","mine":false,"health":"dead"},
                 {"session":"new","mine":false,"health":"unknown"},
                 {"session":"go","mine":false,"foreign":true,"health":"live"}]},
              {"name":"crowd","mode":"hold","leases":[],"state":"starting","required":false,"limit":1000,"slots_taken":1000,
               "queue_length":0,"slot_indexes":[],"seen_seconds_ago":1.0,"holder_count":900,"holders":[
                 {"session":"5e55","mine":true,"health":"live"},{"session":"a","mine":false,"health":"unknown"},
                 {"session":"b","mine":false,"health":"unknown"},{"session":"c","mine":false,"health":"unknown"},
                 {"session":"d","mine":false,"health":"unknown"},{"session":"e","mine":false,"health":"unknown"},
                 {"session":"f","mine":false,"health":"unknown"},{"session":"g","mine":false,"health":"unknown"},
                 {"session":"h","mine":false,"health":"unknown"},{"session":"i","mine":false,"health":"unknown"},
                 {"session":"j","mine":false,"health":"unknown"},{"session":"k","mine":false,"health":"unknown"}]},
              {"name":"lapsed","mode":"hold","leases":[],"state":"starting","required":false,"limit":1,"slots_taken":1,"queue_length":0,
               "slot_indexes":[],"seen_seconds_ago":1.0,"holders":[{"session":"5e55","mine":true,"health":"live"}]},
              {"name":"optional","mode":"hold","leases":[],"state":"timed_out","required":false,"limit":null,"slots_taken":null,
               "queue_length":null,"slot_indexes":[],"seen_seconds_ago":null,"holders":[]},
              {"name":"licences","mode":"hold","leases":[],"state":"held","required":false,"limit":5,"slots_taken":2,"queue_length":0,
               "fencing_token":77,"slot_indexes":[0,3],"since":"2026-01-02T03:04:05Z","age_seconds":10800,
               "reason":"no leader","deferred":"kept",
               "holders":[{"session":"5e55","mine":true,"health":"live","age_seconds":11537.2,
                  "who":{"host":"vm\u001b[1m","pid":7}}]},
              {"name":"lent","mode":"on_demand","state":"held","required":false,"limit":3,"slots_taken":2,
               "queue_length":1,"slot_indexes":[],"seen_seconds_ago":0.1,"holders":[],"leases":[
                 {"state":"held","slot_indexes":[2]},{"state":"held","slot_indexes":[0]},
                 {"state":"waiting","slot_indexes":[]}]},
              {"name":"spare","mode":"on_demand","state":"idle","required":false,"limit":null,"slots_taken":null,
               "queue_length":null,"slot_indexes":[],"seen_seconds_ago":null,"holders":[],"leases":[]}]}"#;
        let shown = table_of(&serde_json::from_str(report).unwrap(), Layout::NARROW);
        let expected = "\
SEMAPHORE  STATE      REQUIRED  TAKEN      QUEUE   SLOT  AGE  LEASES
writers    waiting    yes       5/5        2 of 4  -     12s  -
crowd      starting   no        1000/1000  0       -     -    -
lapsed     starting   no        1/1        0       -     -    -
optional   timed_out  no        -          -       -     -    -
licences   held       no        2/5        0       0,3   3h   -
lent       held       no        2/3        1       2,0   -    2 held, 1 waiting
spare      idle       no        -          -       -     -    0 held
writers is held by batch-7, session dead (dead), session new, session go (foreign client); as of 8s ago
crowd is held by session a, session b, session c, session d, session e, session f, session g, session h, session i, session j and 889 more
crowd: .lock still names this agent, whose lease has expired
lapsed: .lock still names this agent, whose lease has expired
licences is held by vm\\u{1b}[1m pid 7 (this agent) for 3h
licences: no leader
licences: kept

agent 1.2.3 running, not ready; session 5e55, 26s of its lease left
";
        assert_eq!(shown, expected);
    }
}
