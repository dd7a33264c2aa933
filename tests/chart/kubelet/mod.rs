//! A small kubelet: runs a pod's containers as processes, in the order and by the rules that a real one keeps.
//!
//! Init containers run one after the other; native sidecars among them are started, waited for until they have started, and
//! started again when they end. Then the main containers run. When the pod is to end, main containers get SIGTERM first. The sidecars
//! get it in reverse order when these have ended, or at once when the grace is used up; each container has 2 s at least before SIGKILL. Probes
//! are `httpGet`, since the chart has no others. What it does not model: limits on resources, and seccomp.
//! A pod has a [network](network) of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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
/// What each container has, however little grace there is.
const LEAST_GRACE: Duration = Duration::from_secs(2);
/// From the end of a container's time to its SIGKILL, by the runtime: a sidecar that is told at that same time is told before. It was
/// seen to take 60 to 100 ms; a busy machine is to show what a fast one does.
const KILL: Duration = Duration::from_secs(1);

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

/// Why a pod is to end, and so in what time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// `kubectl delete`: in the pod's own grace.
    Delete,
    /// The same with `--grace-period=0 --force`: in a second.
    Force,
    /// Evicted by the kubelet, for what it has written to its disk, or under pressure: in a second.
    Evict,
    /// Rejected by a kubelet that restarts under pressure: at once.
    Reject,
}

enum Order {
    End(Ending),
    Restart,
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
            pause: None,
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
        self.end(Ending::Delete);
    }

    pub(crate) fn end(&self, why: Ending) {
        self.orders.send(Order::End(why)).unwrap();
    }

    /// The kubelet is killed and comes back. The containers go on.
    pub(crate) fn restart_kubelet(&self) {
        self.orders.send(Order::Restart).unwrap();
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
    /// The first process of the containers' common process-number space, where they have one.
    pause: Option<Pause>,
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
        self.pause = (self.spec["shareProcessNamespace"] == true).then(Pause::start);
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
            let one = self.start(spec, true);
            loop {
                self.tick();
                let container = &self.containers[one];
                let over = match container.restarts() {
                    true => container.has_started().then_some(true),
                    false => container.exit().map(|code| code == 0),
                };
                match over {
                    Some(true) => break,
                    Some(false) => return false,
                    None if container.restarts() && self.deadline.is_some() => return false,
                    None => {}
                }
            }
        }
        self.deadline.is_none()
    }

    /// Runs the main containers to their end; whether all has gone well.
    fn work(&mut self) -> bool {
        let mains = list(&self.spec, "containers");
        let mains: Vec<_> = mains.into_iter().map(|spec| self.start(spec, false)).collect();
        loop {
            self.tick();
            let codes: Option<Vec<_>> = mains.iter().map(|one| self.containers[*one].exit()).collect();
            if let Some(codes) = codes {
                return codes.iter().all(|code| *code == 0);
            }
        }
    }

    fn end_sidecars(&mut self) {
        self.end(self.grace);
        while self.containers.iter().any(Container::is_running) {
            self.tick();
        }
    }

    fn start(&mut self, spec: Value, is_init: bool) -> usize {
        let pause = self.pause.as_ref().map(|pause| pause.pid);
        self.containers.push(Container::new(spec, &self.spec, &self.facts, &self.folder, is_init, pause));
        let one = self.containers.len() - 1;
        self.containers[one].start();
        one
    }

    /// The pod has so much grace left to live, unless it has less already.
    fn end(&mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        self.ending = true;
    }

    /// Tells each container whose turn it is to end.
    fn tell(&mut self) {
        let Some(deadline) = self.deadline else { return };
        let now = Instant::now();
        let kill_at = deadline.max(now + LEAST_GRACE) + KILL;
        let mut before_have_ended = true;
        let (sidecars, others): (Vec<_>, Vec<_>) =
            self.containers.iter_mut().rev().partition(|one| one.restarts());
        for one in others {
            one.terminate(kill_at);
            before_have_ended &= !one.is_running();
        }
        for one in sidecars {
            if before_have_ended || now >= deadline {
                one.terminate(kill_at);
            }
            before_have_ended &= !one.is_running();
        }
    }

    /// One round: takes orders in, reaps, restarts, probes.
    fn tick(&mut self) {
        std::thread::sleep(TICK);
        match self.orders.try_recv() {
            Ok(Order::End(Ending::Delete)) => self.end(self.grace),
            Ok(Order::End(Ending::Force | Ending::Evict)) => self.end(Duration::from_secs(1)),
            Ok(Order::End(Ending::Reject)) => self.end(Duration::ZERO),
            Ok(Order::Restart) => self.containers.iter_mut().for_each(Container::take_for_started),
            Ok(Order::Destroy) | Err(TryRecvError::Disconnected) => {
                self.deadline = Some(Instant::now());
                self.ending = true;
                self.containers.iter_mut().for_each(|container| container.terminate(Instant::now()));
            }
            Err(TryRecvError::Empty) => {}
        }
        for one in 0..self.containers.len() {
            let container = &mut self.containers[one];
            if container.tick(self.grace) {
                assert_eq!(self.spec["restartPolicy"], "Never");
                if container.has_policy() {
                    container.terminate(Instant::now() + self.grace);
                } else {
                    // Nothing is left to run or to start again, so that a kubelet ends the pod. The pod's grace counts then, and not
                    // one that the probe has of its own. No sidecar of the chart has a liveness probe.
                    self.end(self.grace);
                }
            }
            self.containers[one].start_again(self.ending);
        }
        self.tell();
        let views = self.containers.iter().map(|one| (one.name().to_owned(), one.view()));
        *self.views.lock().unwrap() = views.collect();
    }
}

/// The first process of the process-number space that containers have in common. Everything in there ends with it.
struct Pause {
    child: Child,
    pid: Pid,
}

impl Pause {
    fn start() -> Self {
        let mut child = Command::new("/usr/bin/setpriv")
            .args(["--pdeathsig", "KILL", "/usr/bin/unshare", "--pid", "--fork", "--kill-child"])
            .args(["/usr/bin/sleep", "infinity"])
            .env_clear()
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("setpriv and unshare (package util-linux), as root");
        let pid = container::descendant(&mut child, 1, &["/usr/bin/sleep".into(), "infinity".into()]);
        Self { child, pid: pid.expect("it runs") }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = self.child.wait();
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
