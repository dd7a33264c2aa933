//! The mode on_demand, run: the workload, another user than the sidecar, asks for leases at the socket.

use std::path::PathBuf;

use serde_json::Value;

use crate::kubelet::Phase;
use crate::scene::{Runner, Scene};
use crate::wait_for;

const ONE: &str = "
    mode: on_demand
    consul: {address: $CONSUL}
    config: {semaphores: [{name: one, prefix: p/one, limit: 1}]}
    workload:
      container: {name: main}
      pod: {securityContext: {runAsUser: 1000, runAsGroup: 1000}}";

/// Takes a lease, keeps it until the file `done`, and gives it back.
const LEASES: &str = r#"
    ask() { curl --silent --show-error --unix-socket /run/slotkeeper/control.sock "$@"; }
    ask -d '{"wait":"60s"}' http://slotkeeper/v1/semaphores/one/acquire > /life/lease
    until [ -e /life/done ]; do sleep 0.04; done
    lease=$(sed 's/.*"lease":"\([^"]*\)".*/\1/' /life/lease)
    ask --fail -X DELETE "http://slotkeeper/v1/leases/$lease""#;

fn lease(runner: &Runner) -> Option<Value> {
    let path: PathBuf = runner.pod.file("life", "lease");
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

#[test]
fn the_workload_takes_leases_at_the_socket() {
    let scene = Scene::new(ONE, LEASES);
    let mut first = scene.pod();
    wait_for("a lease", || lease(&first).is_some());
    let session = lease(&first).unwrap()["session"].as_str().unwrap().to_owned();
    assert_eq!(scene.operator.holders("p/one"), [session]);
    let mut second = scene.pod();
    wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
    assert_eq!(lease(&second), None);
    first.finish();
    assert_eq!((first.pod.phase(), first.pod.exits("slotkeeper")), (Phase::Succeeded, vec![0]));
    wait_for("the second's lease", || lease(&second).is_some());
    second.finish();
    assert_eq!((second.pod.phase(), second.pod.exits("slotkeeper")), (Phase::Succeeded, vec![0]));
    scene.operator.assert_nothing_left("p/one");
}
