//! The mode wrapper, run.

use crate::kubelet::Phase;
use crate::scene::{LIVES, STUBBORN, Scene};
use crate::wait_for;

const ONE: &str = "
    mode: wrapper
    killAfter: 1s
    consul: {address: $CONSUL}
    config: {session: {ttl: 10s}, semaphores: [{name: one, prefix: p/one, limit: 1}]}
    workload: {container: {name: main}}";

#[test]
fn the_second_pod_runs_after_the_first() {
    let scene = Scene::new(ONE, LIVES);
    let mut first = scene.pod();
    first.await_life();
    wait_for("its readiness", || first.pod.is_ready("main"));
    let mut second = scene.pod();
    wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
    assert!(!second.life.has_begun() && !second.pod.is_ready("main"));
    first.finish();
    assert_eq!(first.pod.phase(), Phase::Succeeded);
    assert_eq!(first.pod.exits("slotkeeper-install"), [0]);
    second.await_life();
    first.life.assert_before(&second.life);
    // The command's own handler says 143.
    second.pod.delete();
    assert_eq!((second.pod.phase(), second.pod.exits("main")), (Phase::Failed, vec![143]));
    scene.operator.assert_nothing_left("p/one");
}

/// The binary comes from an image volume, without an init container.
#[test]
fn an_image_volume_has_the_binary_too() {
    let scene = Scene::new(&format!("{ONE}\n    wrapper: {{binary: image}}"), LIVES);
    let mut runner = scene.pod();
    runner.await_life();
    assert_eq!(scene.operator.holders("p/one").len(), 1);
    runner.finish();
    assert_eq!((runner.pod.phase(), runner.pod.exits("main")), (Phase::Succeeded, vec![0]));
    assert_eq!(runner.pod.exits("slotkeeper-install"), [0; 0]);
    scene.operator.assert_nothing_left("p/one");
}

#[test]
fn a_command_ends_with_its_slot() {
    let scene = Scene::new(ONE, STUBBORN);
    let mut runner = scene.pod();
    runner.await_life();
    scene.operator.destroy(&scene.operator.holders("p/one")[0]);
    assert_eq!((runner.pod.phase(), runner.pod.exits("main")), (Phase::Failed, vec![80]));
}

#[test]
fn a_pod_that_is_deleted_while_it_waits_leaves_the_line() {
    let scene = Scene::new(ONE, LIVES);
    let mut first = scene.pod();
    first.await_life();
    let mut second = scene.pod();
    wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
    second.pod.delete();
    assert_eq!((second.pod.phase(), second.pod.exits("main")), (Phase::Failed, vec![143]));
    assert_eq!(scene.operator.keys("p/one").len(), 2);
    assert!(!second.life.has_begun());
    first.finish();
    assert_eq!(first.pod.phase(), Phase::Succeeded);
}

#[test]
fn a_wait_that_is_over_fails_the_pod() {
    let scene = Scene::new(&format!("{ONE}\n    wait: 5s"), LIVES);
    let mut first = scene.pod();
    first.await_life();
    let mut second = scene.pod();
    assert_eq!((second.pod.phase(), second.pod.exits("main")), (Phase::Failed, vec![75]));
    assert!(!second.life.has_begun());
    first.finish();
    assert_eq!(first.pod.phase(), Phase::Succeeded);
    scene.operator.assert_nothing_left("p/one");
}
