//! Checks of the Host: exactly one, and a harmless one at a loopback address.
//!
//! A website can have its own name resolve to 127.0.0.1. A browser then treats the responses of this agent as the website's own,
//! and its scripts can read them (DNS rebinding). But the browser sends that name as the Host, which no legitimate request does.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::{Code, Error};

/// Refuses what HTTP/1.1 forbids (RFC 9112, 3.2): no Host, since a proxy and this server could then assume different hosts, or
/// several of them.
pub(crate) async fn exactly_one(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts == 1 || (hosts == 0 && request.version() < Version::HTTP_11) {
        return next.run(request).await;
    }
    let text = format!("the request has {hosts} Host headers; send exactly one");
    Error::new(Code::BadRequest, text).into_response()
}

/// Refuses requests for another host.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let line = request.uri().authority().map(Authority::as_str).map(str::as_bytes);
    let headers = request.headers().get_all(header::HOST);
    let mut named = line.into_iter().chain(headers.iter().map(header::HeaderValue::as_bytes));
    if named.all(is_ours) {
        return next.run(request).await;
    }
    let text = "the Host is neither localhost nor an IP address, which an agent on loopback requires; a proxy in front \
                of it must send such a Host";
    Error::new(Code::Misdirected, text).into_response()
}

/// Whether it is `localhost` or an IP address, with or without a port: not a name that can be made to resolve to this machine.
fn is_ours(host: &[u8]) -> bool {
    if host.is_empty() {
        return true;
    }
    let Ok(authority) = Authority::try_from(host) else { return false };
    let host = authority.host();
    let v6 = || host.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok() || v6().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unresolvable_names_are_accepted() {
        for ours in
            ["", "localhost", "LocalHost:9377", "127.0.0.1", "127.0.0.1:9377", "[::1]:9377", "10.1.2.3"]
        {
            assert!(is_ours(ours.as_bytes()), "{ours}");
        }
        for other in [
            "rebound.example",
            "rebound.example:9377",
            "localhost.rebound.example",
            "127.0.0.1.rebound.example",
            "127.0.0.1@rebound.example",
            "rebound.example, localhost",
            "[rebound.example]",
            "local\u{ff48}ost",
            ":",
        ] {
            assert!(!is_ours(other.as_bytes()), "{other}");
        }
        assert!(!is_ours(b"\xff"));
    }
}
