//! A `run` that hands its slot off: its exit code does not wait for the next holder, its guard does, and passes the slot on.
//!
//! The TTL is longer than any test waits: what a stopped waiter does not accept was passed on, and did not run out.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use slotkeeper::internals::log_events::DRAIN_STARTED;

use super::job::{Job, run};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::is_running;
use crate::support::freezer::Freezer;
use crate::support::life::{MEEK, now};
use crate::support::processes;
use crate::wait_for;

const ONE: [&str; 7] = ["p/one", "-n", "1", "--ttl", "10m", "--kill-after", "2s"];

fn lives(process: Pid) -> bool {
    is_running(&process.as_raw_nonzero().to_string())
}

/// Two waiters, of which the first is stopped.
fn waiters(consul: &Consul, operator: &Operator) -> [Job; 2] {
    wait_for("the holder", || operator.keys("p/one").len() == 2);
    let all = [3, 4].map(|keys| {
        let one = Job::live(&consul.address(), &ONE, MEEK);
        wait_for("one in line", || operator.keys("p/one").len() == keys);
        one
    });
    all[0].signal(Signal::STOP);
    all
}

/// The slot goes to the second waiter, and when that has left to the first.
fn assert_served(operator: &Operator, [mut stopped, mut next]: [Job; 2]) {
    let life = next.await_life();
    assert!(!stopped.life().has_begun());
    stopped.signal(Signal::CONT);
    let guard = next.guard();
    for one in [&mut next, &mut stopped] {
        one.await_life();
        one.signal(Signal::TERM);
        assert_eq!(one.code(), Some(143), "{}", one.log());
    }
    life.assert_before(&stopped.life());
    wait_for("the end of the guard", || !lives(guard));
    operator.assert_nothing_left("p/one");
}

#[test]
fn the_exit_code_and_the_end_of_the_output_do_not_wait_for_a_stopped_waiter() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut command = run(&consul.address(), &ONE, &["sh", "-c", "read -r _; echo done; exit 7"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut first = command.spawn().unwrap();
    let line = waiters(&consul, &operator);
    let session = operator.holders("p/one").remove(0);
    let guard = processes::guard_of(Pid::from_child(&first)).expect("a guard");
    drop(first.stdin.take());
    let output = first.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), &b"done\n"[..]));
    let offered = operator.holders("p/one").remove(0);
    assert_eq!(operator.entry("p/one", &offered)["state"], "offered");
    assert!(lives(guard), "it sees to the offer");
    line[1].await_life();
    wait_for("the end of the guard", || !lives(guard));
    assert!(operator.session(&session).is_none(), "the guard has ended it");
    assert_served(&operator, line);
}

#[test]
fn a_guard_that_sees_to_an_offer_ends_at_once_when_it_is_told() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut first = Job::live(&consul.address(), &ONE, MEEK);
    first.await_life();
    let line = waiters(&consul, &operator);
    line[1].signal(Signal::STOP);
    let (guard, session) = (first.guard(), operator.holders("p/one").remove(0));
    first.signal(Signal::TERM);
    assert_eq!(first.code(), Some(143), "{}", first.log());
    assert!(lives(guard), "nobody accepts the offer");
    let told = now();
    kill_process(guard, Signal::TERM).unwrap();
    wait_for("the end of the guard", || !lives(guard));
    assert!(now() - told < 10.0, "it would have seen to the offer for 30 s");
    assert!(operator.session(&session).is_none(), "it has ended the session");
}

#[test]
fn a_guard_that_releases_for_a_killed_agent_passes_the_slot_on() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut first = Job::live(&consul.address(), &ONE, MEEK);
    let line = waiters(&consul, &operator);
    first.signal(Signal::KILL);
    assert_eq!(first.code(), None);
    line[1].await_life();
    assert!(first.log().contains("released what it held"), "{}", first.log());
    assert_served(&operator, line);
}

#[test]
fn an_agent_that_is_killed_while_it_drains_is_replaced_by_its_guard() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let proxy = Freezer::start_apart(consul.address().parse().unwrap());
    let mut job = Job::start(
        &proxy.addr().to_string(),
        &ONE,
        &["sh", "-c", "until [ -e $HOME/go ]; do sleep 0.02; done"],
    );
    wait_for("the holder", || operator.keys("p/one").len() == 2);
    let guard = job.guard();
    // The agent's release gets no answer for seconds.
    proxy.freeze();
    std::fs::write(job.path("go"), "").unwrap();
    wait_for("the drain", || job.log().contains(DRAIN_STARTED));
    job.signal(Signal::KILL);
    assert_eq!(job.code(), None);
    wait_for("the end of the guard", || !lives(guard));
    assert!(job.log().contains("released what it held"), "{}", job.log());
    operator.assert_nothing_left("p/one");
}
