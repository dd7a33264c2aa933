//! An agent in a container, with a read-only root and no capability.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::consul::Consul;
use crate::http::{self, Reply};
use crate::operator::Operator;
use crate::podman::{Container, IMAGE, REVISION, Volume};
use crate::support::ports::Ports;
use crate::wait_for;

/// A configuration on the machine, which is mounted, and the volume of the agent's files.
struct Sidecar {
    container: Container,
    address: String,
    run: Volume,
    _ports: Ports,
    _config: TempDir,
}

/// The configuration of one that listens at `address`. Consul has a name, as it has in a cluster.
fn config(consul: &Consul, address: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let port = consul.address().rsplit(':').next().unwrap().to_owned();
    let config = format!(
        "consul: {{address: 'http://consul.test:{port}'}}\nhttp: {{listen: '{address}'}}\n\
         session: {{ttl: 60s, state_file: /run/slotkeeper/session.json}}\n\
         readiness: {{file: /run/slotkeeper/ready}}\n\
         semaphores: [{{name: s, prefix: service/s, limit: 1}}]\n"
    );
    std::fs::write(folder.path().join("config.yaml"), config).unwrap();
    folder
}

/// podman's options for it.
fn options(config: &Path) -> [String; 3] {
    [
        format!("--volume={}/config.yaml:/etc/slotkeeper.yaml:ro", config.display()),
        "--env=SLOTKEEPER_CONFIG=/etc/slotkeeper.yaml".to_owned(),
        "--add-host=consul.test:127.0.0.1".to_owned(),
    ]
}

impl Sidecar {
    fn start(consul: &Consul) -> Self {
        let (ports, run) = (Ports::reserve(), Volume::new());
        let address = ports.addr(0).to_string();
        let config = config(consul, &address);
        let [file, named, host] = options(config.path());
        let container =
            Container::start(*IMAGE, &[&file, &named, &host, &run.at("/run/slotkeeper")], &["agent"]);
        Self { container, address, run, _ports: ports, _config: config }
    }

    fn await_ready(&self) {
        wait_for("the probe inside", || self.container.exec(&["/slotkeeper", "probe", "ready"]) == Some(0));
    }

    fn get(&self, path: &str) -> Reply {
        http::request(&self.address, &format!("GET {path}"), "")
    }

    /// Session and fencing token.
    fn holding(&self) -> (Value, Value) {
        let status: Value = serde_json::from_str(&self.get("/v1/status").body).unwrap();
        (status["session"]["id"].clone(), status["semaphores"][0]["fencing_token"].clone())
    }
}

#[test]
fn it_holds_a_slot_with_no_more_than_a_volume_and_leaves_nothing() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let sidecar = Sidecar::start(&consul);
    sidecar.await_ready();
    assert_eq!(sidecar.get("/readyz").status, 200);
    assert_eq!(operator.holders("service/s"), [sidecar.holding().0.as_str().unwrap()]);
    let revision = format!("revision=\"{REVISION}\"");
    assert!(sidecar.get("/metrics").body.contains(&revision), "the build is told its revision");

    let container = &sidecar.container;
    assert!(container.process("Uid").starts_with("65532"));
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(container.process(set).trim_start_matches('0'), "", "{set}");
    }
    assert_eq!(container.process("NoNewPrivs"), "1");

    let ready = sidecar.run.folder().join("ready");
    assert!(ready.exists());
    assert_eq!(container.stop(), 0);
    assert!(!ready.exists());
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_killed_container_resumes_its_slot() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let sidecar = Sidecar::start(&consul);
    sidecar.await_ready();
    let holding = sidecar.holding();
    let state = sidecar.run.folder().join("session.json");
    wait_for("the token in the state file", || {
        std::fs::read_to_string(&state).is_ok_and(|text| text.contains(&holding.1.to_string()))
    });
    sidecar.container.restart_killed();
    sidecar.await_ready();
    assert_eq!(sidecar.holding(), holding);
    assert_eq!(operator.sessions().len(), 1);
    assert_eq!(sidecar.container.stop(), 0);
    operator.assert_nothing_left("service/s");
}

#[test]
fn without_a_volume_the_error_names_the_folder() {
    let consul = Consul::start();
    let ports = Ports::reserve();
    let config = config(&consul, &ports.addr(0).to_string());
    let [file, named, host] = options(config.path());
    let container = Container::start(*IMAGE, &[&file, &named, &host], &["agent"]);
    assert_eq!(container.ended(), 1);
    let log = container.log();
    assert!(log.contains("/run/slotkeeper/") && log.contains("Read-only file system"), "{log}");
    assert!(log.contains("writable for this user"), "{log}");
}
