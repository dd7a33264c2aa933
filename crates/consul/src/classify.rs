//! The classification of answers and transport errors.
//!
//! Consul answers most errors with the status 500 and a message, and each server on the way may add a prefix
//! (`rpc error making call: `, `raft apply failed: `). The parts searched for are the same from 1.8 to 1.22.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use super::{Error, Kind, Mismatch, Operation, Secret, Tried};

/// A blocking query that ends before this age was not ended by a time-out.
const MIN_CUT_AGE: Duration = Duration::from_secs(1);

/// The maximum length of an answer's excerpt in an error, in characters.
const EXCERPT: usize = 256;

/// The error for an answer.
pub(super) fn of_answer(tried: Tried, status: u16, said: String) -> Error {
    let has = |part: &str| said.contains(part);
    let any = |parts: &[&str]| parts.iter().any(|part| said.contains(part));
    let create = tried.operation == Operation::SessionCreate;
    let login = tried.operation == Operation::Login;
    let kind = match status {
        401 | 403 => Kind::Denied,
        // Only with Consul's message about this session. A 404 of a gateway does not mean that the session has ended.
        404 if has(&format!("Session id '{}' not found", tried.target)) => Kind::NotFound,
        413 => Kind::TooLarge,
        429 => Kind::RateLimited,
        500 | 503 if has("rate limit exceeded") => Kind::RateLimited,
        500 if any(&["Permission denied", "ACL not found"]) => Kind::Denied,
        500 if has(INVALID_KEY) => Kind::InvalidKey,
        500 if is_without_leader(&said) => Kind::NoLeader,
        500 if login && any(&BEARER_REJECTED) => Kind::Denied,
        // The second message is for a session ID that is not a UUID.
        500 if any(&["invalid session \"", "failed session lookup"]) => Kind::InvalidSession,
        500 if create && any(&["Missing node", "Missing check"]) => Kind::Unregistered,
        500 if create && has("critical state") => Kind::Unfit,
        500 if create && any(&["Invalid Session TTL", "Invalid Behavior", "cross datacenter lock"]) => {
            Kind::BadRequest
        }
        400 if any(&ONLY_TLS) => Kind::Mismatch(Mismatch::OnlyTls),
        400 => Kind::BadRequest,
        _ => Kind::Unexpected(status),
    };
    Error::new(tried, kind, said)
}

/// What servers answer to plain HTTP at a port for TLS: Go's (Consul's), nginx.
const ONLY_TLS: [&str; 2] = ["HTTP request to an HTTPS server", "plain HTTP request was sent to HTTPS port"];

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

/// The message of Consul 1.21.5 and newer about a key that it does not accept. The rule follows.
const INVALID_KEY: &str = "invalid key name";

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

/// Whether Consul answers so since it knows no datacenter of the name that was asked for.
pub(super) fn is_without_datacenter(status: u16, body: &[u8]) -> bool {
    status == 500 && String::from_utf8_lossy(body).contains("No path to datacenter")
}

/// The error for a transport failure. `waited`: the age of a blocking query, else zero. `is_known`: the server has answered before.
pub(super) fn of_transport(tried: Tried, error: &reqwest::Error, waited: Duration, is_known: bool) -> Error {
    let cause = chain(error);
    // A server that kept a request for a while has understood it.
    if let Some(mismatch) = mismatch(error).filter(|_| waited < MIN_CUT_AGE) {
        Error::new(tried, Kind::Mismatch(mismatch), cause)
    } else if error.is_connect() {
        let likely = if cause.contains("tls handshake eof") { NO_HANDSHAKE } else { "" };
        Error::new(tried, Kind::Unreachable, cause + likely)
    } else if waited >= MIN_CUT_AGE && is_closed(error) {
        Error::new(tried, Kind::Cut(waited), cause)
    } else {
        let likely = likely(&cause, is_known);
        Error::new(tried, Kind::Interrupted, cause + likely)
    }
}

/// Whether the other side closed or reset the connection. HTTP/2, with its GOAWAY, is never used here.
fn is_closed(error: &reqwest::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    causes(error).any(|cause| {
        let closed = |kind| matches!(kind, UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe);
        cause.downcast_ref::<io::Error>().is_some_and(|error| closed(error.kind()))
            || cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message)
    })
}

/// The probable cause of a broken connection. Consul refuses a connection above its limit by a 429 before the request was sent (from
/// 1.9 on), or closes it silently.
fn likely(cause: &str, is_known: bool) -> &'static str {
    if cause.contains("received unexpected message from connection") {
        "; Consul refuses a connection like this when the address that it comes from has too many: raise \
         limits.http_max_conns_per_client (200 by default), or have fewer clients at that address"
    } else if !(cause.contains("connection closed before message completed")
        || cause.contains("reset by peer"))
    {
        ""
    } else if !is_known {
        "; nothing there has answered yet: it is not Consul's HTTP API (port 8500 by default), or a proxy that does not reach \
         Consul, or Consul with too many connections of this address (limits.http_max_conns_per_client, 200 by default)"
    } else {
        "; if this goes on while Consul is up, the address that it comes from may have too many connections \
         (limits.http_max_conns_per_client, 200 by default)"
    }
}

/// The probable cause where the other side closes the connection in place of its part of the handshake.
const NO_HANDSHAKE: &str =
    "; the server there does not speak TLS, or a proxy does not reach it: Consul's HTTPS API has port 8501";

/// What hyper says of an answer that does not begin as HTTP does. It has no function that tells this from other faults.
const NO_HTTP: &str = "invalid HTTP version parsed";

/// Whether the server speaks another protocol, or one side has refused the other's certificate.
fn mismatch(error: &reqwest::Error) -> Option<Mismatch> {
    causes(error).find_map(|cause| {
        // A head of HTTP that is broken behind its first words is a failure of Consul, or of a proxy.
        if cause.downcast_ref::<hyper::Error>().is_some_and(|error| error.to_string() == NO_HTTP) {
            return Some(Mismatch::NotHttp);
        }
        of_tls(tls_error(cause)?)
    })
}

/// The error of TLS that this is, or that one or more errors of input and output contain.
fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref::<rustls::Error>() {
        return Some(found);
    }
    tls_error(error.downcast_ref::<io::Error>()?.get_ref()?)
}

fn of_tls(error: &rustls::Error) -> Option<Mismatch> {
    use rustls::CertificateError as Invalid;
    if let rustls::Error::InvalidMessage(_) = error {
        return Some(Mismatch::NoTls);
    }
    if let rustls::Error::InvalidCertificate(fault) = error {
        return Some(if matches!(fault, Invalid::UnknownIssuer) {
            Mismatch::UnknownAuthority
        } else if matches!(fault, Invalid::NotValidForName | Invalid::NotValidForNameContext { .. }) {
            Mismatch::WrongName
        } else {
            Mismatch::InvalidCertificate
        });
    }
    // From TLS 1.3 on the server checks the client's certificate after the client may have sent its request. A fatal alert of the
    // handshake still means that no request was read.
    let refused = matches!(error, rustls::Error::AlertReceived(alert) if refuses_handshake(*alert));
    refused.then_some(Mismatch::ClientCertificate)
}

fn refuses_handshake(alert: rustls::AlertDescription) -> bool {
    use rustls::AlertDescription as Alert;
    [
        Alert::HandshakeFailure,
        Alert::BadCertificate,
        Alert::UnsupportedCertificate,
        Alert::CertificateRevoked,
        Alert::CertificateExpired,
        Alert::CertificateUnknown,
        Alert::UnknownCA,
        Alert::AccessDenied,
        Alert::CertificateRequired,
    ]
    .contains(&alert)
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
        of_answer(tried, status, said.into())
    }

    #[test]
    fn what_consul_says_and_what_it_means() {
        use Operation::{KvGet, KvPut, Login, SessionCreate, SessionRenew, Txn};
        let unknown = true;
        for (operation, status, said, class, outcome_unknown) in [
            (KvPut, 500, "No cluster leader", Kind::NoLeader, unknown),
            (KvGet, 500, "rpc error making call: No cluster leader", Kind::NoLeader, false),
            (KvGet, 500, "Not ready to serve consistent reads", Kind::NoLeader, false),
            (KvPut, 500, "No known Consul servers", Kind::NoLeader, unknown),
            (
                Txn,
                500,
                "rpc error making call: leadership lost while committing log",
                Kind::NoLeader,
                unknown,
            ),
            (Txn, 500, "node is not the leader", Kind::NoLeader, unknown),
            (KvPut, 500, "rpc error making call: EOF", Kind::NoLeader, unknown),
            (KvGet, 500, "rpc error making call: EOF", Kind::NoLeader, false),
            (KvGet, 500, "rpc error making call: i/o deadline reached", Kind::NoLeader, false),
            (SessionRenew, 500, "Raft leader not found in server lookup mapping", Kind::NoLeader, unknown),
            (
                SessionRenew,
                500,
                "rpc error getting client: failed to get conn: dial tcp 10.0.0.1:0->10.0.0.2:8300: connect: connection refused",
                Kind::NoLeader,
                unknown,
            ),
            (
                KvGet,
                500,
                "rpc error getting client: failed to start stream: write tcp 10.0.0.1:1->10.0.0.2:8300: write: broken pipe",
                Kind::NoLeader,
                false,
            ),
            (
                KvGet,
                500,
                "rpc error making call: read tcp 10.0.0.1:1->10.0.0.2:8300: read: connection reset by peer",
                Kind::NoLeader,
                false,
            ),
            (Txn, 500, "rpc error making call: session shutdown", Kind::NoLeader, unknown),
            (KvGet, 500, "rpc error making call: rpc error making call: EOF", Kind::NoLeader, false),
            (KvGet, 500, "rpc error making call: something else: EOF", Kind::Unexpected(500), false),
            (Txn, 502, "Bad Gateway", Kind::Unexpected(502), unknown),
            (Txn, 408, "", Kind::Unexpected(408), unknown),
            (Txn, 301, "", Kind::Unexpected(301), false),
            (Txn, 405, "", Kind::Unexpected(405), false),
            (KvPut, 403, "Permission denied", Kind::Denied, false),
            (KvPut, 403, "ACL not found", Kind::Denied, false),
            (
                KvPut,
                403,
                "Permission denied: token with AccessorID 'x' lacks permission 'key:write' on \"k\"",
                Kind::Denied,
                false,
            ),
            (KvPut, 500, "rpc error making call: Permission denied", Kind::Denied, false),
            (KvPut, 401, "ACL support disabled", Kind::Denied, false),
            (KvPut, 429, "", Kind::RateLimited, false),
            (
                KvPut,
                429,
                "rate limit exceeded, try again later or against a different server",
                Kind::RateLimited,
                false,
            ),
            (
                KvPut,
                503,
                "rate limit exceeded for operation that can only be performed by the leader, try again later",
                Kind::RateLimited,
                false,
            ),
            (KvPut, 500, "RPC rate limit exceeded", Kind::RateLimited, false),
            (KvPut, 503, "upstream is gone", Kind::Unexpected(503), unknown),
            (
                KvPut,
                413,
                "Request body(600000 bytes) too large, max size: 524288 bytes.",
                Kind::TooLarge,
                false,
            ),
            (Txn, 413, "Transaction contains too many operations (70 > 64)", Kind::TooLarge, false),
            (KvPut, 500, "invalid session \"x\"", Kind::InvalidSession, false),
            (
                KvPut,
                500,
                "rpc error making call: raft apply failed: invalid session \"x\"",
                Kind::InvalidSession,
                false,
            ),
            (
                KvPut,
                500,
                "failed session lookup: index error: UUID must be 36 characters",
                Kind::InvalidSession,
                false,
            ),
            (
                KvGet,
                500,
                "invalid key name, leading/trailing spaces are not allowed",
                Kind::InvalidKey,
                false,
            ),
            (
                KvPut,
                500,
                "rpc error making call: invalid key name, path traversal is not allowed",
                Kind::InvalidKey,
                false,
            ),
            (KvPut, 400, "Conflicting flags: acquire=x&cas=1", Kind::BadRequest, false),
            (KvPut, 400, "Missing key name", Kind::BadRequest, false),
            (SessionRenew, 404, "Session id 'k' not found", Kind::NotFound, false),
            (SessionRenew, 404, "404 page not found", Kind::Unexpected(404), false),
            (SessionRenew, 404, "Session id 'another' not found", Kind::Unexpected(404), false),
            (SessionRenew, 404, "<h1>Session identifier missing</h1>", Kind::Unexpected(404), false),
            (SessionRenew, 404, "", Kind::Unexpected(404), false),
            (SessionRenew, 502, "<h1>Bad Gateway</h1>", Kind::Unexpected(502), unknown),
            (SessionRenew, 500, "invalid session cookie", Kind::Unexpected(500), unknown),
            (
                Login,
                500,
                "error validating claims: aud claim does not match any bound audience",
                Kind::Denied,
                false,
            ),
            (
                Login,
                500,
                "rpc error making call: no known key successfully validated the token signature",
                Kind::Denied,
                false,
            ),
            (Login, 500, "No cluster leader", Kind::NoLeader, unknown),
            (SessionCreate, 500, "Missing node registration", Kind::Unregistered, false),
            (
                SessionCreate,
                500,
                "rpc error making call: Missing check 'x' registration",
                Kind::Unregistered,
                false,
            ),
            (
                SessionCreate,
                400,
                "Client sent an HTTP request to an HTTPS server.",
                Kind::Mismatch(Mismatch::OnlyTls),
                false,
            ),
            (SessionCreate, 500, "Check 'serfHealth' is in critical state", Kind::Unfit, false),
            (
                SessionCreate,
                500,
                "Invalid Session TTL '1000000000', must be between [10s=24h0m0s]",
                Kind::BadRequest,
                false,
            ),
            (SessionCreate, 500, "Invalid Behavior setting 'x'", Kind::BadRequest, false),
            (
                SessionCreate,
                500,
                "cross datacenter lock must be created at server agent",
                Kind::BadRequest,
                false,
            ),
        ] {
            let error = error(operation, status, said);
            assert_eq!(error.kind, class, "{status} {said}");
            assert_eq!(error.outcome_unknown(), outcome_unknown, "{status} {said}");
        }
    }

    #[test]
    fn an_error_says_what_was_tried_what_came_and_what_to_do() {
        assert_eq!(
            error(Operation::KvPut, 403, "Permission denied").to_string(),
            "cannot write k at http://c: Permission denied"
        );
    }

    #[test]
    fn a_connection_that_breaks_early_names_the_limit_of_connections() {
        for cause in [
            "received unexpected message from connection",
            "connection closed before message completed",
            "connection error: Connection reset by peer (os error 104)",
        ] {
            assert!(likely(cause, true).contains("limits.http_max_conns_per_client"), "{cause}");
        }
        assert_eq!(likely("end of file before message length reached", true), "");
    }

    #[test]
    fn an_unknown_token_is_told_from_a_missing_right() {
        let unknown = error(Operation::KvPut, 403, "ACL not found");
        assert!(unknown.to_string().contains("Consul does not know this token"), "{unknown}");
        assert!(!error(Operation::KvPut, 403, "Permission denied").is_unknown_token());
    }

    #[test]
    fn an_answer_of_another_server_is_told_from_that_of_a_proxy_without_a_server() {
        for (status, foreign) in [
            (404, true),
            (301, true),
            (405, true),
            (501, true),
            (408, false),
            (502, false),
            (503, false),
            (500, false),
        ] {
            assert_eq!(error(Operation::KvPut, status, "").is_foreign(), foreign, "{status}");
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
