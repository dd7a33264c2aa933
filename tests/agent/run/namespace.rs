//! `run` in a PID namespace of its own.

use super::job::{Job, bare};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::BINARY;

/// A command that leaves something behind in a session of its own.
const LEAVES_ONE_BEHIND: &str = "setsid sleep 333 > /dev/null 2>&1 & exit 3";

fn job(consul: &Consul, unshare: &[&str]) -> Job {
    let mut command = std::process::Command::new("unshare");
    bare(&mut command);
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]).args(unshare);
    command.args([BINARY, "run", "--http-addr", &consul.address(), "p/one", "-n", "1"]);
    command.args(["--kill-after", "1s", "--", "sh", "-c", LEAVES_ONE_BEHIND]);
    Job::spawn(command, tempfile::tempdir().unwrap())
}

#[test]
fn run_refuses_to_start_with_the_proc_of_another_pid_namespace() {
    let consul = Consul::start();
    let mut job = job(&consul, &[]);
    assert_eq!(job.code(), Some(78), "{}", job.log());
    let log = job.log();
    assert!(log.contains("another PID namespace") && log.contains("--mount-proc"), "{log}");
    assert_eq!(Operator::at(&consul.address()).keys("p/one"), [], "nothing was acquired");
}

#[test]
fn with_its_own_proc_run_ends_what_the_command_leaves_behind() {
    let consul = Consul::start();
    let mut job = job(&consul, &["--mount-proc"]);
    assert_eq!(job.code(), Some(3), "{}", job.log());
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}
