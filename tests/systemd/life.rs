//! The life of one instance: start, reload, restart, stop, and what systemd does about a fault.

use crate::gate::AGENT;
use crate::machine::said;
use crate::support::consul::Setup;
use crate::unit::{Host, PREFIX};
use crate::wait_for;

fn started() -> Host {
    let host = Host::boot();
    host.configure("writers", "", "");
    host.systemctl(&["start", AGENT]);
    host
}

/// Seconds since a unit has left the state inactive.
fn age(host: &Host, unit: &str) -> f64 {
    let began: f64 = host.property(unit, "InactiveExitTimestampMonotonic").parse().unwrap();
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    uptime.split_ascii_whitespace().next().unwrap().parse::<f64>().unwrap() - began / 1e6
}

#[test]
fn a_start_takes_as_long_as_the_wait_for_the_slot() {
    let host = Host::boot();
    host.configure("first", "", "");
    host.configure("writers", "", "");
    host.drop_in(AGENT, "[Service]\nTimeoutStartSec=2s\n");
    host.systemctl(&["start", "slotkeeper@first"]);
    host.systemctl(&["start", "--no-block", AGENT]);
    let waiting = "waiting for writers: 1st of 1 in the queue, held by ";
    wait_for("the position in the queue", || host.property(AGENT, "StatusText").starts_with(waiting));
    // Longer than the first extension of its time, which is 30 s.
    wait_for("a long wait", || age(&host, AGENT) > 35.0);
    assert_eq!(host.property(AGENT, "ActiveState"), "activating");
    assert_eq!(host.property(AGENT, "NRestarts"), "0");
    host.systemctl(&["stop", "slotkeeper@first"]);
    host.await_property(AGENT, "ActiveState", "active");
    host.await_property(AGENT, "StatusText", "holding writers");
    assert_eq!(host.property(AGENT, "NRestarts"), "0");
}

#[test]
fn a_restart_and_a_crash_keep_the_slot_and_a_stop_hands_it_off() {
    let host = started();
    let held = host.holding("writers");
    let mut process = host.main_pid(AGENT);
    host.await_files("writers");

    host.systemctl(&["restart", AGENT]);
    assert_ne!(host.main_pid(AGENT), process);
    assert_eq!(host.holding("writers"), held);
    let journal = host.journal(AGENT);
    assert!(!journal.contains("Failed with result"), "{journal}");

    process = host.main_pid(AGENT);
    host.await_files("writers");
    host.systemctl(&["kill", "--kill-whom=main", "--signal=KILL", AGENT]);
    host.await_another_process(AGENT, &process);
    assert_eq!(host.holding("writers"), held);

    host.configure("next", "", "");
    host.systemctl(&["start", "--no-block", "slotkeeper@next"]);
    host.await_waiter();
    host.systemctl(&["stop", AGENT]);
    host.await_property("slotkeeper@next", "ActiveState", "active");
    assert_eq!(host.operator.session(&held.0), None);
    assert!(host.holding("next").1 > held.1);
    assert_eq!(host.property(AGENT, "Result"), "success");
    assert!(!host.path("/run/slotkeeper/writers").exists());
}

#[test]
fn a_stop_takes_as_long_as_the_drain() {
    let host = Host::boot();
    host.configure("writers", "", "drain: {hold: 16s}\n");
    // The agent extends it every 10 s.
    host.drop_in(AGENT, "[Service]\nTimeoutStopSec=12s\n");
    host.systemctl(&["start", AGENT]);
    let held = host.holding("writers");
    host.systemctl(&["stop", AGENT]);
    assert_eq!(host.property(AGENT, "Result"), "success");
    assert_eq!(host.operator.session(&held.0), None);
    host.operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_stuck_agent_is_restarted_and_resumes_its_slot() {
    let host = started();
    let (held, process) = (host.holding("writers"), host.main_pid(AGENT));
    host.await_files("writers");
    host.drop_in(AGENT, "[Service]\nWatchdogSec=3s\n");
    host.systemctl(&["restart", AGENT]);
    host.await_files("writers");
    let restarted = host.main_pid(AGENT);
    assert_ne!(restarted, process);
    host.systemctl(&["kill", "--kill-whom=main", "--signal=STOP", AGENT]);
    host.await_another_process(AGENT, &restarted);
    assert_eq!(host.property(AGENT, "NRestarts"), "1");
    let journal = host.journal(AGENT);
    assert!(journal.contains("Watchdog timeout"), "{journal}");
    assert_eq!(host.holding("writers"), held);
}

#[test]
fn a_reload_is_complete_when_the_agent_has_applied_it() {
    let host = started();
    let held = host.holding("writers");
    host.configure("writers", ", required: false", "");
    host.systemctl(&["reload", AGENT]);
    assert_eq!(host.status("writers")["semaphores"][0]["required"], false);
    host.await_property(AGENT, "ActiveState", "active");

    host.configure("writers", ", limt: 2", "");
    let output = host.command(&["systemctl", "reload", AGENT]).output().unwrap();
    assert!(!output.status.success(), "{}", said(&output));
    let journal = host.journal(AGENT);
    assert!(journal.contains("limt"), "{journal}");
    host.await_property(AGENT, "ActiveState", "active");
    assert_eq!(host.holding("writers"), held);
}

#[test]
fn what_a_restart_cannot_cure_is_not_restarted() {
    let host = Host::boot();
    host.configure("writers", ", limt: 2", "");
    let output = host.command(&["systemctl", "start", AGENT]).output().unwrap();
    assert!(!output.status.success(), "{}", said(&output));
    assert_eq!(host.property(AGENT, "ActiveState"), "failed");
    assert_eq!(
        (host.property(AGENT, "ExecMainStatus"), host.property(AGENT, "NRestarts")),
        ("78".into(), "0".into())
    );
    let status = host.property(AGENT, "StatusText");
    assert!(status.contains("limt"), "{status}");
}

#[test]
fn a_token_comes_as_a_credential() {
    const TOKEN: &str = "b00757a9-0000-4000-8000-000000000000";
    let tokens = format!("tokens {{ master = \"{TOKEN}\", agent = \"{TOKEN}\" }}");
    let config = format!("acl {{ enabled = true, default_policy = \"deny\", {tokens} }}");
    let host = Host::boot_with(Setup { config, token: Some(TOKEN.into()), ..Setup::default() });
    host.configure("writers", "", "");
    host.write(
        "/etc/systemd/system/slotkeeper@.service.d/consul-token.conf",
        include_str!("../../packaging/systemd/examples/consul-token.conf"),
    );
    host.write("/etc/slotkeeper/consul-token", TOKEN);
    host.run(&["chmod", "600", "/etc/slotkeeper/consul-token"]);
    host.systemctl(&["daemon-reload"]);
    host.systemctl(&["start", AGENT]);
    assert_eq!(host.status("writers")["semaphores"][0]["state"], "held");
    assert!(!host.journal(AGENT).contains(TOKEN));
}

#[test]
fn the_units_are_valid_and_confined() {
    let host = started();
    let programs = ["/usr/local/bin/import-worker", "/usr/local/bin/import", "/usr/local/bin/loader"];
    for program in programs {
        host.install(program, "#!/bin/sh\n");
    }
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd/examples");
    let mut units = vec!["slotkeeper@writers.service".to_owned()];
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().display().to_string();
        if !name.ends_with(".conf") {
            host.write(&format!("/etc/systemd/system/{name}"), &std::fs::read_to_string(&path).unwrap());
            units.push(name);
        }
    }
    assert_eq!(units.len(), 5, "{units:?}");
    host.systemctl(&["daemon-reload"]);
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    let verified = host.run(&[&["systemd-analyze", "verify", "--man=no"], &units[..]].concat());
    assert_eq!(verified, "");
    // Its exposure is at most 2.0 of 10.
    host.run(&["systemd-analyze", "security", "--no-pager", "--threshold=20", "slotkeeper@writers.service"]);
    // In its sandbox it can do all that it does outside.
    let (session, _) = host.holding("writers");
    host.operator.destroy(&session);
    wait_for("another session", || host.status("writers")["session"]["id"] != *session);
    host.await_holding("writers");
}
