//! The commands that people and probes run beside an agent.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use crate::consul::Consul;
use crate::hold::home;
use crate::process::{Agent, BINARY, Home, address_in};
use crate::stub::Stub;
use crate::support::ports::Ports;
use crate::terminal::Shell;
use crate::wait_for;
use slotkeeper::internals::log_events;

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(BINARY).args(arguments).env_clear().output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn wait_probe_and_status_ask_the_local_agent() {
    let consul = Consul::start();
    let (home_a, home_b) = (home(&consul), home(&consul));
    let mut first = Agent::start(&home_a);
    first.await_ready();
    let second = Agent::start(&home_b);
    second.await_state("waiting");
    let (a, b) = (["--address", first.address()], ["--address", second.address()]);

    assert_eq!(run(&["wait", a[0], a[1]]).0, Some(0));
    assert_eq!(run(&["wait", "--timeout", "0s", a[0], a[1]]).0, Some(0), "it asks once");
    assert_eq!(run(&["wait", "--timeout", "0s", b[0], b[1]]).0, Some(75));
    // Another agent may have the address of the one that is meant.
    let configs = [&home_a, &home_b].map(|home| home.path("config.yaml").to_str().unwrap().to_owned());
    assert_eq!(run(&["wait", "--config", &configs[0], a[0], a[1]]).0, Some(0));
    let (code, _, said) = run(&["wait", "--config", &configs[1], a[0], a[1]]);
    assert_eq!(code, Some(78));
    assert!(said.contains(&format!("has the configuration {}, not {}", configs[0], configs[1])), "{said}");
    let (code, _, said) = run(&["wait", "--timeout", "100ms", b[0], b[1]]);
    assert_eq!(code, Some(75));
    assert!(said.contains("waiting, 1 of 1 in the queue"), "{said}");
    for (endpoint, of_first, of_second) in [("live", 0, 0), ("ready", 0, 1), ("startup", 0, 1)] {
        assert_eq!(run(&["probe", endpoint, a[0], a[1]]).0, Some(of_first), "{endpoint}");
        assert_eq!(run(&["probe", endpoint, b[0], b[1]]).0, Some(of_second), "{endpoint}");
    }
    let (code, table, _) = run(&["status", b[0], b[1]]);
    assert_eq!(code, Some(0));
    assert!(table.contains("s          waiting  1/1    1 of 1  -     "), "{table}");
    assert!(table.contains("s is held by ") && !table.contains("(this agent)"), "{table}");
    let (_, json, _) = run(&["status", "--json", a[0], a[1]]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["semaphores"][0]["state"], "held");

    // The first look at a waiter has the holder's name and the slots, and at a holder nothing is old.
    let home_c = home(&consul);
    let third = Agent::start(&home_c);
    wait_for("its wait", || third.log().contains(log_events::WAITING));
    let (_, table, errors) = run(&["status", "--address", third.address()]);
    let word = |word: &str| table.contains(word);
    assert!(word(" waiting  1/1 ") && word("s is held by ") && !word("held by session"), "{table}{errors}");
    assert!(!word("as of"), "{table}");
    let (code, _, errors) = run(&["status", "--address", "127.0.0.1:1"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("slotkeeper list and slotkeeper inspect PREFIX"), "{errors}");

    // Both variables may well be set in a pod; names are looked up.
    let port = first.address().rsplit(':').next().unwrap();
    let probe = Command::new(BINARY)
        .args(["probe", "ready"])
        .env_clear()
        .env("SLOTKEEPER_HTTP_LISTEN", format!("localhost:{port}"))
        .env("SLOTKEEPER_CONFIG", home_a.path("config.yaml"))
        .status();
    assert_eq!(probe.unwrap().code(), Some(0));

    // One waits in the background until the slot is handed over.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| run(&["wait", "--timeout", "50s", b[0], b[1]]).0);
        assert_eq!(first.terminate(), Some(0));
        assert_eq!(waiting.join().unwrap(), Some(0));
    });
    // It knew of its grant before it read `.lock` again, which named the first one.
    let (_, table, _) = run(&["status", b[0], b[1]]);
    assert!(table.contains("(this agent)"), "{table}");
}

/// The passage of time is no change: a wait has several answers of its agent, which differ in nothing else.
#[test]
fn status_watches_and_shows_changes_alone() {
    let status = |nth: usize, state: &str| {
        serde_json::json!({
            "agent": {"version": "1.2.3", "state": "running", "ready": false, "now": format!("2026-01-02T03:04:0{nth}Z")},
            "session": {"id": "5e55", "expires_in_seconds": 20 + nth},
            "semaphores": [{
                "name": "s", "state": state, "required": true, "age_seconds": nth, "seen_seconds_ago": nth,
                "slot_indexes": [], "holders": [], "mode": "hold", "leases": [],
            }],
        })
    };
    let stub = Stub::start(move |nth, _| {
        let answer = status(nth.min(9), if nth < 4 { "waiting" } else { "held" });
        Some((200, answer.to_string()))
    });
    for arguments in [&["--watch"][..], &["--watch", "-o", "yaml"], &["--watch", "--json"]] {
        let mut watching = Command::new(BINARY)
            .args(["status", "--address", stub.address()])
            .args(arguments)
            .env_clear()
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(watching.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut pictures = 0;
        for line in lines {
            pictures += usize::from(
                line.starts_with("SEMAPHORE") || line.starts_with("agent:") || line.starts_with('{'),
            );
            if line.contains("held") {
                break;
            }
        }
        watching.kill().unwrap();
        watching.wait().unwrap();
        // Only the first command sees the wait.
        assert_eq!(pictures, if arguments.len() == 1 { 2 } else { 1 }, "{arguments:?}");
    }
}

#[test]
fn status_has_other_forms() {
    let consul = Consul::start();
    let home = home(&consul);
    let agent = Agent::start(&home);
    agent.await_ready();
    let status = |more: &[&str]| {
        let (code, said, errors) = run(&[&["status", "--address", agent.address()], more].concat());
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        said
    };
    assert_eq!(status(&["-o", "name"]), "s\n");
    let wide = status(&["-o", "wide"]);
    let header: Vec<_> = wide.lines().next().unwrap().split_whitespace().collect();
    let columns = [
        "SEMAPHORE",
        "STATE",
        "REQUIRED",
        "TAKEN",
        "QUEUE",
        "SLOT",
        "AGE",
        "LEASES",
        "TOKEN",
        "SINCE",
        "PREFIX",
    ];
    assert_eq!(header, columns);
    assert!(wide.contains("service/s\n"), "{wide}");
    assert!(status(&["--no-headers"]).starts_with("s  held  1/1 "), "{}", status(&["--no-headers"]));
    let yaml = status(&["--output", "yaml"]);
    assert!(yaml.starts_with("schema_version: 1\nagent:\n") && yaml.contains("\n  state: held\n"), "{yaml}");
    let (code, _, errors) = run(&["status", "--json", "-o", "yaml"]);
    assert_eq!((code, errors.contains("cannot be used with")), (Some(64), true), "{errors}");
}

/// Each change is shown and no other; trouble is said when it comes and when it goes.
#[test]
fn a_watch_shows_changes_and_reports_a_failure_once() {
    const SAID: [Option<&str>; 7] = [Some("1"), Some("1"), None, None, None, Some("1"), Some("2")];
    let stub =
        Stub::start(|nth, _| SAID.get(nth).copied().unwrap_or(Some("3")).map(|said| (200, said.to_owned())));
    let folder = tempfile::tempdir().unwrap();
    let errors = folder.path().join("errors");
    let mut watching = Command::new(BINARY)
        .args(["status", "--watch", "--json", "--address", stub.address()])
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&errors).unwrap())
        .spawn()
        .unwrap();
    let lines = BufReader::new(watching.stdout.take().unwrap()).lines().map_while(Result::ok);
    let shown: Vec<_> = lines.take(3).collect();
    watching.kill().unwrap();
    watching.wait().unwrap();
    assert_eq!(shown, ["1", "2", "3"]);
    let errors = fs::read_to_string(errors).unwrap();
    let errors: Vec<_> = errors.lines().collect();
    assert_eq!((errors.len(), errors.last()), (2, Some(&"slotkeeper: recovered")), "{errors:?}");
    assert!(errors[0].starts_with("slotkeeper: no agent answers at ") && errors[0].ends_with("; retrying"));
}

/// An agent that has gone is not to look like one that lives.
#[test]
fn on_a_terminal_status_shows_its_age_and_fits_the_window() {
    let name = "n".repeat(60);
    let status = serde_json::json!({
        "agent": {"version": "1.2.3", "state": "running", "ready": true}, "session": null,
        "semaphores": [{
            "name": name, "state": "waiting", "reason": "something went wrong with words", "required": true,
            "slot_indexes": [], "holders": [], "mode": "hold", "leases": [],
        }],
    });
    let stub = Stub::start(move |nth, _| (nth == 0).then(|| (200, status.to_string())));
    let mut shell = Shell::start_on(Some("xterm"));
    shell.resize(24, 80);
    shell.press(&format!("clear; {BINARY} status --watch --address {}\n", stub.address()));
    // A picture takes the place of the one before row by row.
    let cut = |row: &str| row.starts_with("SEMAPHORE") && row.chars().count() == 80 && row.ends_with('…');
    let sentence = format!("{name}: something went\nwrong with words\n");
    let is_old = |screen: &str| {
        screen.starts_with("as of ")
            && screen.contains("agent 1.2.3 running, ready")
            && screen.lines().any(cut)
            && screen.contains(&sentence)
    };
    let screen = shell.await_screen("its age, in rows that fit", is_old);
    assert_eq!(screen.matches("as of ").count(), 1, "{screen}");
    shell.press("\x03");
    shell.press("echo \"code\" $?\n");
    shell.await_screen("the end", |screen| screen.contains("code 130"));
}

#[test]
fn without_an_agent_the_error_names_the_address() {
    let nobody = ["--address", "127.0.0.1:1"];
    let (code, _, said) = run(&["probe", "live", nobody[0], nobody[1]]);
    assert_eq!(code, Some(1));
    assert!(said.starts_with("slotkeeper: no agent answers at http://127.0.0.1:1/livez"), "{said}");
    let off =
        Command::new(BINARY).args(["probe", "live"]).env("SLOTKEEPER_HTTP_LISTEN", "off").output().unwrap();
    assert!(String::from_utf8_lossy(&off.stderr).contains("http.listen is off"));
    for watch in [&[][..], &["--watch"]] {
        let (code, _, said) = run(&[&["status"], &nobody[..], watch].concat());
        assert_eq!(code, Some(1));
        assert!(said.starts_with("slotkeeper: no agent answers at http://127.0.0.1:1/v1/status"), "{said}");
    }
    assert_eq!(run(&["wait", "--timeout", "50ms", nobody[0], nobody[1]]).0, Some(69));
    assert_eq!(run(&["probe", "nonsense"]).0, Some(64));
    for command in ["status", "wait", "probe"] {
        let (code, _, said) = run(&[command, "--address", "nonsense"]);
        assert_eq!((code, said.contains("such as 127.0.0.1:9377")), (Some(64), true), "{said}");
    }
    let (_, _, said) = run(&["wait", "--timeout", "50ms", nobody[0], nobody[1]]);
    assert!(said.starts_with("slotkeeper: timed out waiting for the agent to be ready: no agent"), "{said}");
}

/// The README's first command, with nothing but this binary.
#[test]
fn with_dev_an_agent_needs_no_consul_and_another_shares_its_server() {
    let home_a = Home::new();
    let ports = Ports::reserve();
    home_a.configure(&ports.addr(0).to_string(), crate::hold::ONE);
    let mut first = Agent::start_with(&home_a, &["--dev"], &[]);
    first.await_ready();
    let log = first.log();
    assert!(log.contains("in memory, for this machine only, never for production"), "{log}");
    let started = log.lines().find(|line| line.contains(log_events::DEVELOPMENT_SERVER_STARTED)).unwrap();
    let server = address_in(started).unwrap();
    let home_b = Home::new();
    home_b.configure(&server, crate::hold::ONE);
    let mut second = Agent::start(&home_b);
    second.await_state("waiting");
    first.signal(rustix::process::Signal::HUP);
    wait_for("the reload", || first.log().contains(log_events::RELOADED));
    assert!(first.is_ready());
    assert_eq!(second.terminate(), Some(0));
    assert_eq!(first.terminate(), Some(0));
}

#[test]
fn install_brings_the_binary_into_a_volume() {
    let volume = tempfile::tempdir().unwrap();
    let folder = volume.path().to_str().unwrap();
    for (argument, copy) in [
        (folder.to_owned(), "slotkeeper"),
        (format!("{folder}/deeper/keeper"), "deeper/keeper"),
        (format!("{folder}/new/"), "new/slotkeeper"),
    ] {
        // Twice: a pod's volume outlives a restart of its containers.
        for _ in 0..2 {
            let (code, out, err) = run(&["install", &argument]);
            assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "", ""));
        }
        let copy = volume.path().join(copy);
        assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read(&copy).unwrap(), fs::read(BINARY).unwrap());
        assert!(
            fs::read_dir(copy.parent().unwrap()).unwrap().all(|file| !file
                .unwrap()
                .file_name()
                .to_string_lossy()
                .contains("tmp"))
        );
        assert!(Command::new(copy).arg("--version").output().unwrap().status.success());
    }
    let (code, _, said) = run(&["install", "/proc/nowhere/slotkeeper"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("/proc/nowhere"), "{said}");
}
