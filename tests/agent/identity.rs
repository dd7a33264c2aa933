//! The identity of a job: in its contender key, in its session's name, and in all that people read.

use std::process::Command;

use serde_json::{Value, json};

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{BINARY, Lodger};
use crate::run::job::{Job, bare, run};
use crate::unanswered::host;
use crate::wait_for;

const PREFIX: &str = "service/backup";
const ONE: [&str; 3] = [PREFIX, "-n", "1"];

/// The identity in the key of the one participant, and the name of its session.
fn published(operator: &Operator, job: &Job) -> (Value, String) {
    wait_for("the holder", || operator.lock(PREFIX).is_some() && !operator.holders(PREFIX).is_empty());
    let session = operator.holders(PREFIX).remove(0);
    let mut who = operator.entry(PREFIX, &session)["who"].clone();
    assert_eq!((&who["host"], &who["pid"]), (&json!(host()), &json!(job.pid().as_raw_nonzero().get())));
    let fields = who.as_object_mut().unwrap();
    fields.retain(|name, _| !["host", "pid"].contains(&name.as_str()));
    let name = operator.session(&session).unwrap().name;
    (who, name)
}

fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_job_is_called_by_its_name_or_its_command() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let line = "sleep 600; echo a line that is longer than a name";
    for (flags, words, name, command) in [
        (&[][..], &["/bin/sleep", "600"][..], "sleep", None),
        (&["--name", "nightly backup"], &["/bin/sleep", "600"], "nightly backup", Some("sleep")),
        (&["--shell"], &[line], "sleep 600; echo a line that is longer th…", None),
        // The line may contain a secret.
        (&["--shell", "--name", "backup"], &[line], "backup", None),
    ] {
        let mut job = Job::start(&consul.address(), &[&ONE[..], flags].concat(), words);
        let (who, session) = published(&operator, &job);
        let mut expected = json!({"name": name, "user": user()});
        command.into_iter().for_each(|command| expected["command"] = json!(command));
        assert_eq!(who, expected);
        let words = format!("{name} on {} pid {}", host(), job.pid().as_raw_nonzero());
        assert_eq!(session, format!("slotkeeper {PREFIX}: {words}"));
        job.signal(rustix::process::Signal::TERM);
        job.ended();
        operator.assert_nothing_left(PREFIX);
    }
}

#[test]
fn the_variable_names_a_job_and_session_name_begins_its_sessions() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut command = run(&consul.address(), &ONE, &["sleep", "600"]);
    command.envs([("SLOTKEEPER_NAME", "nightly"), ("SLOTKEEPER_SESSION_NAME", "slotkeeper")]);
    let job = Job::spawn(command, tempfile::tempdir().unwrap());
    let (who, session) = published(&operator, &job);
    assert_eq!((&who["name"], &who["command"]), (&json!("nightly"), &json!("sleep")));
    assert_eq!(session, format!("slotkeeper nightly on {} pid {}", host(), job.pid().as_raw_nonzero()));
}

#[test]
fn a_name_that_is_no_short_line_is_refused() {
    let ended = |name: &str, variable: &str| {
        let mut command = Command::new(BINARY);
        bare(&mut command);
        command.args(["run", PREFIX, "-n", "1", "--http-addr", "127.0.0.1:1", "--try"]);
        if !name.is_empty() {
            command.args(["--name", name]);
        }
        let output = command.env("SLOTKEEPER_NAME", variable).args(["--", "true"]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = ended(&"n".repeat(101), "");
    assert!(code == Some(64) && said.contains("has 101 bytes; write at most 100"), "{code:?} {said}");
    let (code, said) = ended("a\nb", "");
    assert!(code == Some(64) && said.contains("has control characters; remove them"), "{code:?} {said}");
    let (code, said) = ended("", "a\tb");
    let expected = "SLOTKEEPER_NAME: has control characters; remove them";
    assert!(code == Some(78) && said.contains(expected), "{code:?} {said}");
}

/// What a command of `slotkeeper` prints.
fn printed(consul: &Consul, arguments: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    bare(&mut command);
    let output = command.args(arguments).args(["--http-addr", &consul.address()]).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn a_holder_is_named_in_one_form_from_the_instant_of_its_grant() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    // Quiet jobs read nothing for people, so that the releaser knows the waiters by `.lock` alone.
    let quiet = |name: &str| {
        let mut command = Command::new(BINARY);
        bare(&mut command);
        command.env("SLOTKEEPER_LOG_LEVEL", "error").args(["run", "--http-addr", &consul.address()]);
        command.args(ONE).args(["--name", name, "--", "sleep", "600"]);
        Job::spawn(command, tempfile::tempdir().unwrap())
    };
    let await_keys = |count| wait_for("the next in the queue", || operator.keys(PREFIX).len() == count);
    let mut first = quiet("first");
    await_keys(2);
    let second = quiet("second");
    wait_for("the handoff list", || operator.next(PREFIX).len() == 1);
    let third = quiet("third");
    await_keys(4);
    first.signal(rustix::process::Signal::TERM);
    first.ended();
    let session = operator.holders(PREFIX).remove(0);
    let granted = operator.entry(PREFIX, &session);
    assert_eq!((&granted["state"], &granted["who"]["name"]), (&json!("held"), &json!("second")), "{granted}");
    let words = |name: &str, job: &Job| format!("{name} on {} pid {}", host(), job.pid().as_raw_nonzero());
    let second = words("second", &second);
    for arguments in [&["sessions", PREFIX][..], &["inspect", PREFIX]] {
        let table = printed(&consul, arguments);
        assert!(table.lines().any(|row| row.contains(&session) && row.contains(&second)), "{table}");
        assert!(table.contains(&words("third", &third)), "{table}");
    }
    let asked = printed(&consul, &["evict", PREFIX, &session]);
    assert!(asked.contains(&format!("evicting session {session} ({second})")), "{asked}");
    let mut command = Command::new(BINARY);
    bare(&mut command);
    command.args(["run", "--http-addr", &consul.address(), "--timeout", "3s"]).args(ONE).args(["--", "true"]);
    let mut last = Job::spawn(command, tempfile::tempdir().unwrap());
    assert_eq!(last.code(), Some(75));
    assert!(
        last.log().contains(&format!("{PREFIX}: waiting: 2nd of 2 in the queue, held by {second}")),
        "{}",
        last.log()
    );
}

#[test]
fn the_owner_of_a_lock_is_named_in_its_value_and_in_the_log_of_those_who_wait() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let owner = Job::start(&consul.address(), &[PREFIX, "--name", "migrate"], &["sleep", "600"]);
    wait_for("the lock", || operator.lock(PREFIX).is_some_and(|lock| lock.session.is_some()));
    let lock = operator.lock(PREFIX).unwrap();
    let value: Value = serde_json::from_slice(&lock.value).unwrap();
    assert_eq!(value["who"]["name"], "migrate");
    let words = format!("migrate on {} pid {}", host(), owner.pid().as_raw_nonzero());
    let name = operator.session(&lock.session.unwrap()).unwrap().name;
    assert_eq!(name, format!("slotkeeper {PREFIX}: {words}"));
    let waiter = Job::start(&consul.address(), &[PREFIX], &["true"]);
    let said = format!("lock held by another session name={PREFIX} ");
    wait_for("the owner in the log", || {
        let log = waiter.log();
        log.lines().any(|line| line.contains(&said) && line.contains(&format!("who=\"{words}\"")))
    });
    let rest = format!("locks: [{{name: m, key: {PREFIX}/.lock, required: false}}]");
    let agent = Lodger::start_with(&consul.address(), &rest, &[("SLOTKEEPER_NAME", "watch")]);
    wait_for("the owner in the status", || agent.status()["locks"][0]["leader"]["who"]["name"] == "migrate");
}
