//! Paths that Go's HTTP server does not pass on.

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::{Method, StatusCode};

use super::App;
use slotkeeper_semaphore::is_printable;

/// Go's router answers a path with empty or dot segments by a redirect to the clean one, so such keys cannot be
/// reached, and a client that follows redirects ends at another key than it asked for.
pub(super) async fn clean(State(app): State<App>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let decoded = decoded(path);
    if !decoded.chars().all(is_printable) {
        return StatusCode::BAD_REQUEST.into_response();
    }
    let escaped = app.dialect().redirects_escaped();
    let Some(mut target) = cleaned(if escaped { &decoded } else { path }) else {
        return next.run(request).await;
    };
    if escaped {
        target = encoded(&target);
    }
    if let Some(query) = request.uri().query() {
        target.push('?');
        target.push_str(query);
    }
    redirect(app.dialect().redirect(), request.method(), target)
}

/// The clean path; none where it is clean.
fn cleaned(path: &str) -> Option<String> {
    let odd = |segment: &str| segment.is_empty() || segment == "." || segment == "..";
    let inner = path.strip_prefix('/').unwrap_or(path);
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if inner.is_empty() || !inner.split('/').any(odd) {
        return None;
    }
    let mut clean: Vec<&str> = Vec::new();
    for segment in inner.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(clean.pop()),
            plain => clean.push(plain),
        }
    }
    let mut target = format!("/{}", clean.join("/"));
    if path.ends_with('/') && !clean.is_empty() {
        target.push('/');
    }
    Some(target)
}

fn redirect(status: StatusCode, method: &Method, target: String) -> Response {
    let location = [(LOCATION, target.clone())];
    // A body is for browsers, which follow no other requests by themselves.
    if *method != Method::GET {
        return (status, location).into_response();
    }
    let html = target
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;");
    let reason = status.canonical_reason().unwrap_or_default();
    let body = format!("<a href=\"{html}\">{reason}</a>.\n\n");
    (status, location, [(CONTENT_TYPE, "text/html; charset=utf-8")], body).into_response()
}

/// A path without its escapes. What is none stays as it is.
fn decoded(path: &str) -> String {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = match rest {
            [b'%', high, low, ..] => digit(*high).zip(digit(*low)),
            _ => None,
        };
        if let Some((high, low)) = escaped {
            bytes.push(high * 16 + low);
            rest = rest.get(3..).unwrap_or_default();
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A path as Go writes it.
fn encoded(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
