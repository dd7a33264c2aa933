//! A real Consul for the time of a test.

#![allow(dead_code, reason = "each test binary uses what it needs of this")]

use std::env;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A server on ports of its own; ends with the value.
pub(crate) struct Consul {
    child: Option<Child>,
    arguments: Vec<String>,
    port: u16,
    /// Configuration, and the data where it keeps any.
    folder: TempDir,
}

impl Consul {
    /// Starts a development server: all in memory.
    pub(crate) fn start() -> Self {
        Self::start_with("", false)
    }

    /// Starts a server that keeps its data over [`Self::stop`] and [`Self::restart`].
    pub(crate) fn start_persistent() -> Self {
        Self::start_with("", true)
    }

    /// Starts one with more configuration.
    pub(crate) fn start_with(hcl: &str, persistent: bool) -> Self {
        // A port that was free may be taken by the time Consul listens: it ends, and the next ones are tried.
        for _ in 0..10 {
            let mut consul = Self::prepare(hcl, persistent);
            if consul.launch() {
                return consul;
            }
        }
        panic!("Consul did not start on any of ten sets of ports");
    }

    fn prepare(hcl: &str, persistent: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("test.hcl");
        // A crowd of waiters has many connections; elections need not take as long as between continents.
        let ours = "limits { http_max_conns_per_client = 2000 }\nperformance { raft_multiplier = 1 }";
        std::fs::write(&config, format!("{ours}\n{hcl}\n")).unwrap();
        let mut arguments: Vec<String> = [
            "agent",
            "-bind",
            "127.0.0.1",
            "-client",
            "127.0.0.1",
            "-dns-port",
            "-1",
            "-grpc-port",
            "-1",
            "-log-level",
            "warn",
            "-config-file",
        ]
        .map(String::from)
        .to_vec();
        arguments.push(config.display().to_string());
        if persistent {
            let data = folder.path().join("data").display().to_string();
            arguments.extend(
                ["-server", "-bootstrap-expect", "1", "-node", "test", "-data-dir"].map(String::from),
            );
            arguments.push(data);
        } else {
            arguments.push("-dev".into());
        }
        let port = free_port();
        arguments.extend(["-http-port".into(), port.to_string()]);
        for flag in ["-server-port", "-serf-lan-port", "-serf-wan-port"] {
            arguments.extend([flag.into(), free_port().to_string()]);
        }
        Self { child: None, arguments, port, folder }
    }

    /// Whether it has come up.
    fn launch(&mut self) -> bool {
        let mut command = Command::new(Self::binary());
        command.args(&self.arguments).env_remove("CONSUL_HTTP_ADDR").stdin(Stdio::null());
        self.child = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        self.is_up()
    }

    /// Waits until sessions can be made, which needs a leader and the node in the catalog. False: it has ended.
    #[allow(clippy::disallowed_methods, reason = "a test has no lease, and blocks nobody")]
    fn is_up(&mut self) -> bool {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if self.has_node().unwrap_or(false) {
                return true;
            }
            if self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some()) {
                return false;
            }
            assert!(Instant::now() < until, "Consul does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The node is registered once the leader has seen it.
    fn has_node(&self) -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET /v1/catalog/nodes?consistent HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        // With ACLs that deny, an empty list is all that can be seen: then a leader is enough.
        Ok(answer.contains("200 OK")
            && (answer.contains("\"Node\"") || answer.contains("[]") && self.denies()))
    }

    fn denies(&self) -> bool {
        std::fs::read_to_string(self.folder.path().join("test.hcl")).is_ok_and(|hcl| hcl.contains("deny"))
    }

    /// `host:port` of its HTTP API.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends it, as `kill -9` does.
    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it again on the same ports, with its data if it keeps any.
    pub(crate) fn restart(&mut self) {
        assert!(self.child.is_none(), "stop it first");
        // The kernel may hold the port for a moment.
        assert!((0..10).any(|_| self.launch()), "Consul did not start again");
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("a running Consul");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// The Consul to test with: `CONSUL_BIN`, else the one on the PATH, else the one that `scripts/consul` fetched.
    pub(crate) fn binary() -> PathBuf {
        if let Some(named) = env::var_os("CONSUL_BIN") {
            return named.into();
        }
        let path = env::var_os("PATH").unwrap_or_default();
        let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools");
        env::split_paths(&path)
            .chain([fetched])
            .map(|folder| folder.join("consul"))
            .find(|file| file.is_file())
            .expect("these tests need a Consul: set CONSUL_BIN, put one on the PATH, or run scripts/consul")
    }
}

impl Drop for Consul {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
