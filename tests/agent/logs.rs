//! The log: its fields, its formats, and what stands in it before the start.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::hold::home;
use crate::process::{Agent, BINARY, Home};
use crate::run::job::bare;
use crate::terminal::Shell;
use crate::wait_for;

/// An agent that logs as JSON.
fn in_json(consul: &Consul, settings: &[(&str, &str)]) -> (Agent, Home) {
    let home = home(consul);
    let agent = Agent::spawn(&home, &[], &[settings, &[("SLOTKEEPER_LOG_FORMAT", "json")]].concat());
    wait_for("the slot", || agent.log().contains(log_events::SLOT_ACQUIRED));
    (agent, home)
}

fn lines(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn json_logs_are_one_object_a_line_with_the_names_of_the_events() {
    let consul = Consul::start();
    let (mut agent, _home) = in_json(&consul, &[]);
    assert_eq!(agent.terminate(), Some(0));
    let log = lines(&agent.log());
    let acquired = log.iter().find(|line| line["message"] == log_events::SLOT_ACQUIRED).unwrap();
    assert_eq!(acquired["level"], "INFO");
    for (field, value) in
        [("event", "acquired"), ("kind", "semaphore"), ("name", "s"), ("prefix", "service/s")]
    {
        assert_eq!(acquired[field], value, "{acquired}");
    }
    assert!(acquired["fencing_token"].is_u64() && acquired["waited_seconds"].is_f64(), "{acquired}");
    assert_eq!((&acquired["slot"], acquired.get("key")), (&json!(0), None));
    // Other lines have none.
    let events: Vec<_> = log.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!(events, ["session_started", "acquired", "ready", "draining", "not_ready", "released"]);
    assert!(log.iter().any(|line| line.get("event").is_none()));
}

#[test]
fn requests_are_logged_at_debug() {
    let consul = Consul::start();
    let (mut agent, _home) = in_json(&consul, &[("SLOTKEEPER_LOG_LEVEL", "debug")]);
    agent.terminate();
    let log = lines(&agent.log());
    let requests: Vec<_> = log.iter().filter(|line| line["message"] == log_events::REQUEST_ENDED).collect();
    let commit = requests.iter().find(|line| line["operation"] == "txn").unwrap();
    assert_eq!((&commit["level"], &commit["code"]), (&json!("DEBUG"), &json!("200")));
    assert_eq!(commit["address"], format!("http://{}", consul.address()));
    assert!(commit["object"].as_str().unwrap().starts_with("service/s/"), "{commit}");
    assert!(commit["took_seconds"].is_f64());
}

#[test]
fn failures_before_the_start_are_json_too() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.yaml");
    fs::write(&wrong, "log: {format: json}\nsemaphores: [{name: s, limit: 0}]\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    let absent = folder.path().join("absent.yaml");
    let absent = absent.to_str().unwrap();
    for (arguments, variable, code, texts) in [
        (&["agent", "--log-format", "json", "--config", absent][..], "", 78, &["cannot be opened"][..]),
        (&["agent", "--config", absent], "json", 78, &["cannot be opened"]),
        // The file itself says so, and each fault is one line.
        (&["agent", "--config", wrong], "", 78, &["limit", "prefix"]),
        (&["agent", "--log-format=json", "--nonsense"], "", 64, &["unexpected argument"]),
        (&["run", "--log-format", "json", "p", "sleep", "1"], "", 64, &["unexpected argument 'sleep'"]),
        (&["run", "--log-format", "json", "--", "true"], "", 64, &["no slot is named"]),
        (&["agent"], "json", 64, &["not provided: --config <FILE>"]),
    ] {
        let mut command = Command::new(BINARY);
        bare(&mut command);
        let ended = command.args(arguments).env("SLOTKEEPER_LOG_FORMAT", variable).output().unwrap();
        let log = lines(&String::from_utf8(ended.stderr).unwrap());
        assert_eq!((ended.status.code(), log.len()), (Some(code), texts.len()), "{arguments:?}: {log:?}");
        for text in texts {
            let told =
                log.iter().any(|line| line["error"].as_str().is_some_and(|error| error.contains(text)));
            assert!(told, "{text}: {log:?}");
        }
        assert!(log.iter().all(|line| line["level"] == "ERROR" && line["timestamp"].is_string()));
    }
}

#[test]
fn processes_beside_the_command_log_in_the_same_format() {
    let consul = Consul::start();
    let mut command = Command::new(BINARY);
    bare(&mut command);
    command.args(["run", "p/one", "-n", "1", "--log-format", "json", "--http-addr", &consul.address()]);
    // Only the system notices that its interpreter is missing.
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    fs::write(&script, "#!/nonexistent/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let ended = command.arg("--").arg(&script).output().unwrap();
    let log = lines(&String::from_utf8(ended.stderr).unwrap());
    assert_eq!(ended.status.code(), Some(127), "{log:?}");
    let expected = format!("cannot run {}: No such file", script.display());
    let told = log.iter().any(|line| line["message"].as_str().unwrap().starts_with(&expected));
    assert!(told, "{log:?}");
}

#[test]
fn journald_and_a_terminal_need_no_time_in_the_line() {
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    let acquired = |journal: &dyn Fn(&File) -> String| {
        let file = File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(BINARY);
        bare(&mut command);
        command.args(["run", "p/one", "-n", "1", "-v", "--http-addr", &consul.address(), "--", "true"]);
        command.env("JOURNAL_STREAM", journal(&file)).stdin(Stdio::null());
        assert!(command.stderr(file).status().unwrap().success());
        let log = fs::read_to_string(folder.path().join("log")).unwrap();
        let line = log.lines().find(|line| line.contains(log_events::SLOT_ACQUIRED)).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{log}"))
    };
    let stream = |file: &File| {
        let found = file.metadata().unwrap();
        format!("{}:{}", found.dev(), found.ino())
    };
    let start = format!("INFO {} name=p/one session=", log_events::SLOT_ACQUIRED);
    let job = "slotkeeper: p/one: ";
    assert!(acquired(&stream).starts_with(&format!("{job}{start}")));
    // The variable of a parent whose standard error was another.
    let dated = acquired(&|_| "8:1".to_owned());
    assert!(dated.starts_with(&format!("{job}20")) && dated.contains(&format!(" {start}")), "{dated}");

    let mut shell = Shell::start_on(Some("xterm"));
    let address = consul.address();
    shell.press(&format!("clear; {BINARY} run p/two -n 1 -v --http-addr {address} -- true\n"));
    let screen = shell.await_screen("the release", |screen| screen.contains(log_events::SLOT_RELEASED));
    let line = screen.lines().find(|line| line.contains(log_events::SLOT_ACQUIRED)).unwrap();
    assert!(line.starts_with("slotkeeper: p/two: INFO "), "{screen}");
}
