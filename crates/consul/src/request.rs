//! Requests and answers, as they are on the wire.

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
    /// Complete, so that it has a Content-Length: Consul ignores a chunked body of a session's creation.
    pub(super) body: Option<Bytes>,
    /// A secret in the body, which is removed from the answer's excerpt.
    pub(super) secret: Option<Secret>,
    /// For errors.
    pub(super) target: String,
    /// The wait of a blocking query, in addition to the time-out.
    pub(super) waits: Duration,
    /// Whether it confirms the answer to a renewal.
    confirms: bool,
    /// Whether an answer with parts hidden from the token is an answer, and not a refusal.
    pub(super) takes_filtered: bool,
    /// Whether the answer may be long, so that compression pays.
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

    /// Keeps a secret of the body out of errors.
    pub(super) fn hiding(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Confirms the answer to a renewal, and waits for a connection as a renewal does.
    pub(super) fn confirming(mut self) -> Self {
        self.confirms = true;
        self
    }

    /// Accepts an answer with hidden parts: for listings, which report it by [`Indexed::filtered`].
    pub(super) fn or_filtered(mut self) -> Self {
        self.takes_filtered = true;
        self
    }

    /// Requests compression, which reduces a listing of contenders to about a tenth. For short answers it is not worth the cost.
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
            | Operation::Logout
            | Operation::NodeRegister => Lane::Lease,
            Operation::SessionInfo
            | Operation::SessionList
            | Operation::KvGet
            | Operation::KvList
            | Operation::KvWatch
            | Operation::Leader
            | Operation::Peers
            | Operation::AgentSelf => Lane::Read,
            // `KvGetMany` replaces the watches of up to 64 keys, so it must not wait for listings.
            Operation::KvGetMany | Operation::Txn => Lane::Write,
        }
    }

    /// Sets the options of the read.
    pub(super) fn reading(mut self, read: Read) -> Self {
        self.query.extend(read.query());
        self.waits = read.waits();
        self
    }
}

/// A complete answer.
#[derive(Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// `X-Consul-Index`, if present.
    pub(super) index: Option<u64>,
    /// Whether parts are hidden from the token.
    pub(super) filtered: bool,
    /// The header `Date`, if present.
    pub(super) date: Option<String>,
    pub(super) body: Vec<u8>,
    pub(super) tried: Tried,
    /// The token of the request.
    pub(super) used: Option<Arc<Ready>>,
}

impl Answer {
    /// The body, decoded.
    pub(super) fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|error| {
            // Not the library's message, which quotes the body: it may contain a token that was sent back.
            let what = match error.classify() {
                Category::Data => "is JSON of another shape",
                Category::Eof => "ends too early",
                Category::Syntax | Category::Io => "is not JSON",
            };
            let why = format!("it {what}, seen at line {} column {}", error.line(), error.column());
            Error::undecodable(self.tried, why)
        })
    }

    /// The body, decoded, and the index to block on next.
    pub(super) fn indexed<T: DeserializeOwned>(self) -> Result<Indexed<T>, Error> {
        let Some(index) = self.index else {
            return Err(Error::undecodable(self.tried, "it has no X-Consul-Index"));
        };
        Ok(Indexed { index: index.max(1), filtered: self.filtered, value: self.json()? })
    }
}
