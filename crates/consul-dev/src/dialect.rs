//! The differences between Consul's versions: one method for each. No other module depends on the version.
//!
//! The facts of [`Dialect::V1_8`] are compared with Consul 1.8.7 by the conformance suite; those of [`Dialect::V1_22`]
//! were seen on Consul 1.23.0-dev, and the suite compares them where `CONSUL_BIN` is as new as that.

use std::fmt;
use std::str::FromStr;

use axum::http::{HeaderName, HeaderValue};
use hyper::StatusCode;

use super::store::session::{NotAnId, SessionError, SessionId};
use super::store::txn::{LockError, Op, OpError};

/// The version of Consul that the server imitates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Consul 1.8.7 (2020).
    V1_8,
    /// Consul 1.22 (2025) and newer.
    #[default]
    V1_22,
}

/// The kind of a request, for Consul's rate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A read of keys. Reads of sessions and of the server's status are exempt.
    Read,
    /// A write; a renewal counts as one.
    Write,
}

/// The name of a dialect is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a dialect; use 1.8 or 1.22")]
pub struct UnknownDialect(String);

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or_else(|| UnknownDialect(name.to_owned()))
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Dialect {
    /// All dialects, the oldest first.
    pub const ALL: [Self; 2] = [Self::V1_8, Self::V1_22];

    /// The name that [`FromStr`] reads: the version of Consul.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1_8 => "1.8",
            Self::V1_22 => "1.22",
        }
    }

    /// The version that `/v1/agent/self` reports.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::V1_8 => "1.8.7",
            Self::V1_22 => "1.22.0",
        }
    }

    /// The status of the redirect for a path that is not clean.
    pub(crate) fn redirect(self) -> StatusCode {
        match self {
            Self::V1_8 => StatusCode::MOVED_PERMANENTLY,
            Self::V1_22 => StatusCode::TEMPORARY_REDIRECT,
        }
    }

    /// Whether a path is made clean after its escapes are resolved: 1.8 redirects `a/%2e%2e/b` as it does `a/../b`.
    pub(crate) fn redirects_escaped(self) -> bool {
        match self {
            Self::V1_8 => true,
            Self::V1_22 => false,
        }
    }

    /// The body of the 404 for an unknown path.
    pub(crate) fn no_endpoint(self, path: &str) -> &'static str {
        match self {
            Self::V1_8 => "",
            Self::V1_22 if path.starts_with("/v1/") => {
                "Invalid URL path: not a recognized HTTP API endpoint\n"
            }
            Self::V1_22 => {
                "Invalid URL path: if attempting to use the HTTP API, ensure the path starts with '/v1/'\n"
            }
        }
    }

    /// The key of a path, or why the path is refused.
    pub(crate) fn key(self, path: String) -> Result<String, &'static str> {
        match self {
            Self::V1_8 => Ok(path),
            Self::V1_22 => {
                if path.trim() != path {
                    return Err("invalid key name, leading/trailing spaces are not allowed");
                }
                let clean = resolved(&path);
                if clean == ".." || clean.starts_with("../") {
                    return Err("invalid key name, path traversal is not allowed");
                }
                Ok(clean)
            }
        }
    }

    /// The content type of a raw value.
    pub(crate) fn raw_type(self) -> &'static str {
        match self {
            Self::V1_8 => "text/plain",
            Self::V1_22 => "text/plain; charset=utf-8",
        }
    }

    /// The content type of a refused transaction.
    pub(crate) fn refused_txn_type(self) -> &'static str {
        match self {
            Self::V1_8 => "application/json",
            Self::V1_22 => "application/json; charset=utf-8",
        }
    }

    /// The content type of the answer to `OPTIONS`, which has no content.
    pub(crate) fn options_type(self) -> Option<HeaderValue> {
        match self {
            Self::V1_8 => None,
            Self::V1_22 => Some(HeaderValue::from_static("application/json; charset=utf-8")),
        }
    }

    /// A header of every answer: the default policy of access control.
    pub(crate) fn default_policy(self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::V1_8 => None,
            Self::V1_22 => Some(header("x-consul-default-acl-policy", "allow")),
        }
    }

    /// A header of reads: the query backend.
    pub(crate) fn query_backend(self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::V1_8 => None,
            Self::V1_22 => Some(header("x-consul-query-backend", "blocking-query")),
        }
    }

    /// A header of an answer with hidden parts. 1.8 has none.
    pub(crate) fn filtered(self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::V1_8 => None,
            Self::V1_22 => Some(header("x-consul-results-filtered-by-acls", "true")),
        }
    }

    /// Whether the write of another key wakes a read of a missing key.
    pub(crate) fn neighbours_wake(self) -> bool {
        match self {
            Self::V1_8 => true,
            Self::V1_22 => false,
        }
    }

    /// The maximum number of operations of a transaction; 128 since 1.14.
    pub(crate) fn max_txn_ops(self) -> usize {
        match self {
            Self::V1_8 => 64,
            Self::V1_22 => 128,
        }
    }

    /// A transaction's operation with a verb that does not exist.
    pub(crate) fn unknown_verb(self, verb: String) -> Op {
        match self {
            // Detected in its turn, beside the faults of the other operations.
            Self::V1_8 => Op::Fails(OpError::UnknownVerb(verb)),
            // Detected before any operation is evaluated.
            Self::V1_22 => Op::Refused(OpError::UnknownOperation(verb)),
        }
    }

    /// The metadata in the answer to a transaction of reads.
    pub(crate) fn read_meta(self, refused_at_once: bool, filtered: bool) -> ReadMeta {
        let (index, known_leader, newer) = match self {
            Self::V1_8 => (0, true, None),
            Self::V1_22 => {
                let newer = NewerMeta { not_modified: false, backend: 0, results_filtered_by_acls: filtered };
                (u64::from(!refused_at_once), !refused_at_once, Some(newer))
            }
        };
        ReadMeta { index, last_contact: 0, known_leader, consistency_level: "", newer }
    }

    /// Why an operation of a transaction is refused.
    pub(crate) fn op_refused(self, error: &OpError) -> String {
        match error {
            OpError::Session(error) => self.lock_refused(error),
            OpError::NoKey
            | OpError::UnknownVerb(_)
            | OpError::UnknownOperation(_)
            | OpError::LockDelay(_)
            | OpError::SetStale(_)
            | OpError::DeleteStale(_)
            | OpError::Held(_)
            | OpError::NotHeld(_)
            | OpError::Missing(_)
            | OpError::Exists(_)
            | OpError::SessionOfMissing(_)
            | OpError::OtherSession { .. }
            | OpError::IndexOfMissing(_)
            | OpError::OtherIndex { .. } => error.to_string(),
        }
    }

    /// Why a key is not locked or unlocked by a write of its own.
    pub(crate) fn write_refused(self, error: &LockError) -> String {
        match self {
            Self::V1_8 => self.lock_refused(error),
            Self::V1_22 => format!("raft apply failed: {}", self.lock_refused(error)),
        }
    }

    fn lock_refused(self, error: &LockError) -> String {
        match (self, error) {
            (Self::V1_22, LockError::Id { session, .. }) => format!("invalid session {session:?}"),
            (Self::V1_8 | Self::V1_22, _) => error.to_string(),
        }
    }

    /// Why a session is not created.
    pub(crate) fn session_refused(self, error: &SessionError) -> String {
        match (self, error) {
            (Self::V1_22, SessionError::UnknownCheck(check)) if check.is_empty() => {
                "apply failed: failed check lookup: index error: object is missing a value for this index"
                    .to_owned()
            }
            (Self::V1_22, SessionError::UnknownNode | SessionError::UnknownCheck(_)) => {
                format!("apply failed: {error}")
            }
            (Self::V1_8 | Self::V1_22, _) => error.to_string(),
        }
    }

    /// The session of a path; `None` if the text cannot be a session ID; or why it is refused.
    pub(crate) fn session_id(self, id: &str) -> Result<Option<SessionId>, NotAnId> {
        match self {
            Self::V1_8 => SessionId::parse(id).map(Some),
            Self::V1_22 => Ok(SessionId::parse(id).ok()),
        }
    }

    /// Go's name of the body of a session's creation, in the error for a field of the wrong type.
    pub(crate) fn session_body(self) -> &'static str {
        match self {
            Self::V1_8 => "",
            Self::V1_22 => ".Alias",
        }
    }

    /// Why parameters that exclude each other are refused.
    pub(crate) fn conflicting(self, flags: &str) -> String {
        match self {
            Self::V1_8 => format!("Conflicting flags: {flags}"),
            Self::V1_22 => format!("Conflicting flags: {flags}\n"),
        }
    }

    /// Why a namespace is refused.
    pub(crate) fn no_namespaces(self) -> &'static str {
        match self {
            Self::V1_8 => {
                "Bad request: Invalid query parameter: \"ns\" - Namespaces are a Consul Enterprise feature"
            }
            Self::V1_22 => "Invalid query parameter: \"ns\" - Namespaces are a Consul Enterprise feature",
        }
    }

    /// The page about a limit of size.
    pub(crate) fn limit_page(self, setting: &str) -> String {
        match self {
            Self::V1_8 => format!("https://www.consul.io/docs/agent/options.html#{setting}"),
            Self::V1_22 => {
                format!("https://developer.hashicorp.com/docs/agent/config/config-files#{setting}")
            }
        }
    }

    /// The answer above a request limit. 1.8 has none for servers; this is what a client agent's `rpc_rate` says.
    pub(crate) fn over_rate(self, kind: Kind) -> (StatusCode, &'static str) {
        match (self, kind) {
            (Self::V1_8, _) => (StatusCode::TOO_MANY_REQUESTS, ""),
            (Self::V1_22, Kind::Read) => (
                StatusCode::TOO_MANY_REQUESTS,
                "rate limit exceeded, try again later or against a different server",
            ),
            (Self::V1_22, Kind::Write) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "rate limit exceeded for operation that can only be performed by the leader, try again later",
            ),
        }
    }

    /// Sent on a connection above `http_max_conns_per_client` before it is closed.
    pub(crate) fn too_many_connections(self) -> &'static str {
        match self {
            Self::V1_8 => "",
            Self::V1_22 => {
                "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nContent-Length: 81\r\n\
                 Connection: close\r\n\r\n\
                 Your IP is issuing too many concurrent connections, please rate limit your calls\n"
            }
        }
    }

    /// Why a token may not do `what` to `target`.
    pub(crate) fn denied(self, what: &str, target: &str) -> String {
        match self {
            Self::V1_8 => "Permission denied".to_owned(),
            Self::V1_22 => {
                let on = if target.is_empty() { String::new() } else { format!(" on {target:?}") };
                format!("Permission denied: token with AccessorID '{ACCESSOR}' lacks permission '{what}'{on}")
            }
        }
    }
}

/// The accessor ID of the restricted token.
const ACCESSOR: &str = "5ec2e7ed-0000-4000-8000-000000000000";

fn header(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
    (HeaderName::from_static(name), HeaderValue::from_static(value))
}

/// Go's `path.Clean`, except that a final slash stays.
fn resolved(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut clean: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." if clean.last().is_some_and(|last| *last != "..") => drop(clean.pop()),
            ".." if rooted => {}
            other => clean.push(other),
        }
    }
    let (start, end) = (if rooted { "/" } else { "" }, if path.ends_with('/') { "/" } else { "" });
    if clean.is_empty() { start.to_owned() } else { format!("{start}{}{end}", clean.join("/")) }
}

/// The metadata in the answer to a transaction of reads.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReadMeta {
    index: u64,
    last_contact: u64,
    pub(crate) known_leader: bool,
    consistency_level: &'static str,
    #[serde(flatten)]
    newer: Option<NewerMeta>,
}

#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct NewerMeta {
    not_modified: bool,
    backend: u64,
    #[serde(rename = "ResultsFilteredByACLs")]
    results_filtered_by_acls: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_resolved_as_a_path_and_refused_outside_of_the_root() {
        let key = |path: &str| Dialect::V1_22.key(path.to_owned());
        for (path, named) in [
            ("a/b", "a/b"),
            ("a/", "a/"),
            ("/a", "/a"),
            ("x/a/../b", "x/b"),
            ("x/a//c", "x/a/c"),
            ("x/./d", "x/d"),
            ("x/a/../../h", "h"),
            ("..a", "..a"),
            ("a..", "a.."),
            ("a/ /b", "a/ /b"),
            ("/../a", "/a"),
            ("", ""),
        ] {
            assert_eq!(key(path).as_deref(), Ok(named), "{path}");
            assert_eq!(Dialect::V1_8.key(path.to_owned()).as_deref(), Ok(path));
        }
        for path in ["..", "../a", "a/../../b"] {
            assert_eq!(key(path), Err("invalid key name, path traversal is not allowed"), "{path}");
        }
        for path in [" a", "a ", " "] {
            assert_eq!(key(path), Err("invalid key name, leading/trailing spaces are not allowed"), "{path}");
        }
    }
}
