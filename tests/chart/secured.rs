//! A Consul that denies by default. What is mounted has to be what the configuration names: tokens, authorities, certificates.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::consul::Consul;
use crate::http::{request, request_with};
use crate::kubelet::{Phase, Pod};
use crate::scene::{LIVES, Scene};
use crate::support::consul::{Setup, binary};
use crate::support::jwt::Issuer;
use crate::support::ports::Ports;
use crate::wait_for;

const ROOT: &str = "b00757a9-0000-4000-8000-000000000000";
const WORKER: &str = "0a7e57a9-0000-4000-8000-000000000000";
/// A Consul with ACLs and a policy for the semaphore `p/one`.
fn denying(config: &str) -> Consul {
    let tokens = format!("tokens {{ master = \"{ROOT}\", agent = \"{ROOT}\" }}");
    let config = format!("acl {{ enabled = true, default_policy = \"deny\", {tokens} }}\n{config}");
    let consul = Consul::start_with(Setup { config, token: Some(ROOT.into()), ..Setup::default() });
    let rules = include_str!("../../config/policy.hcl").replace("service/warehouse/writers", "p/one");
    put(&consul, "policy", &json!({"Name": "worker", "Rules": rules}));
    consul
}

fn put(consul: &Consul, path: &str, body: &Value) {
    let body = body.to_string();
    let headers = format!("X-Consul-Token: {ROOT}\r\nContent-Length: {}\r\n", body.len());
    let reply = request_with(&consul.address(), &format!("PUT /v1/acl/{path}"), &headers, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
}

/// Takes a slot, keeps it for a while, and gives it back.
fn hold_and_leave(scene: &Scene, container: &str, mut meanwhile: impl FnMut(&Pod)) {
    let mut runner = scene.pod();
    runner.await_life();
    wait_for("its readiness", || runner.pod.is_ready(container));
    meanwhile(&runner.pod);
    runner.finish();
    assert_eq!((runner.pod.phase(), runner.pod.exits(container)), (Phase::Succeeded, vec![0]));
}

/// An operator asks Consul from within the pod, by what stands in the container and nothing else.
fn assert_shows_holder(pod: &Pod, container: &str, binary: &str) {
    let output = pod.exec(container, &[binary, "sessions", "p/one"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("demo-1"), "{said}");
}

#[test]
fn a_token_and_certificates() {
    let folder = tempfile::tempdir().unwrap();
    for words in [["ca", "create", "-days=2"], ["cert", "create", "-server"], ["cert", "create", "-client"]] {
        let mut command = Command::new(binary());
        command.arg("tls").args(words).current_dir(&folder).stdout(Stdio::null());
        assert!(command.status().unwrap().success(), "consul tls {words:?}");
    }
    let file = |name: &str| folder.path().join(name);
    let read = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    let ports = Ports::reserve();
    let https = ports.addr(0).port();
    let consul = denying(&format!(
        "ports {{ https = {https} }}\nverify_incoming_https = true\nca_file = {:?}\ncert_file = {:?}\nkey_file = {:?}",
        file("consul-agent-ca.pem"),
        file("dc1-server-consul-0.pem"),
        file("dc1-server-consul-0-key.pem"),
    ));
    put(&consul, "token", &json!({"SecretID": WORKER, "Policies": [{"Name": "worker"}]}));
    let values = format!(
        "{{mode: sidecar, workload: {{container: {{name: main}}}},
           config: {{semaphores: [{{name: one, prefix: p/one, limit: 1}}]}},
           consul: {{nodeAgent: {{enabled: true, scheme: https, port: {https}}}, token: {{secretName: token}},
                     ca: {{configMapName: ca}}, clientCertificate: {{secretName: client}}}}}}"
    );
    let mut scene = Scene::at(consul, &values, LIVES);
    scene.node.reached.push(ports.addr(0));
    scene.node.add("Secret", "token", &[("token", WORKER)]);
    scene.node.add("ConfigMap", "ca", &[("ca.crt", &read("consul-agent-ca.pem"))]);
    let (certificate, key) = (read("dc1-client-consul-0.pem"), read("dc1-client-consul-0-key.pem"));
    scene.node.add("Secret", "client", &[("tls.crt", &certificate), ("tls.key", &key)]);
    hold_and_leave(&scene, "slotkeeper", |pod| assert_shows_holder(pod, "slotkeeper", "/slotkeeper"));
}

#[test]
fn a_login_as_the_pods_service_account() {
    log_in("sidecar", 65532);
}

#[test]
fn a_login_of_a_wrapped_workload() {
    log_in("wrapper", 65532);
}

#[test]
fn a_login_of_a_wrapped_workload_that_is_another_user() {
    log_in("wrapper", 1000);
}

#[test]
fn a_login_on_demand_beside_a_workload_that_is_another_user() {
    log_in("on_demand", 1000);
}

fn log_in(mode: &str, user: u32) {
    let consul = denying("");
    let issuer = Issuer::new();
    put(&consul, "role", &json!({"Name": "worker", "Policies": [{"Name": "worker"}]}));
    put(&consul, "auth-method", &issuer.auth_method("pods"));
    put(&consul, "binding-rule", &json!({"AuthMethod": "pods", "BindType": "role", "BindName": "worker"}));
    let address = consul.address();
    let tokens = || -> Vec<String> {
        let reply = request(&address, "GET /v1/acl/tokens", &format!("X-Consul-Token: {ROOT}\r\n"));
        let tokens: Vec<Value> = serde_json::from_str(&reply.body).unwrap();
        let logins = tokens.iter().filter(|token| token["AuthMethod"] == "pods");
        logins.map(|token| token["Description"].as_str().unwrap().to_owned()).collect()
    };
    // Whoever runs slotkeeper has to be able to read the token, as the workload's user too.
    let values = format!(
        "{{mode: {mode}, workload: {{container: {{name: main}}, pod: {{securityContext: {{runAsUser: {user}}}}}}},
        config: {{semaphores: [{{name: one, prefix: p/one, limit: 1, mode: hold}}]}},
        consul: {{address: $CONSUL, login: {{authMethod: pods, audience: slotkeeper, meta: {{team: warehouse}}}}}}}}"
    );
    let mut scene = Scene::at(consul, &values, LIVES);
    scene.node.token = issuer.jwt("slotkeeper", 600);
    let (container, binary) = match mode {
        "wrapper" => ("main", "/opt/slotkeeper/slotkeeper"),
        _ => ("slotkeeper", "/slotkeeper"),
    };
    hold_and_leave(&scene, container, |pod| {
        // It logs in by itself, and out again.
        assert_shows_holder(pod, container, binary);
        let descriptions = tokens();
        assert_eq!(descriptions.len(), 1, "{descriptions:?}");
        for said in ["batch/demo-1", "warehouse"] {
            assert!(descriptions[0].contains(said), "{descriptions:?}");
        }
    });
    assert_eq!(tokens(), [""; 0], "logins are left");
}
