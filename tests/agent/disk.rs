//! Files on a full disk, and on a read-only one.
//!
//! The disk is a small one in memory, in a mount namespace of the agent's own.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::consul::Consul;
use crate::process::{Agent, BINARY, Home};
use crate::wait_for;

/// An agent whose `$HOME/disk` is a disk of 64 KiB, which `prepare` is run on before.
fn on_a_small_disk(consul: &Consul, home: &Home, prepare: &str) -> Agent {
    home.configure(&consul.address(), "semaphores: [{name: s, prefix: service/s, limit: 1}]");
    let disk = home.path("disk");
    fs::create_dir(&disk).unwrap();
    let config = fs::read_to_string(home.path("config.yaml")).unwrap();
    fs::write(home.path("config.yaml"), config.replace("/ready'", "/disk/ready'")).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=64k none $0 && {prepare} exec {BINARY} agent --config {}",
        home.path("config.yaml").display()
    );
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .arg(&disk)
        .stdin(Stdio::null());
    Agent::of(command, home)
}

/// The disk's files, seen from outside of its namespace.
fn inside(agent: &Agent, home: &Home, name: &str) -> PathBuf {
    let disk = home.path("disk");
    PathBuf::from(format!("/proc/{}/root{}", agent.pid(), disk.display())).join(name)
}

#[test]
fn a_full_disk_costs_the_file_and_not_the_slot() {
    let consul = Consul::start();
    let home = Home::new();
    let fill = "touch $0/ready.lock; dd if=/dev/zero of=$0/filler bs=4k 2>/dev/null;";
    let mut agent = on_a_small_disk(&consul, &home, fill);
    agent.await_served();
    wait_for("readiness", || agent.is_ready());
    wait_for("the log to tell", || agent.log().contains("No space left on device"));
    assert!(!inside(&agent, &home, "ready").exists());
    fs::remove_file(inside(&agent, &home, "filler")).unwrap();
    wait_for("the file", || inside(&agent, &home, "ready").exists());
    assert!(agent.is_ready());
}

#[test]
fn a_folder_that_cannot_be_written_to_is_refused_at_the_start() {
    let consul = Consul::start();
    let home = Home::new();
    let mut agent = on_a_small_disk(&consul, &home, "mount -o remount,ro $0 &&");
    assert_eq!(agent.ended().code(), Some(1));
    let log = agent.log();
    assert!(log.contains("disk/ready") && log.contains("Read-only file system"), "{log}");
    // The same for the state file, with the readiness file elsewhere.
    let home = Home::new();
    let state = format!("SLOTKEEPER_STATE_FILE={}", home.path("disk/state").display());
    let ready = format!("SLOTKEEPER_READINESS_FILE={}", home.path("ready").display());
    let prepare = format!("mount -o remount,ro $0 && export '{state}' '{ready}' &&");
    let mut agent = on_a_small_disk(&consul, &home, &prepare);
    assert_eq!(agent.ended().code(), Some(1));
    let log = agent.log();
    assert!(log.contains("cannot open") && log.contains("disk/state: Read-only file system"), "{log}");
}
