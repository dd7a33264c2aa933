//! What can go wrong with a request: what was tried, on what, what came back, what to do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Code, Operation, TokenError};

/// What was tried, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// What was asked.
    pub operation: Operation,
    /// On what: a key, a prefix, a session; empty where the operation says it all.
    pub target: String,
    /// Of whom.
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

/// What went wrong with a request.
///
/// `said` is what Consul said, cut to a line; no variant ever holds a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The session does not exist, or does no longer. Missing keys are answers, not errors.
    #[error("{tried}: there is no such session: {said}")]
    NotFound {
        /// What was tried.
        tried: Tried,
        /// What Consul said.
        said: String,
    },
    /// The token lacks the right, or hides a part of the answer.
    #[error("{tried}: permission denied: {said}; {advice}")]
    Denied {
        /// What was tried.
        tried: Tried,
        /// What Consul said.
        said: String,
        /// Where the token is from and what to do.
        advice: String,
    },
    /// The servers have no leader, or lost it while they worked on this.
    #[error("{tried}: Consul has no leader now: {said}; it passes once the servers have elected one")]
    NoLeader {
        /// What was tried.
        tried: Tried,
        /// What Consul said.
        said: String,
    },
    /// Consul wants fewer requests. It did nothing.
    #[error("{tried}: Consul limits the rate of requests: {said}; ask again later")]
    RateLimited {
        /// What was tried.
        tried: Tried,
        /// What Consul said.
        said: String,
    },
    /// The value, or the transaction, is larger than Consul takes.
    #[error("{tried}: too large for Consul: {said}")]
    TooLarge {
        /// What was tried.
        tried: Tried,
        /// What Consul said.
        said: String,
    },
    /// The session that should lock the key does not exist.
    #[error("{tried}: the session does not exist, or does no longer: {said}")]
    InvalidSession {
        /// What was tried.
        tried: Tried,
        /// What Consul said.
        said: String,
    },
    /// The session's node is not registered, or one of its checks is missing or critical.
    #[error(
        "{tried}: the session's node or one of its checks is not fit: {said}; see session.node, session.node_checks and \
         session.service_checks in the configuration"
    )]
    Unfit {
        /// What was tried.
        tried: Tried,
        /// What Consul said.
        said: String,
    },
    /// The request itself is wrong; the same one will always be.
    #[error("{tried}: the request was refused: {said}")]
    BadRequest {
        /// What was tried.
        tried: Tried,
        /// What Consul, or this client before it sent anything, said.
        said: String,
    },
    /// Consul refuses the name of the key (1.21.5 and newer). The configuration has to name another one.
    #[error(
        "{tried}: Consul does not take this name of a key: {said}; choose another semaphores.prefix or locks.key, or set \
         disable_kv_key_validation in Consul's own configuration"
    )]
    InvalidKey {
        /// What was tried.
        tried: Tried,
        /// What Consul said: the rule.
        said: String,
    },
    /// There is no token to send, so nothing was sent.
    #[error("{tried}: nothing was sent: {source}")]
    Token {
        /// What was tried.
        tried: Tried,
        /// Why there is none.
        source: TokenError,
    },
    /// No connection: nothing was sent.
    #[error("{tried}: not reached: {cause}; is Consul listening there? (consul.address, CONSUL_HTTP_ADDR)")]
    Unreachable {
        /// What was tried.
        tried: Tried,
        /// From the outermost cause to the innermost.
        cause: String,
    },
    /// Nothing was sent: not because of Consul, but since it might have gone to another cluster, or had to wait too long.
    #[error("{tried}: not sent: {why}")]
    NotSent {
        /// What was tried.
        tried: Tried,
        /// Why it was not sent.
        why: String,
    },
    /// No answer in time: Consul may have done it, may do it still, or never.
    #[error("{tried}: no answer within {:?}{}", rounded(*after), doubt(tried))]
    Timeout {
        /// What was tried.
        tried: Tried,
        /// The time it was given.
        after: Duration,
    },
    /// The connection broke after the request was sent: Consul may have done it.
    #[error("{tried}: the connection broke before the answer was there: {cause}{}", doubt(tried))]
    Interrupted {
        /// What was tried.
        tried: Tried,
        /// From the outermost cause to the innermost.
        cause: String,
    },
    /// A blocking read that had waited for a second or more and ended without Consul's answer: by the end or the reset of its
    /// connection, or by a 408, 499, 502 or 504. It says nothing of Consul, since proxies end requests for their age alone.
    #[error(
        "{tried}: cut off after {:?} without an answer: {cause}; where a proxy ends long requests, set consul.max_wait below \
         its time-out",
        rounded(*age)
    )]
    Cut {
        /// What was tried.
        tried: Tried,
        /// For how long the request had been under way.
        age: Duration,
        /// The status, or the causes from the outermost to the innermost.
        cause: String,
    },
    /// A status that Consul has no reason to give here.
    #[error("{tried}: unexpected answer {status}: {said}; is this address Consul's own?")]
    Unexpected {
        /// What was tried.
        tried: Tried,
        /// The HTTP status.
        status: u16,
        /// What came with it.
        said: String,
    },
    /// An answer that cannot be understood, or is too long.
    #[error("{tried}: the answer cannot be understood: {why}; is this address Consul's own?")]
    BadAnswer {
        /// What was tried.
        tried: Tried,
        /// What is wrong with it.
        why: String,
    },
}

/// For people: a third of a TTL has many digits.
fn rounded(time: Duration) -> Duration {
    let to = if time < Duration::from_secs(1) { 1 } else { 100 };
    let steps = time.as_millis().saturating_add(to / 2) / to;
    Duration::from_millis(u64::try_from(steps.saturating_mul(to)).unwrap_or(u64::MAX))
}

fn doubt(tried: &Tried) -> &'static str {
    // Whoever wanted the token of a login has nothing to doubt: what it was for was not done.
    if tried.operation.writes() && tried.operation != Operation::Login {
        "; it may have been done all the same"
    } else {
        ""
    }
}

/// An error's kind, for decisions and metric labels.
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

impl Class {
    /// All of them, so that every series can exist from the start.
    pub const ALL: [Self; 17] = [
        Self::NotFound,
        Self::Denied,
        Self::NoLeader,
        Self::RateLimited,
        Self::TooLarge,
        Self::InvalidSession,
        Self::Unfit,
        Self::BadRequest,
        Self::InvalidKey,
        Self::Token,
        Self::Unreachable,
        Self::NotSent,
        Self::Timeout,
        Self::Interrupted,
        Self::Cut,
        Self::Unexpected,
        Self::BadAnswer,
    ];

    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Denied => "denied",
            Self::NoLeader => "no_leader",
            Self::RateLimited => "rate_limited",
            Self::TooLarge => "too_large",
            Self::InvalidSession => "invalid_session",
            Self::Unfit => "unfit",
            Self::BadRequest => "bad_request",
            Self::InvalidKey => "invalid_key",
            Self::Token => "token",
            Self::Unreachable => "unreachable",
            Self::NotSent => "not_sent",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
            Self::Cut => "cut",
            Self::Unexpected => "unexpected",
            Self::BadAnswer => "bad_answer",
        }
    }
}

impl Error {
    /// The kind.
    pub fn class(&self) -> Class {
        match self {
            // What passes by itself; the rest is for somebody to mend.
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

    /// True where Consul is away, or too busy: the same request may pass a moment later.
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

    /// What was tried.
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

    /// True where a write may have been applied in spite of the error, or may still be: read again before anything
    /// else.
    ///
    /// No leader counts: a leader that is deposed while it commits answers so, and its successor may apply the entry
    /// all the same. So does every 5xx that is not known to be a refusal, such as a proxy's 502.
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
    fn times_are_told_as_people_read_them() {
        for (micros, said) in [(1_666_667, "1.7s"), (200_000, "200ms"), (33_333, "33ms"), (10_000_000, "10s")]
        {
            assert_eq!(format!("{:?}", rounded(Duration::from_micros(micros))), said);
        }
    }
}
