//! A small kubelet: runs a pod's containers as processes, in the order and by the rules that a real one keeps.
//!
//! Init containers run one after the other; native sidecars among them are started, waited for until they have started, and
//! started again when they end. Then the main containers run. When these have ended, or the pod is deleted, main containers
//! get SIGTERM first, then the sidecars in reverse order, and SIGKILL when the grace is over. Probes are `httpGet`, since the
//! chart has no others. A pod has a [network](network) of its own. What it does not model: limits on resources, and seccomp.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::wait_for;
use container::Container;
pub(crate) use environment::environment;
use network::Network;

mod container;
mod environment;
mod exec;
mod network;
mod probe;
mod volumes;

const TICK: Duration = Duration::from_millis(20);
/// Before a sidecar's first restart, about as long as a kubelet takes to see that it has ended.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// What is left to a sidecar when the others have used the grace up.
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// Where the pod runs and what it can mount.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// ConfigMaps and Secrets, by kind and name.
    pub(crate) objects: BTreeMap<(String, String), BTreeMap<String, String>>,
    /// What a projected service account's token is.
    pub(crate) token: String,
    /// The node's own address, where its Consul client agent listens.
    pub(crate) host_ip: String,
    /// What of the machine its pods reach, such as Consul.
    pub(crate) reached: Vec<SocketAddr>,
    /// Whether its pods have IPv6.
    pub(crate) ipv6: bool,
}

impl Node {
    /// One that has the ConfigMaps of these manifests.
    pub(crate) fn with(manifests: &[Value]) -> Self {
        let maps = manifests.iter().filter(|manifest| manifest["kind"] == "ConfigMap");
        let objects = maps.map(|map| {
            let name = map["metadata"]["name"].as_str().unwrap().to_owned();
            (("ConfigMap".to_owned(), name), serde_json::from_value(map["data"].clone()).unwrap())
        });
        Self {
            objects: objects.collect(),
            token: String::new(),
            host_ip: "127.0.0.1".into(),
            reached: Vec::new(),
            ipv6: true,
        }
    }

    pub(crate) fn add(&mut self, kind: &str, name: &str, data: &[(&str, &str)]) {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.objects.insert((kind.to_owned(), name.to_owned()), data);
    }
}

/// How a pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Succeeded,
    Failed,
}

/// What the world sees of one container.
#[derive(Clone, Debug, Default)]
struct View {
    /// Its first process, while it runs.
    pid: Option<Pid>,
    /// The exit codes of all its runs so far.
    exits: Vec<i32>,
    ready: bool,
}

enum Order {
    Delete,
    Destroy,
}

/// A pod that runs by itself. It is killed when the value goes, unless it has ended.
pub(crate) struct Pod {
    folder: TempDir,
    spec: Value,
    orders: Sender<Order>,
    views: Arc<Mutex<BTreeMap<String, View>>>,
    network: Arc<Network>,
    thread: Option<JoinHandle<Phase>>,
}

impl Pod {
    /// Starts a pod of this template.
    pub(crate) fn start(node: &Node, template: &Value, name: &str, ip: &str) -> Self {
        assert!(geteuid().is_root(), "containers have users and mounts of their own: run this as root");
        let folder = tempfile::tempdir().unwrap();
        // Containers have users of their own.
        container::open_to_all(folder.path());
        let (orders, receiver) = channel();
        let views = Arc::default();
        let facts = BTreeMap::from([
            ("status.podIP".to_owned(), ip.to_owned()),
            ("status.hostIP".to_owned(), node.host_ip.clone()),
            ("metadata.name".to_owned(), name.to_owned()),
            ("metadata.namespace".to_owned(), "batch".to_owned()),
            ("spec.nodeName".to_owned(), "node-1".to_owned()),
        ]);
        let spec = template["spec"].clone();
        volumes::make(&spec, node, folder.path());
        let shown = spec.clone();
        let mut kubelet = Kubelet {
            facts,
            folder: folder.path().to_owned(),
            grace: Duration::from_secs(spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(30)),
            spec,
            containers: Vec::new(),
            orders: receiver,
            views: Arc::clone(&views),
            deadline: None,
            ending: false,
        };
        let network = Arc::new(Network::new(&node.reached, node.ipv6));
        let inside = Arc::clone(&network);
        let live = move || {
            inside.enter();
            kubelet.live()
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(live).unwrap();
        Self { folder, spec: shown, orders, views, network, thread: Some(thread) }
    }

    /// Does something in its network, where its addresses are.
    pub(crate) fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        self.network.within(what)
    }

    /// Has its volumes show what the objects of the node are now.
    pub(crate) fn update(&self, node: &Node) {
        volumes::update(&self.spec, node, self.folder.path());
    }

    /// A file in one of its volumes.
    pub(crate) fn file(&self, volume: &str, name: &str) -> PathBuf {
        volumes::place(self.folder.path(), volume).join(name)
    }

    /// As `kubectl delete` does.
    pub(crate) fn delete(&self) {
        self.orders.send(Order::Delete).unwrap();
    }

    fn view(&self, container: &str) -> View {
        self.views.lock().unwrap().get(container).cloned().unwrap_or_default()
    }

    pub(crate) fn is_running(&self, container: &str) -> bool {
        self.view(container).pid.is_some()
    }

    /// Whether its readiness probe says so.
    pub(crate) fn is_ready(&self, container: &str) -> bool {
        self.view(container).ready
    }

    /// The exit codes of its runs so far.
    pub(crate) fn exits(&self, container: &str) -> Vec<i32> {
        self.view(container).exits
    }

    /// Waits until the container's first process does something of its own at this signal. Until then the kernel keeps it away.
    pub(crate) fn await_catching(&self, container: &str, signal: Signal) {
        let catches = |pid: Pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or_default();
            caught >> (signal.as_raw() - 1) & 1 == 1
        };
        wait_for(&format!("{container} to catch {signal:?}"), || {
            self.view(container).pid.is_some_and(catches)
        });
    }

    /// Sends the container's first process a signal.
    pub(crate) fn signal(&self, container: &str, signal: Signal) {
        kill_process(self.view(container).pid.expect("it runs"), signal).unwrap();
    }

    /// Waits until the pod has ended.
    pub(crate) fn phase(&mut self) -> Phase {
        let thread = self.thread.take().expect("asked once");
        wait_for("the pod to end", || thread.is_finished());
        thread.join().unwrap()
    }

    /// What its containers have written.
    pub(crate) fn logs(&self) -> String {
        let mut all = String::new();
        for name in self.views.lock().unwrap().keys() {
            let log = std::fs::read_to_string(container::log(self.folder.path(), name)).unwrap_or_default();
            all += &format!("--- {name}\n{log}");
        }
        all
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Destroy);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if std::thread::panicking() {
            eprintln!("logs of a pod:\n{}", self.logs());
        }
    }
}

/// What runs on the pod's own thread.
struct Kubelet {
    spec: Value,
    facts: BTreeMap<String, String>,
    folder: PathBuf,
    grace: Duration,
    /// In the order in which they were started.
    containers: Vec<Container>,
    orders: Receiver<Order>,
    views: Arc<Mutex<BTreeMap<String, View>>>,
    /// When the pod is deleted, or does not live: the end of its grace.
    deadline: Option<Instant>,
    /// No sidecar is started again.
    ending: bool,
}

impl Kubelet {
    fn live(&mut self) -> Phase {
        let succeeded = self.initialise() && self.work();
        self.ending = true;
        self.end_sidecars();
        if succeeded { Phase::Succeeded } else { Phase::Failed }
    }

    /// Runs the init containers; whether the main ones may start.
    fn initialise(&mut self) -> bool {
        for spec in list(&self.spec, "initContainers") {
            if self.deadline.is_some() {
                return false;
            }
            let one = self.start(spec);
            loop {
                self.tick();
                let container = &mut self.containers[one];
                let over = match container.restarts() {
                    true => container.has_started().then_some(true),
                    false => container.exit().map(|code| code == 0),
                };
                match over {
                    Some(true) => break,
                    Some(false) => return false,
                    None if container.restarts() && self.deadline.is_some() => return false,
                    None => {
                        if let Some(deadline) = self.deadline {
                            container.terminate(deadline);
                        }
                    }
                }
            }
        }
        self.deadline.is_none()
    }

    /// Runs the main containers to their end; whether all has gone well.
    fn work(&mut self) -> bool {
        let mains: Vec<_> = list(&self.spec, "containers").into_iter().map(|spec| self.start(spec)).collect();
        loop {
            self.tick();
            for one in &mains {
                if let Some(deadline) = self.deadline {
                    self.containers[*one].terminate(deadline);
                }
            }
            let codes: Option<Vec<_>> = mains.iter().map(|one| self.containers[*one].exit()).collect();
            if let Some(codes) = codes {
                return codes.iter().all(|code| *code == 0);
            }
        }
    }

    fn end_sidecars(&mut self) {
        let deadline = self.deadline.unwrap_or(Instant::now() + self.grace);
        for one in (0..self.containers.len()).rev() {
            let deadline = deadline.max(Instant::now() + LEAST_GRACE);
            while self.containers[one].is_running() {
                self.containers[one].terminate(deadline);
                self.tick();
            }
        }
    }

    fn start(&mut self, spec: Value) -> usize {
        self.containers.push(Container::new(spec, &self.spec, &self.facts, &self.folder));
        let one = self.containers.len() - 1;
        self.containers[one].start();
        one
    }

    /// The pod has its grace left to live.
    fn end(&mut self) {
        self.deadline = self.deadline.or(Some(Instant::now() + self.grace));
        self.ending = true;
    }

    /// One round: takes orders in, reaps, restarts, probes.
    fn tick(&mut self) {
        std::thread::sleep(TICK);
        match self.orders.try_recv() {
            Ok(Order::Delete) => self.end(),
            Ok(Order::Destroy) | Err(TryRecvError::Disconnected) => {
                self.deadline = Some(Instant::now());
                self.ending = true;
                self.containers.iter_mut().for_each(|container| container.terminate(Instant::now()));
            }
            Err(TryRecvError::Empty) => {}
        }
        for one in 0..self.containers.len() {
            // With restartPolicy Never nothing is left to run or to start again, so that a kubelet ends the pod. The pod's grace
            // counts then, and not one that the probe has of its own. No sidecar of the chart has a liveness probe.
            if self.containers[one].tick(self.grace) {
                assert_eq!(self.spec["restartPolicy"], "Never");
                self.end();
            }
            if !self.ending {
                self.containers[one].start_again();
            }
        }
        let views = self.containers.iter().map(|one| (one.name().to_owned(), one.view()));
        *self.views.lock().unwrap() = views.collect();
    }
}

fn list(spec: &Value, key: &str) -> Vec<Value> {
    spec[key].as_array().cloned().unwrap_or_default()
}

fn text<'v>(value: &'v Value, what: &str) -> &'v str {
    value.as_str().unwrap_or_else(|| panic!("{what} is {value}"))
}

/// A path below `root`, whatever it is absolute in.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
