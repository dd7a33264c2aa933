//! One server under test, and the transcript of what it was asked and what it said.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use slotkeeper_consul_dev::Dialect;
use tokio::time::Instant;

use crate::support::http::{self, Body, Response};

/// Headers that clients look at.
const HEADERS: [&str; 10] = [
    "content-type",
    "allow",
    "location",
    "content-security-policy",
    "x-content-type-options",
    "x-consul-knownleader",
    "x-consul-lastcontact",
    "x-consul-default-acl-policy",
    "x-consul-query-backend",
    "x-consul-results-filtered-by-acls",
];
/// Fields whose values are indexes.
const INDEXES: [&str; 2] = ["CreateIndex", "ModifyIndex"];
/// Around an index in a transcript until all are known and each gets its rank.
const MARKS: [char; 2] = ['⟦', '⟧'];

/// A server under test.
#[derive(Debug)]
pub struct Target {
    addr: SocketAddr,
    dialect: Dialect,
    scenario: &'static str,
    indexes: Indexes,
    /// What this server calls things, and what the transcript calls them.
    names: Vec<(String, String)>,
    steps: Vec<String>,
}

/// What a transcript says of indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexes {
    /// Their order.
    Ranked,
    /// That they are there: where other scenarios run at the same time, the order is chance.
    Present,
}

/// How a blocking read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Before its time.
    Woken,
    /// By its time.
    TimedOut,
}

impl Target {
    pub async fn new(scenario: &'static str, indexes: Indexes, dialect: Dialect, addr: SocketAddr) -> Self {
        let this = http::get(addr, "/v1/agent/self").await.json();
        let node = this["Config"]["NodeName"].as_str().unwrap().to_owned();
        let leader = http::get(addr, "/v1/status/leader").await.json();
        let names =
            vec![(node, "<node>".to_owned()), (leader.as_str().unwrap().to_owned(), "<leader>".to_owned())];
        Self { addr, dialect, scenario, indexes, names, steps: Vec::new() }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Which of two facts holds here: that of Consul 1.8, or that of 1.22.
    pub fn fact<T>(&self, old: T, new: T) -> T {
        match self.dialect {
            Dialect::V1_8 => old,
            Dialect::V1_22 => new,
        }
    }

    /// The name of the server's own node.
    pub fn node(&self) -> String {
        self.names[0].0.clone()
    }

    /// A key of this scenario's own.
    pub fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.scenario)
    }

    /// The path of [`Target::key`].
    pub fn kv(&self, key: &str) -> String {
        format!("/v1/kv/{}", self.key(key))
    }

    pub async fn get(&mut self, path: &str) -> Response {
        self.send("GET", path, Body::None).await
    }

    pub async fn put(&mut self, path: &str, body: impl AsRef<[u8]>) -> Response {
        self.send("PUT", path, Body::Sized(body.as_ref())).await
    }

    pub async fn delete(&mut self, path: &str) -> Response {
        self.send("DELETE", path, Body::None).await
    }

    pub async fn send(&mut self, method: &str, path: &str, body: Body<'_>) -> Response {
        let response = http::request(self.addr, method, path, &[], body).await;
        let asked = match body {
            Body::Sized(body) if body.len() <= 2000 => String::from_utf8_lossy(body).into_owned(),
            Body::None => String::new(),
            Body::Sized(body) | Body::Chunked(body) => format!("{} bytes", body.len()),
        };
        self.keep(&format!("{method} {path} {asked}"), &response);
        response
    }

    /// A PUT that answers true or false.
    pub async fn put_bool(&mut self, path: &str, body: impl AsRef<[u8]>) -> bool {
        let response = self.put(path, body).await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json().as_bool().unwrap()
    }

    /// Creates a session; the transcript calls it by the order of its creation.
    pub async fn session(&mut self, body: &str) -> String {
        let response = http::put(self.addr, "/v1/session/create", body).await;
        assert_eq!(response.status, 200, "{}", response.text());
        let id = response.json()["ID"].as_str().unwrap().to_owned();
        self.name_session(&id);
        self.keep(&format!("PUT /v1/session/create {body}"), &response);
        id
    }

    /// Gives a session its name in the transcript.
    pub fn name_session(&mut self, id: &str) {
        let known = self.names.len();
        self.names.push((id.to_owned(), format!("<session {}>", known - 1)));
    }

    /// A transaction; `{}` in `ops` stands for the scenario's prefix.
    pub async fn txn(&mut self, ops: &str) -> Response {
        let body = ops.replace("{}", self.scenario);
        self.put("/v1/txn", body).await
    }

    /// A read that waits above `index`, while `meanwhile` happens. It goes into the transcript as it ended.
    pub async fn block(
        &mut self,
        path: &str,
        index: u64,
        wait: Duration,
        meanwhile: impl Future<Output = ()>,
    ) -> (Response, Ended) {
        let join = if path.contains('?') { '&' } else { '?' };
        let full = format!("{path}{join}index={index}&wait={}ms", wait.as_millis());
        let began = Instant::now();
        let addr = self.addr;
        let read = async {
            let response = http::get(addr, &full).await;
            (response, began.elapsed())
        };
        let ((response, took), ()) = tokio::join!(read, meanwhile);
        let ended = if took < wait { Ended::Woken } else { Ended::TimedOut };
        // Consul adds up to a sixteenth; the rest is for a busy machine.
        assert!(took < wait + wait / 16 + Duration::from_secs(10), "{full} took {took:?}");
        self.keep(&format!("GET {path} blocks and is {ended:?}"), &response);
        (response, ended)
    }

    /// What was asked and said, with names for ids and ranks for indexes.
    pub fn transcript(&self) -> Vec<String> {
        let marked = |step: &String| -> Vec<u64> {
            let parts = step.split(MARKS[0]).skip(1);
            parts.map(|part| part.split(MARKS[1]).next().unwrap().parse().unwrap()).collect()
        };
        let all: BTreeSet<u64> = self.steps.iter().flat_map(marked).collect();
        let ranked = |step: &String| {
            let replace = |step: String, (rank, index): (usize, &u64)| {
                let shown = match self.indexes {
                    Indexes::Ranked => format!("#{rank}"),
                    Indexes::Present => "#".to_owned(),
                };
                step.replace(&format!("{}{index}{}", MARKS[0], MARKS[1]), &shown)
            };
            all.iter().enumerate().fold(step.clone(), replace)
        };
        self.steps.iter().map(ranked).collect()
    }

    fn keep(&mut self, asked: &str, response: &Response) {
        let mut step = format!("{}\n  {}", self.named(asked), response.status);
        for name in HEADERS {
            if let Some(value) = response.header(name) {
                step += &format!("\n  {name}: {}", self.named(value));
            }
        }
        if let Some(index) = response.header("x-consul-index") {
            step += &format!("\n  x-consul-index: {}{index}{}", MARKS[0], MARKS[1]);
        }
        if !response.body.is_empty() {
            step += &format!("\n  {}", self.body(response));
        }
        self.steps.push(step);
    }

    fn body(&self, response: &Response) -> String {
        let is_json = |told: &str| told.starts_with("application/json");
        if !response.header("content-type").is_some_and(is_json) {
            return self.named(&syntax(&response.text()));
        }
        let mut body = response.json();
        mark(&mut body);
        self.named(&serde_json::to_string_pretty(&body).unwrap())
    }

    fn named(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (own, name)| text.replace(own.as_str(), name))
    }
}

/// Marks the indexes of a body.
fn mark(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(mark),
        Value::Object(fields) => {
            for (name, value) in fields {
                if INDEXES.contains(&name.as_str()) {
                    *value = format!("{}{value}{}", MARKS[0], MARKS[1]).into();
                } else {
                    mark(value);
                }
            }
        }
        Value::String(text) => {
            let told = "current modify index ";
            if let Some((before, after)) = text.split_once(told) {
                let (index, after) = after.split_once(' ').unwrap();
                *text = format!("{before}{told}{}{index}{} {after}", MARKS[0], MARKS[1]);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The error of a body that is not JSON is the message of each server's own parser.
fn syntax(text: &str) -> String {
    for told in ["Request decode failed: ", "Failed to parse body: "] {
        let common = ["json:", "EOF", "unexpected EOF", "time:", "illegal base64"];
        if let Some(fault) = text.strip_prefix(told)
            && !common.iter().any(|known| fault.starts_with(known))
        {
            return format!("{told}<syntax>");
        }
    }
    text.to_owned()
}
