//! What passes through a proxy, told apart by what it asks of Consul.

use std::ops::Sub;

use axum::http::{Method, Uri};

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    SessionCreate,
    SessionRenew,
    SessionDestroy,
    Txn,
    KvList,
    KvListBlocking,
    /// The names of the keys in a folder.
    KvKeys,
    KvKeysBlocking,
    KvGet,
    KvGetBlocking,
    /// A PUT or DELETE of a key.
    KvWrite,
    Other,
}

impl Kind {
    /// All of them, each at the place of its number.
    pub const ALL: [Self; 12] = [
        Self::SessionCreate,
        Self::SessionRenew,
        Self::SessionDestroy,
        Self::Txn,
        Self::KvList,
        Self::KvListBlocking,
        Self::KvKeys,
        Self::KvKeysBlocking,
        Self::KvGet,
        Self::KvGetBlocking,
        Self::KvWrite,
        Self::Other,
    ];

    /// The kind of a request.
    pub fn of(method: &Method, uri: &Uri) -> Self {
        let query: Vec<_> = uri.query().unwrap_or_default().split('&').collect();
        let has = |name: &str| query.iter().any(|pair| pair.split('=').next() == Some(name));
        let (list, keys) = (has("recurse"), has("keys"));
        // An index of 0 is answered at once.
        let blocks = query.iter().any(|pair| pair.strip_prefix("index=").is_some_and(|index| index != "0"));
        let path = uri.path().strip_prefix("/v1/").unwrap_or_default();
        let is = |start: &str| path.starts_with(start);
        match (list, blocks) {
            _ if is("session/create") => Self::SessionCreate,
            _ if is("session/renew/") => Self::SessionRenew,
            _ if is("session/destroy/") => Self::SessionDestroy,
            _ if is("txn") => Self::Txn,
            _ if !is("kv/") => Self::Other,
            _ if *method != Method::GET => Self::KvWrite,
            (_, false) if keys => Self::KvKeys,
            (_, true) if keys => Self::KvKeysBlocking,
            (true, false) => Self::KvList,
            (true, true) => Self::KvListBlocking,
            (false, false) => Self::KvGet,
            (false, true) => Self::KvGetBlocking,
        }
    }

    /// For people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SessionCreate => "session create",
            Self::SessionRenew => "session renew",
            Self::SessionDestroy => "session destroy",
            Self::Txn => "txn",
            Self::KvList => "kv list",
            Self::KvListBlocking => "kv list, blocking",
            Self::KvKeys => "kv keys",
            Self::KvKeysBlocking => "kv keys, blocking",
            Self::KvGet => "kv get",
            Self::KvGetBlocking => "kv get, blocking",
            Self::KvWrite => "kv put or delete",
            Self::Other => "other",
        }
    }

    /// Whether it waits for news.
    pub(super) fn waits(self) -> bool {
        matches!(self, Self::KvListBlocking | Self::KvKeysBlocking | Self::KvGetBlocking)
    }

    /// Whether it goes through Consul's log. Every PUT and DELETE does but the renewal of a session.
    fn writes(self) -> bool {
        matches!(self, Self::SessionCreate | Self::SessionDestroy | Self::Txn | Self::KvWrite)
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its kind.
    pub kind: Kind,
    /// The key, where it is about one or about all that begin so.
    pub key: Option<String>,
    /// The index after which a change is news; 0 where it does not wait for one.
    pub after: u64,
}

impl Asked {
    pub(super) fn of(kind: Kind, uri: &Uri) -> Self {
        let index = uri.query().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("index="));
        Self {
            kind,
            key: uri.path().strip_prefix("/v1/kv/").map(str::to_owned),
            after: index.and_then(|index| index.parse().ok()).unwrap_or(0),
        }
    }
}

/// What has passed of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Requests, also those whose answer was not waited for.
    pub requests: u64,
    /// Bytes of bodies, both ways.
    pub bytes: u64,
}

/// What has passed, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([Count; Kind::ALL.len()]);

impl Counts {
    /// Of one kind.
    pub fn of(&self, kind: Kind) -> Count {
        self.0[kind as usize]
    }

    /// Requests of any kind.
    pub fn requests(&self) -> u64 {
        self.0.iter().map(|count| count.requests).sum()
    }

    /// Those that go through Consul's log.
    pub fn writes(&self) -> u64 {
        Kind::ALL.into_iter().filter(|kind| kind.writes()).map(|kind| self.of(kind).requests).sum()
    }

    /// Bytes of bodies, both ways.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|count| count.bytes).sum()
    }

    /// A request came.
    pub(super) fn add_request(&mut self, kind: Kind) {
        self.0[kind as usize].requests += 1;
    }

    /// A body passed.
    pub(super) fn add_bytes(&mut self, kind: Kind, bytes: usize) {
        self.0[kind as usize].bytes += bytes as u64;
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(mut self, earlier: Self) -> Self {
        for (count, before) in self.0.iter_mut().zip(earlier.0) {
            count.requests -= before.requests;
            count.bytes -= before.bytes;
        }
        self
    }
}
