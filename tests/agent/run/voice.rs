//! What `run` says on standard error: lines that begin with the program and the job, of which the last says why it failed.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use super::job::{Job, bare};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::BINARY;
use crate::support::life::{MEEK, STUBBORN};
use crate::wait_for;

/// A `run` with these words.
fn run(consul: &str, words: &[&str]) -> Job {
    let mut run = Command::new(BINARY);
    bare(&mut run);
    run.arg("run").args(words).env("CONSUL_HTTP_ADDR", consul);
    Job::spawn(run, tempfile::tempdir().unwrap())
}

/// Checks its code, that all lines name the job, and that the last one has these parts.
fn assert_says(mut job: Job, code: i32, name: &str, parts: &[&str]) {
    assert_eq!(job.code(), Some(code), "{}", job.log());
    let log = job.log();
    let begin = format!("slotkeeper: {name}: ");
    assert!(log.lines().all(|line| line.starts_with(&begin)), "{log}");
    let last = log.lines().last().unwrap_or_default();
    assert!(parts.iter().all(|part| last.contains(part)), "no {parts:?} at the end of {log}");
    assert!(last.ends_with(&format!("; exit {code}")), "{log}");
}

#[test]
fn what_is_wrong_before_the_start_names_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.yaml");
    fs::write(&file, "semaphores: [{name: one, prefix: p/one, limit: 0}]\nlokcs: []\n").unwrap();
    let file = file.to_str().unwrap();
    let write = "cannot be used with '--config <FILE>'; write its key in FILE instead: `wait` for --timeout";
    for (words, code, name, part) in [
        (
            &["p/one", "-n", "1", "--nonsense", "--", "true"][..],
            64,
            "p/one",
            "unexpected argument '--nonsense'",
        ),
        (&["p/one/.lock", "-n", "many", "--", "true"], 64, "p/one", "invalid value 'many'"),
        (&["p/one", "--slots", "2", "--", "true"], 64, "p/one", "--slots is for a semaphore; pass --limit N"),
        (&["p/one", "-n", "1", "--ttl", "1s", "--", "true"], 64, "p/one", "--ttl: "),
        (
            &["p/one", "-n", "1", "--", "/nonexistent/x"],
            127,
            "p/one",
            "cannot run /nonexistent/x: No such file",
        ),
        (&["--", "/bin/true"], 64, "true", "no slot is named"),
        (&["--config", "/nonexistent/file", "--", "true"], 78, "true", "cannot be opened"),
        (&["--config", file, "--name", "nightly import", "--", "true"], 78, "nightly import", "lokcs"),
        (&["--timeout", "9s", "--config", file, "--", "true"], 64, "true", write),
        (&["--try", "--config", file, "--", "true"], 64, "true", write),
        (&["-n", "9", "--config", file, "--", "true"], 64, "true", write),
    ] {
        assert_says(run("127.0.0.1:1", words), code, name, &[part]);
    }
}

#[test]
fn the_last_line_says_what_happened_and_what_was_done() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let address = consul.address();
    let holder = Job::live(&address, &["p/one", "-n", "1", "--name", "import"], MEEK);
    holder.await_life();
    let waits = |words: &[&str]| run(&address, &[&["p/one", "-n", "1"], words, &["--", "true"]].concat());
    let not_started = "; the command did not start";
    let free = "no free slot (1 of 1 taken by import on ";
    assert_says(waits(&["--try"]), 75, "p/one", &["slotkeeper: p/one: no free slot", free, not_started]);
    let parts = ["timed out after 1s waiting: 1st of 1 in the queue, held by import on ", not_started];
    assert_says(waits(&["--quiet", "--timeout", "1s"]), 75, "p/one", &parts);
    assert_says(
        waits(&["--quiet", "--datacenter", "no"]),
        78,
        "p/one",
        &["No path to datacenter", not_started],
    );
    let job = waits(&["--quiet"]);
    wait_for("it to wait", || operator.keys("p/one").len() == 3);
    job.signal(Signal::TERM);
    assert_says(job, 143, "p/one", &["ended by SIGTERM while it waited", not_started]);
    // Whoever tries and wants to hear of failures alone expects this.
    let mut job = waits(&["--quiet", "--try"]);
    assert_eq!((job.code(), job.log().as_str()), (Some(75), ""));
    let mut lost = holder;
    operator.destroy(&operator.holders("p/one").remove(0));
    assert_eq!(lost.code(), Some(80));
    let log = lost.log();
    assert!(log.lines().all(|line| line.starts_with("slotkeeper: p/one: ")), "{log}");
    let end = "slotkeeper: p/one: slot lost: its session has ended in Consul (session_gone); the command was stopped; exit 80";
    assert_eq!(log.lines().last(), Some(end), "{log}");

    let words = ["p/one", "-n", "1", "-q", "--stop-after", "1s", "--", "sh", "-c", STUBBORN];
    let folder = tempfile::tempdir().unwrap();
    let life = folder.path().join("life").display().to_string();
    let job = run(&address, &[&words[..], &[&life]].concat());
    wait_for("the command", || fs::exists(&life).unwrap());
    job.signal(Signal::TERM);
    assert_says(
        job,
        137,
        "p/one",
        &["the command did not end within --stop-after, and was killed; exit 137"],
    );
}

#[test]
fn a_file_makes_it_as_silent_as_a_prefix_and_a_group_names_the_member_that_is_taken() {
    let consul = Consul::start();
    let address = consul.address();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.yaml");
    let with = |wait: &str| {
        let entry = |name: &str| format!("{{name: {name}, prefix: p/{name}, limit: 1{wait}}}");
        fs::write(&file, format!("semaphores: [{}, {}]\n", entry("a"), entry("b"))).unwrap();
        file.to_str().unwrap()
    };
    let words = ["--config", with(""), "--", "true"];
    let mut job = run(&address, &words);
    assert_eq!((job.code(), job.log().as_str()), (Some(0), ""));
    let mut job = run(&address, &[&["--log-level", "info"], &words[..]].concat());
    assert_eq!(job.code(), Some(0));
    let log = job.log();
    assert!(
        log.contains(" INFO ") && log.lines().all(|line| line.starts_with("slotkeeper: true: ")),
        "{log}"
    );
    let holder = Job::live(&address, &["p/b", "-n", "1", "--name", "import"], MEEK);
    holder.await_life();
    let job = run(&address, &["--config", with(", wait: 2s"), "--quiet", "--", "true"]);
    let part = "timed out after 2s waiting for 2 of 2 missing; b: 1st of 1 in the queue, held by import on ";
    assert_says(job, 75, "true", &[part]);
    let job = run(&address, &["--config", with(", wait: 0s"), "--", "true"]);
    assert_says(job, 75, "true", &["slotkeeper: true: b: no free slot (1 of 1 taken by import on "]);
    let mut job = run(&address, &["--config", with(", wait: 0s"), "--quiet", "--", "true"]);
    assert_eq!((job.code(), job.log().as_str()), (Some(75), ""));
}
