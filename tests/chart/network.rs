//! The NetworkPolicy: whom it is for, and what it lets through.

use serde_json::{Value, json};

use crate::helm::{VERSIONS, helm, render};
use crate::values::matrix;

/// The policy of the chart with these values.
fn policy(values: &str) -> Value {
    let rendered = render(&format!("{{networkPolicy: {{enabled: true}}, {values}}}"));
    rendered.find("NetworkPolicy", "").expect("a NetworkPolicy")["spec"].clone()
}

/// The ports at which Consul may be reached, by the one rule that is not for DNS.
fn consul_ports(values: &str) -> Vec<u64> {
    let policy = policy(values);
    let rules = policy["egress"].as_array().unwrap();
    let consul = rules[1..].iter().flat_map(|rule| rule["ports"].as_array().unwrap());
    consul.map(|port| port["port"].as_u64().unwrap()).collect()
}

#[test]
fn no_network_policy_exists_by_default() {
    assert_eq!(matrix()["sidecar"].find("NetworkPolicy", ""), None);
}

#[test]
fn it_is_for_the_pods_and_lets_the_agent_reach_consul() {
    let rendered = &matrix()["network-policy"];
    let spec = &rendered.find("NetworkPolicy", "").unwrap()["spec"];
    let selected = spec["podSelector"]["matchLabels"].as_object().unwrap();
    let test = rendered.hooks.iter().find(|hook| hook["kind"] == "Pod").unwrap();
    for pod in [rendered.pod(), test] {
        for (label, value) in selected {
            assert_eq!(&pod["metadata"]["labels"][label], value);
        }
    }
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
    let monitoring =
        json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}});
    let web = json!({"ports": [{"port": 8080}]});
    assert_eq!(
        spec["ingress"],
        json!([{"from": [monitoring], "ports": [{"port": 9400, "protocol": "TCP"}]}, web])
    );
    let dns = json!({"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]});
    let servers = json!({"podSelector": {"matchLabels": {"app": "consul"}}});
    let consul = json!({"to": [servers], "ports": [{"port": 8501, "protocol": "TCP"}]});
    assert_eq!(spec["egress"], json!([dns, consul, {"ports": [{"port": 5432}]}]));
    // Without a word nobody is let in, and Consul is anywhere.
    let plain = policy("mode: sidecar");
    assert_eq!((&plain["ingress"], &plain["egress"][1].get("to")), (&Value::Null, &None));
}

#[test]
fn its_port_of_consul_is_that_of_the_address() {
    for (values, ports) in [
        ("consul: {address: 'http://consul:8500'}", &[8500][..]),
        ("consul: {address: 'https://consul.example/eu'}", &[443]),
        ("consul: {address: consul}", &[80]),
        ("consul: {address: '[::1]:8500'}", &[8500]),
        ("consul: {address: '[fd00::8500]'}", &[80]),
        ("consul: {address: 'a:8500, https://b:8501,c:8500'}", &[8500, 8501]),
        ("consul: {address: [a:8500, 'unix:///run/consul.sock']}", &[8500]),
        ("consul: {address: 'unix:///run/consul.sock'}", &[]),
        ("config: {consul: {address: 'a:1234'}}", &[1234]),
        ("consul: {nodeAgent: {enabled: true, port: 8501}}", &[8501]),
    ] {
        assert_eq!(consul_ports(values), ports, "{values}");
    }
}

#[test]
fn every_form_of_it_fits_kubernetes_schemas() {
    let forms = ["mode: sidecar", "consul: {address: 'unix:///run/consul.sock'}"];
    let manifests: Vec<_> = forms
        .iter()
        .map(|values| {
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "any"},
                             "spec": policy(values)})
        })
        .collect();
    let answers = helm(&[json!({"do": "validate", "manifests": manifests, "versions": VERSIONS})]);
    assert_eq!(answers[0]["faults"], json!([]));
}
