//! Units that start with a slot, and end without it.

use rustix::process::Signal;

use crate::unit::{Host, PREFIX};
use crate::wait_for;

/// The instance that most tests are about.
pub(crate) const AGENT: &str = "slotkeeper@writers";
/// An entry for an agent that other units are bound to.
pub(crate) const EXIT: &str = ", on_lost: exit";

/// A worker that writes down whether its agent is ready when it starts, and when it has almost stopped. systemd signals the
/// processes of a unit until it finds no new one, so what the worker starts to stop itself ignores the signal.
const WORKER: &str = "#!/bin/sh
note() {
    slotkeeper probe --config /etc/slotkeeper/writers.yaml > /dev/null 2>&1 && ready=ready || ready='not ready'
    echo \"$1, $ready\" >> /run/worker
}
trap 'trap \"\" TERM; sleep 0.3; note stopped; exit 0' TERM
note started
while :; do sleep 0.05; done
";

/// A machine with the example's worker.
fn with_worker() -> Host {
    let host = Host::boot();
    install_worker(&host);
    host
}

/// Installs and enables the example's worker.
pub(crate) fn install_worker(host: &Host) {
    let unit = include_str!("../../packaging/systemd/examples/import-worker.service");
    host.write("/etc/systemd/system/import-worker.service", unit);
    host.install("/usr/local/bin/import-worker", WORKER);
    host.systemctl(&["enable", "import-worker"]);
}

/// What the worker has written, one line an event.
pub(crate) fn worker(host: &Host) -> Vec<String> {
    host.read("/run/worker").lines().map(str::to_owned).collect()
}

/// Waits until the worker has written these lines.
pub(crate) fn await_worker(host: &Host, lines: &[&str]) {
    wait_for(&format!("the worker to write {lines:?}"), || worker(host) == lines);
}

#[test]
fn a_bound_unit_starts_with_the_slot_and_stops_before_it_is_released() {
    let host = with_worker();
    host.configure("first", "", "");
    host.configure("writers", EXIT, "");
    host.systemctl(&["start", "slotkeeper@first"]);
    host.systemctl(&["start", "--no-block", "import-worker"]);
    host.await_waiter();
    assert_eq!(host.property(AGENT, "ActiveState"), "activating");
    assert_eq!(host.property("import-worker", "ActiveState"), "inactive");
    host.systemctl(&["stop", "slotkeeper@first"]);
    await_worker(&host, &["started, ready"]);
    assert_eq!(host.property(AGENT, "ActiveState"), "active");
    host.systemctl(&["stop", AGENT]);
    assert_eq!(worker(&host), ["started, ready", "stopped, ready"]);
    host.operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_bound_unit_stops_at_a_loss_and_starts_again_with_the_next_slot() {
    let host = with_worker();
    host.configure("writers", EXIT, "");
    host.systemctl(&["start", AGENT]);
    await_worker(&host, &["started, ready"]);
    let (session, token) = host.holding("writers");
    host.operator.destroy(&session);
    await_worker(&host, &["started, ready", "stopped, not ready", "started, ready"]);
    let (another, higher) = host.holding("writers");
    assert!(another != session && higher > token, "{session} {token}, then {another} {higher}");
    assert!(host.journal(AGENT).contains("status=80"));

    host.await_files("writers");
    // A restart of the agent keeps the slot, and restarts the worker.
    host.systemctl(&["restart", AGENT]);
    assert_eq!(host.holding("writers"), (another, higher));
    let restarted = ["stopped, ready", "started, ready"];
    await_worker(
        &host,
        &[&["started, ready", "stopped, not ready", "started, ready"], &restarted[..]].concat(),
    );
}

#[test]
fn a_bound_unit_stops_with_the_lease_while_consul_is_silent() {
    let host = with_worker();
    host.configure("writers", EXIT, "session: {ttl: 10s}\n");
    host.systemctl(&["start", AGENT]);
    await_worker(&host, &["started, ready"]);
    host.consul.signal(Signal::STOP);
    await_worker(&host, &["started, ready", "stopped, not ready"]);
    // The worker does not wait for the agent, which tries to release the slot.
    let stopping = host.property(AGENT, "ActiveState");
    host.consul.signal(Signal::CONT);
    assert_eq!(stopping, "deactivating");
    await_worker(&host, &["started, ready", "stopped, not ready", "started, ready"]);
}

#[test]
fn a_unit_whose_agent_gives_up_does_not_start() {
    let host = with_worker();
    host.configure("first", "", "");
    host.configure("writers", ", on_lost: exit, wait: 1s", "");
    host.systemctl(&["start", "slotkeeper@first"]);
    let output = host.command(&["systemctl", "start", "import-worker"]).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(host.property("import-worker", "ActiveState"), "inactive");
    assert_eq!(host.property(AGENT, "ActiveState"), "failed");
    assert_eq!(
        (host.property(AGENT, "ExecMainStatus"), host.property(AGENT, "NRestarts")),
        ("75".into(), "0".into())
    );
    let status = host.property(AGENT, "StatusText");
    assert!(status.starts_with("timed out after 1s waiting for writers"), "{status}");
    assert_eq!(worker(&host), [""; 0]);
}
