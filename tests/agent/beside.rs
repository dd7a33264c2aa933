//! The workload beside the agent, seen by its processes: both have mounts of their own, and one volume in common.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use slotkeeper::internals::log_events;
use slotkeeper::internals::shutdown::REPEATED_SIGNAL;

use crate::consul::Consul;
use crate::drain::ask;
use crate::evict::{Said, evict};
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home};
use crate::support::life::{Life, MEEK, STUBBORN, now};
use crate::wait_for;

const PREFIX: &str = "p/one";
const SIGHT: &str = "workload: {volume: '$HOME/volume'}\n";
const STOPS: &str = "workload: {volume: '$HOME/volume', stop: true, kill_after: 1s}\n";

/// A command in a container of its own, as far as the agent looks: with mounts of its own, of which one is the volume.
fn contained(volume: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    command.arg(r#"mount --bind "$0" "$0" && exec "$@""#).arg(volume).args(words).stdin(Stdio::null());
    command
}

fn home(consul: &Consul, rest: &str) -> Home {
    let home = Home::new();
    std::fs::create_dir(home.path("volume")).unwrap();
    let semaphores = format!("semaphores: [{{name: s, prefix: {PREFIX}, limit: 1}}]\n");
    home.configure(&consul.address(), &format!("{semaphores}{rest}"));
    home
}

fn start(home: &Home) -> Agent {
    let config = home.path("config.yaml");
    let words = [BINARY, "agent", "--config", config.to_str().unwrap()];
    let mut agent = Agent::of(contained(&home.path("volume"), &words), home);
    agent.await_served();
    agent
}

/// It is killed with all that it has started when the value goes.
struct Workload {
    child: Child,
    life: Life,
}

impl Workload {
    /// Starts one beside the agent of that home.
    fn start(home: &Home, script: &str) -> Self {
        let file = home.path(&format!("life-{}", fastrand::u32(..)));
        let mut command = contained(&home.path("volume"), &["sh", "-c", script, file.to_str().unwrap()]);
        let child = command.process_group(0).spawn().unwrap();
        Self { child, life: Life::at(file) }
    }

    fn live(home: &Home, script: &str) -> Self {
        let workload = Self::start(home, script);
        wait_for("the workload to live", || workload.life.has_begun());
        workload
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Waits for its end; the signal that has ended it.
    fn ended_by(&mut self) -> Option<i32> {
        let mut status = None;
        wait_for("the workload to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().signal()
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// It holds on for its workload, and is as ready as before.
fn assert_holds_on(consul: &Consul, agent: &Agent, workload: &Workload) {
    wait_for("it to be told", || agent.log().contains(log_events::DRAIN_AWAITS_WORKLOAD));
    let beats = workload.life.beats();
    wait_for("some time to pass", || workload.life.beats() > beats + 20);
    assert!(agent.is_ready() && agent.ready_file().exists(), "the slot is held, so it is ready");
    assert_eq!(Operator::at(&consul.address()).holders(PREFIX), [agent.session()]);
}

#[test]
fn a_stopped_agent_holds_its_slot_while_the_workload_lives() {
    let consul = Consul::start();
    let home = home(&consul, SIGHT);
    let mut agent = start(&home);
    agent.await_ready();
    let mut workload = Workload::live(&home, STUBBORN);
    agent.signal(Signal::TERM);
    assert_holds_on(&consul, &agent, &workload);
    workload.end();
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
    Operator::at(&consul.address()).assert_nothing_left(PREFIX);
}

#[test]
fn descendants_of_the_workload_belong_to_it() {
    let consul = Consul::start();
    let home = home(&consul, SIGHT);
    let mut agent = start(&home);
    agent.await_ready();
    // In a session of its own, and without the volume.
    let script = format!(
        "setsid unshare --mount sh -c 'umount \"$1\"; {STUBBORN}' \"$0\" \"${{0%/*}}/volume\" & wait"
    );
    let mut workload = Workload::live(&home, &script.replace("trap '' TERM", "trap : TERM"));
    let children =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", workload.child.id())).unwrap();
    let left = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    agent.signal(Signal::TERM);
    wait_for("it to be told", || agent.log().contains(log_events::DRAIN_AWAITS_WORKLOAD));
    workload.end();
    assert_holds_on(&consul, &agent, &workload);
    kill_process(left, Signal::KILL).unwrap();
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
}

#[test]
fn without_a_workload_the_agent_ends_at_once() {
    let consul = Consul::start();
    let home = home(&consul, SIGHT);
    let mut agent = start(&home);
    agent.await_ready();
    // Another container, which has another volume.
    let other = self::home(&consul, "");
    let _other = Workload::live(&other, STUBBORN);
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    assert!(!agent.log().contains(log_events::DRAIN_AWAITS_WORKLOAD), "{}", agent.log());
    Operator::at(&consul.address()).assert_nothing_left(PREFIX);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test has no lease")]
fn a_second_signal_ends_the_agent_without_a_release() {
    let consul = Consul::start();
    let home = home(&consul, SIGHT);
    let mut agent = start(&home);
    agent.await_ready();
    let workload = Workload::live(&home, STUBBORN);
    let session = agent.session();
    agent.signal(Signal::TERM);
    assert_holds_on(&consul, &agent, &workload);
    let told = Instant::now();
    wait_for("the echo to be over", || told.elapsed() > REPEATED_SIGNAL * 2);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(1), "{}", agent.log());
    assert_eq!(Operator::at(&consul.address()).holders(PREFIX), [session]);
}

#[test]
fn a_drain_request_waits_for_the_workloads_end_too() {
    let consul = Consul::start();
    let home = home(&consul, &format!("{SIGHT}control: {{listen: 'unix:$HOME/control.sock'}}\n"));
    let mut agent = start(&home);
    agent.await_ready();
    let mut workload = Workload::live(&home, STUBBORN);
    let answer = ask(&home.path("control.sock"), "POST /v1/drain");
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    assert_holds_on(&consul, &agent, &workload);
    workload.end();
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
}

/// The next look may show its first process.
#[test]
fn an_eviction_before_the_workload_starts_is_kept_while_it_may_start() {
    let consul = Consul::start();
    let home = home(&consul, SIGHT);
    let agent = start(&home);
    agent.await_ready();
    let session = agent.session();
    let Said(code, _, errors) = evict(&consul, &[PREFIX, &session, "--yes", "--wait", "2s"]);
    assert_eq!(code, Some(75), "{errors}");
    let mut workload = Workload::live(&home, STUBBORN);
    let beats = workload.life.beats();
    wait_for("some time to pass", || workload.life.beats() > beats + 20);
    let operator = Operator::at(&consul.address());
    assert_eq!(operator.holders(PREFIX), [session]);
    workload.end();
}

/// Whatever is asked for by hand.
#[test]
fn a_reload_takes_no_slot_from_a_workload_that_lives() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul, SIGHT);
    let mut agent = start(&home);
    agent.await_ready();
    let mut workload = Workload::live(&home, STUBBORN);
    let file = home.path("config.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(PREFIX, "p/other")).unwrap();
    agent.signal(Signal::HUP);
    wait_for("the reload", || agent.log().contains("kept until the workload has ended"));
    assert_eq!(operator.holders(PREFIX), [agent.session()]);
    workload.end();
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
}

#[test]
fn an_eviction_goes_on_when_the_workload_has_ended() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    // The hook stops nothing, although it succeeds.
    let home = home(&consul, &format!("{SIGHT}hooks: {{on_lost: [touch, $HOME/lost]}}\n"));
    let mut agent = start(&home);
    agent.await_ready();
    let mut workload = Workload::live(&home, STUBBORN);
    let session = agent.session();
    let Said(code, _, errors) = evict(&consul, &[PREFIX, &session, "--yes", "--wait", "2s"]);
    assert_eq!(code, Some(75), "{errors}");
    wait_for("the hook", || home.path("lost").exists());
    assert_eq!((operator.holders(PREFIX), agent.is_ready()), (vec![session.clone()], false));
    // What stops it is stopped only with the workload.
    agent.signal(Signal::TERM);
    let beats = workload.life.beats();
    wait_for("some time to pass", || workload.life.beats() > beats + 20);
    assert_eq!(operator.holders(PREFIX), [session]);
    workload.end();
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
    operator.assert_nothing_left(PREFIX);
}

/// An agent that stops its workload, and another one in line.
fn two(consul: &Consul) -> [(Home, Agent); 2] {
    ["held", "waiting"].map(|state| {
        let home = home(consul, STOPS);
        let agent = start(&home);
        agent.await_state(state);
        (home, agent)
    })
}

fn await_seen(agent: &Agent) {
    wait_for("the agent to have seen it", || agent.log().contains(log_events::WORKLOAD_STARTED));
}

#[test]
fn the_agent_ends_a_workload_whose_slot_is_lost() {
    let consul = Consul::start();
    let [(home, mut agent), (_next_home, next)] = two(&consul);
    let mut workload = Workload::live(&home, STUBBORN);
    await_seen(&agent);
    Operator::at(&consul.address()).destroy(&agent.session());
    assert_eq!(workload.ended_by(), Some(Signal::KILL.as_raw()), "it does not listen to SIGTERM");
    assert_eq!(agent.ended().code(), Some(80), "{}", agent.log());
    next.await_ready();
}

#[test]
fn an_evicted_workload_ends_before_the_next_waiter_has_the_slot() {
    let consul = Consul::start();
    let [(home, mut agent), (next_home, next)] = two(&consul);
    let mut workload = Workload::live(&home, STUBBORN);
    await_seen(&agent);
    let Said(code, _, errors) = evict(&consul, &[PREFIX, &agent.session(), "--yes", "--wait", "60s"]);
    assert_eq!(code, Some(0), "{errors}");
    next.await_ready();
    let other = Workload::live(&next_home, MEEK);
    assert_eq!(workload.ended_by(), Some(Signal::KILL.as_raw()));
    assert!(workload.life.last() < other.life.first());
    assert_eq!(agent.ended().code(), Some(80), "{}", agent.log());
}

#[test]
fn the_agent_ends_a_workload_that_runs_without_a_slot() {
    let consul = Consul::start();
    let [_first, (home, next)] = two(&consul);
    let mut workload = Workload::start(&home, STUBBORN);
    assert_eq!(workload.ended_by(), Some(Signal::KILL.as_raw()));
    assert_eq!(next.semaphore()["state"], "waiting");
}

#[test]
fn the_agent_ends_a_workload_before_its_lease_expires() {
    let mut consul = Consul::start();
    let home = home(&consul, &format!("{STOPS}session: {{ttl: 10s}}\n"));
    let agent = start(&home);
    agent.await_ready();
    let mut workload = Workload::live(&home, STUBBORN);
    await_seen(&agent);
    consul.stop();
    let left = agent.status()["session"]["expires_in_seconds"].as_f64().unwrap();
    let ends = now() + left;
    assert_eq!(workload.ended_by(), Some(Signal::KILL.as_raw()));
    assert!(workload.life.last() < ends, "alive at {}, and the lease ends at {ends}", workload.life.last());
    wait_for("it to count as lost", || {
        agent.log().contains("was lost (lease_expired), on which the workload runs")
    });
}

#[test]
fn a_restarted_agent_finds_its_workload_and_goes_on() {
    let consul = Consul::start();
    let home = home(&consul, &format!("{STOPS}session: {{state_file: '$HOME/session.json'}}\n"));
    let mut agent = start(&home);
    agent.await_ready();
    let session = agent.session();
    let workload = Workload::live(&home, MEEK);
    wait_for("the state file", || {
        std::fs::read_to_string(home.path("session.json")).is_ok_and(|text| text.contains(&session))
    });
    agent.signal(Signal::KILL);
    agent.ended();
    let agent = start(&home);
    agent.await_ready();
    let beats = workload.life.beats();
    wait_for("the workload to go on", || workload.life.beats() > beats + 20);
    assert_eq!(agent.session(), session);
    assert!(!agent.log().contains(log_events::ENDING_WORKLOAD), "{}", agent.log());
}

fn refused(mut command: Command, home: &Home, said: &[&str]) {
    command.args([BINARY, "agent", "--config"]).arg(home.path("config.yaml"));
    let mut agent = Agent::of(command, home);
    assert_eq!(agent.ended().code(), Some(78), "{}", agent.log());
    let log = agent.log();
    let lines: Vec<_> = log.lines().filter(|line| line.starts_with("slotkeeper: ")).collect();
    assert!(lines.len() == 1 && said.iter().all(|said| lines[0].contains(said)), "{log}");
}

#[test]
fn an_agent_that_cannot_see_the_workload_refuses_to_start() {
    let consul = Consul::start();
    let home = home(&consul, SIGHT);
    let alone =
        contained(&home.path("volume"), &["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    refused(alone, &home, &["workload.volume", "no processes but this container's", "shareProcessNamespace"]);
    let elsewhere = contained(&home.path("volume"), &["unshare", "--pid", "--fork", "--kill-child"]);
    refused(elsewhere, &home, &["workload.volume", "shareProcessNamespace"]);
}

#[test]
fn run_refuses_the_section_workload() {
    let consul = Consul::start();
    let home = home(&consul, SIGHT);
    let output = Command::new(BINARY)
        .args(["run", "--config"])
        .arg(home.path("config.yaml"))
        .args(["--", "true"])
        .output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(78) && said.contains("workload: the section is for an agent beside"),
        "{said}"
    );
}
