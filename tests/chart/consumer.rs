//! Those who take the chart in: another chart, and manifests that are applied as they are.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::consul::Consul;
use crate::helm::{Rendered, VERSIONS, chart, helm, render, rendered, repository, to_render, yaml};
use crate::kubelet::Phase;
use crate::scene::{LIVES, Scene};
use crate::values::assert_current;

pub(crate) fn assert_valid(manifests: &[Value]) {
    let answers = helm(&[json!({"do": "validate", "manifests": manifests, "versions": VERSIONS})]);
    assert_eq!(answers[0]["faults"], json!([]));
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The example chart with its dependency in place, as `helm dependency build` puts it there.
fn example(values: &Value) -> Rendered {
    example_after(|_| {}, values)
}

/// The same, after something was done in its folder.
fn example_after(change: impl FnOnce(&Path), values: &Value) -> Rendered {
    let folder = tempfile::tempdir().unwrap();
    copy(&repository("examples/kubernetes/chart"), folder.path());
    copy(&chart(), &folder.path().join("charts/slotkeeper"));
    change(folder.path());
    rendered(&helm(&[to_render(folder.path(), values)])[0]).unwrap()
}

#[test]
fn its_pods_are_those_that_are_scraped() {
    let rendered = example(&json!({"slotkeeper": {"podMonitor": {"enabled": true}}}));
    let labels = &rendered.find("PodMonitor", "").unwrap()["spec"]["selector"]["matchLabels"];
    for (label, value) in labels.as_object().unwrap() {
        assert_eq!(&rendered.pod()["metadata"]["labels"][label], value);
    }
}

#[test]
fn a_condition_switches_it_off() {
    let conditional = |folder: &Path| {
        let file = folder.join("Chart.yaml");
        let chart = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, format!("{chart}    condition: slotkeeper.enabled\n")).unwrap();
        std::fs::remove_file(folder.join("templates/job.yaml")).unwrap();
    };
    let on = example_after(conditional, &json!({"slotkeeper": {"enabled": true}}));
    let kinds: Vec<_> = on.manifests.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ServiceAccount", "ConfigMap"]);
    assert_eq!(example_after(conditional, &json!({"slotkeeper": {"enabled": false}})).manifests.len(), 0);
}

/// Two uses in one chart: each has a configuration, and a PodMonitor that finds its own pods alone.
#[test]
fn two_aliases_are_two() {
    let twice = |folder: &Path| {
        let file = folder.join("Chart.yaml");
        let mut chart = yaml(&std::fs::read_to_string(&file).unwrap());
        let one = chart["dependencies"][0].clone();
        let alias = |alias: &str| {
            let mut one = one.clone();
            one["alias"] = alias.into();
            one
        };
        chart["dependencies"] = json!([alias("writers"), alias("reportReaders")]);
        std::fs::write(file, chart.to_string()).unwrap();
        std::fs::remove_file(folder.join("templates/job.yaml")).unwrap();
    };
    let semaphore = json!({"name": "one", "prefix": "p/one", "limit": 1});
    let values = json!({"podMonitor": {"enabled": true}, "config": {"semaphores": [semaphore]}});
    let rendered = example_after(twice, &json!({"writers": values, "reportReaders": values}));
    assert_valid(&rendered.manifests);
    for kind in ["ConfigMap", "PodMonitor"] {
        for name in ["demo-writers", "demo-report-readers"] {
            assert!(rendered.find(kind, name).is_some(), "no {kind} {name}");
        }
    }
    let monitors = rendered.manifests.iter().filter(|manifest| manifest["kind"] == "PodMonitor");
    let names: BTreeSet<_> = monitors
        .map(|one| &one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"])
        .map(|name| name.as_str().unwrap())
        .collect();
    assert_eq!(names, BTreeSet::from(["report-readers", "writers"]));
}

#[test]
fn another_chart_includes_it_in_every_mode() {
    for (mode, first) in
        [("sidecar", "slotkeeper"), ("wrapper", "slotkeeper-install"), ("on_demand", "slotkeeper")]
    {
        let rendered = example(&json!({"slotkeeper": {"mode": mode}}));
        assert_valid(&rendered.manifests);
        let kinds: Vec<_> = rendered.manifests.iter().map(|one| one["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["ServiceAccount", "ConfigMap", "Job"], "{mode}");
        let pod = &rendered.pod()["spec"];
        assert_eq!(pod["initContainers"][0]["name"], first);
        assert_eq!(pod["initContainers"][0]["image"], concat!("slotkeeper:", env!("CARGO_PKG_VERSION")));
        assert_eq!(pod["shareProcessNamespace"], mode == "sidecar");
        assert_eq!(pod["serviceAccountName"], rendered.manifests[0]["metadata"]["name"], "{mode}");
        // The same as the chart gives its own Job, but for the container's name.
        let own = render(&format!("{{mode: {mode}, workload: {{container: {{name: import}}}}}}"));
        let policy = |from: &Rendered| from.find("Job", "").unwrap()["spec"]["podFailurePolicy"].clone();
        assert_eq!(policy(&rendered), policy(&own), "{mode}");
        assert_eq!(policy(&own)["rules"].as_array().unwrap().len(), if mode == "wrapper" { 3 } else { 2 });
        let container = &pod["containers"][0];
        assert_eq!(container["resources"], json!({"limits": {"memory": "1Gi"}}));
        let words = if mode == "wrapper" { "args" } else { "command" };
        assert_eq!(container[words], json!(["/bin/import", "--full"]), "{mode}");
    }
}

/// Which containers there are is not known where the sidecar is made.
#[test]
fn in_another_chart_a_workload_that_is_to_be_ended_runs_as_the_sidecar() {
    let values = |user: u32| {
        let user = json!({"runAsUser": user});
        json!({"slotkeeper": {"processes": {"stop": true}, "securityContext": user}})
    };
    let attempt = |user: &str, values: &Value| {
        let folder = tempfile::tempdir().unwrap();
        copy(&repository("examples/kubernetes/chart"), folder.path());
        copy(&chart(), &folder.path().join("charts/slotkeeper"));
        let file = folder.path().join("templates/job.yaml");
        let template = std::fs::read_to_string(&file).unwrap();
        let own = format!("securityContext:\n{user}");
        std::fs::write(file, template.replacen("securityContext:\n", &own, 1)).unwrap();
        rendered(&helm(&[to_render(folder.path(), values)])[0])
    };
    let refused = |user: &str, number: u32| attempt(user, &values(number)).err().unwrap();
    assert!(refused("", 1000).contains("has to run as the user of the container import"));
    assert!(refused("  runAsUser: 1000\n", 1001).contains("runs as 1000 and the sidecar as 1001"));
    let rendered = attempt("  runAsUser: 1000\n", &values(1000)).unwrap();
    assert_eq!(rendered.pod()["spec"]["initContainers"][0]["securityContext"]["runAsUser"], 1000);
}

/// What the README shows can be pasted.
#[test]
fn the_readme_shows_the_whole_template() {
    let template = read("examples/kubernetes/chart/templates/job.yaml");
    assert!(read("charts/slotkeeper/README.md").contains(&format!("```yaml\n{template}```")));
}

#[test]
fn the_pod_of_another_chart_runs() {
    let consul = Consul::start();
    let address = format!("http://{}", consul.address());
    let mut rendered = example(&json!({"slotkeeper": {"consul": {"address": address}}}));
    let job = rendered.manifests.iter_mut().find(|manifest| manifest["kind"] == "Job").unwrap();
    let pod = &mut job["spec"]["template"]["spec"];
    live(pod, "/life");
    let scene = Scene::of(consul, &rendered);
    let mut runner = scene.pod();
    runner.await_life();
    assert_eq!(scene.operator.holders("service/warehouse/writers").len(), 1);
    runner.finish();
    assert_eq!(runner.pod.phase(), Phase::Succeeded);
    scene.operator.assert_nothing_left("service/warehouse/writers");
}

/// The README's values name no user: OpenShift gives all containers of the pod one that it chooses, and its group to the volumes.
#[test]
fn any_user_will_do_on_openshift() {
    let readme = read("charts/slotkeeper/README.md");
    let (_, block) = readme.split_once("```yaml\n# openshift.yaml\n").unwrap();
    let shown = yaml(block.split_once("```").unwrap().0);
    for mode in ["wrapper", "sidecar"] {
        let consul = Consul::start();
        let mut values = shown.clone();
        values["mode"] = mode.into();
        values["consul"] = json!({"address": format!("http://{}", consul.address())});
        values["config"] = json!({"semaphores": [{"name": "one", "prefix": "p/one", "limit": 1}]});
        values["workload"]["container"] = json!({"name": "main", "image": "import:7", "command": ["/bin/sh", "-c", LIVES],
            "volumeMounts": [{"name": "life", "mountPath": "/life"}]});
        values["workload"]["pod"]["volumes"] = json!([{"name": "life", "emptyDir": {}}]);
        let mut rendered = render(&values.to_string());
        let pods = rendered.manifests.iter().chain(&rendered.hooks).map(Value::to_string).collect::<String>();
        for field in ["runAsUser", "runAsGroup", "fsGroup\""] {
            assert!(!pods.contains(field), "{mode}: {field}");
        }
        let job = rendered.manifests.iter_mut().find(|manifest| manifest["kind"] == "Job").unwrap();
        let context = &mut job["spec"]["template"]["spec"]["securityContext"];
        context["runAsUser"] = 1_000_680_000.into();
        context["fsGroup"] = 1_000_680_000.into();
        let scene = Scene::of(consul, &rendered);
        let mut runner = scene.pod();
        runner.await_life();
        runner.finish();
        assert_eq!(runner.pod.phase(), Phase::Succeeded, "{mode}");
        scene.operator.assert_nothing_left("p/one");
    }
}

/// Puts a command that can be watched in the place of the example's, in a volume mounted at `path`.
pub(crate) fn live(pod: &mut Value, path: &str) {
    let container = &mut pod["containers"][0];
    container["command"] = json!(["/bin/sh", "-c", LIVES]);
    let mounts = container["volumeMounts"].as_array_mut().unwrap();
    mounts.push(json!({"name": "life", "mountPath": path}));
    pod["volumes"].as_array_mut().unwrap().push(json!({"name": "life", "emptyDir": {}}));
}

/// What stands in a manifest because Helm has installed it.
fn without_helm(manifest: &Value) -> Value {
    let mut manifest = manifest.clone();
    let metadata = manifest["metadata"].as_object_mut().unwrap();
    metadata.remove("annotations");
    metadata.remove("namespace");
    let labels = metadata["labels"].as_object_mut().unwrap();
    labels.remove("helm.sh/chart");
    labels.remove("app.kubernetes.io/managed-by");
    if manifest["kind"] == "Job" {
        manifest["metadata"]["name"] = "demo-slotkeeper".into();
    }
    manifest
}

#[test]
fn the_generated_manifests_are_current() {
    for mode in ["wrapper", "sidecar", "on_demand"] {
        let rendered = render(&format!("mode: {mode}"));
        let mut text =
            format!("# The chart's example in the mode {mode}, rendered for use without Helm. Generated.\n");
        for manifest in &rendered.manifests {
            text += &format!("---\n{}", serde_yaml::to_string(&without_helm(manifest)).unwrap());
        }
        assert_current(&format!("examples/kubernetes/{}.yaml", mode.replace('_', "-")), &text);
    }
}
