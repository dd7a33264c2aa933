//! A real Consul of the test's own.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use slotkeeper_consul::Tls;
use tempfile::TempDir;

use super::http::{self, Body};
use super::https;
use super::ports::Ports;
use super::processes::has_stopped;
use super::wait::within;

/// Either takes a second, and on a busy machine many.
const STARTING: Duration = Duration::from_secs(90);
const STOPPING: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(20);

/// How a Consul is to be started.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Keep the state on disk, so that it survives [`Consul::stop`] and [`Consul::restart`].
    pub keeps_data: bool,
    /// HCL beside what every test needs; for ACLs, TLS and limits.
    pub config: String,
    /// Allow one address as many connections as Consul does by default, 200.
    pub default_limits: bool,
    /// Listen for HTTPS too; `config` has the certificates.
    pub https: bool,
    /// Listen for HTTPS alone, where this lets one in.
    pub https_only: Option<Tls>,
    /// A token that may read the node, where `config` turns access control on.
    pub token: Option<String>,
}

/// A single server on free loopback ports. It is killed with this value.
#[derive(Debug)]
pub struct Consul {
    setup: Setup,
    ports: Ports,
    folder: TempDir,
    child: Option<Child>,
}

impl Consul {
    /// Starts one with its state in memory and waits until it leads.
    pub async fn start() -> Self {
        Self::start_with(Setup::default()).await
    }

    /// Starts one as `setup` says and waits until it leads.
    pub async fn start_with(setup: Setup) -> Self {
        let mut consul =
            Self { setup, ports: Ports::reserve(), folder: tempfile::tempdir().unwrap(), child: None };
        consul.restart().await;
        consul
    }

    /// Where its HTTP API listens.
    pub fn addr(&self) -> SocketAddr {
        self.ports.addr(0)
    }

    /// Where HTTPS listens, where the configuration has certificates.
    pub fn https_addr(&self) -> SocketAddr {
        self.ports.addr(4)
    }

    /// Where servers and clients make their calls.
    pub fn rpc_addr(&self) -> SocketAddr {
        self.ports.addr(1)
    }

    /// Where members gossip.
    pub fn gossip_addr(&self) -> SocketAddr {
        self.ports.addr(2)
    }

    /// Its address as clients are configured with it.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("this Consul was stopped").id()
    }

    /// Sends its process a signal; SIGSTOP and SIGCONT make it silent and back. After SIGSTOP it returns once all threads have
    /// stopped: the kernel does not stop them at one instant, so that Consul could still answer.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
        if signal == Signal::STOP {
            within(STOPPING, "Consul to stop", || has_stopped(pid));
        }
    }

    /// Ends its process by `signal` and waits for that. The ports stay reserved.
    pub async fn stop(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        let mut child = self.child.take().expect("signalled");
        let ended = async {
            loop {
                if let Some(status) = child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        match tokio::time::timeout(STOPPING, ended).await {
            Ok(status) => status,
            Err(_) => {
                end(&mut child);
                panic!("Consul was still there {STOPPING:?} after {signal:?}:\n{}", self.log());
            }
        }
    }

    /// Starts it again on the same ports, with the same data where it keeps them.
    pub async fn restart(&mut self) {
        assert!(self.child.is_none(), "stop it first");
        self.child = Some(self.spawn());
        let leads = async {
            while !self.leads().await {
                tokio::time::sleep(POLL).await;
            }
        };
        if tokio::time::timeout(STARTING, leads).await.is_err() {
            panic!("Consul had no leader {STARTING:?} after its start:\n{}", self.log());
        }
    }

    /// The end of what it logged.
    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn spawn(&self) -> Child {
        let folder = self.folder.path();
        let limits =
            if self.setup.default_limits { "" } else { "limits { http_max_conns_per_client = 4096 }\n" };
        let own = format!("{limits}performance {{ raft_multiplier = 1 }}\ndisable_update_check = true\n");
        std::fs::write(folder.join("own.hcl"), own).unwrap();
        std::fs::write(folder.join("test.hcl"), &self.setup.config).unwrap();
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = Command::new(binary());
        command.arg("agent").args(["-bind", "127.0.0.1", "-client", "127.0.0.1", "-node", "test"]);
        command
            .arg("-config-file")
            .arg(folder.join("own.hcl"))
            .arg("-config-file")
            .arg(folder.join("test.hcl"));
        let flags = ["-http-port", "-server-port", "-serf-lan-port", "-serf-wan-port"];
        for (n, flag) in (0..).zip(flags) {
            command.arg(flag).arg(self.ports.addr(n).port().to_string());
        }
        if self.setup.https_only.is_some() {
            command.args(["-http-port", "-1"]);
        }
        command.args(["-dns-port", "-1", "-grpc-port", "-1"]);
        // A port of its own, which older ones do not know.
        if version() >= (1, 14) {
            command.args(["-grpc-tls-port", "-1"]);
        }
        if self.setup.https || self.setup.https_only.is_some() {
            command.arg("-https-port").arg(self.https_addr().port().to_string());
        }
        if self.setup.keeps_data {
            command.args(["-server", "-bootstrap-expect", "1", "-data-dir"]).arg(folder.join("data"));
        } else {
            command.arg("-dev");
        }
        // Consul's own variables are for clients; those of whoever runs the tests are not for this agent.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CONSUL_"))
        {
            command.env_remove(name);
        }
        let errors = log.try_clone().unwrap();
        command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("consul starts")
    }

    /// A leader is there and has done what follows its election.
    async fn leads(&mut self) -> bool {
        if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().unwrap()) {
            panic!("Consul ended by itself ({status}):\n{}", self.log());
        }
        // Sessions need the node in the catalogue, where the leader puts it some time after its election.
        let registered = self.get("/v1/catalog/node/test").await.is_some_and(|body| body != b"null");
        // A server with access control begins in its "legacy mode", which knows no policies and ends by itself.
        registered && (self.setup.token.is_none() || self.get("/v1/acl/policies").await.is_some())
    }

    /// What it answers, where it does so with a 200.
    async fn get(&self, path: &str) -> Option<Vec<u8>> {
        let token = self.setup.token.as_deref().unwrap_or_default();
        let (status, body) = if let Some(tls) = &self.setup.https_only {
            let answer = https::try_request(self.https_addr(), tls, &format!("GET {path}"), token, "");
            answer.map(|(status, body)| (status, body.into_bytes())).ok()?
        } else {
            let headers = [("X-Consul-Token", token)];
            let answer = http::try_request(self.addr(), "GET", path, &headers, Body::None).await.ok()?;
            (answer.status, answer.body.to_vec())
        };
        (status == 200).then(|| body.trim_ascii().to_vec())
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("consul.log")
    }
}

impl Drop for Consul {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            end(child);
        }
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Its version, as the binary says: the first two numbers.
pub fn version() -> (u32, u32) {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let output = Command::new(binary()).arg("version").output().expect("consul starts");
        let said = String::from_utf8_lossy(&output.stdout);
        let number = said.strip_prefix("Consul v").unwrap_or_else(|| panic!("no version in {said:?}"));
        let mut parts = number.split(['.', '-']).map(str::parse);
        let mut next =
            || parts.next().and_then(Result::ok).unwrap_or_else(|| panic!("no version in {said:?}"));
        (next(), next())
    })
}

/// The consul binary.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("CONSUL_BIN") {
        return named.into();
    }
    let cached = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/consul");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("consul"));
    on_path.chain([cached]).find(|candidate| candidate.is_file()).unwrap_or_else(|| {
        panic!("no consul in CONSUL_BIN, on the PATH or in .tools/: run scripts/consul, which gets one")
    })
}
