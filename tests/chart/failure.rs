//! What a pod's failure is to its Job.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::helm::{Rendered, render};
use crate::kubelet::{Phase, Pod};
use crate::scene::{LIVES, Scene};
use crate::values::matrix;
use crate::wait_for;

fn rules(rendered: &Rendered) -> Vec<Value> {
    let cron = || rendered.find("CronJob", "").map(|cron| &cron["spec"]["jobTemplate"]);
    let job = rendered.find("Job", "").or_else(cron).expect("a Job or a CronJob");
    job["spec"]["podFailurePolicy"]["rules"].as_array().unwrap().clone()
}

/// What the Job's controller does about a pod that has failed: the first rule that fits says it, and without one the failure counts.
fn action(rules: &[Value], pod: &Pod) -> String {
    let fits = |rule: &&Value| {
        let codes = &rule["onExitCodes"];
        let exit = codes["containerName"].as_str().and_then(|name| pod.exits(name).last().copied());
        exit.is_some_and(|code| {
            codes["operator"] == "In" && codes["values"].as_array().unwrap().contains(&json!(code))
        })
    };
    let found = rules.iter().find(fits).map(|rule| rule["action"].as_str().unwrap());
    found.unwrap_or("Count").to_owned()
}

/// Kubernetes refuses a rule for a container that the pod does not have.
#[test]
fn failure_rules_name_existing_containers() {
    for (name, rendered) in matrix().iter().filter(|(name, _)| *name != "no-workload") {
        let pod = &rendered.pod()["spec"];
        let lists = ["initContainers", "containers"].map(|list| pod[list].as_array().unwrap());
        let containers: Vec<_> = lists.into_iter().flatten().map(|container| &container["name"]).collect();
        for rule in rules(rendered) {
            let named = &rule["onExitCodes"]["containerName"];
            assert!(named.is_null() || containers.contains(&named), "{name}: {named} of {containers:?}");
        }
    }
}

/// Nothing of the workload has run: what has ended the waiter is no failure of it. To have waited in vain is one.
#[test]
fn a_waiter_that_is_killed_does_not_count() {
    let values = "
    mode: sidecar
    consul: {address: $CONSUL}
    config: {semaphores: [{name: one, prefix: p/one, limit: 1}]}
    workload: {container: {name: main}}";
    let rules = |values: &str| rules(&render(&values.replace("$CONSUL", "consul:8500")));
    let scene = Scene::new(values, LIVES);
    let mut holder = scene.pod();
    holder.await_life();
    for (signal, code) in [(Signal::KILL, 137), (Signal::TERM, 143)] {
        let mut waiter = scene.pod();
        wait_for("the second in line", || scene.operator.keys("p/one").len() == 3);
        waiter.pod.await_catching("slotkeeper-wait", Signal::TERM);
        waiter.pod.signal("slotkeeper-wait", signal);
        assert_eq!((waiter.pod.phase(), waiter.pod.exits("slotkeeper-wait")), (Phase::Failed, vec![code]));
        assert_eq!(action(&rules(values), &waiter.pod), "Ignore", "{signal:?}");
    }
    holder.finish();
    assert_eq!(holder.pod.phase(), Phase::Succeeded);
    let lost_node = |rule: &&Value| {
        rule["onExitCodes"]["values"].as_array().is_some_and(|codes| codes.contains(&json!(255)))
    };
    let rules = rules(values);
    let rule = rules.iter().find(lost_node).expect("a rule for a node that dies");
    assert_eq!(
        (&rule["action"], &rule["onExitCodes"]["containerName"]),
        (&json!("Ignore"), &json!("slotkeeper-wait"))
    );
    let all: Vec<_> =
        rules.iter().flat_map(|rule| rule["onExitCodes"]["values"].as_array()).flatten().collect();
    assert!(!all.contains(&&json!(75)), "{rules:?}");
}
