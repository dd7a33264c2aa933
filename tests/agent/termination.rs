//! The termination message: why a container that runs slotkeeper has ended, in a file of one sentence.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home};
use crate::run::job::{Job, bare, run};
use crate::support::life::{MEEK, STUBBORN};
use crate::wait_for;

const VARIABLE: &str = "SLOTKEEPER_TERMINATION_MESSAGE";
const ONE: [&str; 3] = ["p/one", "-n", "1"];

/// A `run` that is to say in the file `message` of its folder why it ends. Something stands there already.
fn told(consul: &str, arguments: &[&str], command: &[&str]) -> Job {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().display().to_string();
    let words: Vec<_> = command.iter().map(|word| word.replace("$HOME", &home)).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let message = folder.path().join("message");
    std::fs::write(&message, BEFORE).unwrap();
    let mut command = run(consul, arguments, &words);
    command.env(VARIABLE, message);
    Job::spawn(command, folder)
}

/// Longer than what comes in its place.
const BEFORE: &str = "what a workload has written\nbefore";

fn message(job: &Job) -> String {
    read(&job.path("message"))
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

/// One sentence of ours, no longer than Kubernetes reads, with these parts in this order.
fn assert_says(said: &str, parts: &[&str]) {
    assert!(said.starts_with("slotkeeper: ") && !said.contains('\n') && said.len() <= 4096, "{said:?}");
    let mut rest = said;
    for part in parts {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("no {part:?} in {said:?}")).1;
    }
}

#[test]
fn a_wait_that_timed_out_names_the_slot_and_its_holders() {
    let consul = Consul::start();
    let first = Job::live(&consul.address(), &ONE, MEEK);
    first.await_life();
    let mut job = told(&consul.address(), &["p/one", "-n", "1", "--timeout", "2s"], &["true"]);
    assert_eq!(job.code(), Some(75), "{}", job.log());
    assert_says(&message(&job), &["timed out after 2s waiting for p/one: 1st of 1 in the queue, held by "]);
    let mut job = told(&consul.address(), &["p/one", "-n", "1", "--try"], &["true"]);
    assert_eq!(job.code(), Some(75), "{}", job.log());
    assert_says(&message(&job), &["p/one: no free slot (1 of 1 taken by "]);
    let mut job = told("127.0.0.1:1", &["p/one", "-n", "1", "--timeout", "300ms"], &["true"]);
    assert_eq!(job.code(), Some(69), "{}", job.log());
    assert_says(
        &message(&job),
        &[
            "timed out after 300ms waiting for Consul at http://127.0.0.1:1, without a slot of p/one",
            "the last failure was",
        ],
    );
}

#[test]
fn a_signal_that_ends_the_waiting_is_named() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let first = Job::live(&consul.address(), &ONE, MEEK);
    first.await_life();
    let mut job = told(&consul.address(), &ONE, &["true"]);
    wait_for("one in line", || operator.keys("p/one").len() == 3);
    wait_for("its place in line", || job.log().contains(log_events::WAITING));
    job.signal(Signal::TERM);
    assert_eq!(job.code(), Some(143), "{}", job.log());
    assert_says(&message(&job), &["ended by SIGTERM while it waited for p/one: 1st of 1 in the queue"]);
}

#[test]
fn a_command_that_cannot_start_is_explained() {
    let both = ["p/one", "-n", "1", "--ttl", "10s", "--kill-after", "5s"];
    let cases: [(&[&str], i32, &[&str]); 4] = [
        (&["--no-such-flag"], 64, &["unexpected argument '--no-such-flag'"]),
        (&[], 64, &["no slot is named"]),
        (&both, 64, &["--kill-after", "16s", "session.ttl"]),
        (&["--config", "/nonexistent/file"], 78, &["/nonexistent/file"]),
    ];
    for (arguments, code, parts) in cases {
        let mut job = told("127.0.0.1:1", arguments, &["true"]);
        assert_eq!(job.code(), Some(code), "{}", job.log());
        assert_says(&message(&job), parts);
    }
    let consul = Consul::start();
    for (program, code) in [("/nonexistent/command", 127), ("/etc/passwd", 126)] {
        let mut job = told(&consul.address(), &ONE, &[program]);
        assert_eq!(job.code(), Some(code), "{}", job.log());
        assert_says(&message(&job), &["cannot run ", program]);
    }
}

#[test]
fn a_lost_slot_and_a_command_killed_for_its_time_are_explained() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let live = ["sh", "-c", STUBBORN, "$HOME/life"];
    let mut job = told(&consul.address(), &["p/one", "-n", "1", "--kill-after", "1s"], &live);
    job.await_life();
    operator.destroy(&operator.holders("p/one").remove(0));
    assert_eq!(job.code(), Some(80), "{}", job.log());
    let lost = "p/one: slot lost: its session has ended in Consul (session_gone); the command was stopped";
    assert_says(&message(&job), &[lost]);
    let mut job = told(&consul.address(), &["p/one", "-n", "1", "--stop-after", "1s"], &live);
    job.await_life();
    job.signal(Signal::TERM);
    assert_eq!(job.code(), Some(137), "{}", job.log());
    assert_says(&message(&job), &["--stop-after"]);
}

#[test]
fn a_command_that_ends_by_itself_has_the_file_for_itself() {
    let consul = Consul::start();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 75", 75), ("kill -TERM $$", 143)] {
        let mut job = told(&consul.address(), &ONE, &["sh", "-c", script]);
        assert_eq!(job.code(), Some(code), "{}", job.log());
        assert_eq!(message(&job), BEFORE, "{script}");
    }
    // What it starts is not told of the file, or another slotkeeper would write there.
    let mut job = told(&consul.address(), &ONE, &["sh", "-c", &format!("echo ${{{VARIABLE}-none}}")]);
    assert_eq!((job.code(), job.out().as_str()), (Some(0), "none\n"));
}

#[test]
fn an_unwritable_termination_message_changes_nothing() {
    let consul = Consul::start();
    let first = Job::live(&consul.address(), &ONE, MEEK);
    first.await_life();
    for (level, is_said) in [("info", false), ("debug", true)] {
        let mut command = run(&consul.address(), &["p/one", "-n", "1", "--try"], &["true"]);
        // The flag --verbose would win over the variable.
        let arguments: Vec<_> =
            command.get_args().filter(|one| *one != "--verbose").map(Into::into).collect();
        command = Command::new(BINARY);
        bare(&mut command);
        command.args::<_, std::ffi::OsString>(arguments);
        command.env(VARIABLE, "/nonexistent/message").env("SLOTKEEPER_LOG_LEVEL", level);
        let mut job = Job::spawn(command, tempfile::tempdir().unwrap());
        assert_eq!(job.code(), Some(75), "{}", job.log());
        assert_eq!(job.log().contains("/nonexistent/message"), is_said, "{level}: {}", job.log());
    }
}

#[test]
fn an_agent_explains_an_end_that_was_not_requested() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let file = home.path("message");
    let environment = [(VARIABLE, file.to_str().unwrap())];
    let semaphore = "semaphores: [{name: s, prefix: p/s, limit: 1, on_lost: exit}]";
    home.configure(&consul.address(), semaphore);
    let mut agent = Agent::start_with(&home, &[], &environment);
    agent.await_ready();
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0));
    assert!(!file.exists(), "{}", read(&file));
    let mut agent = Agent::start_with(&home, &[], &environment);
    agent.await_ready();
    operator.destroy(&operator.holders("p/s").remove(0));
    assert_eq!(agent.ended().code(), Some(80));
    assert_says(&read(&file), &["the slot of s was lost (session_gone), and on_lost is `exit`"]);
    let holder = Job::live(&consul.address(), &["p/s", "-n", "1"], MEEK);
    holder.await_life();
    home.configure(&consul.address(), &semaphore.replace("on_lost: exit", "wait: 2s"));
    let mut agent = Agent::spawn(&home, &[], &environment);
    assert_eq!(agent.ended().code(), Some(75));
    assert_says(&read(&file), &["timed out after 2s waiting for s: 1st of 1 in the queue, held by "]);
    home.configure(&consul.address(), "semaphores: [{name: s, prefix: p/s, limit: 0}]\nlokcs: []");
    let mut agent = Agent::spawn(&home, &[], &environment);
    assert_eq!(agent.ended().code(), Some(78));
    assert_says(&read(&file), &["config.yaml", "limit", "; ", "lokcs"]);
}

#[test]
fn wait_explains_its_end_and_operators_commands_write_nothing() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(&consul.address(), "semaphores: [{name: s, prefix: p/s, limit: 1}]");
    let holder = Job::live(&consul.address(), &["p/s", "-n", "1"], MEEK);
    holder.await_life();
    let agent = Agent::start(&home);
    agent.await_state("waiting");
    let file = home.path("message");
    let of = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(arguments).env_clear().env(VARIABLE, &file).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let ends = |arguments: &[&str]| of(arguments).status().unwrap().code();
    assert_eq!(ends(&["probe", "ready", "--address", agent.address()]), Some(1));
    assert_eq!(ends(&["status", "--address", "127.0.0.1:1"]), Some(1));
    assert_eq!(ends(&["wait", "--timeout", "0s", "--help"]), Some(0));
    assert!(!file.exists(), "{}", read(&file));
    assert_eq!(ends(&["wait", "--timeout", "100ms", "--address", agent.address()]), Some(75));
    assert_says(
        &read(&file),
        &["timed out waiting for the agent to be ready", "waiting, 1 of 1 in the queue"],
    );
    assert_eq!(ends(&["wait", "--timeout", "soon"]), Some(64));
    assert_says(&read(&file), &["invalid value 'soon'"]);
    let mut waits = of(&["wait", "--address", agent.address()]).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("it to listen for signals", || {
        let status = read(Path::new(&format!("/proc/{}/status", waits.id())));
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
        u64::from_str_radix(caught.trim(), 16).is_ok_and(|set| set >> (Signal::TERM.as_raw() - 1) & 1 == 1)
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&waits), Signal::TERM).unwrap();
    assert_eq!(waits.wait().unwrap().code(), Some(143));
    assert_says(&read(&file), &["ended by SIGTERM while it waited"]);
}
