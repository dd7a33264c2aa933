//! The errors of requests: what was tried, on what, and what came back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Code, Operation, TokenError};

/// The operation that failed, on what, at which address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The operation.
    pub operation: Operation,
    /// Its object: a key, a prefix, a session. Empty if the operation has none.
    pub target: String,
    /// The address of Consul.
    pub address: Arc<str>,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, target, address } = self;
        let operation = operation.describe();
        if target.is_empty() {
            write!(f, "{operation} at {address}")
        } else {
            write!(f, "{operation} {target} at {address}")
        }
    }
}

/// Why a request failed. No error contains a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The request that failed.
    pub tried: Tried,
    /// The kind, for decisions.
    pub kind: Kind,
    /// The outcome, as metrics count it.
    pub code: Code,
    /// What came back: Consul's message, cut to one line of at most 256 characters, or the causes, from the outermost to the innermost.
    pub detail: String,
    /// Why the request had no token, so that nothing was sent. The error has the kind of a login that may succeed later.
    pub token: Option<Box<TokenError>>,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The session does not exist. A missing key is an answer, not an error.
    Gone,
    /// The token lacks a right, or is unknown, or Consul hid a part of the answer from it; or a login was refused.
    Denied,
    /// The servers have no leader, or lost it during the request. The next leader may apply the write of a leader that was deposed.
    NoLeader,
    /// A rate limit of Consul's rejected the request. Nothing was done.
    Busy,
    /// Nothing was sent: there is no connection, no token, or no address that may be used.
    NotSent,
    /// No answer in time, a broken connection, or a server error. Consul may have applied the request, or may apply it later.
    Unknown,
    /// A blocking query, a second old or more, ended without Consul's answer: its connection was closed or reset, or a proxy answered
    /// 408, 499, 502 or 504. Proxies cut long requests, so this is no failure of Consul.
    Cut,
    /// Consul, or this client, refuses the request. Another attempt fails too.
    Refused,
    /// Another server answers, or one that speaks another protocol, or one of the certificates is not accepted.
    NotConsul,
}

impl Error {
    pub(super) fn new(tried: Tried, kind: Kind, code: Code, detail: impl Into<String>) -> Self {
        Self { tried, kind, code, detail: detail.into(), token: None }
    }

    /// For a request that this client does not send, since Consul would refuse it.
    pub(super) fn refused(tried: Tried, why: impl Into<String>) -> Self {
        Self::new(tried, Kind::Refused, Code::BadRequest, why)
    }

    /// For an answer of status 200 that is none of Consul's.
    pub(super) fn undecodable(tried: Tried, why: impl fmt::Display) -> Self {
        let detail = format!("the answer cannot be decoded: {why}");
        Self::new(tried, Kind::NotConsul, Code::BadAnswer, detail)
    }

    /// For a request without an answer within `after`.
    pub(super) fn late(tried: Tried, after: Duration) -> Self {
        let detail = format!("no answer within {:?}", rounded(after));
        Self::new(tried, Kind::Unknown, Code::Timeout, detail)
    }

    /// For a request that was not sent, since there is no token.
    pub(super) fn without_token(tried: Tried, error: TokenError) -> Self {
        let (kind, code) = if let TokenError::Login(login) = &error {
            let needs_fix = matches!(login.kind, Kind::Gone | Kind::Denied | Kind::Refused);
            (if needs_fix || login.token.is_some() { Kind::Denied } else { login.kind }, login.code)
        } else {
            (Kind::NotSent, Code::Other)
        };
        let detail = format!("nothing was sent: {error}");
        Self { token: Some(Box::new(error)), ..Self::new(tried, kind, code, detail) }
    }

    /// The failed login that left the request without a token.
    pub fn login(&self) -> Option<&Self> {
        if let Some(TokenError::Login(login)) = self.token.as_deref() { Some(login) } else { None }
    }

    /// Whether the request has certainly not been read.
    pub(super) fn is_unsent(&self) -> bool {
        self.code == Code::Unreachable
    }

    /// Whether the server cannot be talked to: it speaks another protocol, or one of the certificates is not accepted.
    pub fn is_mismatch(&self) -> bool {
        let before_an_answer = matches!(self.code, Code::Unreachable | Code::Interrupted | Code::BadRequest);
        self.kind == Kind::NotConsul && before_an_answer
    }

    /// Whether Consul denies the request since it has no such token.
    pub fn is_unknown_token(&self) -> bool {
        self.kind == Kind::Denied && self.detail.contains("ACL not found")
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.tried, self.detail)?;
        let operation = self.tried.operation;
        // A login precedes the request that needs its token, so that request was not sent.
        let is_lost = self.kind == Kind::Unknown && self.token.is_none();
        if is_lost && operation.writes() && operation != Operation::Login {
            f.write_str("; it may have been applied")?;
        }
        Ok(())
    }
}

/// Rounded for messages: a third of a TTL has many digits.
pub(super) fn rounded(time: Duration) -> Duration {
    let to = if time < Duration::from_secs(1) { 1 } else { 100 };
    let steps = time.as_millis().saturating_add(to / 2) / to;
    Duration::from_millis(u64::try_from(steps.saturating_mul(to)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded() {
        for (micros, said) in [(1_666_667, "1.7s"), (200_000, "200ms"), (33_333, "33ms"), (10_000_000, "10s")]
        {
            assert_eq!(format!("{:?}", rounded(Duration::from_micros(micros))), said);
        }
    }
}
