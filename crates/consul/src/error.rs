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

/// Why a request failed. No error contains a token.
///
/// [`Error::is_transient`] tells whether to try again, [`Error::outcome_unknown`] whether a write may have been applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The request that failed.
    pub tried: Tried,
    /// The kind, for decisions.
    pub kind: Kind,
    /// What came back, or what is wrong, if there is more than the kind: Consul's message, cut to one line of at most 256 characters, or the causes, from the outermost
    /// to the innermost.
    pub detail: String,
    /// The failed login that left the request without a token. If the login may succeed later, the error has its kind.
    pub login: Option<Box<Error>>,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The session does not exist. A missing key is an answer, not an error.
    NotFound,
    /// The token lacks a right, or Consul hid a part of the answer from it.
    Denied,
    /// The same, for a request that was sent without a token.
    Anonymous,
    /// The servers have no leader, or lost it during the request.
    NoLeader,
    /// A rate limit of Consul's rejected the request. Nothing was done.
    RateLimited,
    /// The value or the transaction is above Consul's limit.
    TooLarge,
    /// The session that was to lock the key does not exist.
    InvalidSession,
    /// One of the session's checks is critical.
    Unfit,
    /// The session's node or one of its checks is not registered.
    Unregistered,
    /// Consul knows no datacenter of this name, which the detail is.
    NoDatacenter,
    /// The request is invalid, by Consul or by this client. Another attempt fails too.
    BadRequest,
    /// Consul refuses the name of the key (1.21.5 and newer). The detail contains the rule.
    InvalidKey,
    /// There is no token, so nothing was sent.
    Token,
    /// The connection failed, so nothing was sent.
    Unreachable,
    /// The server speaks another protocol, or one of the certificates is not accepted.
    Mismatch(Mismatch),
    /// Nothing was sent, since the address may belong to another cluster, or no connection was free in time.
    NotSent,
    /// No answer came within this time. Consul may have applied the request, or may apply it later.
    Timeout(Duration),
    /// The connection broke after the request was sent. Consul may have applied it.
    Interrupted,
    /// A blocking query of this age, a second or more, ended without Consul's answer: its connection was closed or reset, or a proxy
    /// answered 408, 499, 502 or 504. Proxies cut long requests, so this is no failure of Consul.
    Cut(Duration),
    /// An HTTP status that Consul does not give to such a request.
    Unexpected(u16),
    /// The answer cannot be decoded, or is too long.
    BadAnswer,
}

/// Why no request can be sent to a server that accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mismatch {
    /// The address is https, and the server does not speak TLS.
    NoTls,
    /// The address is http, and the server speaks TLS only.
    OnlyTls,
    /// The server does not speak HTTP.
    NotHttp,
    /// The server's certificate is signed by an authority that is not trusted.
    UnknownAuthority,
    /// The server's certificate is for another name.
    WrongName,
    /// The server's certificate is invalid for another reason.
    InvalidCertificate,
    /// The server does not accept the client's certificate, or wants one.
    ClientCertificate,
}

impl Kind {
    /// The metric label of a request that ended without an answer.
    pub(super) const fn code(self) -> Code {
        match self {
            Self::Timeout(_) => Code::Timeout,
            Self::Unreachable | Self::Mismatch(_) => Code::Unreachable,
            Self::Interrupted => Code::Interrupted,
            Self::Cut(_) => Code::Cut,
            Self::BadAnswer => Code::BadAnswer,
            Self::Denied
            | Self::Anonymous
            | Self::NotFound
            | Self::NoLeader
            | Self::RateLimited
            | Self::TooLarge
            | Self::InvalidSession
            | Self::Unfit
            | Self::Unregistered
            | Self::NoDatacenter
            | Self::BadRequest
            | Self::InvalidKey
            | Self::Token
            | Self::NotSent
            | Self::Unexpected(_) => Code::Other,
        }
    }
}

impl Error {
    pub(super) fn new(tried: Tried, kind: Kind, detail: impl Into<String>) -> Self {
        Self { tried, kind, detail: detail.into(), login: None }
    }

    /// For a request that was not sent, since there is no token.
    pub(super) fn without_token(tried: Tried, error: TokenError) -> Self {
        let detail = error.to_string();
        let TokenError::Login(login) = error else { return Self::new(tried, Kind::Token, detail) };
        // Other errors of a login need a fix.
        let kind = if login.is_transient() { login.kind } else { Kind::Token };
        Self { tried, kind, detail, login: Some(login) }
    }

    /// True if Consul is unreachable or overloaded. The same request may succeed a moment later.
    pub const fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            Kind::NoLeader
                | Kind::RateLimited
                | Kind::Unreachable
                | Kind::Mismatch(_)
                | Kind::NotSent
                | Kind::Timeout(_)
                | Kind::Interrupted
                | Kind::Cut(_)
        )
    }

    /// True if a write may have been applied in spite of the error, or may be applied later. Read again before the next write.
    ///
    /// [`Kind::NoLeader`] counts: a leader that is deposed during a commit answers so, and its successor may apply the entry.
    /// So does a 5xx that is not known to be a refusal, such as a proxy's 502.
    pub const fn outcome_unknown(&self) -> bool {
        let possible = match self.kind {
            Kind::Timeout(_) | Kind::Interrupted | Kind::NoLeader | Kind::BadAnswer => true,
            Kind::Mismatch(mismatch) => !mismatch.is_before_request(),
            // 408 is a proxy that gave up.
            Kind::Unexpected(status) => status >= 500 || status == 408 || status < 300,
            Kind::NotFound
            | Kind::Denied
            | Kind::Anonymous
            | Kind::RateLimited
            | Kind::TooLarge
            | Kind::InvalidSession
            | Kind::Unfit
            | Kind::Unregistered
            | Kind::NoDatacenter
            | Kind::BadRequest
            | Kind::InvalidKey
            | Kind::Token
            | Kind::Cut(_)
            | Kind::Unreachable
            | Kind::NotSent => false,
        };
        possible && self.login.is_none() && self.tried.operation.writes()
    }
}

impl Mismatch {
    /// Whether it shows before a request is read. A server whose answer is not HTTP may have done what it was asked for.
    pub(super) const fn is_before_request(self) -> bool {
        !matches!(self, Self::NotHttp)
    }

    /// What is wrong, and what to do as far as it is the same for every caller.
    fn in_words(self, detail: &str) -> String {
        match self {
            Self::NoTls => {
                "the server there does not speak TLS; write http:// in the address, or the port of Consul's \
                            HTTPS API (8501)"
                    .to_owned()
            }
            Self::OnlyTls => "the server there speaks only TLS; write https:// in the address".to_owned(),
            Self::NotHttp => format!(
                "the server there does not speak HTTP ({detail}); use the port of Consul's HTTP API (8500), or https:// if \
                 it speaks TLS"
            ),
            Self::UnknownAuthority => {
                format!("the server's certificate is signed by an authority that is not trusted ({detail})")
            }
            Self::WrongName => format!("the server's certificate is for another name: {detail}"),
            Self::InvalidCertificate => format!("the server's certificate is not valid: {detail}"),
            Self::ClientCertificate => {
                format!("the server does not accept this client's certificate, or its absence: {detail}")
            }
        }
    }
}

impl Error {
    /// Whether the request has certainly not been read.
    pub(super) const fn is_unsent(&self) -> bool {
        if let Kind::Mismatch(mismatch) = self.kind {
            return mismatch.is_before_request();
        }
        matches!(self.kind, Kind::Unreachable)
    }

    /// Whether Consul denies the request since it has no such token.
    pub fn is_unknown_token(&self) -> bool {
        matches!(self.kind, Kind::Denied | Kind::Anonymous) && self.detail.contains("ACL not found")
    }

    /// Whether the answer is none of Consul's own: another server answers at this address, or a proxy.
    pub const fn is_foreign(&self) -> bool {
        // A proxy answers with another code of 500 or above, or with 408 or 499, if Consul behind it is down or slow.
        if let Kind::Unexpected(status) = self.kind {
            return status < 500 && status != 408 && status != 499 || status == 501 || status == 505;
        }
        matches!(self.kind, Kind::BadAnswer)
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tried, kind, detail, login } = self;
        write!(f, "{tried}: ")?;
        if login.is_some() {
            return write!(f, "nothing was sent: {detail}");
        }
        match kind {
            Kind::Denied | Kind::Anonymous if self.is_unknown_token() => {
                write!(f, "Consul does not know this token: {detail}")
            }
            // Consul says it in its own words, and newer versions say more.
            Kind::Denied | Kind::Anonymous if detail.starts_with("Permission denied") => f.write_str(detail),
            Kind::Denied | Kind::Anonymous => write!(f, "permission denied: {detail}"),
            Kind::NoLeader => {
                write!(f, "Consul has no leader: {detail}; try again when the servers have elected one")
            }
            Kind::RateLimited => write!(f, "Consul limits the rate of requests: {detail}; try again later"),
            Kind::TooLarge => write!(f, "too large for Consul: {detail}"),
            Kind::NotFound | Kind::InvalidSession => write!(f, "the session does not exist: {detail}"),
            Kind::Unfit => {
                write!(f, "one of the session's checks is critical: {detail}")
            }
            Kind::Unregistered => {
                write!(f, "Consul does not know the session's node or one of its checks: {detail}")
            }
            Kind::NoDatacenter => write!(f, "Consul knows no datacenter {detail}"),
            Kind::BadRequest => write!(f, "the request was refused: {detail}"),
            Kind::InvalidKey => write!(f, "Consul does not accept the name of this key: {detail}"),
            Kind::Token => write!(f, "nothing was sent: {detail}"),
            Kind::Unreachable => {
                write!(f, "not reached: {detail}; is Consul listening there?{}", of_port(&tried.address))
            }
            Kind::Mismatch(mismatch) => write!(f, "{}", mismatch.in_words(detail)),
            Kind::NotSent => write!(f, "not sent: {detail}"),
            Kind::Timeout(after) => {
                write!(f, "no answer within {:?}{detail}{}", rounded(*after), doubt(tried))?;
                f.write_str(of_port(&tried.address))
            }
            Kind::Interrupted => {
                write!(f, "the connection broke before the answer was complete: {detail}{}", doubt(tried))
            }
            Kind::Cut(age) => write!(f, "cut off after {:?} without an answer: {detail}", rounded(*age)),
            Kind::Unexpected(status) => {
                write!(
                    f,
                    "unexpected answer {status}: {}; is this the address of Consul's HTTP API?{}",
                    of_page(detail),
                    of_port(&tried.address)
                )
            }
            Kind::BadAnswer => {
                write!(f, "the answer cannot be decoded: {detail}; is this the address of Consul's HTTP API?")
            }
        }
    }
}

/// What to say of port 80. The address may have got it since none was written.
fn of_port(address: &str) -> &'static str {
    let authority = address.split_once("://").map_or(address, |(_, rest)| rest);
    match authority.split('/').next().and_then(|authority| authority.rsplit_once(':')) {
        Some((_, "80")) => " If no port was written, write :8500 (the default is 80)",
        _ => "",
    }
}

/// Rounded for messages: a third of a TTL has many digits.
fn rounded(time: Duration) -> Duration {
    let to = if time < Duration::from_secs(1) { 1 } else { 100 };
    let steps = time.as_millis().saturating_add(to / 2) / to;
    Duration::from_millis(u64::try_from(steps.saturating_mul(to)).unwrap_or(u64::MAX))
}

/// Consul answers in words. Another server's page says nothing about the error.
fn of_page(detail: &str) -> &str {
    if detail.starts_with('<') { "a page of HTML" } else { detail }
}

fn doubt(tried: &Tried) -> &'static str {
    // A login precedes the request that needs its token, so that request was not sent.
    if tried.operation.writes() && tried.operation != Operation::Login {
        "; it may have been applied"
    } else {
        ""
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
