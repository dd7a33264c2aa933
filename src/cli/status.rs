//! `slotkeeper status`: the local agent's semaphores and locks as tables.

mod lock;

use std::io::{self, Write};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde::Deserialize;
use tabwriter::TabWriter;
use tokio::time::sleep;

use super::interrupt::interruptible;
use super::local::{LocalAgent, get};
use super::row::text_of;
use super::{Exit, block_on, live, window};
use crate::escape::{harmless, printable};
use crate::progress::{self, Awaited, View};
use slotkeeper_semaphore::Identity;

/// Time for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two looks of --watch.
const EVERY: Duration = Duration::from_secs(1);
/// Seconds for which what was seen needs no date.
const FRESH: f64 = 3.0;
/// Holders of one semaphore that are named.
const LISTED: usize = 10;

/// Show the local agent's semaphores and locks.
#[derive(Debug, Args)]
pub(super) struct Status {
    /// Print the JSON of /v1/status.
    #[arg(long)]
    json: bool,
    /// Look again every second, until interrupted. On a terminal the tables are redrawn in place.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    agent: LocalAgent,
}

#[derive(Debug, Deserialize)]
pub(super) struct Report {
    agent: Agent,
    session: Option<Session>,
    semaphores: Vec<Semaphore>,
    #[serde(default)]
    locks: Vec<lock::Lock>,
}

#[derive(Debug, Deserialize)]
struct Agent {
    version: String,
    state: String,
    ready: bool,
}

#[derive(Debug, Deserialize)]
struct Session {
    id: String,
    lease_remaining_seconds: f64,
}

#[derive(Debug, Deserialize)]
struct Semaphore {
    name: String,
    state: String,
    reason: Option<String>,
    deferred: Option<String>,
    required: bool,
    fencing_token: Option<u64>,
    slot_indexes: Vec<u32>,
    held_since: Option<String>,
    waiting_seconds: Option<f64>,
    limit: Option<u32>,
    slots_taken: Option<u32>,
    queue_length: Option<u32>,
    queue_position: Option<u32>,
    seen_seconds_ago: Option<f64>,
    holders: Vec<Holder>,
    holder_count: Option<usize>,
    mode: String,
    leases: Vec<Lease>,
}

#[derive(Debug, Deserialize)]
struct Lease {
    state: String,
    slot_indexes: Vec<u32>,
}

#[derive(Debug, Deserialize)]
struct Holder {
    session: String,
    mine: bool,
    alive: Option<bool>,
    who: Option<Identity>,
}

impl Report {
    /// What the agent has to wait for before it is ready.
    pub(super) fn missing(&self) -> View {
        let semaphores = self.semaphores.iter().filter(|one| one.required);
        let locks = self.locks.iter().filter(|one| one.required);
        let of = semaphores.clone().count() + locks.clone().count();
        let semaphores = semaphores.filter(|one| one.state != "held").map(Semaphore::awaited);
        let locks = locks.filter(|one| !one.is_held()).map(lock::Lock::awaited);
        View::missing(of, semaphores.chain(locks).collect())
    }
}

impl Semaphore {
    fn awaited(&self) -> Awaited {
        let holders = self.holders.iter().filter(|holder| !holder.mine);
        Awaited {
            name: self.name.clone(),
            waited: duration(self.waiting_seconds),
            seen: self.queue_length.is_some(),
            place: self.queue_position.zip(self.queue_length),
            holders: holders.map(Holder::name).collect(),
            unlisted: self.unlisted(),
            delayed: None,
            reason: self.reason.clone(),
        }
    }

    /// Holders that the agent does not list.
    fn unlisted(&self) -> usize {
        self.holder_count.map_or(0, |all| all.saturating_sub(self.holders.len()))
    }

    /// The slots that this agent, or whoever has a lease of it, holds.
    fn slots(&self) -> String {
        let lent = self.leases.iter().flat_map(|lease| &lease.slot_indexes);
        let slots: Vec<_> = self.slot_indexes.iter().chain(lent).map(u32::to_string).collect();
        if slots.is_empty() { "-".into() } else { slots.join(",") }
    }

    fn since(&self) -> String {
        let count = |state: &str| self.leases.iter().filter(|lease| lease.state == state).count();
        match (&self.held_since, self.waiting_seconds) {
            (Some(since), _) => since.clone(),
            (None, Some(seconds)) => format!("waiting {seconds:.0} s"),
            (None, None) if self.mode == "on_demand" => match (count("held"), count("waiting")) {
                (0, 0) => "on demand".into(),
                (held, 0) => format!("on demand: {held} leased"),
                (held, waiting) => format!("on demand: {held} leased, {waiting} waiting"),
            },
            (None, None) => "-".into(),
        }
    }

    /// A line of who holds it, where anybody does. After its lease has ended this agent may still stand in `.lock`, and
    /// holds nothing all the same.
    fn held_by(&self) -> String {
        let counts = |holder: &&Holder| !holder.mine || self.state == "held";
        let holders: Vec<_> = self.holders.iter().filter(counts).collect();
        let mut text = String::new();
        if !holders.is_empty() {
            let named: Vec<_> = holders.iter().take(LISTED).map(|holder| holder.describe()).collect();
            text.push_str(&format!("{} is held by {}", self.name, named.join(", ")));
            let more = holders.len() - named.len() + self.unlisted();
            if more > 0 {
                text.push_str(&format!(" and {more} more"));
            }
            if let Some(age) = self.seen_seconds_ago.filter(|age| *age > FRESH) {
                text.push_str(&format!("; as of {age:.0} s ago"));
            }
            text.push('\n');
        }
        if holders.len() < self.holders.len() {
            text.push_str(&format!(
                "{}: .lock still names this agent, which does not count on it\n",
                self.name
            ));
        }
        text
    }
}

impl Holder {
    /// What it is called.
    fn name(&self) -> String {
        progress::who(&self.session, self.who.as_ref())
    }

    /// Who it is, as well as that is known.
    fn describe(&self) -> String {
        let words = self.who.as_ref().and_then(Identity::in_words);
        let mut text = words.unwrap_or_else(|| format!("session {}", printable(&self.session)));
        let foreign = self.who.is_none() && self.alive == Some(true);
        let dead = self.alive == Some(false);
        for (applies, remark) in [(self.mine, "this agent"), (dead, "dead"), (foreign, "another client")] {
            if applies {
                text.push_str(&format!(" ({remark})"));
            }
        }
        text
    }
}

impl Status {
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

    /// What the agent says of itself, for a window of so many columns.
    async fn look(&self, address: &str, columns: usize) -> anyhow::Result<String> {
        let answer = get(address, "/v1/status", ANSWER_TIMEOUT).await.map_err(anyhow::Error::msg)?;
        if self.json {
            return Ok(harmless(answer.text.trim_end()) + "\n");
        }
        let report = serde_json::from_str(&answer.text).map_err(|error| {
            // The library's words may quote what it found.
            let error = harmless(&error.to_string());
            anyhow!("what answers there is no slotkeeper agent of this version: {error}")
        })?;
        Ok(harmless(&table(&report, columns)?))
    }
}

/// What the JSON's seconds are.
fn duration(seconds: Option<f64>) -> Duration {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

fn table(report: &Report, columns: usize) -> io::Result<String> {
    let tables = [semaphores(&report.semaphores, columns)?, lock::table(&report.locks, columns)?];
    let tables: Vec<_> = tables.into_iter().filter(|table| !table.is_empty()).collect();
    let session = report.session.as_ref().map_or("no session".into(), |session| {
        format!("session {}, {:.0} s of its lease left", session.id, session.lease_remaining_seconds)
    });
    let ready = if report.agent.ready { "ready" } else { "not ready" };
    let Agent { version, state, .. } = &report.agent;
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
        let queue = match (semaphore.queue_position, semaphore.queue_length) {
            (Some(position), Some(length)) => format!("{position} of {length}"),
            (None, Some(length)) => length.to_string(),
            (_, None) => "-".into(),
        };
        let taken = match (semaphore.slots_taken, semaphore.limit) {
            (Some(taken), Some(limit)) => format!("{taken}/{limit}"),
            (_, _) => "-".into(),
        };
        let (slots, since) = (semaphore.slots(), semaphore.since());
        writeln!(
            table,
            "{}\t{}\t{}\t{taken}\t{queue}\t{slots}\t{}\t{since}",
            semaphore.name,
            semaphore.state,
            if semaphore.required { "yes" } else { "no" },
            semaphore.fencing_token.map_or("-".into(), |token| token.to_string()),
        )?;
    }
    let mut text = text_of(table)?;
    for semaphore in semaphores {
        text.push_str(&window::wrap(&semaphore.held_by(), columns));
    }
    for semaphore in semaphores {
        for reason in semaphore.reason.iter().chain(&semaphore.deferred) {
            text.push_str(&window::wrap(&format!("{}: {reason}", semaphore.name), columns));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_what_people_ask_for() {
        let report = r#"{"agent":{"version":"1.2.3","state":"running","ready":false},
            "session":{"id":"5e55","lease_remaining_seconds":26.6},
            "semaphores":[
              {"name":"writers","mode":"hold","leases":[],"state":"waiting","required":true,"limit":5,"slots_taken":5,"queue_length":4,
               "queue_position":2,"waiting_seconds":12.3,"slot_indexes":[],"seen_seconds_ago":8.2,"holders":[
                 {"session":"5e55","mine":false,"alive":true,"who":{"pod":"batch-7","pid":1}},
                 {"session":"dead","mine":false,"alive":false},
                 {"session":"new","mine":false,"alive":null},
                 {"session":"go","mine":false,"alive":true}]},
              {"name":"crowd","mode":"hold","leases":[],"state":"starting","required":false,"limit":1000,"slots_taken":1000,
               "queue_length":0,"slot_indexes":[],"seen_seconds_ago":1.0,"holder_count":900,"holders":[
                 {"session":"5e55","mine":true,"alive":true},{"session":"a","mine":false,"alive":null},
                 {"session":"b","mine":false,"alive":null},{"session":"c","mine":false,"alive":null},
                 {"session":"d","mine":false,"alive":null},{"session":"e","mine":false,"alive":null},
                 {"session":"f","mine":false,"alive":null},{"session":"g","mine":false,"alive":null},
                 {"session":"h","mine":false,"alive":null},{"session":"i","mine":false,"alive":null},
                 {"session":"j","mine":false,"alive":null},{"session":"k","mine":false,"alive":null}]},
              {"name":"lapsed","mode":"hold","leases":[],"state":"starting","required":false,"limit":1,"slots_taken":1,"queue_length":0,
               "slot_indexes":[],"seen_seconds_ago":1.0,"holders":[{"session":"5e55","mine":true,"alive":true}]},
              {"name":"optional","mode":"hold","leases":[],"state":"gave_up","required":false,"limit":null,"slots_taken":null,
               "queue_length":null,"slot_indexes":[],"seen_seconds_ago":null,"holders":[]},
              {"name":"licences","mode":"hold","leases":[],"state":"held","required":false,"limit":5,"slots_taken":2,"queue_length":0,
               "fencing_token":77,"slot_indexes":[0,3],"held_since":"2026-01-02T03:04:05Z","reason":"trouble","deferred":"kept",
               "holders":[{"session":"5e55","mine":true,"alive":true,"who":{"host":"vm\u001b[1m","pid":7}}]},
              {"name":"lent","mode":"on_demand","state":"held","required":false,"limit":3,"slots_taken":2,
               "queue_length":1,"slot_indexes":[],"seen_seconds_ago":0.1,"holders":[],"leases":[
                 {"state":"held","slot_indexes":[2]},{"state":"held","slot_indexes":[0]},
                 {"state":"waiting","slot_indexes":[]}]},
              {"name":"spare","mode":"on_demand","state":"idle","required":false,"limit":null,"slots_taken":null,
               "queue_length":null,"slot_indexes":[],"seen_seconds_ago":null,"holders":[],"leases":[]}]}"#;
        let shown = table(&serde_json::from_str(report).unwrap(), window::ENDLESS).unwrap();
        let expected = "\
SEMAPHORE  STATE     REQUIRED  TAKEN      QUEUE   SLOT  TOKEN  SINCE
writers    waiting   yes       5/5        2 of 4  -     -      waiting 12 s
crowd      starting  no        1000/1000  0       -     -      -
lapsed     starting  no        1/1        0       -     -      -
optional   gave_up   no        -          -       -     -      -
licences   held      no        2/5        0       0,3   77     2026-01-02T03:04:05Z
lent       held      no        2/3        1       2,0   -      on demand: 2 leased, 1 waiting
spare      idle      no        -          -       -     -      on demand
writers is held by batch-7, session dead (dead), session new, session go (another client); as of 8 s ago
crowd is held by session a, session b, session c, session d, session e, session f, session g, session h, session i, session j and 889 more
crowd: .lock still names this agent, which does not count on it
lapsed: .lock still names this agent, which does not count on it
licences is held by vm\\u{1b}[1m pid 7 (this agent)
licences: trouble
licences: kept

agent 1.2.3 running, not ready; session 5e55, 27 s of its lease left
";
        assert_eq!(shown, expected);
    }
}
