//! Long polls that a relay ends before Consul answers.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use slotkeeper_consul::{Code, Operation};
use slotkeeper_consul_dev::Options;

use crate::consul::{Consul, Newer};
use crate::operator::Operator;
use crate::process::{BINARY, Lodger};
use crate::support::relay::{End, Relay};
use crate::wait_for;

const PREFIX: &str = "service/s";
/// Longer than the least wait that is asked for, and shorter than any wait that an agent would ask for by itself.
const LONGEST: Duration = Duration::from_secs(3);
/// Long polls that were cut.
fn cuts(agent: &Lodger) -> f64 {
    agent.requests(Operation::KvWatch, Code::Cut)
}

fn config(session: &str) -> String {
    format!("session: {{{session}}}\nsemaphores: [{{name: s, prefix: {PREFIX}, limit: 1}}]")
}

/// That it has warned of no watch. On a machine that is busy there may be other warnings.
fn assert_silent(agent: &Lodger) {
    let log = agent.log();
    let loud = log.lines().filter(|line| line.contains(" WARN ") && line.contains("watch"));
    let loud: Vec<_> = loud.collect();
    assert!(loud.is_empty(), "{loud:#?}");
}

/// An agent behind a relay of its own, which cuts its polls off.
fn behind(consul: &Consul, end: End, state: &str) -> (Lodger, Relay) {
    let relay = Relay::start(consul.addr(), LONGEST, end);
    let agent = Lodger::start(&relay.address(), &config("ttl: 20s"));
    agent.await_state(state);
    wait_for("a poll", || relay.waits().first().is_some_and(|wait| *wait > LONGEST));
    (agent, relay)
}

#[test]
fn through_a_relay_that_cuts_long_polls_handoffs_pass_and_the_log_is_silent() {
    let consul = Consul::start();
    let (mut holder, first) = behind(&consul, End::Close, "held");
    let (mut waiter, second) = behind(&consul, End::Answer504, "waiting");
    for (agent, relay) in [(&holder, &first), (&waiter, &second)] {
        wait_for("cuts", || relay.ended() >= 3 && cuts(agent) >= 3.0);
    }
    assert_eq!(holder.terminate(), Some(0));
    waiter.await_ready();
    let (mut late, third) = behind(&consul, End::Close, "waiting");
    wait_for("a cut", || third.ended() > 0);
    assert_eq!(waiter.terminate(), Some(0));
    late.await_ready();
    assert_eq!(late.terminate(), Some(0));
    for agent in [&holder, &waiter, &late] {
        assert_silent(agent);
    }
    Operator::at(&consul.address()).assert_nothing_left(PREFIX);
}

#[test]
fn by_the_strict_rule_a_cut_costs_the_slot() {
    let consul = Consul::start();
    let relay = Relay::start(consul.addr(), LONGEST, End::Close);
    let mut agent = Lodger::start(&relay.address(), &config("ttl: 20s, watch_grace: 0s"));
    agent.await_ready();
    let lost = "slotkeeper_slots_lost_total{reason=\"watch_failed\",semaphore=\"s\"}";
    wait_for("the loss", || agent.metric(lost) >= 1.0);
    wait_for("what was cut off", || agent.log().contains("cut off after"));
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn the_longest_wait_can_be_set() {
    let consul = Consul::start();
    let relay = Relay::start(consul.addr(), Duration::from_secs(600), End::Close);
    let variable = [("SLOTKEEPER_CONSUL_MAX_WAIT", "2500ms")];
    let mut agent = Lodger::start_with(&relay.address(), &config("ttl: 20s"), &variable);
    agent.await_ready();
    wait_for("polls", || relay.waits().len() >= 3);
    let waits = relay.waits();
    assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(2500)), "{waits:?}");
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn an_operators_watch_reports_no_cuts() {
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    let commands = [vec!["inspect", PREFIX, "--watch"], vec!["sessions", "--watch"]];
    let mut watching: Vec<_> = commands
        .iter()
        .map(|arguments| {
            let relay = Relay::start(consul.addr(), LONGEST, End::Answer504);
            let file = |name: &str| folder.path().join(format!("{}-{name}", arguments[0]));
            let mut command = Command::new(BINARY);
            command.args(arguments).env_clear().env("CONSUL_HTTP_ADDR", relay.address());
            command.stdin(Stdio::null()).stdout(File::create(file("shown")).unwrap());
            let child = command.stderr(File::create(file("said")).unwrap()).spawn().unwrap();
            (child, relay, file("shown"), file("said"))
        })
        .collect();
    let read = |file: &Path| std::fs::read_to_string(file).unwrap();
    wait_for("cuts", || watching.iter().all(|(_, relay, ..)| relay.ended() >= 2));
    let mut agent = Lodger::start(&consul.address(), &config("ttl: 20s"));
    agent.await_ready();
    let session = agent.session();
    wait_for("news", || watching.iter().all(|(_, _, shown, _)| read(shown).contains(&session[..8])));
    for (child, _, _, said) in &mut watching {
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(read(said), "");
    }
    assert_eq!(agent.terminate(), Some(0));
}

/// Until the server answers no poll any more that has begun by now.
#[allow(clippy::disallowed_methods, reason = "nothing tells the age of a poll")]
fn outlast(write_timeout: Duration) {
    std::thread::sleep(write_timeout + Duration::from_millis(500));
}

/// As with Consul's own `http_config.write_timeout`: the answer is made, with the news in it, and lost.
#[test]
fn changes_lost_with_a_late_answer_are_still_reported() {
    let write_timeout = Duration::from_secs(3);
    let consul = Newer::start_with(Options { write_timeout: Some(write_timeout), ..Options::default() });
    let mut holder = Lodger::start(&consul.address(), &config("ttl: 20s"));
    holder.await_ready();
    for _ in 0..2 {
        let relay = Relay::start(consul.addr(), Duration::from_secs(600), End::Close);
        let waiter = Lodger::start(&relay.address(), &config("ttl: 20s"));
        // Of its own contender and of the record.
        wait_for("two polls", || relay.waits().len() >= 2);
        outlast(write_timeout);
        assert_eq!(holder.terminate(), Some(0));
        waiter.await_ready();
        assert!(cuts(&waiter) >= 1.0);
        assert_silent(&holder);
        holder = waiter;
    }
    assert_eq!(holder.terminate(), Some(0));
    assert_silent(&holder);
}
