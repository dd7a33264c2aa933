//! Consul as an operator sees and edits it.

use std::time::Duration;

use serde_json::Value;
use slotkeeper_consul::{
    Behavior, Client, Error, Kind, KvPair, Read, Session, SessionSpec, Settings, Unobserved,
};
use tokio::runtime::Runtime;

use crate::http::request_with;
use crate::support::kv::{self, Put};
use crate::wait_for;

/// Whoever looks at Consul with the permission to change everything.
pub(crate) struct Operator {
    client: Client,
    runtime: Runtime,
}

impl Operator {
    pub(crate) fn at(address: &str) -> Self {
        Self::with(&Settings { address: address.parse().unwrap(), ..Settings::default() })
    }

    pub(crate) fn with(settings: &Settings) -> Self {
        let client = Client::new(settings, std::sync::Arc::new(Unobserved)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { client, runtime }
    }

    /// Reads, again while there is an election: of servers on a busy machine one may be held at any time.
    fn read<T>(&self, request: impl AsyncFn() -> Result<T, Error>) -> T {
        let mut answer = None;
        wait_for("an answer of Consul's leader", || {
            let said = self.runtime.block_on(request());
            let elects = |error: &Error| matches!(error.kind, Kind::NoLeader | Kind::Unknown);
            answer = Some(said).filter(|said| !said.as_ref().is_err_and(elects));
            answer.is_some()
        });
        answer.unwrap().unwrap()
    }

    pub(crate) fn keys(&self, prefix: &str) -> Vec<KvPair> {
        let prefix = format!("{prefix}/");
        self.read(async || self.client.kv_list(&prefix, Read::default()).await).value
    }

    /// The record under `<prefix>/.lock`, as it is written.
    pub(crate) fn record(&self, prefix: &str) -> Value {
        let pair = self.lock(prefix).expect("a .lock");
        serde_json::from_slice(&pair.value).unwrap()
    }

    pub(crate) fn lock(&self, prefix: &str) -> Option<KvPair> {
        self.key(&format!("{prefix}/.lock"))
    }

    pub(crate) fn key(&self, key: &str) -> Option<KvPair> {
        self.read(async || self.client.kv_get(key, Read::default()).await).value
    }

    /// Holders of a record in either form.
    pub(crate) fn holders(&self, prefix: &str) -> Vec<String> {
        match &self.record(prefix)["Holders"] {
            Value::Array(list) => list.iter().map(|holder| holder.as_str().unwrap().to_owned()).collect(),
            Value::Object(map) => map.keys().cloned().collect(),
            other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                panic!("neither a list nor a map: {other}")
            }
        }
    }

    /// What a session's contender entry says.
    pub(crate) fn entry(&self, prefix: &str, session: &str) -> Value {
        let contender = self.contender(prefix, session).expect("a contender entry");
        serde_json::from_slice(&contender.value).unwrap()
    }

    /// Whom `.lock` names as next, once for each slot.
    pub(crate) fn next(&self, prefix: &str) -> Vec<String> {
        let record = self.record(prefix);
        let next = record["slotkeeper"]["next"].as_array().map(Vec::as_slice).unwrap_or_default();
        next.iter().map(|session| session.as_str().unwrap().to_owned()).collect()
    }

    /// A session's contender entry, where it has one.
    pub(crate) fn contender(&self, prefix: &str, session: &str) -> Option<KvPair> {
        self.keys(prefix).into_iter().find(|pair| pair.key == format!("{prefix}/{session}"))
    }

    pub(crate) fn put(&self, key: &str, value: &str, put: Put<'_>, flags: u64) {
        assert!(self.try_put(key, value, put, flags));
    }

    /// Whether it was written.
    pub(crate) fn try_put(&self, key: &str, value: &str, put: Put<'_>, flags: u64) -> bool {
        self.runtime.block_on(kv::put(&self.client, key, value.as_bytes(), put, flags)).unwrap()
    }

    /// Acquires the lock of a key, with a value of up to 512 KiB: a transaction carries values in base64, so it takes three quarters of it.
    pub(crate) fn acquire_with_large(&self, key: &str, value: &str, session: &str, flags: u64) {
        let line = format!("PUT /v1/kv/{key}?acquire={session}&flags={flags}");
        let address = self.client.address().trim_start_matches("http://");
        let reply = request_with(address, &line, &format!("Content-Length: {}\r\n", value.len()), value);
        assert_eq!((reply.status, reply.body.trim()), (200, "true"));
    }

    pub(crate) fn delete(&self, key: &str) {
        assert!(self.runtime.block_on(kv::delete(&self.client, key)).unwrap());
    }

    pub(crate) fn sessions(&self) -> Vec<Session> {
        self.read(async || self.client.session_list(Read::default()).await).value
    }

    /// A session, where it lives.
    pub(crate) fn session(&self, id: &str) -> Option<Session> {
        self.sessions().into_iter().find(|session| session.id == id)
    }

    pub(crate) fn destroy(&self, session: &str) {
        self.runtime.block_on(self.client.session_destroy(session)).unwrap();
    }

    /// A session of another client.
    pub(crate) fn create_session(&self) -> String {
        let spec = SessionSpec {
            name: "foreign".into(),
            ttl: Duration::from_secs(600),
            behavior: Behavior::Delete,
            lock_delay: Duration::ZERO,
            node: None,
            node_checks: Vec::new(),
            service_checks: Vec::new(),
        };
        self.runtime.block_on(self.client.session_create(&spec)).unwrap()
    }

    /// Asserts that nobody holds, waits or has a session any more.
    pub(crate) fn assert_nothing_left(&self, prefix: &str) {
        assert!(self.lock(prefix).is_some(), "no .lock");
        self.assert_nobody_left(prefix);
        assert_eq!(self.sessions(), [], "sessions are left");
    }

    /// Asserts that nobody holds or waits any more, and that no agent of ours has a session. `.lock` may have gone,
    /// and other clients' sessions may still have to expire.
    pub(crate) fn assert_nobody_left(&self, prefix: &str) {
        let keys: Vec<_> = self.keys(prefix).into_iter().map(|pair| pair.key).collect();
        let lock = format!("{prefix}/.lock");
        assert_eq!(keys.iter().find(|key| **key != lock), None, "contenders are left");
        if !keys.is_empty() {
            let record = self.record(prefix);
            let (holders, next) = (&record["Holders"], self.next(prefix));
            let none = holders.as_array().is_some_and(Vec::is_empty)
                || holders.as_object().is_some_and(serde_json::Map::is_empty);
            assert!(none && next.is_empty(), "holders are left: {record}");
        }
        let ours: Vec<_> =
            self.sessions().into_iter().filter(|one| one.name.starts_with("slotkeeper ")).collect();
        assert_eq!(ours, [], "sessions are left");
    }
}
