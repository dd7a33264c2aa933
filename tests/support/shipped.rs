//! Three Consul servers and a client agent as they are shipped: no setting that makes elections short.

use std::fs::File;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use super::consul::binary;
use super::http::{self, Body};
use super::ports::Ports;
use super::processes;

/// Servers, and then the client agent.
const NODES: usize = 4;
/// The client agent's place.
pub const CLIENT: usize = 3;
/// An election takes up to 20 s, and a busy machine as many again.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
const ANSWER: Duration = Duration::from_secs(2);

/// The cluster; its processes are killed with it.
#[derive(Debug)]
pub struct Stage {
    nodes: [Option<Child>; NODES],
    ports: Ports,
    folder: TempDir,
}

impl Stage {
    /// Starts it and waits until all of it takes sessions.
    pub async fn start() -> Self {
        let nodes = [const { None }; NODES];
        let mut stage = Self { nodes, ports: Ports::reserve(), folder: tempfile::tempdir().unwrap() };
        for node in 0..NODES {
            stage.spawn(node);
        }
        for node in 0..NODES {
            stage.in_order(node).await;
        }
        stage.all_vote().await;
        stage
    }

    /// Where a node's HTTP API listens.
    pub fn addr(&self, node: usize) -> SocketAddr {
        SocketAddr::from((Self::address(node), self.ports.addr(0).port()))
    }

    /// The server that leads, as one that runs says.
    pub async fn leader(&self) -> usize {
        for _ in 0..PATIENCE.as_millis() / POLL.as_millis() {
            for asked in 0..CLIENT {
                let said = self.ask(asked, "/v1/status/leader").await.unwrap_or_default();
                let node = |one: &usize| {
                    said.contains(&format!("\"{}:", std::net::Ipv4Addr::from(Self::address(*one))))
                };
                if let Some(leader) = (0..CLIENT).find(node).filter(|one| self.nodes[*one].is_some()) {
                    return leader;
                }
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("no leader within {PATIENCE:?}");
    }

    /// Ends a server, by SIGKILL or in order.
    pub async fn stop(&mut self, server: usize, signal: Signal) {
        let mut child = self.nodes[server].take().expect("this server runs");
        processes::end(&mut child, signal, Duration::from_secs(15)).await;
    }

    /// Has a node leave the cluster by `consul leave`, and waits until its process has ended.
    pub async fn leave(&mut self, node: usize) {
        let mut child = self.nodes[node].take().expect("this node runs");
        let mut leave = Command::new(binary());
        leave.args(["leave", "-http-addr", &self.addr(node).to_string()]);
        let mut leave = leave.stdout(Stdio::null()).spawn().unwrap();
        let ended = async {
            for process in [&mut leave, &mut child] {
                while process.try_wait().unwrap().is_none() {
                    tokio::time::sleep(POLL).await;
                }
            }
        };
        assert!(tokio::time::timeout(PATIENCE, ended).await.is_ok(), "node {node} does not leave");
    }

    /// Has a server leave, and a new one without data join in its stead.
    pub async fn replace(&mut self, server: usize) {
        self.leave(server).await;
        std::fs::remove_dir_all(self.folder.path().join(format!("data-{server}"))).unwrap();
        self.restart(server).await;
    }

    /// Starts it again, and waits until it takes part.
    pub async fn restart(&mut self, server: usize) {
        self.spawn(server);
        self.in_order(server).await;
        self.leader().await;
        self.all_vote().await;
    }

    /// Waits until every server has a vote. One that has just joined has none for ten seconds, and two voters elect nobody
    /// where one of them is stopped.
    async fn all_vote(&self) {
        let path = "/v1/operator/raft/configuration";
        let vote = async {
            while self
                .ask(CLIENT, path)
                .await
                .is_none_or(|body| body.matches("\"Voter\":true").count() < CLIENT)
            {
                tokio::time::sleep(POLL).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, vote).await.is_ok(), "not all servers have a vote");
    }

    fn address(node: usize) -> [u8; 4] {
        [127, 0, 40, 1 + u8::try_from(node).unwrap()]
    }

    fn spawn(&mut self, node: usize) {
        let folder = self.folder.path();
        let log = File::options().create(true).append(true).open(folder.join(format!("log-{node}"))).unwrap();
        let here = std::net::Ipv4Addr::from(Self::address(node)).to_string();
        let mut command = Command::new(binary());
        command.args(["agent", "-node", &format!("node-{node}"), "-bind", &here, "-client", &here]);
        if node < CLIENT {
            command.args(["-server", "-bootstrap-expect", "3"]);
        }
        command.arg("-data-dir").arg(folder.join(format!("data-{node}")));
        for (n, flag) in (0..).zip(["-http-port", "-server-port", "-serf-lan-port"]) {
            command.args([flag, &self.ports.addr(n).port().to_string()]);
        }
        command.args(["-dns-port", "-1", "-grpc-port", "-1", "-retry-interval", "1s"]);
        if node < CLIENT {
            command.args(["-serf-wan-port", "-1"]);
        }
        for other in (0..CLIENT).filter(|other| *other != node) {
            let address = std::net::Ipv4Addr::from(Self::address(other));
            command.args(["-retry-join", &format!("{address}:{}", self.ports.addr(2).port())]);
        }
        let is_ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("CONSUL_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_ours(name)) {
            command.env_remove(name);
        }
        let errors = log.try_clone().unwrap();
        self.nodes[node] =
            Some(command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("consul starts"));
    }

    async fn in_order(&self, node: usize) {
        let path = format!("/v1/catalog/node/node-{node}?consistent");
        let in_order = async {
            while self.ask(node, &path).await.is_none_or(|body| body.trim() == "null") {
                tokio::time::sleep(POLL).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, in_order).await.is_ok(), "node {node} is not in order");
    }

    async fn ask(&self, node: usize, path: &str) -> Option<String> {
        let asked = http::try_request(self.addr(node), "GET", path, &[], Body::None);
        let answer = tokio::time::timeout(ANSWER, asked).await.ok()?.ok()?;
        (answer.status == 200).then(|| answer.text())
    }

    /// Waits until a write through that node is done again.
    pub async fn takes_writes(&self, node: usize) {
        let done = async {
            while !is_written(self.addr(node)).await {
                tokio::time::sleep(POLL).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, done).await.is_ok(), "nobody can write");
    }
}

/// Whether a write is done, by the node that listens there.
pub async fn is_written(addr: SocketAddr) -> bool {
    let asked = http::try_request(addr, "PUT", "/v1/kv/bench/probe", &[], Body::Sized(b"x"));
    let answer = tokio::time::timeout(ANSWER, asked).await;
    answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status == 200))
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
