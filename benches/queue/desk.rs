//! An agent that lends slots, and its control endpoints.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::commands::SLOTKEEPER;
use crate::server::{Server, until};
use crate::support::http::{Body, Response, request_over};

const PATIENCE: Duration = Duration::from_secs(30);
/// More than are ever held.
const LIMIT: u32 = 1000;

/// An agent, for whoever wants slots on demand.
pub(crate) struct Desk {
    agent: Child,
    socket: PathBuf,
    _folder: TempDir,
}

impl Desk {
    pub(crate) async fn open(server: &Server, max_leases: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (config, socket) = (folder.path().join("config.yaml"), folder.path().join("control.sock"));
        let text = format!(
            "consul: {{address: 'http://{}'}}\nhttp: {{listen: off}}\nlog: {{level: warn}}\n\
             control: {{listen: 'unix:{}', max_leases: {max_leases}}}\n\
             semaphores: [{{name: s, prefix: bench/leases, limit: {LIMIT}, mode: on_demand}}]\n",
            server.proxy().addr(),
            socket.display(),
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(SLOTKEEPER);
        command.args(["agent", "--config"]).arg(config).env_clear().kill_on_drop(true);
        let agent = command.spawn().unwrap();
        assert!(until(PATIENCE, || socket.exists()).await, "the agent did not open its control endpoints");
        Self { agent, socket, _folder: folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.agent.id().expect("the agent runs")
    }

    /// Its lease's id.
    pub(crate) async fn acquire(&self) -> Result<String, String> {
        let answer = self.ask("POST", "/v1/semaphores/s/acquire", br#"{"wait":"60s"}"#).await?;
        Ok(answer.json()["lease"].as_str().expect("an id").to_owned())
    }

    pub(crate) async fn renew(&self, lease: &str) -> Result<(), String> {
        self.ask("POST", &format!("/v1/leases/{lease}/renew"), b"").await.map(drop)
    }

    pub(crate) async fn release(&self, lease: &str) -> Result<(), String> {
        self.ask("DELETE", &format!("/v1/leases/{lease}"), b"").await.map(drop)
    }

    async fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<Response, String> {
        let exchange = async {
            let stream = UnixStream::connect(&self.socket).await?;
            request_over(stream, "slotkeeper", method, path, &[], Body::Sized(body)).await
        };
        let answer = exchange.await.map_err(|error| format!("{method} {path}: {error}"))?;
        let is_well = matches!(answer.status, 200 | 204);
        if is_well {
            Ok(answer)
        } else {
            Err(format!("{method} {path}: {} {}", answer.status, answer.text()))
        }
    }
}
