//! A killed `run`: its guard ends the command, and releases what the agent held once nothing is left.
//!
//! The TTL is longer than any test waits: what is free in time was released, and did not run out.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::job::{Job, bare};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{BINARY, is_running};
use crate::support::freezer::Freezer;
use crate::support::life::{Life, MEEK, STUBBORN};
use crate::support::processes;
use crate::wait_for;

const ONE: [&str; 7] = ["p/one", "-n", "1", "--ttl", "10m", "--kill-after", "2s"];

/// Kills the agent, and waits for the end of its guard.
fn kill(job: &mut Job) {
    let guard = job.guard();
    job.signal(Signal::KILL);
    assert_eq!(job.code(), None);
    await_end(guard);
}

fn await_end(guard: Pid) {
    wait_for("the end of the guard", || !is_running(&guard.as_raw_nonzero().to_string()));
}

fn end(job: &mut Job) {
    job.signal(Signal::TERM);
    assert_eq!(job.code(), Some(143), "{}", job.log());
}

#[test]
fn the_next_waiter_starts_at_once_and_nothing_is_left() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut first = Job::live(&consul.address(), &ONE, MEEK);
    let life = first.await_life();
    let mut second = Job::live(&consul.address(), &ONE, MEEK);
    wait_for("one in line", || operator.keys("p/one").len() == 3);
    let session = operator.holders("p/one").remove(0);
    kill(&mut first);
    assert!(operator.session(&session).is_none(), "the session is destroyed: {}", first.log());
    assert!(first.log().contains("released what it held"), "{}", first.log());
    let next = second.await_life();
    life.assert_before(&next);
    end(&mut second);
    operator.assert_nothing_left("p/one");
}

#[test]
fn without_a_waiter_the_slot_is_free() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    for slots in ["1", "2"] {
        let arguments = ["p/two", "-n", "2", "--slots", slots, "--format", "list", "--ttl", "10m"];
        let mut job = Job::live(&consul.address(), &arguments, MEEK);
        job.await_life();
        assert!(!operator.holders("p/two").is_empty());
        kill(&mut job);
        operator.assert_nothing_left("p/two");
    }
}

#[test]
fn nothing_is_released_before_the_last_descendant_is_reaped() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    // One in the command's group and one in a session of its own, both deaf to SIGTERM.
    let script = format!("sh -c '{0}' $0 & setsid sh -c '{0}' $1 & wait", STUBBORN.replace('\'', "\""));
    let mut first = Job::start(&consul.address(), &ONE, &["sh", "-c", &script, "$HOME/life", "$HOME/apart"]);
    let (life, apart) = (first.await_life(), Life::at(first.path("apart")));
    wait_for("the one apart", || apart.has_begun());
    let mut second = Job::live(&consul.address(), &ONE, MEEK);
    wait_for("one in line", || operator.keys("p/one").len() == 3);
    let session = operator.holders("p/one").remove(0);
    first.signal(Signal::KILL);
    assert_eq!(first.code(), None);
    wait_for("the end of both", || {
        let beats = apart.beats();
        let is_held = operator.holders("p/one") == [session.as_str()];
        // What lives on after it was looked at has its slot.
        assert!(is_held || apart.beats() == beats, "released under what is alive");
        !is_held
    });
    let next = second.await_life();
    life.assert_before(&next);
    apart.assert_before(&next);
    end(&mut second);
    operator.assert_nothing_left("p/one");
}

fn with_config(consul: &str, config: &str) -> Job {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, format!("consul: {{address: '{consul}'}}\nhttp: {{listen: off}}\n{config}"))
        .unwrap();
    let mut command = std::process::Command::new(BINARY);
    bare(&mut command);
    command.args(["run", "--kill-after", "1s", "--config"]).arg(&file);
    command.args(["--", "sh", "-c", MEEK]).arg(folder.path().join("life"));
    Job::spawn(command, folder)
}

#[test]
fn a_lock_is_released_without_its_lock_delay_and_its_key_goes_by_the_sessions_behavior() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    for behavior in ["delete", "release"] {
        let config = format!(
            "session: {{ttl: 10m, behavior: {behavior}, lock_delay: 60s}}\nlocks: [{{name: l, key: k/{behavior}}}]\n"
        );
        let key = format!("k/{behavior}");
        let mut first = with_config(&consul.address(), &config);
        let life = first.await_life();
        kill(&mut first);
        let left = operator.key(&key);
        assert_eq!(left.is_some(), behavior == "release");
        assert!(left.is_none_or(|pair| pair.session.is_none() && pair.value.is_empty()));
        assert_eq!(operator.sessions(), []);
        // At once, or not at all.
        let mut second = with_config(&consul.address(), &config.replace("name: l", "name: l, wait: 0s"));
        let next = second.await_life();
        life.assert_before(&next);
        end(&mut second);
    }
}

#[test]
fn several_semaphores_a_lock_and_waits_are_released_together() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut other = Job::live(&consul.address(), &["p/other", "-n", "1"], MEEK);
    other.await_life();
    let many: String = (0..40).map(|n| format!("- {{name: s{n}, prefix: p/{n}, limit: 1}}\n")).collect();
    let mut job = with_config(
        &consul.address(),
        &format!(
            "session: {{ttl: 10m}}\nlocks: [{{name: l, key: k/l}}]\nsemaphores:\n{many}\
             - {{name: other, prefix: p/other, limit: 1, required: false}}\n"
        ),
    );
    job.await_life();
    wait_for("one in line", || operator.keys("p/other").len() == 3);
    kill(&mut job);
    for n in 0..40 {
        assert_eq!(operator.holders(&format!("p/{n}")), [""; 0]);
        assert_eq!(operator.keys(&format!("p/{n}")).len(), 1);
    }
    assert_eq!((operator.keys("p/other").len(), operator.sessions().len()), (2, 1));
    assert!(operator.key("k/l").is_none());
    end(&mut other);
}

#[test]
fn keys_of_other_clients_are_unchanged() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let first = Job::live(&consul.address(), &ONE, MEEK);
    first.await_life();
    let guard = first.guard();
    // It notices nothing, and its guard neither.
    first.signal(Signal::STOP);
    kill_process(guard, Signal::STOP).unwrap();
    operator.destroy(&operator.holders("p/one").remove(0));
    let mut second = Job::live(&consul.address(), &ONE, MEEK);
    let next = second.await_life();
    let holders = operator.holders("p/one");
    let before = operator.lock("p/one").unwrap();
    first.signal(Signal::KILL);
    kill_process(guard, Signal::CONT).unwrap();
    await_end(guard);
    let after = operator.lock("p/one").unwrap();
    assert_eq!((operator.holders("p/one"), after.modify_index), (holders, before.modify_index));
    let beats = next.beats();
    wait_for("the second to live on", || next.beats() > beats + 5);
    end(&mut second);
    operator.assert_nothing_left("p/one");
}

#[test]
fn the_slot_is_released_too_if_the_agent_is_killed_just_after_its_command_ended() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let script = "touch $0/begun; until [ -e $0/done ]; do sleep 0.02; done; touch $0/over";
    let job = Job::start(&consul.address(), &ONE, &["sh", "-c", script, "$HOME"]);
    wait_for("the command", || job.path("begun").exists());
    let guard = job.guard();
    // It hears of the end no more.
    job.signal(Signal::STOP);
    std::fs::write(job.path("done"), "").unwrap();
    wait_for("the end of the command", || job.path("over").exists() && children(guard).is_empty());
    assert_eq!(operator.holders("p/one").len(), 1);
    job.signal(Signal::KILL);
    await_end(guard);
    operator.assert_nothing_left("p/one");
}

/// The processes that it has started.
pub(super) fn children(of: Pid) -> String {
    let pid = of.as_raw_nonzero();
    std::fs::read_to_string(Path::new("/proc").join(format!("{pid}/task/{pid}/children"))).unwrap_or_default()
}

#[test]
fn the_guard_ends_although_consul_does_not_answer() {
    let consul = Consul::start();
    let hole = Freezer::start_apart(consul.address().parse().unwrap());
    let mut job = Job::live(&hole.addr().to_string(), &ONE, MEEK);
    let life = job.await_life();
    hole.block(true);
    kill(&mut job);
    assert!(job.log().contains("not everything that it held could be released"), "{}", job.log());
    let beats = life.beats();
    assert_eq!(Operator::at(&consul.address()).holders("p/one").len(), 1);
    assert_eq!(life.beats(), beats, "it lives on");
}

#[test]
fn the_guard_ends_although_no_server_listens() {
    let mut consul = Consul::start();
    let mut job = Job::live(&consul.address(), &ONE, MEEK);
    job.await_life();
    consul.stop();
    kill(&mut job);
    assert!(job.log().contains("not everything that it held could be released"), "{}", job.log());
}

/// The first process of a container is another one than the agent, and has to outlive the guard.
#[test]
fn in_a_container_too() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut command = std::process::Command::new("unshare");
    bare(&mut command);
    let folder = tempfile::tempdir().unwrap();
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", BINARY, "run"]);
    command.args(["--http-addr", &consul.address()]).args(ONE);
    command.args(["--", "sh", "-c", MEEK]).arg(folder.path().join("life"));
    let mut job = Job::spawn(command, folder);
    job.await_life();
    let mark = job.path("life").display().to_string();
    // unshare, the first process, the agent, the guard and the command all mention it, the agent as the guard's parent.
    let guards = || {
        let all = processes::mentioning(&mark).into_iter();
        all.filter(|pid| processes::command_line(*pid).contains("guard --socket")).collect::<Vec<_>>()
    };
    let agent = processes::parent(guards().remove(0)).unwrap();
    kill_process(agent, Signal::KILL).unwrap();
    assert_eq!(job.code(), Some(137), "{}", job.log());
    operator.assert_nothing_left("p/one");
}
