//! The kustomization: its components' patches are the chart's, and what they make of a Job and a CronJob runs on a slot.

use serde_json::{Map, Value, json};

use crate::consul::Consul;
use crate::consumer::{assert_valid, live, read};
use crate::helm::{Rendered, render, yaml};
use crate::kubelet::Phase;
use crate::scene::Scene;
use crate::values::{agent, assert_current};

const FOLDER: &str = "examples/kubernetes/kustomize";
/// The components, which the chart's modes are called as.
const COMPONENTS: [&str; 3] = ["sidecar", "wrapper", "on-demand"];

/// Variables for what the chart derives by the mode, so that the configuration is the user's alone.
const VARIABLES: [(&str, &str); 7] = [
    ("session.ttl", "SLOTKEEPER_SESSION_TTL"),
    ("session.state_file", "SLOTKEEPER_STATE_FILE"),
    ("readiness.file", "SLOTKEEPER_READINESS_FILE"),
    ("control.listen", "SLOTKEEPER_CONTROL_LISTEN"),
    ("drain.timeout", "SLOTKEEPER_DRAIN_TIMEOUT"),
    ("drain.release", "SLOTKEEPER_DRAIN_RELEASE"),
    ("workload.volume", "SLOTKEEPER_WORKLOAD_VOLUME"),
];

/// What the configuration says beside where Consul is and what is held, as variables.
fn variables(config: &Value) -> Vec<Value> {
    let sections = config.as_object().unwrap().iter();
    let derived = sections.filter(|(section, _)| !["consul", "semaphores"].contains(&section.as_str()));
    let fields = derived.flat_map(|(section, fields)| {
        let fields = fields.as_object().unwrap().iter();
        fields.map(move |(field, value)| (format!("{section}.{field}"), value.clone()))
    });
    let variable = |(field, value): (String, Value)| {
        let known = VARIABLES.iter().find(|(known, _)| *known == field);
        let (_, name) = known.unwrap_or_else(|| panic!("no variable for {field}, which the chart writes"));
        json!({"name": name, "value": value.as_str().expect("a text")})
    };
    fields.map(variable).collect()
}

fn without(from: &Value, keys: &[&str]) -> Map<String, Value> {
    let all = from.as_object().unwrap().clone().into_iter();
    all.filter(|(key, _)| !keys.contains(&key.as_str())).collect()
}

/// Where a kind has its JobSpec.
fn job_path(kind: &str) -> &'static str {
    if kind == "Job" { "/spec" } else { "/spec/jobTemplate/spec" }
}

/// What the chart makes of a container `main`, but for what is the workload's own.
#[test]
fn the_generated_patches_are_current() {
    let values = read(&format!("{FOLDER}/slotkeeper/values.yaml"));
    for component in COMPONENTS {
        let rendered = render(&format!("mode: {}\n{values}", component.replace('-', "_")));
        let mut pod = rendered.pod()["spec"].clone();
        let variables = variables(&yaml(rendered.config()));
        let runs_agent = agent(&pod)["name"].clone();
        for list in ["initContainers", "containers"] {
            for container in pod[list].as_array_mut().unwrap() {
                if container["name"] == runs_agent {
                    container["env"].as_array_mut().unwrap().extend(variables.clone());
                }
            }
        }
        let container = without(&pod["containers"][0], &["image", "command", "args", "securityContext"]);
        let mut spec =
            without(&pod, &["securityContext", "serviceAccountName", "automountServiceAccountToken"]);
        spec.insert("containers".into(), json!([container]));
        let annotations = without(&rendered.pod()["metadata"]["annotations"], &["checksum/slotkeeper"]);
        let policy = &rendered.find("Job", "").unwrap()["spec"]["podFailurePolicy"];
        let job = json!({"podFailurePolicy": policy, "template": {"metadata": {"annotations": annotations}, "spec": spec}});
        let whole = |kind: &str, spec: Value| json!({"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": "any"}, "spec": spec});
        let cron = json!({"jobTemplate": {"spec": job}});
        let mut files = vec![("job", whole("Job", job)), ("cronjob", whole("CronJob", cron))];
        if component == "wrapper" {
            let command = &pod["containers"][0]["command"];
            files.push(("command-of-job", wraps("Job", command)));
            files.push(("command-of-cronjob", wraps("CronJob", command)));
        }
        for (name, patch) in files {
            let text = serde_yaml::to_string(&patch).unwrap();
            let written = format!("# Rendered by the chart slotkeeper from values.yaml. Generated.\n{text}");
            assert_current(&format!("{FOLDER}/slotkeeper/{component}/{name}.yaml"), &written);
        }
    }
}

/// A JSON patch by which the first container's command becomes the arguments of another one. Arguments of its own would be lost.
fn wraps(kind: &str, command: &Value) -> Value {
    let container = format!("{}/template/spec/containers/0", job_path(kind));
    let at = |field: &str| format!("{container}/{field}");
    json!([
        {"op": "test", "path": at("name"), "value": "main"},
        {"op": "test", "path": at("args"), "value": null},
        {"op": "move", "from": at("command"), "path": at("args")},
        {"op": "add", "path": at("command"), "value": command},
    ])
}

/// A strategic merge, as kustomize does it: lists of named things by their names, new ones first.
pub(crate) fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, patch) in patch {
                merge(base.entry(key).or_insert(Value::Null), patch);
            }
        }
        (Value::Array(base), Value::Array(patch)) if patch.iter().all(|one| one["name"].is_string()) => {
            let mut new = Vec::new();
            for patch in patch {
                // One volume can be mounted twice.
                let key = if patch["mountPath"].is_string() { "mountPath" } else { "name" };
                match base.iter_mut().find(|one| one[key] == patch[key]) {
                    Some(one) => merge(one, patch),
                    None => new.push(patch.clone()),
                }
            }
            base.splice(..0, new);
        }
        (base, patch) => *base = patch.clone(),
    }
}

/// A JSON patch (RFC 6902), as kustomize does it, where what is not there is null to a `test`. Only fields of objects are changed.
fn change(base: &mut Value, operations: &[Value]) -> Result<(), String> {
    /// The object that has what the path names, and the name there.
    fn place<'m>(base: &'m mut Value, path: &'m str) -> (&'m mut Map<String, Value>, &'m str) {
        let (parent, field) = path.rsplit_once('/').unwrap();
        (base.pointer_mut(parent).unwrap().as_object_mut().unwrap(), field)
    }
    for operation in operations {
        let failed = || format!("failed: {operation}");
        let path = operation["path"].as_str().unwrap();
        match operation["op"].as_str().unwrap() {
            "test" if base.pointer(path).unwrap_or(&Value::Null) == &operation["value"] => {}
            kind @ ("add" | "move") => {
                let value = if kind == "add" {
                    operation["value"].clone()
                } else {
                    let (from, field) = place(base, operation["from"].as_str().unwrap());
                    from.remove(field).ok_or_else(failed)?
                };
                let (to, field) = place(base, path);
                to.insert(field.to_owned(), value);
            }
            _ => return Err(failed()),
        }
    }
    Ok(())
}

/// The manifest with the component's patches.
fn kustomized(component: &str, mut manifest: Value) -> Result<Value, String> {
    let folder = format!("{FOLDER}/slotkeeper/{component}");
    let component = yaml(&read(&format!("{folder}/kustomization.yaml")));
    assert_eq!(component["images"], json!([{"name": "slotkeeper", "newTag": env!("CARGO_PKG_VERSION")}]));
    let (kind, name) = (manifest["kind"].clone(), manifest["metadata"]["name"].clone());
    let patches = component["patches"].as_array().unwrap().iter();
    let mut patched = 0;
    for patch in patches.filter(|patch| patch["target"]["kind"] == kind) {
        // Those without the label are left as they are.
        let (key, value) = patch["target"]["labelSelector"].as_str().unwrap().split_once('=').unwrap();
        assert_eq!(manifest["metadata"]["labels"][key], value);
        let patch = yaml(&read(&format!("{folder}/{}", patch["path"].as_str().unwrap())));
        match patch.as_array() {
            Some(operations) => change(&mut manifest, operations)?,
            None => merge(&mut manifest, &patch),
        }
        patched += 1;
    }
    assert!(patched > 0, "no patch for a {kind}");
    manifest["metadata"]["name"] = name;
    Ok(manifest)
}

/// The example of this kind, which the kustomization takes in.
fn example(kind: &str) -> Value {
    let file = format!("{}.yaml", kind.to_lowercase());
    assert!(yaml(&read(&format!("{FOLDER}/kustomization.yaml")))["resources"].to_string().contains(&file));
    yaml(&read(&format!("{FOLDER}/{file}")))
}

fn names<'m>(manifest: &'m Value, list: &str) -> Vec<&'m str> {
    let path = format!("{}/template/spec/{list}", job_path(manifest["kind"].as_str().unwrap()));
    let list = manifest.pointer(&path).unwrap().as_array().unwrap();
    list.iter().map(|one| one["name"].as_str().unwrap()).collect()
}

/// The slot comes before all else, and what was there is there.
#[test]
fn a_component_adds_its_containers_before_those_of_the_manifest() {
    for (component, ours) in [
        ("sidecar", &["slotkeeper", "slotkeeper-wait"][..]),
        ("on-demand", &["slotkeeper", "slotkeeper-wait"]),
        ("wrapper", &["slotkeeper-install"]),
    ] {
        for (kind, theirs) in [("Job", &["fetch"][..]), ("CronJob", &[])] {
            let manifest = kustomized(component, example(kind)).unwrap();
            assert_valid(std::slice::from_ref(&manifest));
            assert_eq!(names(&manifest, "initContainers"), [ours, theirs].concat(), "{component} {kind}");
            assert_eq!(names(&manifest, "containers"), ["main"]);
            assert!(names(&manifest, "volumes").contains(&"scratch"));
        }
    }
}

/// A patch cannot add one list to another one, and what it cannot keep it must not drop.
#[test]
fn a_command_with_arguments_is_not_wrapped() {
    let mut manifest = example("Job");
    manifest["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["--full"]);
    assert!(kustomized("wrapper", manifest.clone()).unwrap_err().contains("args"));
    assert!(kustomized("sidecar", manifest).is_ok());
    let mut manifest = example("Job");
    manifest["spec"]["template"]["spec"]["containers"][0].as_object_mut().unwrap().remove("command");
    assert!(kustomized("wrapper", manifest).unwrap_err().contains("move"));
}

#[test]
fn a_job_runs_beside_a_sidecar() {
    runs_on_a_slot("sidecar", "Job", "");
}

#[test]
fn a_cron_jobs_pod_runs_beside_a_sidecar() {
    runs_on_a_slot("sidecar", "CronJob", "");
}

#[test]
fn a_job_runs_wrapped() {
    runs_on_a_slot("wrapper", "Job", "wait: 5m");
}

#[test]
fn a_cron_jobs_pod_runs_wrapped() {
    runs_on_a_slot("wrapper", "CronJob", "");
}

#[test]
fn a_job_runs_with_slots_on_demand() {
    runs_on_a_slot("on-demand", "Job", "mode: on_demand");
}

/// The example's pod with a command that can be watched, the configuration's prefix and limit changed, and `more` of its semaphore.
fn runs_on_a_slot(component: &str, kind: &str, more: &str) {
    let consul = Consul::start();
    let kustomization = yaml(&read(&format!("{FOLDER}/kustomization.yaml")));
    let generator = &kustomization["configMapGenerator"][0];
    assert_eq!(generator["files"], json!(["slotkeeper.yaml"]));
    let mut config = yaml(&read(&format!("{FOLDER}/slotkeeper.yaml")));
    config["consul"]["address"] = consul.address().into();
    config["semaphores"][0]["prefix"] = "p/other".into();
    config["semaphores"][0]["limit"] = 7.into();
    merge(&mut config["semaphores"][0], &yaml(more));
    let mut manifest = example(kind);
    live(manifest.pointer_mut(&format!("{}/template/spec", job_path(kind))).unwrap(), "/life");
    let manifest = kustomized(component, manifest).unwrap();
    let map = json!({"kind": "ConfigMap", "metadata": {"name": generator["name"]},
        "data": {"slotkeeper.yaml": config.to_string()}});
    let manifests = vec![map, manifest];
    let scene = Scene::of(consul, &Rendered { manifests, hooks: Vec::new(), notes: String::new() });
    let mut runner = scene.pod();
    runner.await_life();
    if component != "on-demand" {
        assert_eq!(scene.operator.record("p/other")["Limit"], 7);
        assert_eq!(scene.operator.holders("p/other").len(), 1);
    }
    runner.finish();
    assert_eq!(runner.pod.phase(), Phase::Succeeded);
    assert_eq!(scene.operator.sessions(), [], "sessions are left");
}
