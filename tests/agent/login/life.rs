//! An agent that logs in: it holds, hands on, and leaves neither session nor token, however it ends.

use std::process::{Command, Output};

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use super::fortress::{BOTH, Fortress, PREFIX};
use crate::process::{Agent, BINARY, Home, is_running};
use crate::run::job::{Job, bare};
use crate::support::life::MEEK;
use crate::support::processes;
use crate::wait_for;

/// The description of the only token.
fn description(fortress: &Fortress) -> String {
    let tokens = fortress.tokens();
    assert_eq!(tokens.len(), 1, "{tokens:?}");
    tokens[0]["Description"].as_str().unwrap().to_owned()
}

/// Two agents one after the other, the first of them killed in between, under the documented policy.
fn whole_life(fortress: &Fortress) {
    let operator = fortress.operator();
    let homes = [Home::new(), Home::new(), Home::new()];
    homes.iter().for_each(|home| fortress.configure(home, BOTH));
    let pod = [("SLOTKEEPER_CONSUL_LOGIN_META", "pod=batch/import-7")];
    let mut first = Agent::start_with(&homes[0], &[], &pod);
    first.await_ready();
    let said = description(fortress);
    assert!(said.contains(r#""pod":"batch/import-7""#) && said.contains(r#""team":"warehouse""#), "{said}");
    let second = Agent::start(&homes[1]);
    second.await_state("waiting");
    assert_eq!(first.terminate(), Some(0));
    second.await_ready();
    assert_eq!(fortress.tokens().len(), 1);

    // The dead one's slot is given on by the one that waits, its lock by Consul; its token is nobody's.
    let mut third = Agent::start(&homes[2]);
    third.await_state("waiting");
    let dead = second.session();
    second.signal(Signal::KILL);
    third.await_ready();
    assert!(!operator.holders(PREFIX).contains(&dead));
    let [pruned] = ["slotkeeper_pruned_holders_total{semaphore=\"s\"}"].map(|series| third.metric(series));
    assert_eq!(pruned, 1.0);
    assert_eq!(third.terminate(), Some(0));
    assert_eq!(fortress.tokens().len(), 1, "only the killed one's is left");
    operator.assert_nothing_left(PREFIX);
    for agent in [&first, &second, &third] {
        let log = agent.log();
        assert_eq!(log.matches(log_events::LOGGED_IN).count(), 1, "{log}");
        assert!(
            !log.contains(log_events::REQUEST_FAILED) && !log.contains(log_events::LOGOUT_FAILED),
            "{log}"
        );
        for home in &homes {
            let bearer = std::fs::read_to_string(home.path("jwt")).unwrap();
            assert!(!log.contains(&bearer), "{log}");
        }
    }
}

#[test]
fn with_a_json_web_token() {
    whole_life(&Fortress::start());
}

#[test]
fn with_a_kubernetes_service_account() {
    let fortress = Fortress::of_kubernetes();
    whole_life(&fortress);
    // A pod that Kubernetes does not know.
    let home = Home::new();
    std::fs::write(home.path("jwt"), "not-a-token-of-this-cluster").unwrap();
    fortress.configure(&home, BOTH);
    let mut agent = Agent::start(&home);
    wait_for("the refusal", || agent.log().contains("does not believe the bearer token"));
    assert!(!agent.is_ready() && !agent.log().contains("not-a-token-of-this-cluster"), "{}", agent.log());
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_restarted_agent_logs_in_again_and_resumes_its_session() {
    let fortress = Fortress::start();
    let home = Home::new();
    fortress.configure(&home, &BOTH.replace("ttl: 10s", "ttl: 60s, state_file: '$HOME/state'"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (session, token) = (agent.session(), agent.semaphore()["fencing_token"].clone());
    wait_for("the token in the state file", || {
        std::fs::read_to_string(home.path("state")).is_ok_and(|text| text.contains(&token.to_string()))
    });
    agent.signal(Signal::KILL);
    agent.ended();
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!((agent.session(), agent.semaphore()["fencing_token"].clone()), (session, token));
    assert_eq!(fortress.tokens().len(), 2, "one of them is the killed process's");
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(fortress.tokens().len(), 1);
}

/// A command that lives until it is stopped, under a `run` that logs in.
fn job(fortress: &Fortress, home: &Home, ttl: &str) -> Job {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(BINARY);
    bare(&mut command);
    command.envs(fortress.environment(home)).args([
        "run",
        PREFIX,
        "-n",
        "1",
        "--ttl",
        ttl,
        "--kill-after",
        "1s",
    ]);
    command.args(["--", "sh", "-c", MEEK]).arg(folder.path().join("life"));
    let job = Job::spawn(command, folder);
    job.await_life();
    job
}

/// Kills the agent, and waits for the end of its guard.
fn kill(job: &mut Job) {
    let guard = job.guard().as_raw_nonzero().to_string();
    job.signal(Signal::KILL);
    assert_eq!(job.code(), None);
    wait_for("the end of the guard", || !is_running(&guard));
}

#[test]
fn the_guard_of_a_killed_command_leaves_neither_session_nor_token() {
    let fortress = Fortress::start();
    let home = Home::new();
    let mut first = job(&fortress, &home, "10m");
    let secret = fortress.secret(&fortress.accessors()[0]);
    let guard = first.guard();
    let environment = std::fs::read(format!("/proc/{guard}/environ")).unwrap();
    let shown = processes::command_line(guard) + &String::from_utf8_lossy(&environment);
    assert!(shown.contains("guard --socket") && !shown.contains(&secret));
    kill(&mut first);
    assert_eq!(fortress.accessors(), [""; 0], "{}", first.log());
    fortress.operator().assert_nothing_left(PREFIX);

    // With the token that another login has given since.
    let mut second = job(&fortress, &home, "10s");
    let before = fortress.accessors();
    std::fs::write(home.path("jwt"), fortress.bearer()).unwrap();
    wait_for("another login", || {
        let now = fortress.accessors();
        now.len() == 1 && now != before
    });
    kill(&mut second);
    assert_eq!(fortress.accessors(), [""; 0], "{}", second.log());
}

/// A command without a configuration file, which logs in by its environment: exit code, output, errors.
fn command(fortress: &Fortress, home: &Home, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(BINARY);
    command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    let Output { status, stdout, stderr } = command.envs(fortress.environment(home)).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn commands_log_in_by_their_environment_and_leave_no_token() {
    let fortress = Fortress::start();
    let home = Home::new();
    let run = ["run", PREFIX, "-n", "1", "--", "sh", "-c", "exit 7"];
    let (code, out, errors) = command(&fortress, &home, &run);
    assert_eq!((code, out.as_str()), (Some(7), ""), "{errors}");
    // On a busy machine there is a wait to be told of.
    let waits = format!("slotkeeper: {PREFIX}: waiting: ");
    assert!(errors.lines().all(|line| line.starts_with(&waits)), "{errors}");
    assert_eq!(fortress.tokens().len(), 0);
    for arguments in [
        &["set-limit", PREFIX, "2"][..],
        &["sessions", PREFIX],
        &["sessions"],
        &["doctor", PREFIX],
        &["inspect", PREFIX],
        &["prune", PREFIX],
        &["destroy", PREFIX, "--yes"],
    ] {
        let (code, _, errors) = command(&fortress, &home, arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {errors}");
        assert_eq!(fortress.tokens().len(), 0, "{arguments:?}");
    }
    let (code, _, errors) = command(&fortress, &home, &["set-limit", "service/other", "2"]);
    assert!(code == Some(1) && errors.contains("check the prefix, and that the token may read"), "{errors}");
    // No slot in time, and a slot that is lost.
    let other = Home::new();
    fortress.configure(&other, BOTH);
    let mut agent = Agent::start(&other);
    agent.await_ready();
    assert_eq!(command(&fortress, &home, &["set-limit", PREFIX, "1"]).0, Some(0));
    let run = ["run", PREFIX, "-n", "1", "--try", "--", "true"];
    assert_eq!(command(&fortress, &home, &run).0, Some(75));
    assert_eq!(fortress.tokens().len(), 1, "the agent's");
    let exits = BOTH.replace("limit: 1", "limit: 1, on_lost: exit");
    assert_eq!(agent.terminate(), Some(0));
    fortress.configure(&other, &exits);
    let mut agent = Agent::start(&other);
    agent.await_ready();
    fortress.operator().destroy(&agent.session());
    assert_eq!(agent.ended().code(), Some(80));
    assert_eq!(fortress.tokens().len(), 0);
}
