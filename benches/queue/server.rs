//! The Consul of one part, with its default limits, and the counting proxy before it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use slotkeeper::internals::clock;
use tokio::net::TcpSocket;

use crate::load::Meter;
use crate::support::consul::{Consul, Setup};
use crate::support::http::{Body, Response, request_over};
use crate::support::proxy::Proxy;

const POLL: Duration = Duration::from_millis(20);
/// The benchmark's own requests come from here, so that they need none of the connections that Consul allows its clients.
const OBSERVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 253);

pub(crate) struct Server {
    consul: Consul,
    proxy: Proxy,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let consul = Consul::start_with(Setup { default_limits: true, ..Setup::default() }).await;
        let proxy = Proxy::start_apart(consul.addr());
        Self { consul, proxy }
    }

    /// A proxy of its own, for one client.
    pub(crate) fn proxy_apart(&self) -> Proxy {
        Proxy::start_apart(self.consul.addr())
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Consul itself.
    pub(crate) fn consul(&self) -> SocketAddr {
        self.consul.addr()
    }

    pub(crate) fn meter(&self) -> Meter {
        Meter::start(self.consul.pid())
    }

    /// Clients of a semaphore that hold or wait.
    pub(crate) async fn contenders(&self, prefix: &str) -> usize {
        let answer = self.ask("GET", &format!("/v1/kv/{prefix}/?keys")).await;
        if answer.status == 404 {
            return 0;
        }
        let keys: Vec<String> = serde_json::from_slice(&answer.body).unwrap();
        keys.iter().filter(|key| !key.ends_with("/.lock")).count()
    }

    /// Waits until a semaphore has so many clients, and says whether it came to that.
    pub(crate) async fn await_contenders(&self, prefix: &str, number: usize, patience: Duration) -> bool {
        let came = async {
            while self.contenders(prefix).await < number {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(patience, came).await.is_ok()
    }

    /// The sessions that there are.
    pub(crate) async fn sessions(&self) -> Vec<String> {
        let sessions = self.ask("GET", "/v1/session/list").await.json();
        let ids = sessions.as_array().into_iter().flatten().filter_map(|session| session["ID"].as_str());
        ids.map(str::to_owned).collect()
    }

    /// The index of the last entry of Consul's Raft log.
    pub(crate) async fn log_index(&self) -> u64 {
        let agent = self.ask("GET", "/v1/agent/self").await.json();
        agent["Stats"]["raft"]["last_log_index"].as_str().and_then(|index| index.parse().ok()).unwrap()
    }

    async fn ask(&self, method: &str, path: &str) -> Response {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((OBSERVER, 0).into()).unwrap();
        let stream = socket.connect(self.consul()).await.unwrap();
        let host = self.consul().to_string();
        request_over(stream, &host, method, path, &[], Body::None).await.unwrap()
    }
}

/// Waits until the condition holds, and says whether it came to that.
pub(crate) async fn until(patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = clock::now() + patience;
    while !condition() {
        if clock::now() > end {
            return false;
        }
        tokio::time::sleep(POLL).await;
    }
    true
}
