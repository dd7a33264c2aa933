//! The page docs/kubernetes.md, taken at its word: its values are installed, and its commands run in the pod.

use serde_json::{Value, json};

use crate::consul::Consul;
use crate::helm::{VERSIONS, chart, helm, rendered, repository, to_render, yaml};
use crate::kubelet::Phase;
use crate::scene::{LIVES, Scene};

fn page() -> String {
    std::fs::read_to_string(repository("docs/kubernetes.md")).unwrap()
}

/// The values file that the page shows.
fn values() -> Value {
    let page = page();
    let (_, block) = page.split_once("```yaml\n# nightly.yaml\n").unwrap();
    yaml(block.split_once("```").unwrap().0)
}

#[test]
fn its_values_are_those_of_the_cron_job_that_it_names() {
    let mut job = to_render(&chart(), &values());
    job["release"] = "import".into();
    let rendered = rendered(&helm(&[job])[0]).unwrap();
    let validate = json!({"do": "validate", "manifests": rendered.manifests, "versions": VERSIONS});
    assert_eq!(helm(&[validate])[0]["faults"], json!([]));
    let name = rendered.find("CronJob", "").unwrap()["metadata"]["name"].as_str().unwrap();
    assert!(page().contains(&format!("--from=cronjob/{name} ")), "{name}");
    assert!(rendered.find("ServiceAccount", "import").is_some(), "whom the binding rule is for");
    assert!(rendered.find("PodMonitor", "").is_some());
}

#[test]
fn its_pod_runs_on_a_slot_and_answers_its_commands() {
    let consul = Consul::start();
    let mut values = values();
    // This Consul has no TLS and asks for no token; `secured` has one that does.
    values["consul"] = json!({"address": "$CONSUL"});
    let scene = Scene::at(consul, &values.to_string(), LIVES);
    let mut runner = scene.pod();
    runner.await_life();
    let page = page();
    let commands: Vec<Vec<&str>> = page
        .lines()
        .filter_map(|line| line.split_once("exec POD -- "))
        .map(|(_, command)| command.split('#').next().unwrap().split_whitespace().collect())
        .collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    for command in commands {
        let output = runner.pod.exec("import", &command);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("writers") || said.contains("demo-1"), "{command:?}: {said}");
    }
    runner.finish();
    assert_eq!((runner.pod.phase(), runner.pod.exits("import")), (Phase::Succeeded, vec![0]));
    scene.operator.assert_nothing_left("service/warehouse/writers");
}
