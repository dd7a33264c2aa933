//! A Consul, a rendered chart, and pods of its workload.

use std::cell::Cell;
use std::path::PathBuf;

use serde_json::Value;

use crate::consul::Consul;
use crate::helm::{Rendered, render};
use crate::http::{Reply, request};
use crate::kubelet::{Node, Pod};
use crate::operator::Operator;
use crate::support::life::Life;
use crate::support::ports::Ports;

/// The workload writes down when it lives; SIGTERM ends it, and so does a file `done`.
pub(crate) const LIVES: &str = r#"
    trap 'exit 143' TERM
    until [ -e /life/done ]; do
        read -r now _ < /proc/uptime
        echo "$now ${SLOTKEEPER_FENCING_TOKEN:-0}" >> /life/beats
        sleep 0.04
    done"#;

/// The same, but SIGTERM is nothing to it.
pub(crate) const STUBBORN: &str = r#"
    trap '' TERM
    until [ -e /life/done ]; do
        read -r now _ < /proc/uptime
        echo "$now ${SLOTKEEPER_FENCING_TOKEN:-0}" >> /life/beats
        sleep 0.04
    done"#;

pub(crate) struct Scene {
    /// Ends with the scene.
    pub(crate) consul: Consul,
    pub(crate) operator: Operator,
    pub(crate) node: Node,
    pub(crate) template: Value,
    /// Makes this scene's addresses its own.
    ports: Ports,
    pods: Cell<u8>,
}

impl Scene {
    /// The chart with `values`, whose workload runs `script` and has a volume /life.
    pub(crate) fn new(values: &str, script: &str) -> Self {
        Self::at(Consul::start(), values, script)
    }

    pub(crate) fn at(consul: Consul, values: &str, script: &str) -> Self {
        let (host, port) =
            consul.address().rsplit_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).unwrap();
        let values = values.replace("$CONSUL", &format!("http://{host}:{port}")).replace("$PORT", &port);
        let mut values = crate::helm::yaml(&values);
        let container = &mut values["workload"]["container"];
        // The chart takes no command without an image; nothing is pulled.
        container["image"] = "workload:1".into();
        container["command"] = serde_json::json!(["/bin/sh", "-c", script]);
        container["volumeMounts"] = serde_json::json!([{"name": "life", "mountPath": "/life"}]);
        values["workload"]["pod"]["volumes"] = serde_json::json!([{"name": "life", "emptyDir": {}}]);
        Self::of(consul, &render(&values.to_string()))
    }

    pub(crate) fn of(consul: Consul, rendered: &Rendered) -> Self {
        Self::of_pod(consul, &rendered.manifests, rendered.pod())
    }

    /// Pods of this template, which mount what is among the manifests.
    pub(crate) fn of_pod(consul: Consul, manifests: &[Value], template: &Value) -> Self {
        let operator = Operator::at(&consul.address());
        let mut node = Node::with(manifests);
        node.reached.push(consul.address().parse().unwrap());
        let template = template.clone();
        Self { consul, operator, node, template, ports: Ports::reserve(), pods: Cell::new(0) }
    }

    /// Starts one more pod of the workload.
    pub(crate) fn pod(&self) -> Runner {
        let number = self.pods.get() + 1;
        self.pods.set(number);
        let [high, low] = self.ports.addr(0).port().to_be_bytes();
        let ip = format!("127.{number}.{high}.{low}");
        let pod = Pod::start(&self.node, &self.template, &format!("demo-{number}"), &ip);
        Runner { life: Life::at(pod.file("life", "beats")), done: pod.file("life", "done"), pod, ip }
    }
}

/// A pod whose workload is one of the scripts above.
pub(crate) struct Runner {
    pub(crate) pod: Pod,
    pub(crate) life: Life,
    done: PathBuf,
    /// The pod's address.
    pub(crate) ip: String,
}

impl Runner {
    /// Waits until its workload lives.
    pub(crate) fn await_life(&self) {
        crate::wait_for("the workload to live", || self.life.has_begun());
    }

    /// What its agent says of itself.
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.get(&self.ip, "/v1/status").body).unwrap()
    }

    /// What its agent answers in the pod's network, at that address.
    pub(crate) fn get(&self, ip: &str, path: &str) -> Reply {
        self.pod.within(|| request(&format!("{ip}:9377"), &format!("GET {path}"), ""))
    }

    /// Lets its workload end by itself.
    pub(crate) fn finish(&self) {
        std::fs::write(&self.done, "").unwrap();
    }
}
