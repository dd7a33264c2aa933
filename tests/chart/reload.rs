//! A ConfigMap that changes under a pod that runs.

use serde_json::Value;

use crate::kubelet::Phase;
use crate::scene::{LIVES, Runner, Scene};
use crate::wait_for;

const TWO: &str = "
    mode: sidecar
    consul: {address: $CONSUL}
    config: {semaphores: [{name: one, prefix: p/one, limit: 1}, {name: two, prefix: p/two, limit: 1}]}
    workload: {container: {name: main}}";

/// What was removed is kept, what is new is acquired, and the fence sees nothing of it.
#[test]
fn a_running_pod_applies_a_changed_config_map() {
    let mut scene = Scene::new(TWO, LIVES);
    let mut runner = scene.pod();
    runner.await_life();
    wait_for("its readiness", || runner.pod.is_ready("slotkeeper"));
    let states = |runner: &Runner| -> Vec<String> {
        let semaphores = runner.status()["semaphores"].as_array().unwrap().clone();
        let told =
            |one: &Value| format!("{} {}", one["name"].as_str().unwrap(), one["state"].as_str().unwrap());
        semaphores.iter().map(told).collect()
    };
    let config = scene.node.objects.values_mut().find_map(|data| data.get_mut("slotkeeper.yaml")).unwrap();
    *config = config.replace("two", "three");
    assert!(config.contains("prefix: p/three"), "{config}");
    runner.pod.update(&scene.node);
    wait_for("what is new", || states(&runner) == ["one held", "three held", "two held"]);
    assert_eq!(
        (scene.operator.holders("p/two"), runner.pod.is_ready("slotkeeper")),
        (scene.operator.holders("p/one"), true)
    );
    // Asked for in the container.
    let output = runner.pod.exec("slotkeeper", &["/slotkeeper", "reload"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("two: no longer configured so; kept until the workload has ended"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(states(&runner), ["one held", "three held", "two held"]);
    let beats = runner.life.beats();
    wait_for("the workload to go on", || runner.life.beats() > beats);
    runner.finish();
    assert_eq!((runner.pod.phase(), runner.pod.exits("main")), (Phase::Succeeded, vec![0]));
    for prefix in ["p/one", "p/two", "p/three"] {
        scene.operator.assert_nothing_left(prefix);
    }
}
