//! Commands that are run on changes: `on_lost` may be what stops a workload, and waits for none of the others.

use std::io::Write;
use std::process::Command;

use rustix::fs::{CWD, Mode, mkfifoat};
use slotkeeper::internals::log_events;

use crate::consul::Newer;
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home, is_running};
use crate::wait_for;

const ONE: &str = "session: {ttl: 60s}\nsemaphores: [{name: s, prefix: p/s, limit: 1}]\n";

fn start(consul: &Newer, rest: &str) -> (Agent, Home) {
    let home = Home::new();
    home.configure(&consul.address(), rest);
    let agent = Agent::start(&home);
    agent.await_ready();
    (agent, home)
}

fn told(home: &Home, name: &str) -> String {
    std::fs::read_to_string(home.path(name)).unwrap_or_default()
}

#[test]
fn on_lost_does_not_wait_for_a_hook_that_hangs() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let lock = "locks: [{name: l, key: k/l, required: false}]\n";
    let (mut leader, _leaders_home) = start(&consul, lock);
    wait_for("a leader", || operator.key("k/l").is_some_and(|pair| pair.session.is_some()));
    let hooks = "hooks:\n  on_leader_changed: [sh, -c, 'echo $$ > $HOME/leader; exec sleep 600']\n  \
                 on_lost: [sh, -c, 'echo $SLOTKEEPER_SEMAPHORE >> $HOME/lost']\n";
    let (mut agent, home) = start(&consul, &format!("{ONE}{lock}{hooks}"));
    wait_for("the hook that hangs", || told(&home, "leader").ends_with('\n'));
    let hangs = told(&home, "leader").trim().to_owned();
    operator.destroy(&agent.session());
    wait_for("the loss to be told", || told(&home, "lost") == "s\n");
    assert!(is_running(&hangs), "it was not waited for: {}", agent.log());
    assert_eq!(agent.terminate(), Some(0));
    wait_for("the end of what hangs", || !is_running(&hangs));
    assert_eq!(leader.terminate(), Some(0));
}

#[test]
fn slots_that_are_lost_together_are_reported_at_once() {
    const SLOTS: usize = 70;
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let semaphores: String =
        (0..SLOTS).map(|n| format!("- {{name: s{n}, prefix: p/{n}, limit: 1, on_lost: exit}}\n")).collect();
    // Each of them ends only once it gets a line, and none does before all run.
    let hook =
        ": > $HOME/lost.$SLOTKEEPER_SEMAPHORE; read -r _ < $HOME/lines; : > $HOME/done.$SLOTKEEPER_SEMAPHORE";
    let config = format!(
        "session: {{ttl: 60s}}\nsemaphores:\n{semaphores}drain: {{timeout: 2m}}\nhooks: {{on_lost: [sh, -c, '{hook}']}}\n"
    );
    let (mut agent, home) = start(&consul, &config);
    mkfifoat(CWD, home.path("lines"), Mode::RWXU).unwrap();
    let mut lines = std::fs::File::options().read(true).write(true).open(home.path("lines")).unwrap();
    operator.destroy(&agent.session());
    let are = |what: &str| (0..SLOTS).filter(|n| home.path(&format!("{what}.s{n}")).exists()).count();
    wait_for("all hooks to run", || are("lost") == SLOTS);
    lines.write_all(&[b'\n'; SLOTS]).unwrap();
    assert_eq!(agent.ended().code(), Some(80), "{}", agent.log());
    assert_eq!(are("done"), SLOTS, "{}", agent.log());
}

#[test]
fn a_loss_kills_the_running_hook_of_the_acquisition() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let hooks = "hooks:\n  on_acquired: [sh, -c, 'trap : TERM; sleep 600 & echo $! > $HOME/child; echo $$ >> $HOME/own; wait']\n  \
                 on_lost: [sh, -c, 'echo $SLOTKEEPER_REASON >> $HOME/lost']\n";
    let (mut agent, home) = start(&consul, &format!("{ONE}{hooks}"));
    wait_for("the hook", || told(&home, "own").ends_with('\n'));
    let [child, own] = ["child", "own"].map(|name| told(&home, name).trim().to_owned());
    operator.destroy(&agent.session());
    wait_for("the loss to be told", || told(&home, "lost") == "session_gone\n");
    wait_for("the end of the hook and of what it has started", || !is_running(&own) && !is_running(&child));
    let log = agent.log();
    assert!(log.contains(log_events::HOOK_KILLED) && log.contains("reason=\"its slot was lost\""), "{log}");
    // The slot is acquired again, and that is told after the loss.
    wait_for("the next one", || told(&home, "own").lines().count() == 2);
    assert_eq!(agent.terminate(), Some(0));
}

/// The soft limit of open files that a process has.
fn soft_limit(pid: &str) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_ascii_whitespace().nth(3).unwrap().to_owned()
}

#[test]
fn the_agent_may_open_as_many_files_as_it_can_and_its_hooks_as_many_as_before() {
    let consul = Newer::start();
    let home = Home::new();
    let hook =
        "hooks: {on_acquired: [sh, -c, 'ulimit -Sn > $HOME/told.new; mv $HOME/told.new $HOME/told']}\n";
    home.configure(&consul.address(), &format!("{ONE}{hook}"));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 300; ulimit -Hn 600; exec \"$@\"", "sh", BINARY, "agent", "--config"]);
    command.arg(home.path("config.yaml")).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    let mut agent = Agent::of(command, &home);
    agent.await_served();
    agent.await_ready();
    wait_for("the hook", || home.path("told").exists());
    assert_eq!((soft_limit(&agent.pid().to_string()), told(&home, "told")), ("600".into(), "300\n".into()));
    assert_eq!(agent.terminate(), Some(0));
}
