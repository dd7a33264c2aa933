//! However a pod in the mode sidecar ends, the next one begins after its workload's last sign of life.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use slotkeeper::internals::log_events;
use tempfile::TempDir;

use crate::BINARY;
use crate::kubelet::{Ending, Phase};
use crate::scene::{LIVES, Runner, STUBBORN, Scene};
use crate::support::life::{Life, MEEK, now};
use crate::wait_for;

/// As little grace as there can be, and a session that ends soon: what is not given back is free after 10 to 20 s.
const BRIEF: &str = "
    mode: sidecar
    consul: {address: $CONSUL}
    config:
      session: {ttl: 10s}
      semaphores: [{name: one, prefix: p/one, limit: 1}]
    fence: {enabled: false}
    workload: {terminationGracePeriodSeconds: 1, container: {name: main}}";

fn brief(drain: &str, processes: &str) -> String {
    let config = format!("config:\n      drain: {{timeout: 1s{drain}}}");
    format!("{}\n    processes: {{{processes}}}", BRIEF.replace("config:", &config))
}

/// One in line who begins as soon as the slot is free, as a pod in the mode wrapper does.
struct Next {
    child: Child,
    life: Life,
    _folder: TempDir,
}

impl Next {
    /// Waits until it stands in line.
    fn wait(scene: &Scene) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("beats");
        let waiting = scene.operator.keys("p/one").len();
        let mut command = Command::new(BINARY);
        command.args(["run", "p/one", "--limit", "1", "--http-addr", &scene.consul.address(), "--"]);
        command.args(["/bin/sh", "-c", MEEK]).arg(&file).env("RUST_BACKTRACE", "0");
        let log = File::create(folder.path().join("log")).unwrap();
        let child = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        wait_for("the next one in line", || scene.operator.keys("p/one").len() == waiting + 1);
        Self { child, life: Life::at(file), _folder: folder }
    }

    fn await_life(&self) {
        wait_for("the next one to begin", || self.life.has_begun());
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pod on the slot, and the next one in line.
fn two(scene: &Scene) -> (Runner, Next) {
    let first = scene.pod();
    first.await_life();
    wait_for("its readiness", || first.pod.is_ready("slotkeeper"));
    let next = Next::wait(scene);
    (first, next)
}

/// The last sign of life of a workload that does not listen to SIGTERM, and the next one's first.
fn ends(values: &str, why: Ending) -> (f64, f64) {
    let scene = Scene::new(values, STUBBORN);
    let (mut first, next) = two(&scene);
    first.pod.end(why);
    assert_eq!((first.pod.phase(), first.pod.exits("main")), (Phase::Failed, vec![137]), "{why:?}");
    next.await_life();
    (first.life.last(), next.life.first())
}

fn assert_one_after_the_other(values: &str, why: Ending) {
    let (last, first) = ends(values, why);
    assert!(last < first, "{why:?}: alive at {last}, and the next one at {first}");
}

macro_rules! endings {
    ($($name:ident: $why:ident,)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn where_the_sidecar_sees_the_workload() {
                assert_one_after_the_other(&brief("", ""), Ending::$why);
            }

            #[test]
            fn where_the_sidecar_ends_the_workload() {
                assert_one_after_the_other(&brief("", "stop: true"), Ending::$why);
            }

            #[test]
            fn where_the_sidecar_sees_nothing() {
                assert_one_after_the_other(&brief("", "shared: false"), Ending::$why);
            }

            /// What the others would show if they showed nothing: they fail without what they are for.
            #[test]
            fn not_where_the_sidecar_neither_sees_nor_holds() {
                let (last, first) = ends(&brief(", hold: 0s", "shared: false"), Ending::$why);
                assert!(first < last, "alive until {last}, and the next one from {first} on");
            }
        }
    )*};
}

endings! {
    deleted: Delete,
    deleted_by_force: Force,
    evicted: Evict,
    rejected: Reject,
}

/// A Job that ends by itself waits for nothing.
#[test]
fn a_workload_that_has_ended_is_seen_to_have_ended() {
    let scene = Scene::new(&brief("", ""), LIVES);
    let (mut first, next) = two(&scene);
    first.finish();
    assert_eq!(first.pod.phase(), Phase::Succeeded);
    next.await_life();
    assert!(first.life.last() < next.life.first());
    let logs = first.pod.logs();
    assert!(
        !logs.contains(log_events::DRAIN_AWAITS_WORKLOAD) && logs.contains(log_events::DRAINED),
        "{logs}"
    );
}

/// Somebody changes its image in place, say.
#[test]
fn a_sidecar_that_alone_gets_sigterm_holds_its_slot() {
    let scene = Scene::new(&brief("", ""), LIVES);
    let (mut first, next) = two(&scene);
    first.pod.signal("slotkeeper", Signal::TERM);
    wait_for("it to be told", || first.pod.logs().contains(log_events::DRAIN_AWAITS_WORKLOAD));
    let beats = first.life.beats();
    wait_for("the workload to go on", || first.life.beats() > beats + 20);
    assert!(first.pod.is_ready("slotkeeper") && first.pod.is_running("main") && !next.life.has_begun());
    // When the grace for that is over it is killed, and comes back to the same session.
    first.pod.signal("slotkeeper", Signal::KILL);
    wait_for("the new one", || first.pod.exits("slotkeeper") == [137] && first.pod.is_ready("slotkeeper"));
    let beats = first.life.beats();
    wait_for("the workload to go on", || first.life.beats() > beats + 20);
    assert!(!next.life.has_begun());
    first.finish();
    assert_eq!(first.pod.phase(), Phase::Succeeded);
    next.await_life();
    assert!(first.life.last() < next.life.first());
}

/// What the chart makes of the values, changed.
fn changed(values: &str, script: &str, change: impl FnOnce(&mut Value)) -> Scene {
    let mut scene = Scene::new(values, script);
    change(&mut scene.template["spec"]);
    scene
}

#[test]
fn of_several_containers_all_have_ended() {
    let scene = changed(&brief("", ""), LIVES, |pod| {
        let mut other = pod["containers"][0].clone();
        other["name"] = "other".into();
        other["command"] = json!(["/bin/sh", "-c", STUBBORN.replace("/life/beats", "/life/others")]);
        pod["containers"].as_array_mut().unwrap().push(other);
    });
    let (mut first, next) = two(&scene);
    let other = Life::at(first.pod.file("life", "others"));
    wait_for("the other one to live", || other.has_begun());
    first.pod.delete();
    assert_eq!(
        (first.pod.phase(), first.pod.exits("main"), first.pod.exits("other")),
        (Phase::Failed, vec![143], vec![137])
    );
    next.await_life();
    assert!(other.last() < next.life.first());
}

/// The kubelet asks no liveness probe yet: there is no fence.
fn is_ended_before_consul_ends_the_session(more: &str) {
    let values = brief("", "stop: true")
        .replace("ttl: 10s", "ttl: 30s")
        .replace("fence: {enabled: false}", "fence: {}");
    let values = values.replace("{name: main}", &format!("{{name: main, {more}}}"));
    let mut scene = Scene::new(&values, STUBBORN);
    let mut runner = scene.pod();
    runner.await_life();
    wait_for("the sidecar to see it", || runner.pod.logs().contains(log_events::WORKLOAD_STARTED));
    scene.consul.stop();
    let left = runner.status()["session"]["expires_in_seconds"].as_f64().unwrap();
    let lease_ends = now() + left;
    assert_eq!((runner.pod.phase(), runner.pod.exits("main")), (Phase::Failed, vec![137]));
    let last = runner.life.last();
    assert!(last < lease_ends, "alive at {last}, and the lease ends at {lease_ends}");
}

#[test]
fn the_sidecar_ends_a_slow_starter() {
    is_ended_before_consul_ends_the_session(
        "startupProbe: {httpGet: {path: /, port: 1}, failureThreshold: 1000}",
    );
}

#[test]
fn the_sidecar_ends_a_workload_whose_hook_runs() {
    is_ended_before_consul_ends_the_session("lifecycle: {postStart: {sleep: {seconds: 1000}}}");
}

#[test]
fn the_sidecar_ends_a_workload_with_a_probe_of_its_own() {
    is_ended_before_consul_ends_the_session("livenessProbe: {httpGet: {path: /livez, port: 9377}}");
}

/// A gate that holds nothing back then. The chart has none such; a pod of one's own may.
fn gated_by_a_startup_probe(processes: &str) -> Scene {
    changed(&brief("", processes), STUBBORN, |pod| {
        let init = pod["initContainers"].as_array_mut().unwrap();
        init.truncate(1);
        init[0]["startupProbe"] = json!({"httpGet": {"path": "/startupz", "port": "slotkeeper"}, "periodSeconds": 1, "failureThreshold": 1000});
    })
}

#[test]
fn behind_a_startup_probe_a_kubelet_that_restarts_starts_what_waits() {
    let scene = gated_by_a_startup_probe("");
    let mut first = scene.pod();
    first.await_life();
    let mut second = scene.pod();
    wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
    assert!(!second.life.has_begun());
    second.pod.restart_kubelet();
    second.await_life();
    first.pod.end(Ending::Force);
    second.pod.end(Ending::Force);
    assert_eq!((first.pod.phase(), second.pod.phase()), (Phase::Failed, Phase::Failed));
}

#[test]
fn the_sidecar_ends_a_workload_that_starts_without_its_slot() {
    let scene = gated_by_a_startup_probe("stop: true");
    let first = scene.pod();
    first.await_life();
    let mut second = scene.pod();
    wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
    second.pod.restart_kubelet();
    assert_eq!((second.pod.phase(), second.pod.exits("main")), (Phase::Failed, vec![137]));
    assert!(
        second.pod.logs().contains(&format!("{}: it runs without its slot", log_events::ENDING_WORKLOAD))
    );
    assert!(first.pod.is_running("main"));
}

#[test]
fn behind_the_charts_gate_a_kubelet_that_restarts_starts_nothing() {
    let scene = Scene::new(&brief("", ""), LIVES);
    let mut first = scene.pod();
    first.await_life();
    let mut second = scene.pod();
    wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
    for pod in [&first.pod, &second.pod] {
        pod.restart_kubelet();
    }
    let beats = first.life.beats();
    wait_for("the first to go on", || first.life.beats() > beats + 20);
    assert!(!second.life.has_begun());
    first.finish();
    assert_eq!(first.pod.phase(), Phase::Succeeded);
    second.await_life();
    assert!(first.life.last() < second.life.first());
    second.finish();
    assert_eq!(second.pod.phase(), Phase::Succeeded);
}

/// The chart refuses a restart policy of the container's own. A pod of one's own may have it.
#[test]
fn the_sidecar_ends_a_restarted_workload_without_its_slot_again() {
    let scene = changed(&brief("", "stop: true"), STUBBORN, |pod| {
        pod["containers"][0]["restartPolicy"] = "Always".into();
    });
    let (first, next) = two(&scene);
    wait_for("the sidecar to see it", || first.pod.logs().contains(log_events::WORKLOAD_STARTED));
    scene.operator.destroy(&scene.operator.holders("p/one")[0]);
    next.await_life();
    wait_for("its second end", || first.pod.exits("main").len() > 1);
    assert!(first.pod.exits("main").iter().all(|code| *code == 137), "{:?}", first.pod.exits("main"));
}

/// It is the same user, and sees the sidecar's processes.
#[test]
fn a_workload_cannot_read_what_the_sidecar_reads() {
    let script = "
        for process in /proc/[0-9]*; do
            cat $process/root/etc/slotkeeper/slotkeeper.yaml && echo \"$process\" >> /life/read
            tr '\\0' ' ' < $process/cmdline >> /life/seen
            tr '\\0' '\\n' < $process/environ | grep SLOTKEEPER_CONFIG >> /life/read
        done
        echo \"0 0\" >> /life/beats; sleep 600";
    let scene = Scene::new(&brief("", "stop: true"), script);
    let runner = scene.pod();
    runner.await_life();
    let text = |name: &str| std::fs::read_to_string(runner.pod.file("life", name)).unwrap_or_default();
    assert!(text("seen").contains("/slotkeeper agent"), "it is seen: {}", text("seen"));
    assert_eq!(text("read"), "");
}

#[test]
fn a_sidecar_that_may_not_end_the_workload_says_so_once() {
    let scene = changed(&brief("", "stop: true"), STUBBORN, |pod| {
        pod["initContainers"][0]["securityContext"]["runAsUser"] = 4711.into();
    });
    let (mut first, _next) = two(&scene);
    wait_for("the sidecar to see it", || first.pod.logs().contains(log_events::WORKLOAD_STARTED));
    scene.operator.destroy(&scene.operator.holders("p/one")[0]);
    wait_for("its word", || first.pod.logs().contains(log_events::WORKLOAD_NOT_ENDED));
    let beats = first.life.beats();
    wait_for("more attempts", || first.life.beats() > beats + 20);
    assert_eq!(first.pod.logs().matches(log_events::WORKLOAD_NOT_ENDED).count(), 1);
    first.pod.end(Ending::Force);
    assert_eq!(first.pod.phase(), Phase::Failed);
}
