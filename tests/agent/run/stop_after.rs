//! `--stop-after`: a command that is told from outside to end, and does not.
//!
//! The TTL is longer than any test waits, where it does not say otherwise: a slot that is free in time was given back.

use rustix::process::Signal;

use super::job::{Job, run};
use super::killed::children;
use crate::consul::Consul;
use crate::operator::Operator;
use crate::support::freezer::Freezer;
use crate::support::life::{Life, MEEK, STUBBORN, now};
use crate::wait_for;

const TWO_SECONDS: [&str; 7] = ["p/one", "-n", "1", "--ttl", "10m", "--stop-after", "2s"];

/// It is ended by SIGKILL alone.
fn deaf() -> String {
    STUBBORN.replace("trap '' TERM", "trap '' TERM INT QUIT HUP USR1")
}

#[test]
fn a_command_that_does_not_end_is_killed_with_its_descendants_and_the_next_one_starts() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    // One in its group and one in a session of its own.
    let stubborn = STUBBORN.replace('\'', "\"");
    let script = format!("trap '' TERM; sh -c '{stubborn}' $0 & setsid sh -c '{stubborn}' $1 & wait");
    let mut first =
        Job::start(&consul.address(), &TWO_SECONDS, &["sh", "-c", &script, "$HOME/life", "$HOME/apart"]);
    let (life, apart) = (first.await_life(), Life::at(first.path("apart")));
    wait_for("the one apart", || apart.has_begun());
    let mut second = Job::live(&consul.address(), &TWO_SECONDS, MEEK);
    wait_for("one in line", || operator.keys("p/one").len() == 3);
    let told = now();
    first.signal(Signal::TERM);
    let next = second.await_life();
    life.assert_before(&next);
    apart.assert_before(&next);
    assert!(life.last() > told + 1.5, "it has its time: told at {told}, killed at {}", life.last());
    assert_eq!(first.code(), Some(137), "{}", first.log());
    assert!(first.log().contains("did not end within --stop-after"), "{}", first.log());
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143), "{}", second.log());
    operator.assert_nothing_left("p/one");
}

#[test]
fn the_time_counts_from_the_first_signal_that_asks_for_the_end() {
    let consul = Consul::start();
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let mut job = Job::live(&consul.address(), &TWO_SECONDS, &deaf());
        job.await_life();
        // Were it to begin anew with each, it would never be over.
        wait_for("the end of run", || {
            let running = job.is_running();
            if running {
                job.signal(signal);
            }
            !running
        });
        assert_eq!(job.code(), Some(137), "{signal:?}: {}", job.log());
    }
}

#[test]
fn a_signal_that_may_mean_something_else_begins_no_time() {
    let consul = Consul::start();
    let mut job = Job::live(&consul.address(), &TWO_SECONDS, &deaf());
    let life = job.await_life();
    let told = now();
    for signal in [Signal::HUP, Signal::USR1, Signal::WINCH] {
        job.signal(signal);
    }
    wait_for("it to live for longer", || life.last() > told + 3.0);
    job.signal(Signal::TERM);
    assert_eq!(job.code(), Some(137), "{}", job.log());
}

#[test]
fn a_command_that_ends_in_time_ends_as_without_it() {
    let consul = Consul::start();
    let takes_its_time = "trap 'sleep 0.5; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let at_once = "echo ready; exec sleep 600";
    for (script, code) in [(takes_its_time, 3), (at_once, 143)] {
        let arguments = ["p/one", "-n", "1", "--stop-after", "1h"];
        let mut job = Job::start(&consul.address(), &arguments, &["sh", "-c", script]);
        wait_for("the command", || job.out().contains("ready"));
        job.signal(Signal::TERM);
        assert_eq!(job.code(), Some(code), "{}", job.log());
        assert!(!job.log().contains("--stop-after"), "{}", job.log());
    }
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}

#[test]
fn what_a_command_leaves_behind_has_no_more_time_than_the_command() {
    let consul = Consul::start();
    let arguments = ["p/one", "-n", "1", "--ttl", "1h", "--kill-after", "20m", "--stop-after", "2s"];
    let script = format!("sh -c '{}' $0 & wait", STUBBORN.replace('\'', "\""));
    let mut job = Job::start(&consul.address(), &arguments, &["sh", "-c", &script, "$HOME/life"]);
    job.await_life();
    job.signal(Signal::TERM);
    // Its own end; what it leaves behind would have 20 minutes.
    assert_eq!(job.code(), Some(143), "{}", job.log());
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}

#[test]
fn where_the_lease_ends_earlier_that_counts() {
    let consul = Consul::start();
    let hole = Freezer::start_apart(consul.address().parse().unwrap());
    let arguments = ["p/one", "-n", "1", "--ttl", "10s", "--kill-after", "1s", "--stop-after", "1h"];
    let mut first = Job::live(&hole.addr().to_string(), &arguments, STUBBORN);
    let life = first.await_life();
    let mut second = Job::live(&consul.address(), &arguments, MEEK);
    hole.block(true);
    first.signal(Signal::TERM);
    let next = second.await_life();
    life.assert_before(&next);
    assert_eq!(first.code(), Some(80), "{}", first.log());
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143), "{}", second.log());
}

#[test]
fn the_limit_holds_while_the_agent_is_stopped() {
    let consul = Consul::start();
    let tells = STUBBORN.replace("trap '' TERM", "trap 'echo told' TERM");
    let mut job = Job::live(&consul.address(), &TWO_SECONDS, &tells);
    job.await_life();
    let guard = job.guard();
    job.signal(Signal::TERM);
    wait_for("the signal to be passed on", || job.out().contains("told"));
    job.signal(Signal::STOP);
    wait_for("the end of the command", || children(guard).is_empty());
    job.signal(Signal::CONT);
    assert_eq!(job.code(), Some(137), "{}", job.log());
}

#[test]
fn the_environment_may_set_it_too() {
    let consul = Consul::start();
    let with = |arguments: &[&str], variable: &str| {
        let folder = tempfile::tempdir().unwrap();
        let life = folder.path().join("life").display().to_string();
        let mut command = run(&consul.address(), arguments, &["sh", "-c", STUBBORN, &life]);
        command.env("SLOTKEEPER_STOP_AFTER", variable);
        Job::spawn(command, folder)
    };
    let bare = ["p/one", "-n", "1", "--ttl", "10m"];
    for (arguments, variable) in [(&bare[..], "1s"), (&TWO_SECONDS, "1h"), (&TWO_SECONDS, "soon")] {
        let mut job = with(arguments, variable);
        job.await_life();
        job.signal(Signal::TERM);
        assert_eq!(job.code(), Some(137), "{variable}: {}", job.log());
    }
    let mut job = with(&bare, "soon");
    assert_eq!(job.code(), Some(78), "{}", job.log());
    assert!(job.log().contains("SLOTKEEPER_STOP_AFTER: `soon` is not a duration"), "{}", job.log());
    // An empty one is absent.
    let job = with(&bare, "");
    let life = job.await_life();
    let told = now();
    job.signal(Signal::TERM);
    wait_for("it to live on", || life.last() > told + 3.0);
}
