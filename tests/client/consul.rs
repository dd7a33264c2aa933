//! A real Consul for the time of a test.

use std::env;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use slotkeeper::consul::{Address, Error};
use tokio::time::{Instant, sleep};

use crate::{client, spec};

/// A development server on ports of its own; ends with the value.
pub(crate) struct Consul {
    child: Child,
    address: Address,
}

impl Consul {
    /// Starts one with the defaults.
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts one with more configuration.
    pub(crate) async fn start_with(hcl: &str) -> Self {
        // A port that was free may be taken by the time Consul listens: it ends, and the next ones are tried.
        for _ in 0..5 {
            let port = free_port();
            let address = format!("127.0.0.1:{port}").parse().unwrap();
            let ports = ["-http-port".to_owned(), port.to_string()];
            if let Some(consul) = Self::spawn(hcl, address, &ports).await {
                return consul;
            }
        }
        panic!("Consul did not start on any of five sets of ports");
    }

    /// Starts one that listens on a unix socket.
    pub(crate) async fn start_on_socket(socket: &Path) -> Self {
        let url = format!("unix://{}", socket.display());
        let hcl = format!("addresses {{ http = \"{url}\" }}");
        Self::spawn(&hcl, url.parse().unwrap(), &[]).await.expect("Consul did not start on a unix socket")
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> &Address {
        &self.address
    }

    async fn spawn(hcl: &str, address: Address, more: &[String]) -> Option<Self> {
        let mut command = Command::new(binary());
        command.args(["agent", "-dev", "-bind", "127.0.0.1", "-client", "127.0.0.1", "-hcl", hcl]);
        command.args(["-dns-port", "-1", "-grpc-port", "-1"]).args(more);
        for port in ["-server-port", "-serf-lan-port", "-serf-wan-port"] {
            command.args([port, &free_port().to_string()]);
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut consul = Self { child, address };
        consul.ready().await.then_some(consul)
    }

    /// Waits until its node is registered, after which sessions can be made. False: it has ended.
    async fn ready(&mut self) -> bool {
        let client = client(&self.address).within(Duration::from_secs(2));
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match client.session_create(&spec()).await {
                Ok(id) => {
                    client.session_destroy(&id).await.unwrap();
                    return true;
                }
                Err(Error::Denied { .. }) => return true,
                Err(error) => assert!(Instant::now() < until, "Consul is not ready: {error}"),
            }
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Consul {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Consul to test with: `CONSUL_BIN`, else the one on the PATH, else the one that `scripts/consul` fetched.
pub(crate) fn binary() -> PathBuf {
    if let Some(named) = env::var_os("CONSUL_BIN") {
        return named.into();
    }
    let on_path =
        env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools");
    on_path
        .chain([fetched])
        .map(|folder| folder.join("consul"))
        .find(|file| file.is_file())
        .expect("no consul: set CONSUL_BIN, put one on the PATH, or run scripts/consul")
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
