//! The mode wrapper, run.

use crate::kubelet::{Phase, Pod};
use crate::scene::{LIVES, STUBBORN, Scene};
use crate::support::life::now;
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

/// The slot is released: a session that is left would last for 20 minutes.
#[test]
fn a_command_that_ignores_sigterm_has_its_own_time_and_then_the_next_one_runs() {
    let values = ONE.replace("ttl: 10s", "ttl: 10m");
    let scene =
        Scene::new(&values.replace("workload: {", "workload: {terminationGracePeriodSeconds: 3, "), STUBBORN);
    let mut first = scene.pod();
    first.await_life();
    let second = scene.pod();
    wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
    let deleted = now();
    first.pod.delete();
    second.await_life();
    first.life.assert_before(&second.life);
    assert!(first.life.last() > deleted + 2.0, "it had its time");
    assert_eq!((first.pod.phase(), first.pod.exits("main")), (Phase::Failed, vec![137]));
}

#[test]
fn a_pod_deleted_while_it_waits_leaves_the_queue() {
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
fn a_wait_that_times_out_fails_the_pod() {
    let told = ONE.replace("name: main", "name: main, terminationMessagePath: /life/why");
    let scene = Scene::new(&format!("{told}\n    wait: 5s"), LIVES);
    let mut first = scene.pod();
    first.await_life();
    let mut second = scene.pod();
    assert_eq!((second.pod.phase(), second.pod.exits("main")), (Phase::Failed, vec![75]));
    assert!(!second.life.has_begun());
    let why = |pod: &Pod| std::fs::read_to_string(pod.file("life", "why")).unwrap_or_default();
    let said = why(&second.pod);
    let expected =
        "slotkeeper: timed out after 5s waiting for one: 1st of 1 in the queue, held by sh batch/demo-1";
    assert!(said.starts_with(expected), "{said}");
    first.finish();
    assert_eq!(first.pod.phase(), Phase::Succeeded);
    assert_eq!(why(&first.pod), "");
    scene.operator.assert_nothing_left("p/one");
}
