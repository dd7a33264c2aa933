//! Three real Consul servers that can be hurt one by one.
//!
//! Ways to be hurt: killed, stopped in order, silent (SIGSTOP: it answers neither clients nor servers), and cut off from the
//! other two while it still answers its clients (see `network`).
//!
//! By its default, `autopilot.cleanup_dead_servers`, Consul removes a server that has failed after some ten seconds, and its
//! node from the catalogue, and with the node every session that is tied to it, whatever its TTL. That ends leases early,
//! and with one server of three down it leaves a cluster of two that cannot lose another. So it is off here unless a test
//! wants it.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::consul::{binary, version};
use super::http::{self, Body};
use super::network::{Network, SERVERS, listens, told};
use super::ports::Ports;
use super::processes;

/// An election takes seconds, and a busy machine as many again.
const PATIENCE: Duration = Duration::from_secs(120);
/// For a stop in order, which takes a second or two.
const STOPPING: Duration = Duration::from_secs(15);
/// For one answer: a server that is silent must not hold up a question to another.
const ANSWER: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);

/// A cluster with its data on disk. Its servers are killed with this value.
#[derive(Debug)]
pub struct Cluster {
    servers: [Option<Child>; SERVERS],
    ports: Ports,
    network: Network,
    folder: TempDir,
    removes_failed: bool,
}

impl Cluster {
    /// Starts one and waits until it takes sessions at each of its servers.
    pub async fn start() -> Self {
        Self::start_with(false).await
    }

    /// Starts one that removes a server that has failed, as Consul does by default, or that does not.
    pub async fn start_with(removes_failed: bool) -> Self {
        let ports = Ports::reserve();
        let network = Network::start(ports.addr(1).port(), ports.addr(2).port());
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Self { servers: [None, None, None], ports, network, folder, removes_failed };
        for server in 0..SERVERS {
            cluster.spawn(server);
        }
        for server in 0..SERVERS {
            cluster.await_in_order(server).await;
        }
        cluster
    }

    /// Where the HTTP API of a server listens.
    pub fn addr(&self, server: usize) -> SocketAddr {
        (listens(server), self.ports.addr(0).port()).into()
    }

    /// Whom most of the servers take for the leader, where they agree and it is none of those that are down.
    pub async fn leader(&self) -> Option<usize> {
        let mut votes = [0; SERVERS];
        for server in 0..SERVERS {
            let said = self.ask(server, "/v1/status/leader").await.unwrap_or_default();
            let named = (0..SERVERS).find(|one| said.contains(&format!("\"{}:", told(*one))));
            if let Some(named) = named.filter(|one| self.servers[*one].is_some()) {
                votes[named] += 1;
            }
        }
        (0..SERVERS).find(|server| votes[*server] * 2 > SERVERS)
    }

    /// Waits for one.
    pub async fn await_leader(&self) -> usize {
        let mut leader = None;
        let found = async {
            while leader.is_none() {
                tokio::time::sleep(POLL).await;
                leader = self.leader().await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, found).await;
        leader.unwrap_or_else(|| panic!("no leader within {PATIENCE:?}:\n{}", self.logs()))
    }

    /// Waits until a server knows its leader and its own place in the catalogue, without which it makes no session.
    pub async fn await_in_order(&self, server: usize) {
        let path = format!("/v1/catalog/node/server-{server}?consistent");
        let in_order = async {
            while self.ask(server, &path).await.is_none_or(|body| body.trim() == "null") {
                tokio::time::sleep(POLL).await;
            }
        };
        if tokio::time::timeout(PATIENCE, in_order).await.is_err() {
            panic!("server {server} was not in order within {PATIENCE:?}:\n{}", self.logs());
        }
    }

    /// Sends its process a signal; SIGSTOP and SIGCONT make it silent and back.
    pub fn signal(&self, server: usize, signal: Signal) {
        let child = self.servers[server].as_ref().expect("this server was stopped");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// Ends a server by `signal`: SIGKILL, or SIGTERM for a stop in order, in which it stays a member. Newer Consuls hang
    /// in that stop now and then; SIGKILL ends such a server, and the play goes on.
    pub async fn stop(&mut self, server: usize, signal: Signal) {
        let mut child = self.servers[server].take().expect("this server runs");
        if !processes::end(&mut child, signal, STOPPING).await {
            println!("server {server} did not end within {STOPPING:?} of {signal:?}, and was killed");
        }
    }

    /// Starts a server again, with the data that it had, and waits until it takes part.
    pub async fn restart(&mut self, server: usize) {
        assert!(self.servers[server].is_none(), "stop it first");
        self.spawn(server);
        self.await_in_order(server).await;
    }

    /// Restarts one after the other, each when the one before is in order again, the leader last.
    pub async fn roll(&mut self) {
        let leader = self.await_leader().await;
        for step in 1..=SERVERS {
            let server = (leader + step) % SERVERS;
            self.stop(server, Signal::TERM).await;
            self.restart(server).await;
            self.await_leader().await;
        }
    }

    /// Cuts a server off from the other two, or joins it to them again. Its clients reach it all the while.
    pub fn cut_off(&self, server: usize, cut: bool) {
        self.network.cut_off(server, cut);
    }

    /// The ends of what the servers logged.
    pub fn logs(&self) -> String {
        let end = |server| {
            let log = std::fs::read_to_string(self.log_path(server)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            format!("server {server}:\n{}\n", lines[lines.len().saturating_sub(30)..].join("\n"))
        };
        (0..SERVERS).map(end).collect()
    }

    fn log_path(&self, server: usize) -> PathBuf {
        self.folder.path().join(format!("log-{server}"))
    }

    fn spawn(&mut self, server: usize) {
        let folder = self.folder.path();
        let own = format!(
            "limits {{ http_max_conns_per_client = 4096 }}\n\
             performance {{ raft_multiplier = 1 }}\n\
             autopilot {{ cleanup_dead_servers = {} }}\n\
             disable_update_check = true\n",
            self.removes_failed
        );
        std::fs::write(folder.join("own.hcl"), own).unwrap();
        let log = File::options().create(true).append(true).open(self.log_path(server)).unwrap();
        let mut command = Command::new(binary());
        command.args(["agent", "-server", "-bootstrap-expect", "3", "-node", &format!("server-{server}")]);
        let here = listens(server).to_string();
        command.args(["-bind", &here, "-client", &here, "-advertise", &told(server).to_string()]);
        command.arg("-config-file").arg(folder.join("own.hcl"));
        command.arg("-data-dir").arg(folder.join(format!("data-{server}")));
        for (n, flag) in (0..).zip(["-http-port", "-server-port", "-serf-lan-port"]) {
            command.args([flag, &self.ports.addr(n).port().to_string()]);
        }
        command.args(["-serf-wan-port", "-1", "-dns-port", "-1", "-grpc-port", "-1"]);
        if version() >= (1, 14) {
            command.args(["-grpc-tls-port", "-1"]);
        }
        command.args(["-retry-interval", "1s"]);
        for other in (0..SERVERS).filter(|other| *other != server) {
            command.args(["-retry-join", &format!("{}:{}", told(other), self.ports.addr(2).port())]);
        }
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CONSUL_"))
        {
            command.env_remove(name);
        }
        let errors = log.try_clone().unwrap();
        let child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("consul starts");
        self.servers[server] = Some(child);
    }

    /// What a server answers, where it answers well and in time.
    async fn ask(&self, server: usize, path: &str) -> Option<String> {
        let asked = http::try_request(self.addr(server), "GET", path, &[], Body::None);
        let answer = tokio::time::timeout(ANSWER, asked).await.ok()?.ok()?;
        (answer.status == 200).then(|| answer.text())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.servers.iter_mut().flatten() {
            end(child);
        }
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
