//! Units that start with a slot, and end without it.

use crate::unit::{Host, PREFIX};
use crate::wait_for;

/// A worker that writes down whether its agent is ready when it starts, and when it has almost stopped.
const WORKER: &str = "#!/bin/sh
ready() { [ -e /run/slotkeeper/writers/ready ] && echo ready || echo 'not ready'; }
trap 'sleep 0.3; echo \"stopped, $(ready)\" >> /run/worker; exit' TERM
echo \"started, $(ready)\" >> /run/worker
while :; do sleep 0.05; done
";

/// A machine with the example's worker.
fn with_worker() -> Host {
    let host = Host::boot();
    let example = include_str!("../../packaging/systemd/examples/import-worker.service");
    host.write("/etc/systemd/system/import-worker.service", example);
    host.write("/usr/local/bin/import-worker", WORKER);
    host.run(&["chmod", "755", "/usr/local/bin/import-worker"]);
    host.systemctl(&["enable", "import-worker"]);
    host
}

/// What the worker has written, one line an event.
fn worker(host: &Host) -> Vec<String> {
    let text = std::fs::read_to_string(host.path("/run/worker")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_bound_unit_starts_with_the_slot_and_stops_before_it_is_released() {
    let host = with_worker();
    host.configure("first", "", "");
    host.configure("writers", ", on_lost: exit", "");
    host.systemctl(&["start", "slotkeeper@first"]);
    host.systemctl(&["start", "--no-block", "import-worker"]);
    wait_for("the agent to wait in the queue", || host.operator.keys(PREFIX).len() == 3);
    assert_eq!(host.property("slotkeeper@writers", "ActiveState"), "activating");
    assert_eq!(host.property("import-worker", "ActiveState"), "inactive");
    host.systemctl(&["stop", "slotkeeper@first"]);
    host.await_property("import-worker", "ActiveState", "active");
    assert_eq!(host.property("slotkeeper@writers", "ActiveState"), "active");
    host.systemctl(&["stop", "slotkeeper@writers"]);
    assert_eq!(worker(&host), ["started, ready", "stopped, ready"]);
    host.operator.assert_nothing_left(PREFIX);
}
