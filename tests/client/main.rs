//! The Consul client against a real Consul, and against a server that does what no Consul should.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

#[path = "../support/mod.rs"]
mod support;

mod acl;
mod addresses;
mod black_hole;
mod connections;
mod consul;
mod cuts;
mod faults;
mod hostile;
mod lanes;
mod login;
mod logins;
mod plain;
mod stub;
mod tls;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use slotkeeper_consul::{
    Address, Behavior, Client, Code, Error, Observer, Operation, SessionSpec, Settings, TokenSource, Tried,
    Unobserved,
};

/// A client of `address` without anything else.
fn client(address: &Address) -> Client {
    Client::new(&Settings { address: address.clone().into(), ..Settings::default() }, Arc::new(Unobserved))
        .unwrap()
}

/// A client of `address` with a token.
fn client_with(address: &Address, token: TokenSource) -> Client {
    let settings = Settings { address: address.clone().into(), token: Some(token), ..Settings::default() };
    Client::new(&settings, Arc::new(Unobserved)).unwrap()
}

/// A write, by one request that does the same each time.
async fn write(client: &Client, key: &str) -> Result<bool, Error> {
    support::kv::delete(client, key).await
}

/// A session that only its TTL can end, whose keys can be locked again at once.
fn spec() -> SessionSpec {
    SessionSpec {
        name: "client test".into(),
        ttl: Duration::from_secs(30),
        behavior: Behavior::Delete,
        lock_delay: Duration::ZERO,
        node: None,
        node_checks: Vec::new(),
        service_checks: Vec::new(),
    }
}

/// Records the events.
#[derive(Default)]
struct Recorder(Mutex<Vec<(Operation, Code)>>);

impl Recorder {
    fn seen(&self) -> Vec<(Operation, Code)> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Recorder {
    fn finished(&self, tried: &Tried, code: Code, _: Duration) {
        self.0.lock().unwrap().push((tried.operation, code));
    }
}
