//! One request and its answer, as they are on the wire.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::endpoint::Lane;
use super::token::Ready;
use super::{Error, Indexed, Operation, Read, Secret, Tried};

/// A request.
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) method: Method,
    /// Below `/v1/`, percent-encoded.
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
    /// Known in full, so that it goes out with a Content-Length: Consul ignores the body of a session's creation that
    /// comes in chunks.
    pub(super) body: Option<Bytes>,
    /// What the body must not give away, should the answer repeat it.
    pub(super) secret: Option<Secret>,
    /// For errors.
    pub(super) target: String,
    /// What Consul may wait on top of the time that the answer itself may take.
    pub(super) waits: Duration,
    /// A renewal has its answer only with this one.
    confirms: bool,
    /// An answer of which parts are hidden from the token is an answer, and not a refusal.
    pub(super) takes_filtered: bool,
    /// Its answer may be long, and is worth Consul's while to compress.
    pub(super) is_long: bool,
}

impl Request {
    pub(super) fn get(operation: Operation, path: impl Into<String>, target: impl Into<String>) -> Self {
        Self::new(operation, Method::GET, path, target)
    }

    pub(super) fn put(operation: Operation, path: impl Into<String>, target: impl Into<String>) -> Self {
        Self::new(operation, Method::PUT, path, target)
    }

    pub(super) fn post(operation: Operation, path: impl Into<String>, target: impl Into<String>) -> Self {
        Self::new(operation, Method::POST, path, target)
    }

    pub(super) fn delete(operation: Operation, path: impl Into<String>, target: impl Into<String>) -> Self {
        Self::new(operation, Method::DELETE, path, target)
    }

    fn new(operation: Operation, method: Method, path: impl Into<String>, target: impl Into<String>) -> Self {
        Self {
            operation,
            method,
            path: path.into(),
            query: Vec::new(),
            body: None,
            secret: None,
            target: target.into(),
            waits: Duration::ZERO,
            confirms: false,
            takes_filtered: false,
            is_long: false,
        }
    }

    pub(super) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub(super) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Keeps what the body has of secrets out of errors.
    pub(super) fn hiding(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Confirms what a renewal was told, and waits for a connection as a renewal does.
    pub(super) fn confirming(mut self) -> Self {
        self.confirms = true;
        self
    }

    /// Takes an answer of which parts are hidden: for listings, whose [`Indexed::filtered`] says so.
    pub(super) fn or_filtered(mut self) -> Self {
        self.takes_filtered = true;
        self
    }

    /// Its answer may be long: Consul compresses it, to about a tenth where it lists contenders. A short one costs both sides more
    /// than it spares.
    pub(super) fn long(mut self) -> Self {
        self.is_long = true;
        self
    }

    /// Which connections it takes.
    pub(super) fn lane(&self) -> Lane {
        match self.operation {
            _ if !self.waits.is_zero() => Lane::Poll,
            _ if self.confirms => Lane::Confirmation,
            Operation::SessionCreate
            | Operation::SessionRenew
            | Operation::SessionDestroy
            | Operation::Login
            | Operation::Logout => Lane::Lease,
            Operation::SessionInfo
            | Operation::SessionList
            | Operation::KvGet
            | Operation::KvList
            | Operation::KvWatch
            | Operation::Leader
            | Operation::Peers => Lane::Read,
            // Few, and each stands for the watches of up to 64 keys: it must not wait for a crowd of listings.
            Operation::KvPut | Operation::KvDelete | Operation::KvGetMany | Operation::Txn => Lane::Write,
        }
    }

    /// Reads as `read` says.
    pub(super) fn reading(mut self, read: Read) -> Self {
        self.query.extend(read.query());
        self.waits = read.waits();
        self
    }
}

/// An answer that has come in full.
#[derive(Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// `X-Consul-Index`, where there is one.
    pub(super) index: Option<u64>,
    /// Parts of it are hidden from the token.
    pub(super) filtered: bool,
    pub(super) body: Vec<u8>,
    pub(super) tried: Tried,
    /// The token that it was asked with.
    pub(super) used: Option<Arc<Ready>>,
}

impl Answer {
    /// The body, decoded.
    pub(super) fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|error| {
            // Not in the library's words, which quote what it found: that may be anything, a token that was sent back too.
            let what = match error.classify() {
                Category::Data => "is JSON of another shape",
                Category::Eof => "ends too early",
                Category::Syntax | Category::Io => "is no JSON",
            };
            let why = format!("it {what}, seen at line {} column {}", error.line(), error.column());
            Error::BadAnswer { tried: self.tried, why }
        })
    }

    /// The body, decoded, and the index to block on next.
    pub(super) fn indexed<T: DeserializeOwned>(self) -> Result<Indexed<T>, Error> {
        let Some(index) = self.index else {
            return Err(Error::BadAnswer { tried: self.tried, why: "it has no X-Consul-Index".into() });
        };
        Ok(Indexed { index: index.max(1), filtered: self.filtered, value: self.json()? })
    }
}
