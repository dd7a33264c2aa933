//! The classification of answers and transport errors.
//!
//! Consul answers most errors with the status 500 and a message, and each server on the way may add a prefix
//! (`rpc error making call: `, `raft apply failed: `). The parts searched for are the same from 1.8 to 1.22.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use super::error::rounded;
use super::{Code, Error, Kind, Operation, Secret, Tried};

/// A blocking query that ends before this age was not ended by a time-out.
const MIN_CUT_AGE: Duration = Duration::from_secs(1);

/// The maximum length of an answer's excerpt in an error, in characters.
const EXCERPT: usize = 256;

/// The error for an answer.
pub(super) fn of_answer(tried: Tried, status: u16, said: &str) -> Error {
    let any = |parts: &[&str]| parts.iter().any(|part| said.contains(part));
    let login = tried.operation == Operation::Login;
    // Only with Consul's message about this session. A 404 of a gateway does not mean that the session has ended.
    let gone = format!("Session id '{}' not found", tried.target);
    let (kind, detail) = match status {
        401 | 403 => (Kind::Denied, denied(said)),
        404 if any(&[&gone]) => (Kind::Gone, format!("the session does not exist: {said}")),
        413 => (Kind::Refused, format!("too large for Consul: {said}")),
        429 => (Kind::Busy, busy(said)),
        500 | 503 if any(&["rate limit exceeded"]) => (Kind::Busy, busy(said)),
        500 if any(&["Permission denied", "ACL not found"]) => (Kind::Denied, denied(said)),
        500 if any(&REFUSALS) => (Kind::Refused, refused(said)),
        500 if is_without_leader(said) => (Kind::NoLeader, format!("Consul has no leader: {said}")),
        500 if login && any(&BEARER_REJECTED) => (Kind::Denied, denied(said)),
        // The second message is for a session ID that is not a UUID.
        500 if any(&["invalid session \"", "failed session lookup"]) => {
            (Kind::Gone, format!("the session does not exist: {said}"))
        }
        400 if any(&ONLY_TLS) => (Kind::NotConsul, said.to_owned()),
        400 => (Kind::Refused, refused(said)),
        // A proxy answers so if Consul behind it is down or slow.
        408 | 499 | 500 | 502..=504 | 506.. => (Kind::Unknown, unexpected(status, said)),
        _ => (Kind::NotConsul, unexpected(status, said)),
    };
    Error::new(tried, kind, Code::of_status(status), detail)
}

fn denied(said: &str) -> String {
    if said.contains("ACL not found") {
        format!("Consul does not know this token: {said}")
    } else if said.starts_with("Permission denied") {
        // Newer versions say more.
        said.to_owned()
    } else {
        format!("permission denied: {said}")
    }
}

fn busy(said: &str) -> String {
    format!("Consul limits the rate of requests: {said}")
}

fn refused(said: &str) -> String {
    format!("the request was refused: {said}")
}

/// Consul answers in words. Another server's page says nothing about the error.
fn unexpected(status: u16, said: &str) -> String {
    format!("unexpected answer {status}: {}", if said.starts_with('<') { "a page of HTML" } else { said })
}

/// What servers answer to plain HTTP at a port for TLS: Go's (Consul's), nginx.
const ONLY_TLS: [&str; 2] = ["HTTP request to an HTTPS server", "plain HTTP request was sent to HTTPS port"];

/// The messages of Consul about names and settings that it does not accept.
const REFUSALS: [&str; 8] = [
    "invalid key name",
    "No path to datacenter",
    "Missing node",
    "Missing check",
    "critical state",
    "Invalid Session TTL",
    "Invalid Behavior",
    "cross datacenter lock",
];

/// The messages of servers and client agents without a leader, or with a leader that has failed (1.8 to 1.23).
const NO_LEADER: [&str; 10] = [
    "No cluster leader",
    "Raft leader not found in server lookup mapping",
    "rpc error getting client: ",
    "rpc error setting read deadline: ",
    "i/o deadline reached",
    "No known Consul servers",
    "leadership lost while committing log",
    "node is not the leader",
    "leadership transfer in progress",
    "Not ready to serve consistent reads",
];

/// The prefix of a forwarded call's error. An entry of [`CUT`] follows if the connection to the other server broke, else that server's
/// answer.
const CALL: &str = "rpc error making call: ";

/// The messages of a broken connection between two servers: of Go's sockets, and of the streams on them (hashicorp/yamux).
const CUT: [&str; 9] = [
    "EOF",
    "unexpected EOF",
    "stream closed",
    "session shutdown",
    "connection reset",
    "connection write timeout",
    "keepalive timeout",
    "read tcp ",
    "write tcp ",
];

/// Whether a server could not reach the leader.
fn is_without_leader(said: &str) -> bool {
    let cut = |rest: &str| CUT.iter().any(|cut| rest.starts_with(cut));
    NO_LEADER.iter().any(|part| said.contains(part)) || said.split(CALL).skip(1).any(cut)
}

/// The messages of the auth methods `jwt` and `kubernetes` about an invalid or expired bearer token.
const BEARER_REJECTED: [&str; 6] = [
    "error validating",
    "error parsing token",
    "error verifying",
    "no known key",
    "lookup failed",
    "failed to parse and validate JWT",
];

/// Whether an answer of this status cuts off a blocking query that has waited for `waited`. Proxies answer so when a request is too
/// old for them. Consul uses none of these statuses; 499 is nginx's own.
pub(super) fn is_cut(status: u16, waited: Duration) -> bool {
    waited >= MIN_CUT_AGE && matches!(status, 408 | 499 | 502 | 504)
}

/// The error for a blocking query that was cut off at this age.
pub(super) fn cut(tried: Tried, age: Duration, cause: &str) -> Error {
    let detail = format!("cut off after {:?} without an answer: {cause}", rounded(age));
    Error::new(tried, Kind::Cut, Code::Cut, detail)
}

/// The error for a transport failure. `waited`: the age of a blocking query, else zero. `is_known`: the server has answered before.
pub(super) fn of_transport(tried: Tried, error: &reqwest::Error, waited: Duration, is_known: bool) -> Error {
    let cause = chain(error);
    let is_young = waited < MIN_CUT_AGE;
    // A server that kept a request for a while has understood it.
    if is_young && causes(error).any(refuses_handshake) {
        Error::new(tried, Kind::NotConsul, Code::Unreachable, cause)
    } else if is_young && causes(error).any(is_no_http) {
        Error::new(tried, Kind::NotConsul, Code::Interrupted, cause)
    } else if error.is_connect() {
        Error::new(tried, Kind::NotSent, Code::Unreachable, format!("not reached: {cause}"))
    } else if !is_young && is_closed(error) {
        cut(tried, waited, &cause)
    } else {
        let never = if is_known { "" } else { NEVER_ANSWERED };
        let detail = format!("the connection broke before the answer was complete: {cause}{never}");
        Error::new(tried, Kind::Unknown, Code::Interrupted, detail)
    }
}

/// Where the server may be no Consul, or a proxy that does not reach it.
pub(super) const NEVER_ANSWERED: &str = "; nothing there has answered yet";

/// Whether the other side closed or reset the connection. HTTP/2, with its GOAWAY, is never used here.
fn is_closed(error: &reqwest::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    causes(error).any(|cause| {
        let closed = |kind| matches!(kind, UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe);
        cause.downcast_ref::<io::Error>().is_some_and(|error| closed(error.kind()))
            || cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message)
    })
}

/// Whether the answer does not begin as HTTP does. Hyper has no function that tells this from other faults. A head of HTTP that is
/// broken behind its first words is a failure of Consul, or of a proxy.
fn is_no_http(cause: &(dyn StdError + 'static)) -> bool {
    let hyper = cause.downcast_ref::<hyper::Error>();
    hyper.is_some_and(|error| error.to_string() == "invalid HTTP version parsed")
}

/// Whether the server does not speak TLS, or one side does not accept the other's certificate. From TLS 1.3 on the server checks the
/// client's certificate after the client may have sent its request. A fatal alert of the handshake still means that no request was read.
fn refuses_handshake(cause: &(dyn StdError + 'static)) -> bool {
    use rustls::{AlertDescription as Alert, Error};
    match tls_error(cause) {
        Some(Error::InvalidMessage(_) | Error::InvalidCertificate(_)) => true,
        Some(Error::AlertReceived(alert)) => matches!(
            alert,
            Alert::HandshakeFailure
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::CertificateRequired
        ),
        _ => false,
    }
}

/// The error of TLS that this is, or that one or more errors of input and output contain.
fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref::<rustls::Error>() {
        return Some(found);
    }
    tls_error(error.downcast_ref::<io::Error>()?.get_ref()?)
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// The messages of the causes, without those that repeat the next cause.
fn chain(error: &reqwest::Error) -> String {
    let mut words: Vec<String> = Vec::new();
    for cause in causes(error) {
        // "client error (Connect)" and "(SendRequest)" repeat the variant.
        let word = cause.to_string();
        if !word.starts_with("client error (") && !words.iter().any(|before| before.contains(&word)) {
            words.push(word);
        }
    }
    if words.is_empty() { error.to_string() } else { excerpt(&words.join(": "), &[]) }
}

/// An untrusted text as one line of an error: limited in length, without control characters, and without the `secrets`, which the
/// server may have sent back.
pub(super) fn excerpt(text: &str, secrets: &[&Secret]) -> String {
    let hidden = secrets
        .iter()
        .filter(|secret| !secret.expose().is_empty())
        .fold(text.to_owned(), |text, secret| text.replace(secret.expose(), "(hidden)"));
    let text = hidden.trim();
    if text.is_empty() {
        return "(nothing)".into();
    }
    let mut line = String::new();
    for character in text.chars().take(EXCERPT) {
        if matches!(character, '"' | '\'' | '\\') {
            line.push(character);
        } else {
            line.extend(character.escape_debug());
        }
    }
    if text.chars().nth(EXCERPT).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(operation: Operation, status: u16, said: &str) -> Error {
        let tried = Tried { operation, target: "k".into(), address: "http://c".into() };
        of_answer(tried, status, said)
    }

    #[test]
    fn what_consul_says_and_what_it_means() {
        use Operation::{KvGet, Login, SessionCreate, SessionRenew, Txn};
        for (operation, status, said, class) in [
            (Txn, 500, "No cluster leader", Kind::NoLeader),
            (KvGet, 500, "rpc error making call: No cluster leader", Kind::NoLeader),
            (KvGet, 500, "Not ready to serve consistent reads", Kind::NoLeader),
            (Txn, 500, "No known Consul servers", Kind::NoLeader),
            (Txn, 500, "rpc error making call: leadership lost while committing log", Kind::NoLeader),
            (Txn, 500, "node is not the leader", Kind::NoLeader),
            (Txn, 500, "rpc error making call: EOF", Kind::NoLeader),
            (KvGet, 500, "rpc error making call: EOF", Kind::NoLeader),
            (KvGet, 500, "rpc error making call: i/o deadline reached", Kind::NoLeader),
            (SessionRenew, 500, "Raft leader not found in server lookup mapping", Kind::NoLeader),
            (
                SessionRenew,
                500,
                "rpc error getting client: failed to get conn: dial tcp 10.0.0.1:0->10.0.0.2:8300: connect: connection refused",
                Kind::NoLeader,
            ),
            (
                KvGet,
                500,
                "rpc error getting client: failed to start stream: write tcp 10.0.0.1:1->10.0.0.2:8300: write: broken pipe",
                Kind::NoLeader,
            ),
            (
                KvGet,
                500,
                "rpc error making call: read tcp 10.0.0.1:1->10.0.0.2:8300: read: connection reset by peer",
                Kind::NoLeader,
            ),
            (Txn, 500, "rpc error making call: session shutdown", Kind::NoLeader),
            (KvGet, 500, "rpc error making call: rpc error making call: EOF", Kind::NoLeader),
            (KvGet, 500, "rpc error making call: something else: EOF", Kind::Unknown),
            (Txn, 502, "Bad Gateway", Kind::Unknown),
            (Txn, 408, "", Kind::Unknown),
            (Txn, 301, "", Kind::NotConsul),
            (Txn, 405, "", Kind::NotConsul),
            (Txn, 403, "Permission denied", Kind::Denied),
            (Txn, 403, "ACL not found", Kind::Denied),
            (
                Txn,
                403,
                "Permission denied: token with AccessorID 'x' lacks permission 'key:write' on \"k\"",
                Kind::Denied,
            ),
            (Txn, 500, "rpc error making call: Permission denied", Kind::Denied),
            (Txn, 401, "ACL support disabled", Kind::Denied),
            (Txn, 429, "", Kind::Busy),
            (Txn, 429, "rate limit exceeded, try again later or against a different server", Kind::Busy),
            (
                Txn,
                503,
                "rate limit exceeded for operation that can only be performed by the leader, try again later",
                Kind::Busy,
            ),
            (Txn, 500, "RPC rate limit exceeded", Kind::Busy),
            (Txn, 503, "upstream is gone", Kind::Unknown),
            (Txn, 413, "Request body(600000 bytes) too large, max size: 524288 bytes.", Kind::Refused),
            (Txn, 413, "Transaction contains too many operations (70 > 64)", Kind::Refused),
            (Txn, 500, "invalid session \"x\"", Kind::Gone),
            (Txn, 500, "rpc error making call: raft apply failed: invalid session \"x\"", Kind::Gone),
            (Txn, 500, "failed session lookup: index error: UUID must be 36 characters", Kind::Gone),
            (KvGet, 500, "invalid key name, leading/trailing spaces are not allowed", Kind::Refused),
            (
                Txn,
                500,
                "rpc error making call: invalid key name, path traversal is not allowed",
                Kind::Refused,
            ),
            (KvGet, 400, "Missing key name", Kind::Refused),
            (SessionRenew, 404, "Session id 'k' not found", Kind::Gone),
            (SessionRenew, 404, "404 page not found", Kind::NotConsul),
            (SessionRenew, 404, "Session id 'another' not found", Kind::NotConsul),
            (SessionRenew, 404, "<h1>Session identifier missing</h1>", Kind::NotConsul),
            (SessionRenew, 404, "", Kind::NotConsul),
            (SessionRenew, 502, "<h1>Bad Gateway</h1>", Kind::Unknown),
            (SessionRenew, 500, "invalid session cookie", Kind::Unknown),
            (
                Login,
                500,
                "error validating claims: aud claim does not match any bound audience",
                Kind::Denied,
            ),
            (
                Login,
                500,
                "rpc error making call: no known key successfully validated the token signature",
                Kind::Denied,
            ),
            (Login, 500, "No cluster leader", Kind::NoLeader),
            (SessionCreate, 500, "Missing node registration", Kind::Refused),
            (SessionCreate, 500, "rpc error making call: Missing check 'x' registration", Kind::Refused),
            (SessionCreate, 400, "Client sent an HTTP request to an HTTPS server.", Kind::NotConsul),
            (SessionCreate, 500, "Check 'serfHealth' is in critical state", Kind::Refused),
            (
                SessionCreate,
                500,
                "Invalid Session TTL '1000000000', must be between [10s=24h0m0s]",
                Kind::Refused,
            ),
            (SessionCreate, 500, "Invalid Behavior setting 'x'", Kind::Refused),
            (SessionCreate, 500, "cross datacenter lock must be created at server agent", Kind::Refused),
        ] {
            let error = error(operation, status, said);
            assert_eq!(error.kind, class, "{status} {said}");
        }
    }

    #[test]
    fn an_error_says_what_was_tried_what_came_and_what_to_do() {
        assert_eq!(
            error(Operation::Txn, 403, "Permission denied").to_string(),
            "cannot commit a transaction on k at http://c: Permission denied"
        );
    }

    #[test]
    fn an_unknown_token_is_told_from_a_missing_right() {
        let unknown = error(Operation::Txn, 403, "ACL not found");
        assert!(unknown.to_string().contains("Consul does not know this token"), "{unknown}");
        assert!(!error(Operation::Txn, 403, "Permission denied").is_unknown_token());
    }

    #[test]
    fn an_answer_of_another_server_is_told_from_that_of_a_proxy_without_a_server() {
        for (status, foreign) in [
            (404, true),
            (301, true),
            (405, true),
            (501, true),
            (505, true),
            (408, false),
            (499, false),
            (504, false),
            (502, false),
            (503, false),
            (500, false),
        ] {
            assert_eq!(error(Operation::Txn, status, "").kind == Kind::NotConsul, foreign, "{status}");
        }
    }

    #[test]
    fn an_excerpt_is_one_short_harmless_line_without_the_token() {
        let secret = Secret::new("hunter2");
        assert_eq!(
            excerpt("a\u{1b}[31m\nb\u{202e} \"é\" hunter2", &[&secret]),
            "a\\u{1b}[31m\\nb\\u{202e} \"é\" (hidden)"
        );
        assert_eq!(excerpt(" \n", &[]), "(nothing)");
        let long = excerpt(&"é".repeat(1000), &[]);
        assert_eq!(long, "é".repeat(256) + "…");
    }
}
