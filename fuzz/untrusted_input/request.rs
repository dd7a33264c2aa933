//! The bytes of a connection to a server.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc, watch};

use crate::control::request::{NoLease, Refusal, Released, Reloaded, Request, requests};
use crate::control::{self, Gate};
use crate::http::{self, Following, Site};
use crate::metrics::Metrics;
use crate::status::Snapshot;
use crate::watchdog::Watchdog;
use crate::{agent, clock};
use slotkeeper_consul::Secret;
use slotkeeper_consul_dev as embedded;
use slotkeeper_serve::{Limits, Listen, serve};

/// Time for an answer or a close: far more than either takes, and less than a fuzzer's time limit.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a server that may wait.
const READ_TIME: Duration = Duration::from_millis(100);
/// The path of the event stream.
const EVENTS: &[u8] = b"/v1/events";
/// Maximum time of the event stream.
const CONNECTION_TIME: Duration = Duration::from_millis(10);
/// The capacity of a pipe.
const PIPE_BYTES: usize = 64 * 1024;

thread_local! {
    static SERVERS: Servers = Servers::new();
}

/// Takes a byte for the server (`r`ead-only, `c`ontrol, control with a `t`oken, `d`evelopment) and the bytes of a connection, after
/// which the client sends no more. There are answers or there are none, and the connection is closed; no answer of an
/// agent's is that of a defect. The development server may be asked to wait, and is not waited for.
pub fn request(data: &[u8]) {
    let Some((server, bytes)) = data.split_first() else { return };
    let answer = answer(*server, bytes);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{}", answer.escape_ascii());
    let is_defect = answer.windows(12).any(|window| window == b"HTTP/1.1 500");
    assert!(*server == b'd' || !is_defect, "{}", answer.escape_ascii());
}

pub(super) fn answer(server: u8, bytes: &[u8]) -> Vec<u8> {
    SERVERS.with(|servers| {
        servers.runtime.block_on(async {
            // A store of its own each time, so that what is found can be replayed.
            let (router, limits) = match server {
                b'c' => (servers.control.clone(), control::limits(4)),
                b't' => (servers.closed.clone(), control::limits(4)),
                b'd' => (embedded::router_alone(), Limits::default()),
                _ => (servers.read_only.clone(), Limits::default()),
            };
            let exchange = exchange(router, limits, bytes);
            match tokio::time::timeout(if server == b'd' { READ_TIME } else { TIMEOUT }, exchange).await {
                Ok(answer) => answer,
                Err(_late) => {
                    assert_eq!(server, b'd', "neither an answer nor a close");
                    Vec::new()
                }
            }
        })
    })
}

async fn exchange(router: Router, limits: Limits, bytes: &[u8]) -> Vec<u8> {
    let (client, server) = duplex(PIPE_BYTES);
    let listener = One(Mutex::new(Some(server)));
    let asked = async {
        let (mut reads, mut writes) = split(client);
        let ended = Notify::new();
        let send = async {
            // What is refused may be closed before all of it was sent.
            let _ = writes.write_all(bytes).await;
            // A stream ends with its client's side: one who follows keeps that open for as long as it may last.
            if bytes.windows(EVENTS.len()).any(|window| window == EVENTS) {
                let _ = tokio::time::timeout(5 * CONNECTION_TIME, ended.notified()).await;
            }
            let _ = writes.shutdown().await;
        };
        let mut answer = Vec::new();
        let receive = async {
            let received = reads.read_to_end(&mut answer).await;
            ended.notify_one();
            received
        };
        let (_, received) = tokio::join!(send, receive);
        // A pipe within the process does not break.
        received.unwrap();
        answer
    };
    let serving = serve(listener, router, limits, std::future::pending());
    tokio::select! {
        answer = asked => answer,
        ended = serving => panic!("the server has ended: {ended:?}"),
    }
}

/// The servers' routes, and the agent behind them.
struct Servers {
    runtime: Runtime,
    /// Without it a stream of events would end at once.
    _tells: watch::Sender<Arc<Snapshot>>,
    read_only: Router,
    control: Router,
    closed: Router,
}

impl Servers {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let now = clock::now();
        let (tells, status) = watch::channel(Arc::new(agent::before_start(now)));
        let metrics = Arc::new(Metrics::new().unwrap());
        // The stream has its maximum of data within a short time limit.
        let (pace, silence, life) = (Duration::ZERO, CONNECTION_TIME / 5, CONNECTION_TIME);
        let following = Following { pace, silence, life, ..Following::default() };
        let site = Site::new(status, metrics, Arc::new(Watchdog::new(now))).followed(following);
        let (sender, receiver) = requests();
        runtime.spawn(reply(receiver));
        let token = Secret::new("0123456789abcdef");
        Self {
            runtime,
            _tells: tells,
            read_only: http::router(site.clone(), Ipv4Addr::LOCALHOST.into()),
            control: control::router(sender.clone(), site.clone(), Gate::Open),
            closed: control::router(sender, site, Gate::Token(token)),
        }
    }
}

/// An agent that has nothing to give.
async fn reply(mut requests: mpsc::Receiver<Request>) {
    while let Some(request) = requests.recv().await {
        // The client may have closed the connection.
        match request {
            Request::Drain => {}
            Request::Reload { reply } => drop(reply.send(Ok(Reloaded::default()))),
            Request::Acquire { reply, .. } => drop(reply.send(Err(Refusal::Timeout))),
            Request::Renew { reply, .. } | Request::Show { reply, .. } => {
                drop(reply.send(Err(NoLease::Expired)));
            }
            Request::Release { reply, .. } => drop(reply.send(Ok(Released::Done))),
        }
    }
}

/// A listener with exactly one connection.
struct One(Mutex<Option<DuplexStream>>);

impl Listen for One {
    type Stream = DuplexStream;

    async fn accept(&self) -> io::Result<DuplexStream> {
        let one = self.0.lock().unwrap().take();
        match one {
            Some(stream) => Ok(stream),
            None => std::future::pending().await,
        }
    }
}
