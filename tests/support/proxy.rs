//! A proxy before a Consul that counts what passes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::Response;
use slotkeeper_serve::{Limits, serve};
use tokio::net::TcpListener;

use super::sources::Sources;
use super::traffic::{Asked, Counts, Kind};

/// Consul cuts no connection off, so neither does the proxy: longer than any benchmark.
const FOREVER: Duration = Duration::from_secs(3600);

/// A counting proxy; it ends with the runtime that it was started on.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    passed: Arc<Passed>,
}

#[derive(Debug)]
struct Passed {
    consul: SocketAddr,
    sources: Sources,
    unanswered: AtomicU64,
    counts: Mutex<Counts>,
    asked: Mutex<Vec<Asked>>,
    polls: AtomicUsize,
    ignored: Mutex<Vec<&'static str>>,
    faults: Mutex<Vec<(&'static str, Fault)>>,
    filtered: Mutex<Vec<&'static str>>,
}

/// What the proxy does with a request instead of passing it on and its answer back.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It answers by itself, with this status and body; Consul does not hear of the request.
    Answers(u16, &'static str),
    /// Consul does what was asked, and its answer is replaced by a 502.
    LosesAnswer,
}

impl Proxy {
    /// Starts one before `consul`.
    pub async fn start(consul: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let passed = Arc::new(Passed {
            consul,
            sources: Sources::default(),
            unanswered: AtomicU64::new(0),
            counts: Mutex::default(),
            asked: Mutex::default(),
            polls: AtomicUsize::new(0),
            ignored: Mutex::default(),
            faults: Mutex::default(),
            filtered: Mutex::default(),
        });
        let router = Router::new().fallback(pass).with_state(Arc::clone(&passed));
        let limits =
            Limits { connections: 8192, header_timeout: FOREVER, life: FOREVER, ..Limits::default() };
        tokio::spawn(serve(listener, router, limits, std::future::pending()));
        Self { address, passed }
    }

    /// Starts one on a thread of its own, so that it does not wait for what else the caller's thread does.
    pub fn start_apart(consul: SocketAddr) -> Self {
        let (started, start) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                started.send(Self::start(consul).await).unwrap();
                std::future::pending::<()>().await;
            });
        });
        start.recv().unwrap()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// What has passed so far.
    pub fn counts(&self) -> Counts {
        *self.passed.counts.lock().unwrap()
    }

    /// How many requests Consul has not answered.
    pub fn unanswered(&self) -> u64 {
        self.passed.unanswered.load(Ordering::Relaxed)
    }

    /// Leaves the next request of this path without an answer; Consul does not hear of it.
    pub fn ignore_next(&self, path: &'static str) {
        self.passed.ignored.lock().unwrap().push(path);
    }

    /// Has the next requests whose path begins so fail, one for each of the faults, in order.
    pub fn fail_next(&self, path: &'static str, faults: &[Fault]) {
        self.passed.faults.lock().unwrap().extend(faults.iter().map(|fault| (path, *fault)));
    }

    /// Has the answers to reads of just these paths say from now on that Consul hides a part of them from the token, as it
    /// does by itself since 1.11.
    pub fn filter(&self, paths: &[&'static str]) {
        *self.passed.filtered.lock().unwrap() = paths.to_vec();
    }

    /// How many requests are still to fail.
    pub fn faults_left(&self) -> usize {
        self.passed.faults.lock().unwrap().len()
    }

    /// How many long polls are under way.
    pub fn polls(&self) -> usize {
        self.passed.polls.load(Ordering::SeqCst)
    }

    /// Each request so far, in order.
    pub fn asked(&self) -> Vec<Asked> {
        self.passed.asked.lock().unwrap().clone()
    }
}

/// A long poll under way, until its client has been answered or has gone.
struct Poll<'a>(&'a AtomicUsize);

impl<'a> Poll<'a> {
    fn of(polls: &'a AtomicUsize) -> Self {
        polls.fetch_add(1, Ordering::SeqCst);
        Self(polls)
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn pass(State(passed): State<Arc<Passed>>, request: Request) -> Response {
    let kind = Kind::of(request.method(), request.uri());
    let _poll = kind.waits().then(|| Poll::of(&passed.polls));
    let count_body = |body: &[u8]| passed.counts.lock().unwrap().add_bytes(kind, body.len());
    passed.counts.lock().unwrap().add_request(kind);
    passed.asked.lock().unwrap().push(Asked::of(kind, request.uri()));

    let ignored = {
        let mut ignored = passed.ignored.lock().unwrap();
        let found = ignored.iter().position(|path| *path == request.uri().path());
        found.map(|found| ignored.swap_remove(found)).is_some()
    };
    if ignored {
        std::future::pending::<()>().await;
    }

    let fault = {
        let mut faults = passed.faults.lock().unwrap();
        let found = faults.iter().position(|(path, _)| request.uri().path().starts_with(path));
        found.map(|found| faults.remove(found).1)
    };
    let fail = |status: u16, text: &'static str| Response::builder().status(status).body(Body::from(text));
    if let Some(Fault::Answers(status, text)) = fault {
        return fail(status, text).unwrap();
    }

    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    count_body(&body);
    let filtered = passed.filtered.lock().unwrap().contains(&head.uri.path());
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = format!("http://{}{path}", passed.consul).parse().unwrap();
    // Until the answer is read to its end.
    let source = passed.sources.take();
    let answer = source.client().request(Request::from_parts(head, Body::from(body))).await;
    let Ok(answer) = answer else {
        passed.unanswered.fetch_add(1, Ordering::Relaxed);
        return Response::builder().status(502).body(Body::from("Consul does not answer")).unwrap();
    };
    let (mut head, body) = answer.into_parts();
    // How the body was cut up on that connection says nothing of this one.
    head.headers.remove(header::TRANSFER_ENCODING);
    head.headers.remove(header::CONNECTION);
    if filtered {
        head.headers.insert("x-consul-results-filtered-by-acls", header::HeaderValue::from_static("true"));
    }
    let body = to_bytes(Body::new(body), usize::MAX).await.unwrap_or_default();
    count_body(&body);
    if let Some(Fault::LosesAnswer) = fault {
        return fail(502, "the answer is lost").unwrap();
    }
    Response::from_parts(head, Body::from(body))
}
