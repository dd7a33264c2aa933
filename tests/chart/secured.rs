//! A Consul that wants a token, speaks TLS alone to clients with a certificate, and is the node's own client agent: what is
//! mounted has to be what the configuration names.

use std::process::{Command, Stdio};

use crate::consul::Consul;
use crate::kubelet::Phase;
use crate::scene::{LIVES, Scene};
use crate::support::consul::{Setup, binary};
use crate::support::ports::Ports;
use crate::wait_for;

const ROOT: &str = "b00757a9-0000-4000-8000-000000000000";

#[test]
fn tokens_and_certificates_are_mounted_where_they_are_looked_for() {
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
    let config = format!(
        "acl {{ enabled = true, default_policy = \"deny\", tokens {{ master = \"{ROOT}\", agent = \"{ROOT}\" }} }}\n\
         ports {{ https = {https} }}\nverify_incoming_https = true\nca_file = {:?}\ncert_file = {:?}\nkey_file = {:?}",
        file("consul-agent-ca.pem"),
        file("dc1-server-consul-0.pem"),
        file("dc1-server-consul-0-key.pem"),
    );
    let consul = Consul::start_with(Setup { config, token: Some(ROOT.into()), ..Setup::default() });
    let values = format!(
        "{{mode: sidecar, workload: {{container: {{name: main}}}},
           config: {{semaphores: [{{name: one, prefix: p/one, limit: 1}}]}},
           consul: {{nodeAgent: {{enabled: true, scheme: https, port: {https}}}, token: {{secretName: token}},
                     ca: {{configMapName: ca}}, clientCertificate: {{secretName: client}}}}}}"
    );
    let mut scene = Scene::at(consul, &values, LIVES);
    scene.node.add("Secret", "token", &[("token", ROOT)]);
    scene.node.add("ConfigMap", "ca", &[("ca.crt", &read("consul-agent-ca.pem"))]);
    let (certificate, key) = (read("dc1-client-consul-0.pem"), read("dc1-client-consul-0-key.pem"));
    scene.node.add("Secret", "client", &[("tls.crt", &certificate), ("tls.key", &key)]);
    let mut runner = scene.pod();
    runner.await_life();
    wait_for("its readiness", || runner.pod.is_ready("slotkeeper"));
    runner.finish();
    assert_eq!((runner.pod.phase(), runner.pod.exits("slotkeeper")), (Phase::Succeeded, vec![0]));
}
