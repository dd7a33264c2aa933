//! `--result-file` and `--quiet`: what a caller learns, and what it does not have to read.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::job::{Job, bare, run};
use crate::consul::Consul;
use crate::process::BINARY;

const ONE: [&str; 3] = ["p/one", "-n", "1"];

/// Runs a command line with a result file. Returns the exit code, the result and the log.
fn result(consul: &str, arguments: &[&str], command: &[&str]) -> (Option<i32>, Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    std::fs::write(&file, "an earlier result").unwrap();
    let mut line = run(consul, arguments, command);
    line.env("SLOTKEEPER_RESULT_FILE", &file);
    let mut job = Job::spawn(line, folder);
    let code = job.code();
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    (code, serde_json::from_str(&text).unwrap_or_default(), job.log())
}

#[test]
fn the_result_tells_the_commands_code_from_slotkeepers() {
    let consul = Consul::start();
    let address = consul.address();
    let (code, result_of_command, _) = result(&address, &ONE, &["sh", "-c", "exit 75"]);
    assert_eq!(code, Some(75));
    let of = |result: &Value, field: &str| result[field].clone();
    assert_eq!(of(&result_of_command, "outcome"), "command_ended", "{result_of_command}");
    assert_eq!(of(&result_of_command, "command_exit_code"), 75);
    assert_eq!(of(&result_of_command, "acquired"), true);
    assert_eq!(of(&result_of_command, "reason"), Value::Null);
    assert!(result_of_command["ran_seconds"].is_number(), "{result_of_command}");

    let first = Job::live(&address, &ONE, crate::support::life::MEEK);
    first.await_life();
    let (code, timed_out, _) = result(&address, &["p/one", "-n", "1", "--try"], &["true"]);
    assert_eq!(code, Some(75));
    assert_eq!(of(&timed_out, "outcome"), "timed_out", "{timed_out}");
    assert_eq!((of(&timed_out, "acquired"), of(&timed_out, "exit_code")), (false.into(), 75.into()));
    assert_eq!(
        (of(&timed_out, "command_exit_code"), of(&timed_out, "ran_seconds")),
        (Value::Null, Value::Null)
    );
    assert!(timed_out["reason"].as_str().is_some_and(|why| why.contains("no free slot")), "{timed_out}");

    let (code, unreachable, _) = result("127.0.0.1:1", &["p/one", "-n", "1", "--timeout", "1s"], &["true"]);
    assert_eq!((code, of(&unreachable, "outcome")), (Some(69), "unavailable".into()), "{unreachable}");
}

#[test]
fn a_result_file_that_is_no_regular_file_is_refused_before_anything_is_acquired() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    for path in [Path::new("/dev/null"), folder.path(), &link] {
        let path = path.to_str().unwrap();
        let mut job = Job::start("127.0.0.1:1", &["p/one", "-n", "1", "--result-file", path], &["true"]);
        assert_eq!(job.code(), Some(78), "{}", job.log());
        assert!(job.log().contains("--result-file"), "{}", job.log());
    }
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
}

#[test]
fn a_quiet_run_prints_failures_alone() {
    let consul = Consul::start();
    let address = consul.address();
    let quiet = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        bare(&mut command);
        command
            .args(["run", "--quiet", "--http-addr", &address])
            .args(ONE)
            .args(arguments)
            .args(["--", "true"]);
        let mut job = Job::spawn(command, tempfile::tempdir().unwrap());
        (job.code(), job.log())
    };
    assert_eq!(quiet(&[]), (Some(0), String::new()));
    let first = Job::live(&address, &ONE, crate::support::life::MEEK);
    first.await_life();
    // Long enough for a first line of progress.
    let (code, log) = quiet(&["--timeout", "2s"]);
    assert_eq!(code, Some(75));
    assert!(log.lines().count() == 1 && log.contains("timed out after 2s"), "{log}");
}
