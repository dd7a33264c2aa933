//! A proxy before a Consul that counts what passes.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::response::Response;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use slotkeeper::http::serve::{Limits, serve};
use tokio::net::TcpListener;

/// What has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of any kind.
    pub requests: u64,
    /// Those that go through Consul's log: every PUT and DELETE but the renewal of a session.
    pub writes: u64,
    /// Bytes of bodies, both ways.
    pub bytes: u64,
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            requests: self.requests - earlier.requests,
            writes: self.writes - earlier.writes,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

/// A counting proxy; it ends with the test's runtime.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    passed: Arc<Passed>,
}

#[derive(Debug)]
struct Passed {
    consul: SocketAddr,
    client: Client<HttpConnector, Body>,
    requests: AtomicU64,
    writes: AtomicU64,
    bytes: AtomicU64,
}

impl Proxy {
    /// Starts one before `consul`.
    pub async fn start(consul: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let passed = Arc::new(Passed {
            consul,
            client: Client::builder(TokioExecutor::new()).build_http(),
            requests: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let router = Router::new().fallback(pass).with_state(Arc::clone(&passed));
        let limits = Limits { connections: 4096, life: Duration::from_secs(3600), ..Limits::default() };
        tokio::spawn(serve(listener, router, limits, std::future::pending()));
        Self { address, passed }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// What has passed so far.
    pub fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Passed { requests, writes, bytes, .. } = &*self.passed;
        Counts { requests: read(requests), writes: read(writes), bytes: read(bytes) }
    }
}

async fn pass(State(passed): State<Arc<Passed>>, request: Request) -> Response {
    let renews = request.uri().path().starts_with("/v1/session/renew/");
    let writes = matches!(*request.method(), Method::PUT | Method::DELETE) && !renews;
    passed.requests.fetch_add(1, Ordering::Relaxed);
    passed.writes.fetch_add(writes.into(), Ordering::Relaxed);

    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    passed.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = format!("http://{}{path}", passed.consul).parse().unwrap();
    let answer = passed.client.request(Request::from_parts(head, Body::from(body))).await;
    let Ok(answer) = answer else {
        return Response::builder().status(502).body(Body::from("Consul does not answer")).unwrap();
    };
    let (mut head, body) = answer.into_parts();
    // How the body was cut up on that connection says nothing of this one.
    head.headers.remove(header::TRANSFER_ENCODING);
    head.headers.remove(header::CONNECTION);
    let body = to_bytes(Body::new(body), usize::MAX).await.unwrap_or_default();
    passed.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
    Response::from_parts(head, Body::from(body))
}
