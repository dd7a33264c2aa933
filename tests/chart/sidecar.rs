//! The mode sidecar, run.

use rustix::process::Signal;

use crate::kubelet::Phase;
use crate::scene::{LIVES, Runner, STUBBORN, Scene};
use crate::support::life::now;
use crate::wait_for;

const ONE: &str = "
    mode: sidecar
    consul: {address: $CONSUL}
    config: {semaphores: [{name: one, prefix: p/one, limit: 1}]}
    workload: {container: {name: main}}";

/// The same with as little grace as there can be: 1 s for the workload, 1 s for the drain, and 5 s. By its time-outs, which are not
/// used up as long as the agent answers, there are 4 s for a busy machine.
const IN_HASTE: &str = "
    mode: sidecar
    consul: {address: $CONSUL}
    config:
      session: {ttl: 34s}
      drain: {timeout: 1s}
      semaphores: [{name: one, prefix: p/one, limit: 1}]
    fence: {timeoutSeconds: 5}
    workload: {terminationGracePeriodSeconds: 1, container: {name: main}}";

fn has_ready_file(runner: &Runner) -> bool {
    runner.pod.file("slotkeeper-run", "ready").exists()
}

fn two_run_one_after_the_other(more: &str) {
    let scene = Scene::new(&format!("{ONE}\n{more}"), LIVES);
    let mut first = scene.pod();
    first.await_life();
    wait_for("its readiness", || first.pod.is_ready("slotkeeper"));
    assert!(has_ready_file(&first));
    let mut second = scene.pod();
    wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
    assert!(!second.pod.is_running("main") && !second.pod.is_ready("slotkeeper"));
    first.finish();
    assert_eq!(first.pod.phase(), Phase::Succeeded);
    assert_eq!((first.pod.exits("main"), first.pod.exits("slotkeeper")), (vec![0], vec![0]));
    assert!(!has_ready_file(&first));
    second.await_life();
    assert!(first.life.last() < second.life.first());
    second.pod.delete();
    assert_eq!(second.pod.phase(), Phase::Failed);
    assert_eq!((second.pod.exits("main"), second.pod.exits("slotkeeper")), (vec![143], vec![0]));
    scene.operator.assert_nothing_left("p/one");
}

#[test]
fn the_second_pod_runs_after_the_first() {
    two_run_one_after_the_other("");
}

/// The kubelet asks the agent at the pod's address, and `kubectl port-forward` connects to the pod's loopback.
#[test]
fn the_agent_is_reached_at_the_pods_address_and_at_its_loopback() {
    for (ipv6, loopbacks) in [(true, &["127.0.0.1", "[::1]"][..]), (false, &["127.0.0.1"])] {
        let mut scene = Scene::new(ONE, LIVES);
        scene.node.ipv6 = ipv6;
        let mut runner = scene.pod();
        // `slotkeeper-wait` has found it.
        runner.await_life();
        for ip in loopbacks.iter().copied().chain([runner.ip.as_str()]) {
            assert_eq!(runner.get(ip, "/readyz").status, 200, "{ip}, with IPv6: {ipv6}");
        }
        let status = runner.pod.exec("slotkeeper", &["/slotkeeper", "status"]);
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
        runner.finish();
        assert_eq!(runner.pod.phase(), Phase::Succeeded);
    }
}

#[test]
fn the_second_pod_runs_after_the_first_where_the_sidecar_sees_no_process() {
    two_run_one_after_the_other("    processes: {shared: false}");
}

#[test]
fn the_second_pod_runs_after_the_first_where_the_sidecar_ends_the_workload() {
    two_run_one_after_the_other("    processes: {stop: true}");
}

#[test]
fn a_killed_sidecar_resumes_its_slot() {
    let scene = Scene::new(&format!("{ONE}\n    fence: {{enabled: false}}"), LIVES);
    let mut runner = scene.pod();
    runner.await_life();
    let holders = scene.operator.holders("p/one");
    wait_for("the state file", || runner.pod.file("slotkeeper-run", "session.json").exists());
    runner.pod.signal("slotkeeper", Signal::KILL);
    wait_for("its end", || runner.pod.exits("slotkeeper") == [137]);
    wait_for("the new one to hold", || runner.pod.is_ready("slotkeeper") && has_ready_file(&runner));
    assert_eq!(scene.operator.holders("p/one"), holders, "another session");
    let beats = runner.life.beats();
    wait_for("the workload to go on", || runner.life.beats() > beats);
    runner.finish();
    assert_eq!(runner.pod.phase(), Phase::Succeeded);
    assert_eq!(runner.pod.exits("slotkeeper"), [137, 0]);
    scene.operator.assert_nothing_left("p/one");
}

#[test]
fn the_fence_ends_a_workload_whose_sidecar_is_gone() {
    let scene = Scene::new(ONE, LIVES);
    let mut runner = scene.pod();
    runner.await_life();
    runner.pod.signal("slotkeeper", Signal::KILL);
    assert_eq!((runner.pod.phase(), runner.pod.exits("main")), (Phase::Failed, vec![143]));
}

#[test]
fn the_fence_ends_a_workload_that_has_lost_its_slot() {
    let scene = Scene::new(IN_HASTE, STUBBORN);
    let mut first = scene.pod();
    first.await_life();
    // Somebody has to be in line, or the slot is taken again before anybody could have had it.
    let mut second = scene.pod();
    wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
    scene.operator.destroy(&scene.operator.holders("p/one")[0]);
    wait_for("the readiness file to go", || !has_ready_file(&first));
    // It does not listen to SIGTERM.
    assert_eq!((first.pod.phase(), first.pod.exits("main")), (Phase::Failed, vec![137]));
    second.await_life();
    second.finish();
    assert_eq!(second.pod.phase(), Phase::Succeeded);
    scene.operator.assert_nothing_left("p/one");
}

/// Consul is away, and the workload does not listen to SIGTERM.
#[test]
fn the_fence_has_ended_the_workload_before_consul_can_end_the_session() {
    let mut scene = Scene::new(IN_HASTE, STUBBORN);
    let mut runner = scene.pod();
    runner.await_life();
    scene.consul.stop();
    let before = now();
    let left = runner.status()["session"]["expires_in_seconds"].as_f64().unwrap();
    // The lease ends a tenth of the TTL before. How much was left was said at some time until now.
    let session_ends = now() + left + 2.6;
    assert_eq!((runner.pod.phase(), runner.pod.exits("main")), (Phase::Failed, vec![137]));
    let last = runner.life.last();
    assert!(last < session_ends, "alive at {last}, and Consul may end the session from {session_ends} on");
    assert!(last > before + 7.0, "it had no grace");
}

#[test]
fn a_pod_deleted_while_it_waits_leaves_the_queue() {
    let scene = Scene::new(ONE, LIVES);
    let mut first = scene.pod();
    first.await_life();
    let mut second = scene.pod();
    wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
    second.pod.await_catching("slotkeeper-wait", Signal::TERM);
    second.pod.delete();
    assert_eq!(second.pod.phase(), Phase::Failed);
    assert_eq!((second.pod.exits("slotkeeper"), second.pod.exits("main")), (vec![0], vec![]));
    // Not killed when the pod's whole grace was over.
    assert_eq!(second.pod.exits("slotkeeper-wait"), [143]);
    assert_eq!(scene.operator.keys("p/one").len(), 2);
    first.finish();
    assert_eq!(first.pod.phase(), Phase::Succeeded);
}

#[test]
fn a_wait_that_times_out_fails_the_pod() {
    let scene = Scene::new(&format!("{ONE}\n    wait: 5s"), LIVES);
    let mut first = scene.pod();
    first.await_life();
    let mut second = scene.pod();
    assert_eq!(second.pod.phase(), Phase::Failed);
    assert_eq!((second.pod.exits("slotkeeper-wait"), second.pod.exits("slotkeeper")), (vec![75], vec![0]));
    assert!(!second.life.has_begun());
    first.finish();
    assert_eq!(first.pod.phase(), Phase::Succeeded);
    scene.operator.assert_nothing_left("p/one");
}
