//! `helm test`: its pod takes a session and a slot, and releases both.

use serde_json::Value;
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::helm::{Rendered, render};
use crate::kubelet::Phase;
use crate::scene::Scene;
use crate::values::matrix;

fn pod(rendered: &Rendered) -> &Value {
    let mut pods = rendered.hooks.iter().filter(|hook| hook["kind"] == "Pod");
    let pod = pods.next().expect("a pod");
    assert_eq!(pods.next(), None);
    pod
}

#[test]
fn its_pod_takes_a_slot_and_releases_it() {
    for mode in ["wrapper", "sidecar", "on_demand"] {
        let consul = Consul::start();
        // A wrapped command may have a TTL under which the default of `--kill-after` would be refused.
        let ttl = if mode == "wrapper" { "10s" } else { "2m" };
        let values = format!(
            "{{mode: {mode}, killAfter: 1s, consul: {{address: 'http://{}'}}, workload: {{terminationGracePeriodSeconds: 1}},
               config: {{session: {{ttl: {ttl}}}, semaphores: [{{name: one, prefix: p/one, limit: 3}}]}}}}",
            consul.address()
        );
        let rendered = render(&values);
        let manifests: Vec<_> = rendered.manifests.iter().chain(&rendered.hooks).cloned().collect();
        let scene = Scene::of_pod(consul, &manifests, pod(&rendered));
        let mut runner = scene.pod();
        assert_eq!(
            (runner.pod.phase(), runner.pod.exits("slotkeeper")),
            (Phase::Succeeded, vec![0]),
            "{mode}"
        );
        let logs = runner.pod.logs();
        assert!(
            logs.contains(log_events::SLOT_ACQUIRED) && logs.contains(env!("CARGO_PKG_VERSION")),
            "{mode}: {logs}"
        );
        scene.operator.assert_nothing_left("p/one-test");
        assert_eq!(scene.operator.keys("p/one"), [], "{mode}: the workload's own");
    }
}

/// It would tell nothing of the workload's otherwise.
#[test]
fn its_pod_is_as_the_workloads() {
    for (name, rendered) in matrix().iter().filter(|(name, _)| *name != "no-workload") {
        let (test, workload) = (pod(rendered), rendered.pod());
        for field in ["serviceAccountName", "securityContext", "nodeSelector", "tolerations"] {
            assert_eq!(test["spec"][field], workload["spec"][field], "{name}: {field}");
        }
        // Beside the configuration: what it names.
        let sources =
            |pod: &Value| pod["spec"]["volumes"][0]["projected"]["sources"].as_array().unwrap()[1..].to_vec();
        assert_eq!(sources(test), sources(workload), "{name}");
    }
    assert_eq!(render("test: {enabled: false}").hooks, [Value::Null; 0]);
}
