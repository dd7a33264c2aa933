//! The errors of requests: what was tried, on what, what came back, what to do.

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

/// Why a request failed.
///
/// `said` is Consul's message, cut to one line of at most 256 characters. No variant contains a token.
/// [`Error::class`] is the kind, [`Error::is_transient`] whether to try again, [`Error::outcome_unknown`] whether a write may have
/// been applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The session does not exist. A missing key is an answer, not an error.
    #[error("{tried}: there is no such session: {said}")]
    NotFound {
        /// The request that failed.
        tried: Tried,
        /// Consul's message.
        said: String,
    },
    /// The token lacks a right, or Consul hid a part of the answer from it.
    #[error("{tried}: permission denied: {said}; {advice}")]
    Denied {
        /// The request that failed.
        tried: Tried,
        /// Consul's message.
        said: String,
        /// The source of the token, and what to do.
        advice: String,
    },
    /// The servers have no leader, or lost it during the request.
    #[error("{tried}: Consul has no leader: {said}; try again when the servers have elected one")]
    NoLeader {
        /// The request that failed.
        tried: Tried,
        /// Consul's message.
        said: String,
    },
    /// A rate limit of Consul's rejected the request. Nothing was done.
    #[error("{tried}: Consul limits the rate of requests: {said}; try again later")]
    RateLimited {
        /// The request that failed.
        tried: Tried,
        /// Consul's message.
        said: String,
    },
    /// The value or the transaction is above Consul's limit.
    #[error("{tried}: too large for Consul: {said}")]
    TooLarge {
        /// The request that failed.
        tried: Tried,
        /// Consul's message.
        said: String,
    },
    /// The session that was to lock the key does not exist.
    #[error("{tried}: the session does not exist: {said}")]
    InvalidSession {
        /// The request that failed.
        tried: Tried,
        /// Consul's message.
        said: String,
    },
    /// The session's node is not registered, or one of its checks is missing or critical.
    #[error(
        "{tried}: the session's node or one of its checks is missing or critical: {said}; see session.node, session.node_checks and \
         session.service_checks in the configuration"
    )]
    Unfit {
        /// The request that failed.
        tried: Tried,
        /// Consul's message.
        said: String,
    },
    /// The request is invalid. Another attempt fails too.
    #[error("{tried}: the request was refused: {said}")]
    BadRequest {
        /// The request that failed.
        tried: Tried,
        /// The message, of Consul or of this client.
        said: String,
    },
    /// Consul refuses the name of the key (1.21.5 and newer).
    #[error(
        "{tried}: Consul does not accept the name of this key: {said}; choose another semaphores.prefix or locks.key, or set \
         disable_kv_key_validation in Consul's own configuration"
    )]
    InvalidKey {
        /// The request that failed.
        tried: Tried,
        /// Consul's message, which contains the rule.
        said: String,
    },
    /// There is no token, so nothing was sent.
    #[error("{tried}: nothing was sent: {source}")]
    Token {
        /// The request that failed.
        tried: Tried,
        /// Why there is no token.
        source: TokenError,
    },
    /// The connection failed, so nothing was sent.
    #[error("{tried}: not reached: {cause}; is Consul listening there? (consul.address, CONSUL_HTTP_ADDR)")]
    Unreachable {
        /// The request that failed.
        tried: Tried,
        /// The causes, from the outermost to the innermost.
        cause: String,
    },
    /// Nothing was sent, since the address may belong to another cluster, or no connection was free in time.
    #[error("{tried}: not sent: {why}")]
    NotSent {
        /// The request that failed.
        tried: Tried,
        /// Why it was not sent.
        why: String,
    },
    /// No answer came in time. Consul may have applied the request, or may apply it later.
    #[error("{tried}: no answer within {:?}{}", rounded(*after), doubt(tried))]
    Timeout {
        /// The request that failed.
        tried: Tried,
        /// The time that the answer was allowed to take.
        after: Duration,
    },
    /// The connection broke after the request was sent. Consul may have applied it.
    #[error("{tried}: the connection broke before the answer was complete: {cause}{}", doubt(tried))]
    Interrupted {
        /// The request that failed.
        tried: Tried,
        /// The causes, from the outermost to the innermost.
        cause: String,
    },
    /// A blocking query had waited for a second or more and ended without Consul's answer: its connection was closed or reset, or a
    /// proxy answered 408, 499, 502 or 504. Proxies cut long requests, so this is no failure of Consul.
    #[error(
        "{tried}: cut off after {:?} without an answer: {cause}; where a proxy ends long requests, set consul.max_wait below \
         its time-out",
        rounded(*age)
    )]
    Cut {
        /// The request that failed.
        tried: Tried,
        /// The age of the request.
        age: Duration,
        /// The status, or the causes, from the outermost to the innermost.
        cause: String,
    },
    /// A status that Consul does not give to such a request.
    #[error("{tried}: unexpected answer {status}: {said}; is this the address of Consul?")]
    Unexpected {
        /// The request that failed.
        tried: Tried,
        /// The HTTP status.
        status: u16,
        /// The beginning of the answer.
        said: String,
    },
    /// The answer cannot be decoded, or is too long.
    #[error("{tried}: the answer cannot be decoded: {why}; is this the address of Consul?")]
    BadAnswer {
        /// The request that failed.
        tried: Tried,
        /// What is wrong with the answer.
        why: String,
    },
}

/// Rounded for messages: a third of a TTL has many digits.
fn rounded(time: Duration) -> Duration {
    let to = if time < Duration::from_secs(1) { 1 } else { 100 };
    let steps = time.as_millis().saturating_add(to / 2) / to;
    Duration::from_millis(u64::try_from(steps.saturating_mul(to)).unwrap_or(u64::MAX))
}

fn doubt(tried: &Tried) -> &'static str {
    // A login precedes the request that needs its token, so that request was not sent.
    if tried.operation.writes() && tried.operation != Operation::Login {
        "; it may have been applied"
    } else {
        ""
    }
}

/// The kind of an error, for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the variant of `Error` with its name")]
pub enum Class {
    NotFound,
    Denied,
    NoLeader,
    RateLimited,
    TooLarge,
    InvalidSession,
    Unfit,
    BadRequest,
    InvalidKey,
    Token,
    Unreachable,
    NotSent,
    Timeout,
    Interrupted,
    Cut,
    Unexpected,
    BadAnswer,
}

impl Error {
    /// The kind.
    pub fn class(&self) -> Class {
        match self {
            // A login that may succeed later. Other token errors need a fix.
            Self::Token { source: TokenError::Login(login), .. } if login.is_transient() => login.class(),
            Self::NotFound { .. } => Class::NotFound,
            Self::Denied { .. } => Class::Denied,
            Self::NoLeader { .. } => Class::NoLeader,
            Self::RateLimited { .. } => Class::RateLimited,
            Self::TooLarge { .. } => Class::TooLarge,
            Self::InvalidSession { .. } => Class::InvalidSession,
            Self::Unfit { .. } => Class::Unfit,
            Self::BadRequest { .. } => Class::BadRequest,
            Self::InvalidKey { .. } => Class::InvalidKey,
            Self::Token { .. } => Class::Token,
            Self::Unreachable { .. } => Class::Unreachable,
            Self::NotSent { .. } => Class::NotSent,
            Self::Timeout { .. } => Class::Timeout,
            Self::Interrupted { .. } => Class::Interrupted,
            Self::Cut { .. } => Class::Cut,
            Self::Unexpected { .. } => Class::Unexpected,
            Self::BadAnswer { .. } => Class::BadAnswer,
        }
    }

    /// True if Consul is unreachable or overloaded. The same request may succeed a moment later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.class(),
            Class::NoLeader
                | Class::RateLimited
                | Class::Unreachable
                | Class::NotSent
                | Class::Timeout
                | Class::Interrupted
                | Class::Cut
        )
    }

    /// The request that failed.
    pub const fn tried(&self) -> &Tried {
        match self {
            Self::NotFound { tried, .. }
            | Self::Denied { tried, .. }
            | Self::NoLeader { tried, .. }
            | Self::RateLimited { tried, .. }
            | Self::TooLarge { tried, .. }
            | Self::InvalidSession { tried, .. }
            | Self::Unfit { tried, .. }
            | Self::BadRequest { tried, .. }
            | Self::InvalidKey { tried, .. }
            | Self::Token { tried, .. }
            | Self::Unreachable { tried, .. }
            | Self::NotSent { tried, .. }
            | Self::Timeout { tried, .. }
            | Self::Interrupted { tried, .. }
            | Self::Cut { tried, .. }
            | Self::Unexpected { tried, .. }
            | Self::BadAnswer { tried, .. } => tried,
        }
    }

    /// True if a write may have been applied in spite of the error, or may be applied later. Read again before the next write.
    ///
    /// [`Error::NoLeader`] counts: a leader that is deposed during a commit answers so, and its successor may apply the entry.
    /// So does a 5xx that is not known to be a refusal, such as a proxy's 502.
    pub const fn outcome_unknown(&self) -> bool {
        let possible = match self {
            Self::Timeout { .. }
            | Self::Interrupted { .. }
            | Self::NoLeader { .. }
            | Self::BadAnswer { .. } => true,
            // 408 is a proxy that gave up.
            Self::Unexpected { status, .. } => *status >= 500 || *status == 408 || *status < 300,
            Self::NotFound { .. }
            | Self::Denied { .. }
            | Self::RateLimited { .. }
            | Self::TooLarge { .. }
            | Self::InvalidSession { .. }
            | Self::Unfit { .. }
            | Self::BadRequest { .. }
            | Self::InvalidKey { .. }
            | Self::Token { .. }
            | Self::Cut { .. }
            | Self::Unreachable { .. }
            | Self::NotSent { .. } => false,
        };
        possible && self.tried().operation.writes()
    }

    /// The metric label of a request that ended without an answer.
    pub(super) const fn code(&self) -> Code {
        match self {
            Self::Timeout { .. } => Code::Timeout,
            Self::Unreachable { .. } => Code::Unreachable,
            Self::Interrupted { .. } => Code::Interrupted,
            Self::Cut { .. } => Code::Cut,
            Self::BadAnswer { .. } => Code::BadAnswer,
            Self::Denied { .. }
            | Self::NotFound { .. }
            | Self::NoLeader { .. }
            | Self::RateLimited { .. }
            | Self::TooLarge { .. }
            | Self::InvalidSession { .. }
            | Self::Unfit { .. }
            | Self::BadRequest { .. }
            | Self::InvalidKey { .. }
            | Self::Token { .. }
            | Self::NotSent { .. }
            | Self::Unexpected { .. } => Code::Other,
        }
    }
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
