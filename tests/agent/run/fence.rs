//! Ways to be hurt. Whatever happens, the command has ended before its successor begins; both say so themselves.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use slotkeeper::internals::log_events;

use super::job::{Job, bare, run};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::support::freezer::Freezer;
use crate::support::kv::Put;
use crate::support::life::{Life, MEEK, STUBBORN};
use crate::wait_for;

/// Consul ends a session after twice this.
const ONE: [&str; 7] = ["p/one", "-n", "1", "--ttl", "10s", "--kill-after", "1s"];

/// One whose command ignores SIGTERM, and one in line behind it.
fn two(first: &str, second: &str) -> (Job, Job) {
    let first = Job::live(first, &ONE, STUBBORN);
    first.await_life();
    let second = Job::live(second, &ONE, MEEK);
    (first, second)
}

/// The first is out, the second has its turn.
fn assert_handed_on(first: &mut Job, second: &mut Job, code: i32) {
    let next = second.await_life();
    first.life().assert_before(&next);
    assert_eq!(first.code(), Some(code), "{}", first.log());
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143), "{}", second.log());
}

#[test]
fn a_black_hole() {
    let consul = Consul::start();
    let hole = Freezer::start_apart(consul.address().parse().unwrap());
    let (mut first, mut second) = two(&hole.addr().to_string(), &consul.address());
    hole.block(true);
    assert_handed_on(&mut first, &mut second, 80);
    assert!(first.log().contains("the lease was not renewed in time"), "{}", first.log());
}

#[test]
fn a_stopped_agent() {
    let consul = Consul::start();
    let (mut first, mut second) = two(&consul.address(), &consul.address());
    first.signal(Signal::STOP);
    let next = second.await_life();
    first.life().assert_before(&next);
    first.signal(Signal::CONT);
    assert_handed_on(&mut first, &mut second, 80);
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}

#[test]
fn a_killed_agent() {
    let consul = Consul::start();
    let (mut first, mut second) = two(&consul.address(), &consul.address());
    first.signal(Signal::KILL);
    let next = second.await_life();
    first.life().assert_before(&next);
    assert_eq!(first.code(), None);
    assert!(first.log().contains("the agent is gone"), "{}", first.log());
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143));
}

#[test]
fn a_killed_guard() {
    let consul = Consul::start();
    let (mut first, mut second) = two(&consul.address(), &consul.address());
    kill_process(first.guard(), Signal::KILL).unwrap();
    assert_handed_on(&mut first, &mut second, 1);
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}

#[test]
fn no_descendant_survives_a_killed_guard() {
    let consul = Consul::start();
    // One in the command's group and one in a session of its own; the kernel ends only the command itself.
    let script = format!("sh -c '{0}' $0 & setsid sh -c '{0}' $1 & wait", STUBBORN.replace('\'', "\""));
    let mut first = Job::start(&consul.address(), &ONE, &["sh", "-c", &script, "$HOME/life", "$HOME/apart"]);
    let (life, apart) = (first.await_life(), Life::at(first.path("apart")));
    wait_for("the one apart", || apart.has_begun());
    let mut second = Job::live(&consul.address(), &ONE, MEEK);
    kill_process(first.guard(), Signal::KILL).unwrap();
    let next = second.await_life();
    wait_for("the successor to have lived for a while", || next.beats() > 10);
    life.assert_before(&next);
    apart.assert_before(&next);
    assert_handed_on(&mut first, &mut second, 1);
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}

#[test]
fn a_stopped_guard_without_packets() {
    let consul = Consul::start();
    let hole = Freezer::start_apart(consul.address().parse().unwrap());
    let (mut first, mut second) = two(&hole.addr().to_string(), &consul.address());
    kill_process(first.guard(), Signal::STOP).unwrap();
    hole.block(true);
    assert_handed_on(&mut first, &mut second, 80);
}

#[test]
fn changes_by_operators() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let hurt: [fn(&Operator, &str); 3] = [
        |operator, session| operator.destroy(session),
        |operator, session| operator.delete(&format!("p/one/{session}")),
        |operator, _| {
            let flags = operator.lock("p/one").unwrap().flags;
            operator.put("p/one/.lock", r#"{"Limit":1,"Holders":{}}"#, Put::Plain, flags);
        },
    ];
    for hurt in hurt {
        let mut job = Job::live(&consul.address(), &ONE, STUBBORN);
        let life = job.await_life();
        let session = operator.holders("p/one").remove(0);
        hurt(&operator, &session);
        assert_eq!(job.code(), Some(80), "{}", job.log());
        let beats = life.beats();
        // Whatever is left in `.lock` is dead, and keeps nobody out.
        let mut next = Job::start(&consul.address(), &["p/one", "-n", "1", "--try"], &["true"]);
        assert_eq!(next.code(), Some(0), "{}", next.log());
        assert_eq!(life.beats(), beats, "it lives on");
        operator.assert_nothing_left("p/one");
    }
}

#[test]
fn a_short_outage_costs_nothing() {
    let mut consul = Consul::start_persistent();
    let mut job = Job::live(&consul.address(), &["p/one", "-n", "1", "--ttl", "60s"], MEEK);
    let life = job.await_life();
    consul.stop();
    wait_for("the agent to notice", || job.log().contains(log_events::CONSUL_UNAVAILABLE));
    consul.restart();
    wait_for("the agent to be in order again", || job.log().contains(log_events::CONSUL_RECOVERED));
    let beats = life.beats();
    wait_for("the command to go on", || life.beats() > beats + 10);
    job.signal(Signal::TERM);
    assert_eq!(job.code(), Some(143), "{}", job.log());
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}

#[test]
fn no_slot_of_several_is_released_before_the_command_has_ended() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    for acquire in ["together", "independently"] {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "consul: {{address: '{}'}}\nhttp: {{listen: off}}\nacquire: {acquire}\nsemaphores:\n\
             - {{name: a, prefix: p/a, limit: 1}}\n- {{name: b, prefix: p/b, limit: 1}}\n",
            consul.address()
        );
        let file = folder.path().join("config.yaml");
        std::fs::write(&file, config).unwrap();
        let mut command = std::process::Command::new(crate::process::BINARY);
        bare(&mut command);
        command.args(["run", "--kill-after", "1s", "--config"]).arg(&file);
        command.args(["--", "sh", "-c", STUBBORN]).arg(folder.path().join("life"));
        let mut first = Job::spawn(command, folder);
        let life = first.await_life();
        let session = operator.holders("p/a").remove(0);
        let mut second = Job::live(&consul.address(), &["p/a", "-n", "1"], MEEK);
        wait_for("one in line", || operator.keys("p/a").len() == 3);
        operator.delete(&format!("p/b/{session}"));
        let next = second.await_life();
        life.assert_before(&next);
        assert_eq!(first.code(), Some(80), "{acquire}: {}", first.log());
        second.signal(Signal::TERM);
        assert_eq!(second.code(), Some(143));
        operator.assert_nothing_left("p/a");
        operator.assert_nothing_left("p/b");
    }
}

#[test]
fn the_rest_of_a_lost_slot_blocks_others_until_the_command_has_ended() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let two = ["p/one", "-n", "2", "--slots", "2", "--kill-after", "1s"];
    let mut first = Job::live(&consul.address(), &two, STUBBORN);
    let life = first.await_life();
    let session = operator.holders("p/one").remove(0);
    let mut second = Job::live(&consul.address(), &["p/one", "-n", "2"], MEEK);
    wait_for("one in line", || operator.keys("p/one").len() == 3);
    // One of its two slots is somebody else's now.
    let other = operator.create_session();
    operator.put(&format!("p/one/{other}"), "", Put::Acquire(&other), 0);
    let record = format!(r#"{{"Limit":2,"Holders":["{session}","{other}"]}}"#);
    operator.put("p/one/.lock", &record, Put::Plain, 0);
    let next = second.await_life();
    life.assert_before(&next);
    assert_eq!(first.code(), Some(80), "{}", first.log());
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143), "{}", second.log());
}

/// So long that an answer counts as lost.
const LOST: Duration = Duration::from_secs(3600);

fn through_a_proxy(consul: &Consul) -> (Freezer, String) {
    let proxy = Freezer::start_apart(consul.address().parse().unwrap());
    let address = proxy.addr().to_string();
    (proxy, address)
}

#[test]
fn connections_that_are_reset_cost_nothing() {
    let consul = Consul::start();
    let (proxy, address) = through_a_proxy(&consul);
    let mut job = Job::live(&address, &["p/one", "-n", "1"], MEEK);
    let life = job.await_life();
    for _ in 0..20 {
        let beats = life.beats();
        proxy.reset();
        wait_for("the command to go on", || life.beats() > beats + 2);
    }
    wait_for("the agent to be in order again", || job.log().contains(log_events::CONSUL_RECOVERED));
    job.signal(Signal::TERM);
    assert_eq!(job.code(), Some(143), "{}", job.log());
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}

#[test]
fn answers_that_take_seconds_cost_nothing() {
    let consul = Consul::start();
    let (proxy, address) = through_a_proxy(&consul);
    let mut job = Job::live(&address, &["p/one", "-n", "1", "--ttl", "20s", "--kill-after", "1s"], MEEK);
    let life = job.await_life();
    proxy.delay(Duration::from_secs(2));
    // Longer than the lease that it had before.
    wait_for("the command to outlive a lease", || life.last() - life.first() > 20.0);
    assert!(job.is_running(), "{}", job.log());
    proxy.delay(Duration::ZERO);
    job.signal(Signal::TERM);
    assert_eq!(job.code(), Some(143), "{}", job.log());
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}

#[test]
fn a_waiter_that_was_cut_off_does_not_start_on_a_lost_slot() {
    let consul = Consul::start();
    let (hole, address) = through_a_proxy(&consul);
    let operator = Operator::at(&consul.address());
    let mut first = Job::live(&consul.address(), &ONE, MEEK);
    first.await_life();
    let mut second = Job::live(&address, &ONE, MEEK);
    wait_for("one in line", || operator.keys("p/one").len() == 3);
    let mut third = Job::live(&consul.address(), &ONE, MEEK);
    wait_for("two in line", || operator.keys("p/one").len() == 4);
    hole.block(true);
    first.signal(Signal::TERM);
    assert_eq!(first.code(), Some(143));
    // The second was let in without knowing it, and its session runs out.
    let next = third.await_life();
    assert!(!second.life().has_begun());
    hole.block(false);
    third.signal(Signal::TERM);
    assert_eq!(third.code(), Some(143), "{}", third.log());
    let last = second.await_life();
    next.assert_before(&last);
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143), "{}", second.log());
    operator.assert_nothing_left("p/one");
}

#[test]
fn a_lost_answer_to_the_release_hands_the_slot_off_once() {
    let consul = Consul::start();
    let (proxy, address) = through_a_proxy(&consul);
    let mut first = Job::live(&address, &["p/one", "-n", "1"], MEEK);
    let life = first.await_life();
    let mut second = Job::live(&consul.address(), &["p/one", "-n", "1"], MEEK);
    let operator = Operator::at(&consul.address());
    wait_for("one in line", || operator.keys("p/one").len() == 3);
    proxy.delay(LOST);
    first.signal(Signal::TERM);
    let next = second.await_life();
    life.assert_before(&next);
    proxy.delay(Duration::ZERO);
    proxy.reset();
    assert_eq!(first.code(), Some(143), "{}", first.log());
    assert!(second.is_running(), "{}", second.log());
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143));
    operator.assert_nothing_left("p/one");
}

#[test]
fn a_lost_answer_about_a_grant_is_recovered() {
    let consul = Consul::start();
    let (proxy, address) = through_a_proxy(&consul);
    let operator = Operator::at(&consul.address());
    let mut first = Job::live(&consul.address(), &["p/one", "-n", "1"], MEEK);
    let life = first.await_life();
    let before = operator.holders("p/one");
    let mut second = Job::live(&address, &["p/one", "-n", "1"], MEEK);
    // It has to be known to the first one, or nobody would let it in.
    wait_for("one in line", || operator.next("p/one").len() == 1);
    proxy.delay(LOST);
    first.signal(Signal::TERM);
    assert_eq!(first.code(), Some(143));
    let granted = operator.holders("p/one");
    assert!(granted.len() == 1 && granted != before, "let in by the one that left");
    proxy.delay(Duration::ZERO);
    proxy.reset();
    let next = second.await_life();
    life.assert_before(&next);
    assert_eq!(operator.holders("p/one"), granted);
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143), "{}", second.log());
    operator.assert_nothing_left("p/one");
}

#[test]
fn lost_answers_to_the_join_hold_nothing_twice_and_leak_nothing() {
    let consul = Consul::start();
    let (proxy, address) = through_a_proxy(&consul);
    let operator = Operator::at(&consul.address());
    proxy.delay(LOST);
    let mut job = Job::live(&address, &ONE, MEEK);
    wait_for("a session whose maker does not know it", || !operator.sessions().is_empty());
    proxy.delay(Duration::ZERO);
    proxy.reset();
    job.await_life();
    assert_eq!(operator.holders("p/one").len(), 1);
    job.signal(Signal::TERM);
    assert_eq!(job.code(), Some(143), "{}", job.log());
    // The first one runs out by itself.
    wait_for("no session", || operator.sessions().is_empty());
    operator.assert_nothing_left("p/one");
}

#[test]
fn an_unread_log() {
    let consul = Consul::start();
    let (hole, address) = through_a_proxy(&consul);
    let folder = tempfile::tempdir().unwrap();
    // The command fills the pipe of standard error, which it shares with agent and guard, and nobody reads that.
    let script = format!("yes >&2 & sleep 0.2; kill $!; {STUBBORN}");
    let life = folder.path().join("life").display().to_string();
    let mut command = run(&address, &ONE, &["sh", "-c", &script, &life]);
    let mut first = command.stderr(Stdio::piped()).spawn().unwrap();
    let life = Life::at(life.into());
    wait_for("the command to live", || life.has_begun());
    let mut second = Job::live(&consul.address(), &ONE, MEEK);
    hole.block(true);
    let next = second.await_life();
    life.assert_before(&next);
    let mut status = None;
    wait_for("the end of run", || {
        status = first.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(80));
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143));
}

#[test]
fn a_stopped_guard_as_the_session_is_destroyed() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut job = Job::live(&consul.address(), &ONE, STUBBORN);
    let life = job.await_life();
    let session = operator.holders("p/one").remove(0);
    kill_process(job.guard(), Signal::STOP).unwrap();
    operator.destroy(&session);
    // By the agent itself, though it has a new session by then, with a new lease.
    assert_eq!(job.code(), Some(80), "{}", job.log());
    let beats = life.beats();
    let mut next = Job::start(&consul.address(), &["p/one", "-n", "1", "--try"], &["true"]);
    assert_eq!(next.code(), Some(0), "{}", next.log());
    assert_eq!(life.beats(), beats, "it lives on");
}

#[test]
fn without_time_to_stop_a_lost_slot_is_still_reported() {
    let consul = Consul::start();
    let (hole, address) = through_a_proxy(&consul);
    let folder = tempfile::tempdir().unwrap();
    let hook = folder.path().join("lost").display().to_string();
    let config = format!(
        "consul: {{address: '{address}'}}\nhttp: {{listen: off}}\nsession: {{ttl: 10s}}\n\
         semaphores: [{{name: a, prefix: p/a, limit: 1}}]\nhooks: {{on_lost: [touch, '{hook}']}}\n"
    );
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, config).unwrap();
    let mut command = std::process::Command::new(crate::process::BINARY);
    bare(&mut command);
    command.args(["run", "--kill-after", "0s", "--config"]).arg(&file);
    command.args(["--", "sh", "-c", MEEK]).arg(folder.path().join("life"));
    let mut job = Job::spawn(command, folder);
    job.await_life();
    hole.block(true);
    assert_eq!(job.code(), Some(80), "{}", job.log());
    assert!(std::path::Path::new(&hook).exists(), "the hook has run");
}
