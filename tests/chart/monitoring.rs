//! What the Prometheus operator and Grafana take in. The operator's kinds are in no schema of Kubernetes, so their fields
//! are compared with those of its API reference.

use serde_json::{Value, json};

use crate::helm::{RELEASE, chart, render, yaml};
use crate::values::{agent, matrix};

/// The keys of a map, all of which the operator must know.
fn assert_known(value: &Value, known: &[&str]) {
    for key in value.as_object().unwrap().keys() {
        assert!(known.contains(&key.as_str()), "the operator knows no {key} in {value}");
    }
}

#[test]
fn the_pods_of_the_release_are_scraped_at_a_port_that_they_have() {
    let rendered = &matrix()["no-workload"];
    let spec = &rendered.find("PodMonitor", "").unwrap()["spec"];
    assert_known(spec, &["selector", "podMetricsEndpoints"]);
    assert_eq!(spec.get("namespaceSelector"), None, "the release's own");
    assert_known(&spec["podMetricsEndpoints"][0], &["port", "path", "interval"]);
    let selected = spec["selector"]["matchLabels"].as_object().unwrap();
    let labels = json!({"app.kubernetes.io/name": "slotkeeper", "app.kubernetes.io/instance": RELEASE});
    assert_eq!(spec["selector"]["matchLabels"], labels);
    for name in ["wrapper", "sidecar", "on-demand", "cron-job"] {
        let pod = matrix()[name].pod();
        for (label, value) in selected {
            assert_eq!(&pod["metadata"]["labels"][label], value, "{name}");
        }
        let ports = agent(&pod["spec"])["ports"].as_array().unwrap();
        assert!(ports.iter().any(|port| port["name"] == spec["podMetricsEndpoints"][0]["port"]));
    }
    let own = &matrix()["monitoring"].find("PodMonitor", "").unwrap();
    assert_eq!(own["spec"]["selector"], json!({"matchLabels": {"team": "warehouse"}}));
    assert_eq!(own["spec"]["namespaceSelector"], json!({"any": true}));
    assert_eq!(own["spec"]["podMetricsEndpoints"][0]["interval"], "5s");
    assert_eq!(own["metadata"]["labels"]["release"], "prometheus");
}

#[test]
fn the_rules_are_those_of_the_file_with_whole_addresses_of_their_runbooks() {
    let rendered = matrix()["monitoring"].find("PrometheusRule", "").unwrap();
    assert_known(&rendered["spec"], &["groups"]);
    let mut wanted = yaml(&std::fs::read_to_string(chart().join("rules/slotkeeper.yaml")).unwrap());
    let mut alerts = 0;
    for group in wanted["groups"].as_array_mut().unwrap() {
        assert_known(group, &["name", "interval", "rules", "labels", "limit"]);
        for rule in group["rules"].as_array_mut().unwrap() {
            assert_known(
                rule,
                &["alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations"],
            );
            if rule["alert"].is_string() {
                let relative = rule["annotations"]["runbook_url"].as_str().unwrap();
                assert!(relative.starts_with("docs/runbooks/"), "{relative}");
                rule["annotations"]["runbook_url"] =
                    format!("https://example.org/slotkeeper/{relative}").into();
                alerts += 1;
            }
        }
    }
    assert!(alerts > 0);
    assert_eq!(rendered["spec"]["groups"], wanted["groups"]);
    // With or without a slash.
    let bare = "prometheusRule: {enabled: true, runbookBase: 'https://example.org/slotkeeper'}";
    assert_eq!(render(bare).find("PrometheusRule", "").unwrap()["spec"], rendered["spec"]);
}

#[test]
fn the_dashboard_is_the_file() {
    let map = matrix()["monitoring"].find("ConfigMap", "demo-slotkeeper-dashboard").unwrap();
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    assert_eq!(map["metadata"]["annotations"]["grafana_folder"], "Consul");
    let shown: Value = serde_json::from_str(map["data"]["slotkeeper.json"].as_str().unwrap()).unwrap();
    let file = std::fs::read_to_string(chart().join("dashboards/slotkeeper.json")).unwrap();
    assert_eq!(shown, serde_json::from_str::<Value>(&file).unwrap());
}

#[test]
fn no_monitoring_object_exists_by_default() {
    for kind in ["PodMonitor", "PrometheusRule"] {
        assert!(matrix()["defaults"].find(kind, "").is_none());
    }
    let maps = matrix()["defaults"].manifests.iter().filter(|manifest| manifest["kind"] == "ConfigMap");
    assert_eq!(maps.count(), 1);
}
