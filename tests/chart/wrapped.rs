//! The examples whose pods are made by others: a plain CronJob, Argo Workflows, Airflow. Each pod fits Kubernetes and runs on a slot.

use std::process::Command;

use serde_json::{Value, json};

use crate::consul::Consul;
use crate::consumer::{assert_valid, read};
use crate::helm::{python, repository, yaml};
use crate::kubelet::Phase;
use crate::kustomize::merge;
use crate::scene::{LIVES, Scene};

const FOLDER: &str = "examples/kubernetes";
const BINARY: &str = "/opt/slotkeeper/slotkeeper";

/// A manifest of the examples, which names the image of this version.
fn example(file: &str) -> Value {
    let text = read(&format!("{FOLDER}/{file}"));
    let image = concat!("registry.example/batch/slotkeeper:", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(image), "{file} has not {image}");
    yaml(&text)
}

/// The keys of a map, all of which the documentation of Argo Workflows has.
fn assert_known(map: &Value, known: &[&str]) {
    for key in map.as_object().unwrap().keys() {
        assert!(known.contains(&key.as_str()), "no {key} is documented: {map}");
    }
}

/// The pod runs its command while it holds one of the five slots of `service/warehouse/writers`.
fn assert_runs_on_a_slot(mut pod: Value) {
    assert_valid(std::slice::from_ref(&pod));
    let consul = Consul::start();
    let spec = &mut pod["spec"];
    let container = &mut spec["containers"][0];
    let name = container["name"].as_str().unwrap().to_owned();
    let words = container["command"].as_array().unwrap();
    let (wrapper, command) = words.split_at(words.iter().position(|word| word == "--").unwrap() + 1);
    assert_eq!(wrapper[..2], [BINARY, "run"]);
    // What it would run, somewhere after the flags.
    let arguments = container["args"].as_array().unwrap();
    assert_eq!(command.iter().chain(arguments).next().unwrap(), "/bin/import");
    container["command"] = json!(wrapper);
    container["args"] = json!(["/bin/sh", "-c", LIVES]);
    let variables = container["env"].as_array_mut().unwrap();
    let address = variables.iter_mut().find(|variable| variable["name"] == "CONSUL_HTTP_ADDR").unwrap();
    address["value"] = consul.address().into();
    container["volumeMounts"].as_array_mut().unwrap().push(json!({"name": "life", "mountPath": "/life"}));
    spec["volumes"].as_array_mut().unwrap().push(json!({"name": "life", "emptyDir": {}}));
    let scene = Scene::of_pod(consul, &[], &pod);
    let mut runner = scene.pod();
    runner.await_life();
    assert_eq!(scene.operator.record("service/warehouse/writers")["Limit"], 5);
    assert_eq!(scene.operator.holders("service/warehouse/writers").len(), 1);
    // A signal is the command's, which ends by it; then the slot is released.
    runner.pod.delete();
    assert_eq!((runner.pod.phase(), runner.pod.exits(&name)), (Phase::Failed, vec![143]));
    scene.operator.assert_nothing_left("service/warehouse/writers");
}

fn pod(metadata: &Value, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

#[test]
fn a_plain_cron_jobs_pod_runs_on_a_slot() {
    let cron = example("cronjob.yaml");
    assert_valid(std::slice::from_ref(&cron));
    let template = &cron["spec"]["jobTemplate"]["spec"]["template"];
    assert_runs_on_a_slot(pod(&json!({"name": "any"}), &template["spec"]));
}

#[test]
fn the_pod_of_an_argo_workflow_runs_on_a_slot() {
    let workflow = example("argo-workflow.yaml");
    let spec = &workflow["spec"];
    assert_known(
        spec,
        &["entrypoint", "parallelism", "securityContext", "volumes", "podSpecPatch", "templates"],
    );
    let templates = spec["templates"].as_array().unwrap();
    let template = templates.iter().find(|template| template["container"].is_object()).unwrap();
    assert_known(template, &["name", "inputs", "retryStrategy", "container"]);
    assert_known(&template["retryStrategy"], &["limit", "retryPolicy", "expression"]);
    let steps = templates.iter().find(|template| template["name"] == spec["entrypoint"]).unwrap();
    assert_known(steps, &["name", "steps"]);
    let step = &steps["steps"][0][0];
    assert_known(step, &["name", "template", "arguments", "withItems"]);
    assert_eq!(step["template"], template["name"]);
    // As the controller makes it: the template's container is called `main`, and the patch is laid over all.
    let mut container = template["container"].clone();
    container["name"] = "main".into();
    container["args"] = json!(["orders"]);
    let mut made = json!({
        "restartPolicy": "Never",
        "securityContext": spec["securityContext"],
        "volumes": spec["volumes"],
        "containers": [container],
    });
    merge(&mut made, &yaml(spec["podSpecPatch"].as_str().unwrap()));
    assert_eq!(made["containers"].as_array().unwrap().len(), 1, "the patch has found another container");
    assert_runs_on_a_slot(pod(&json!({"name": "any"}), &made));
}

#[test]
fn the_pods_of_airflows_operator_run_on_a_slot() {
    example("airflow/slotkeeper-pod.yaml");
    let output = Command::new(python())
        .arg(repository("tests/chart/airflow.py"))
        .arg(repository(FOLDER).join("airflow/imports.py"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pods: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(pods.len(), 3);
    assert_valid(&pods);
    assert_runs_on_a_slot(pods[0].clone());
}
