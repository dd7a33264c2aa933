//! File systems that do not answer, simulated by pipes without a writer. The renewal of leases never waits for them.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use slotkeeper::internals::log_events;

use super::{names, reloaded};
use crate::consul::Consul;
use crate::hold::{ONE, home};
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home};
use crate::support::authority::Authority;
use crate::support::consul::Setup;
use crate::wait_for;

const RENEWALS: &str = "slotkeeper_session_renew_duration_seconds_count";
const RELOADED: &str = "slotkeeper_config_last_reload_successful";

/// Replaces the file by a pipe.
pub(super) fn pipe(path: &Path) {
    let _ = fs::remove_file(path);
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
}

fn await_renewals(agent: &Agent) {
    let before = agent.metric(RENEWALS);
    wait_for("renewals", || agent.metric(RENEWALS) >= before + 2.0);
}

fn assert_holds(agent: &Agent, session: &str) {
    assert_eq!((agent.session().as_str(), agent.is_ready()), (session, true), "{}", agent.log());
    assert!(agent.ready_file().exists());
}

#[test]
fn a_stuck_reload_times_out_and_is_queued_once() {
    let consul = Consul::start();
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    let config = home.path("config.yaml");
    pipe(&config);
    agent.signal(Signal::HUP);
    await_renewals(&agent);
    assert_holds(&agent, &session);
    wait_for("the time limit", || agent.metric(RELOADED) == 0.0);
    assert!(
        agent.log().contains(&format!(
            "{} error=\"reading the configuration timed out after 10 s",
            log_events::RELOAD_FAILED
        )),
        "{}",
        agent.log()
    );
    // There is one read at a time, for any number of signals.
    for _ in 0..3 {
        agent.signal(Signal::HUP);
    }
    wait_for("the stuck read in the log", || agent.log().contains(log_events::RELOAD_READ_STUCK));
    assert_holds(&agent, &session);
    // The timed-out read's result is discarded, and the current file is read.
    fs::rename(&config, home.path("pipe")).unwrap();
    home.configure(&consul.address(), &ONE.replace("name: s", "name: now"));
    fs::write(home.path("pipe"), "semaphores: [{name: late, prefix: late, limit: 1}]").unwrap();
    wait_for("the reload", || names(&agent) == ["now held"]);
    assert!(agent.log().contains(log_events::RELOAD_READ_DISCARDED), "{}", agent.log());
    assert_eq!((reloaded(&agent), agent.metric(RELOADED)), (1, 1.0));
    assert_holds(&agent, &session);
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn an_agent_drains_while_its_reload_hangs() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    pipe(&home.path("config.yaml"));
    agent.signal(Signal::HUP);
    await_renewals(&agent);
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    assert!(!agent.ready_file().exists());
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_stuck_token_file_leaves_the_previous_token() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    fs::write(home.path("token"), "anything").unwrap();
    home.configure(&consul.address(), ONE);
    let config = fs::read_to_string(home.path("config.yaml")).unwrap();
    let token = home.path("token");
    let config = config.replace("consul: {", &format!("consul: {{token_file: '{}', ", token.display()));
    fs::write(home.path("config.yaml"), config).unwrap();
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    pipe(&token);
    await_renewals(&agent);
    assert_holds(&agent, &session);
    // A reload keeps the token too.
    agent.signal(Signal::HUP);
    wait_for("the reload", || reloaded(&agent) == 1);
    await_renewals(&agent);
    assert_holds(&agent, &session);
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    operator.assert_nothing_left("service/s");
}

#[test]
fn an_authority_that_is_a_pipe_is_refused() {
    let authority = Authority::new();
    let consul = Consul::start_with(Setup { https: true, config: authority.server(), ..Setup::default() });
    let home = Home::new();
    let trusted = authority.file("consul-agent-ca.pem");
    let file = home.path("ca.pem");
    fs::copy(trusted, &file).unwrap();
    home.configure(&format!("https://{}", consul.https_addr()), ONE);
    let config = fs::read_to_string(home.path("config.yaml")).unwrap();
    let tls = format!("consul: {{tls: {{ca_file: '{}', server_name: server.dc1.consul}}, ", file.display());
    fs::write(home.path("config.yaml"), config.replace("consul: {", &tls)).unwrap();
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    pipe(&file);
    agent.signal(Signal::HUP);
    wait_for("the refusal", || agent.metric(RELOADED) == 0.0);
    assert!(agent.log().contains("it is not a regular file"), "{}", agent.log());
    await_renewals(&agent);
    assert_holds(&agent, &session);
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
}

/// The first process of a PID namespace, which the kernel sends only signals with a handler. Dropping the value kills it.
struct FirstProcess(Child);

impl Drop for FirstProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn as_first_process(arguments: &[&str]) -> (FirstProcess, Pid) {
    let unshare = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child", BINARY];
    let child = Command::new("unshare")
        .args(unshare)
        .args(arguments)
        .env_remove("SLOTKEEPER_CONFIG")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let child = FirstProcess(child);
    let parent = Pid::from_child(&child.0).as_raw_nonzero();
    let mut first = None;
    wait_for("its signal handler", || {
        let children =
            fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        first = children.trim().parse().ok().and_then(Pid::from_raw);
        first.is_some_and(listens_to_sigterm)
    });
    (child, first.unwrap())
}

fn listens_to_sigterm(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    caught & (1 << (Signal::TERM.as_raw() - 1)) != 0
}

#[test]
fn a_stuck_configuration_at_the_start_does_not_delay_the_end() {
    let home = Home::new();
    let config = home.path("config.yaml");
    pipe(&config);
    let config = config.to_str().unwrap();
    for (arguments, code) in [
        (&["agent", "--config", config][..], 0),
        (&["run", "--config", config, "--", "true"], 143),
        (&["wait", "--config", config], 143),
    ] {
        let (mut child, first) = as_first_process(arguments);
        kill_process(first, Signal::TERM).unwrap();
        let mut status = None;
        wait_for("its end", || {
            status = child.0.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn a_pipe_with_a_writer_is_a_configuration() {
    let consul = Consul::start();
    let home = home(&consul);
    let path = home.path("config.yaml");
    let config = fs::read_to_string(&path).unwrap();
    pipe(&path);
    let writer = std::thread::spawn(move || fs::write(path, config).unwrap());
    let mut agent = Agent::start(&home);
    writer.join().unwrap();
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
}
