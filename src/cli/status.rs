//! `slotkeeper status`: the local agent's semaphores and locks as tables.

mod lock;

use std::io::{self, Write};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use tabwriter::TabWriter;
use tokio::time::sleep;

use super::interrupt::interruptible;
use super::local::{LocalAgent, get};
use super::row::text_of;
use super::{Exit, block_on, live, window};
use crate::escape::{escape_control_chars, printable};
use crate::status::{Agent, Entry, Health, Holder, Mode, Semaphore, State, Status};
use slotkeeper_semaphore::Identity;

/// Time for one response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two requests of --watch.
const EVERY: Duration = Duration::from_secs(1);
/// Age in seconds up to which the age is not shown.
const FRESH: f64 = 3.0;
/// The most holders listed per semaphore.
const LISTED: usize = 10;

/// Show the local agent's semaphores and locks.
#[derive(Debug, Args)]
pub(super) struct StatusCommand {
    /// Print the JSON of /v1/status.
    #[arg(long)]
    json: bool,
    /// Repeat every second until interrupted. On a terminal the tables are redrawn in place.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    agent: LocalAgent,
}

/// The slots that this agent holds, or the clients with a lease.
fn slots(semaphore: &Semaphore) -> String {
    let lent = semaphore.entry.leases.iter().flat_map(|lease| &lease.slot_indexes);
    let slots: Vec<_> = semaphore.slot_indexes.iter().chain(lent).map(u32::to_string).collect();
    if slots.is_empty() { "-".into() } else { slots.join(",") }
}

/// The columns that the tables of semaphores and locks begin with.
fn identity(entry: &Entry) -> String {
    format!("{}\t{}\t{}", entry.name, entry.state.as_str(), if entry.required { "yes" } else { "no" })
}

fn token(entry: &Entry) -> String {
    entry.fencing_token.map_or("-".into(), |token| token.to_string())
}

/// Since when this agent holds it, or how long it waits.
fn since(entry: &Entry) -> Option<String> {
    if matches!(entry.state, State::Held | State::Unknown) {
        return entry.since.clone();
    }
    entry.age_seconds.map(|seconds| format!("waiting {seconds:.0} s"))
}

/// The leases, in numbers.
fn on_demand(entry: &Entry) -> Option<String> {
    let count = |state: State| entry.leases.iter().filter(|lease| lease.state == state).count();
    (entry.mode == Mode::OnDemand).then(|| match (count(State::Held), count(State::Waiting)) {
        (0, 0) => "on demand".into(),
        (held, 0) => format!("on demand: {held} leased"),
        (held, waiting) => format!("on demand: {held} leased, {waiting} waiting"),
    })
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
                describe(&holder.session, holder.who.as_ref(), holder.mine, foreign, holder.health)
            })
            .collect();
        text.push_str(&format!("{} is held by {}", semaphore.entry.name, named.join(", ")));
        let more = holders.len() - named.len() + semaphore.unlisted();
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
        if let Some(age) = semaphore.entry.seen_seconds_ago.filter(|age| *age > FRESH) {
            text.push_str(&format!("; as of {age:.0} s ago"));
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

impl StatusCommand {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let address = self.agent.address().map_err(anyhow::Error::msg)?;
        if !self.watch {
            let text = block_on(self.look(&address, window::ENDLESS))??;
            io::stdout().write_all(text.as_bytes())?;
            return Ok(Exit::Done);
        }
        let mut looks_again = false;
        let next = async || {
            if std::mem::replace(&mut looks_again, true) {
                sleep(EVERY.saturating_sub(live::PACE)).await;
            }
            self.look(&address, window::size().1).await
        };
        let never = interruptible(live::follow(self.json, next, |text| Ok(text.clone())), async {})??;
        match never {}
    }

    /// The agent's status, for a window of that many columns.
    async fn look(&self, address: &str, columns: usize) -> anyhow::Result<String> {
        let answer = get(address, "/v1/status", ANSWER_TIMEOUT).await.map_err(anyhow::Error::msg)?;
        if self.json {
            return Ok(escape_control_chars(answer.text.trim_end()) + "\n");
        }
        let report = serde_json::from_str(&answer.text).map_err(|error| {
            // The library's message may quote the input.
            let error = escape_control_chars(&error.to_string());
            anyhow!("the response is not from a slotkeeper agent: {error}")
        })?;
        Ok(escape_control_chars(&table(&report, columns)?))
    }
}

fn table(report: &Status, columns: usize) -> io::Result<String> {
    let tables = [semaphores(&report.semaphores, columns)?, lock::table(&report.locks, columns)?];
    let tables: Vec<_> = tables.into_iter().filter(|table| !table.is_empty()).collect();
    let session = report.session.as_ref().map_or("no session".into(), |session| {
        format!("session {}, {:.0} s of its lease left", session.id, session.expires_in_seconds)
    });
    let ready = if report.agent.ready { "ready" } else { "not ready" };
    let Agent { version, state, .. } = &report.agent;
    let state = state.as_str();
    let agent = window::wrap(&format!("agent {version} {state}, {ready}; {session}"), columns);
    Ok(format!("{}\n{agent}", tables.join("\n")))
}

fn semaphores(semaphores: &[Semaphore], columns: usize) -> io::Result<String> {
    if semaphores.is_empty() {
        return Ok(String::new());
    }
    let mut table = TabWriter::new(Vec::new()).padding(2);
    writeln!(table, "SEMAPHORE\tSTATE\tREQUIRED\tTAKEN\tQUEUE\tSLOT\tTOKEN\tSINCE")?;
    for semaphore in semaphores {
        let queue = match (semaphore.position, semaphore.queue_length) {
            (Some(position), Some(length)) => format!("{position} of {length}"),
            (None, Some(length)) => length.to_string(),
            (_, None) => "-".into(),
        };
        let taken = match (semaphore.slots_taken, semaphore.limit) {
            (Some(taken), Some(limit)) => format!("{taken}/{limit}"),
            (_, _) => "-".into(),
        };
        let entry = &semaphore.entry;
        let since = since(entry).or_else(|| on_demand(entry)).unwrap_or("-".into());
        let (identity, slots, token) = (identity(entry), slots(semaphore), token(entry));
        writeln!(table, "{identity}\t{taken}\t{queue}\t{slots}\t{token}\t{since}")?;
    }
    let mut text = text_of(table)?;
    for semaphore in semaphores {
        text.push_str(&window::wrap(&held_by(semaphore), columns));
    }
    Ok(text + &remarks(semaphores.iter().map(|semaphore| &semaphore.entry), columns))
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
               "fencing_token":77,"slot_indexes":[0,3],"since":"2026-01-02T03:04:05Z","reason":"no leader","deferred":"kept",
               "holders":[{"session":"5e55","mine":true,"health":"live","who":{"host":"vm\u001b[1m","pid":7}}]},
              {"name":"lent","mode":"on_demand","state":"held","required":false,"limit":3,"slots_taken":2,
               "queue_length":1,"slot_indexes":[],"seen_seconds_ago":0.1,"holders":[],"leases":[
                 {"state":"held","slot_indexes":[2]},{"state":"held","slot_indexes":[0]},
                 {"state":"waiting","slot_indexes":[]}]},
              {"name":"spare","mode":"on_demand","state":"idle","required":false,"limit":null,"slots_taken":null,
               "queue_length":null,"slot_indexes":[],"seen_seconds_ago":null,"holders":[],"leases":[]}]}"#;
        let shown = table(&serde_json::from_str(report).unwrap(), window::ENDLESS).unwrap();
        let expected = "\
SEMAPHORE  STATE      REQUIRED  TAKEN      QUEUE   SLOT  TOKEN  SINCE
writers    waiting    yes       5/5        2 of 4  -     -      waiting 12 s
crowd      starting   no        1000/1000  0       -     -      -
lapsed     starting   no        1/1        0       -     -      -
optional   timed_out  no        -          -       -     -      -
licences   held       no        2/5        0       0,3   77     2026-01-02T03:04:05Z
lent       held       no        2/3        1       2,0   -      on demand: 2 leased, 1 waiting
spare      idle       no        -          -       -     -      on demand
writers is held by batch-7, session dead (dead), session new, session go (foreign client); as of 8 s ago
crowd is held by session a, session b, session c, session d, session e, session f, session g, session h, session i, session j and 889 more
crowd: .lock still names this agent, whose lease has expired
lapsed: .lock still names this agent, whose lease has expired
licences is held by vm\\u{1b}[1m pid 7 (this agent)
licences: no leader
licences: kept

agent 1.2.3 running, not ready; session 5e55, 27 s of its lease left
";
        assert_eq!(shown, expected);
    }
}
