//! What `run` says before a wait, and at its end, to people who pass `--quiet`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;
use slotkeeper::internals::log_events;

use super::job::{Job, bare};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::BINARY;
use crate::support::life::now;
use crate::wait_for;

const ONE: [&str; 3] = ["p/one", "-n", "1"];

/// `run` with these words, without `--verbose`.
fn plain(consul: &Consul, words: &[&str]) -> Command {
    let mut run = Command::new(BINARY);
    run.args(["run", "--http-addr", &consul.address()]).args(words);
    bare(&mut run);
    run
}

/// Its exit code, and what it says.
fn said(mut run: Command) -> (Option<i32>, String) {
    let output = run.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn write(file: &std::path::Path, mode: u32) {
    fs::write(file, "#!/bin/sh\nexit 5\n").unwrap();
    fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_command_that_cannot_run_is_said_before_the_wait() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut holder = Job::start(&consul.address(), &ONE, &["sleep", "600"]);
    wait_for("the holder", || holder.log().contains(log_events::COMMAND_STARTED));
    let names = || operator.keys("p/one").into_iter().map(|pair| pair.key).collect::<Vec<_>>();
    let before = names();

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    write(&folder.path().join("plain"), 0o644);
    fs::create_dir(folder.path().join("sub")).unwrap();
    for (flags, command, code, why) in [
        (&[][..], "nosuchcommand".to_owned(), 127, "No such file"),
        (&[], at("absent"), 127, "No such file"),
        (&[], "./absent".to_owned(), 127, "No such file"),
        (&[], at("plain/below"), 126, "Not a directory"),
        (&[], String::new(), 127, "No such file"),
        (&[], at("plain"), 126, "Permission denied"),
        (&[], at("sub"), 126, "Permission denied"),
        // In a folder of the path.
        (&[], "plain".to_owned(), 126, "Permission denied"),
        (&["--shell"], "exit 3".to_owned(), 127, "cannot run /nonexistent/sh"),
    ] {
        let result = at("result.json");
        let mut run = plain(&consul, &ONE);
        run.args(flags).args(["--result-file", &result, "--", &command]).env("SHELL", "/nonexistent/sh");
        run.env(
            "PATH",
            folder.path().join("sub:").display().to_string() + &folder.path().display().to_string(),
        );
        let began = now();
        let (found, error) = said(run);
        let took = now() - began;
        assert!(took < 10.0, "{command}: {took} s");
        assert_eq!(found, Some(code), "{command}: {error}");
        assert!(
            error.starts_with("slotkeeper: p/one: cannot run ") && error.contains(why),
            "{command}: {error}"
        );
        let result: serde_json::Value = serde_json::from_slice(&fs::read(result).unwrap()).unwrap();
        assert_eq!(
            (&result["outcome"], &result["acquired"], &result["exit_code"], &result["command_exit_code"]),
            (&json!("failed"), &json!(false), &json!(code), &json!(null))
        );
        assert_eq!((names(), operator.sessions().len()), (before.clone(), 1), "{command}");
    }
    holder.signal(Signal::TERM);
    holder.ended();

    // A later folder of the path has one that may be executed.
    write(&folder.path().join("sub/plain"), 0o755);
    let path = format!("{}:{}", folder.path().display(), at("sub"));
    let mut run = plain(&consul, &ONE);
    run.args(["--", "plain"]).env("PATH", path);
    assert_eq!(said(run), (Some(5), String::new()));
    operator.assert_nothing_left("p/one");
}

#[test]
fn a_command_that_goes_during_the_wait_is_not_found_at_its_turn() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut holder = Job::start(&consul.address(), &ONE, &["sleep", "600"]);
    wait_for("the holder", || operator.sessions().len() == 1);
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    write(&script, 0o755);
    let mut waiter = Job::start(&consul.address(), &ONE, &[&script.display().to_string()]);
    wait_for("the wait", || waiter.log().contains(log_events::WAITING));
    fs::remove_file(&script).unwrap();
    holder.signal(Signal::TERM);
    holder.ended();
    assert_eq!(waiter.code(), Some(127), "{}", waiter.log());
    assert!(waiter.log().contains("cannot run "), "{}", waiter.log());
    operator.assert_nothing_left("p/one");
}

#[test]
fn a_stored_limit_above_the_own_one_is_warned_of_or_refused() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let run = |limit: &str, flags: &[&str], variable: &str| {
        let mut run = plain(&consul, &["p/one", "-n", limit]);
        run.args(flags).args(["--", "true"]).env("SLOTKEEPER_LIMIT_POLICY", variable);
        said(run)
    };
    assert_eq!(run("2", &["-q"], ""), (Some(0), String::new()));
    assert_eq!(operator.record("p/one")["Limit"], 2);
    // The other job may run beside this one, which expects to be alone.
    for level in ["-q", "--log-level=error"] {
        let (code, warning) = run("1", &[level], "");
        assert_eq!(code, Some(0), "{warning}");
        let found = warning.contains(" WARN ") && warning.contains(log_events::LIMIT_DIFFERS);
        assert!(
            found && warning.contains("more slots may be held at once") && warning.lines().count() == 1,
            "{warning}"
        );
        assert!(warning.contains("stored=2 configured=1"), "{warning}");
    }
    // Fewer slots than expected harm nobody.
    assert_eq!(run("3", &["-q"], ""), (Some(0), String::new()));
    assert!(run("3", &[], "").1.contains(log_events::LIMIT_DIFFERS));

    for (flags, variable) in [(&["--limit-policy", "refuse"][..], ""), (&[], "refuse")] {
        let (code, error) = run("1", flags, variable);
        assert_eq!(code, Some(78), "{error}");
        assert!(error.contains("the limit stored in p/one/.lock is 2, the configured one 1"), "{error}");
    }
    assert_eq!(run("3", &["-q", "--limit-policy", "set"], "refuse"), (Some(0), String::new()));
    assert_eq!(operator.record("p/one")["Limit"], 3);
    for (words, why) in [
        (&["p/one", "--limit-policy", "set"][..], "--limit-policy is for a semaphore; pass --limit N"),
        (&["p/one", "-n", "1", "--limit-policy", "never"], "[possible values: adopt, set, refuse]"),
        (&["p/one", "--lock", "--limit-policy", "set"], "cannot be used with"),
        (&["--config", "f", "--limit-policy", "set"], "cannot be used with"),
    ] {
        let mut run = plain(&consul, words);
        run.args(["--", "true"]);
        let (code, error) = said(run);
        assert_eq!(code, Some(64), "{words:?}: {error}");
        assert!(error.contains(why), "{words:?}: {error}");
    }
    let (_, error) = run("1", &[], "never");
    assert!(error.contains("--limit-policy: unknown value `never`"), "{error}");
    operator.assert_nothing_left("p/one");
}

/// Cron mails it.
#[test]
fn the_last_line_of_a_quiet_run_says_who_evicted_it() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut run = plain(&consul, &ONE);
    run.args(["--quiet", "--name", "stuck job", "--", "sleep", "600"]);
    let mut job = Job::spawn(run, tempfile::tempdir().unwrap());
    wait_for("the holder", || operator.sessions().len() == 1 && operator.keys("p/one").len() == 2);
    wait_for("the eviction", || {
        let evict = Command::new(BINARY)
            .args(["evict", "p/one", "stuck job", "--yes", "--http-addr", &consul.address()])
            .output();
        evict.unwrap().status.success()
    });
    assert_eq!(job.code(), Some(80), "{}", job.log());
    let log = job.log();
    assert!(log.starts_with("slotkeeper: p/one: evicted by "), "{log}");
    assert!(log.ends_with("; the command was stopped; exit 80\n") && log.lines().count() == 1, "{log}");
    operator.assert_nothing_left("p/one");
}
