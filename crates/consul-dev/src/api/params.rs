//! A request's query string and body, within bounds.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::HeaderMap;
use hyper::header::CONTENT_LENGTH;

use super::App;
use super::answer::Refusal;
use crate::Dialect;
use crate::duration;
use crate::shared::Wait;

/// The name of the only datacenter.
pub(crate) const DATACENTER: &str = "dc1";

const DEFAULT_WAIT: Duration = Duration::from_secs(300);
const MAX_WAIT: Duration = Duration::from_secs(600);
/// Consul adds up to this part of a wait, so that polls which began together do not end together.
const STAGGER: u32 = 16;

/// The query string, and the token that came with it or in a header.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pairs: Vec<(String, String)>,
    token: Option<String>,
}

impl Params {
    /// The value of the parameter; empty for a parameter without a value.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The token, if the request has one.
    pub(crate) fn token(&self) -> Option<&str> {
        self.get("token").or(self.token.as_deref())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A number, by the rules of Go's `strconv.ParseUint`.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        self.get(name).map(uint).transpose().map_err(Refusal::failed)
    }

    /// Refuses parameters for another datacenter or for Consul Enterprise.
    pub(crate) fn here(&self, dialect: Dialect) -> Result<(), Refusal> {
        if self.get("dc").is_some_and(|dc| !dc.is_empty() && dc != DATACENTER) {
            return Err(Refusal::failed("No path to datacenter"));
        }
        if self.get("ns").is_some_and(|ns| !ns.is_empty()) {
            return Err(Refusal::bad(dialect.no_namespaces()));
        }
        Ok(())
    }

    /// The parameters of a read: whether it blocks, and for how long.
    pub(crate) fn wait(&self, dialect: Dialect) -> Result<Option<Wait>, Refusal> {
        let wait = match self.get("wait").unwrap_or_default() {
            "" => 0,
            text => duration::parse(text).map_err(|_| Refusal::bad("Invalid wait time"))?,
        };
        let above = match self.get("index").unwrap_or_default() {
            "" => 0,
            text => uint(text).map_err(|_| Refusal::bad("Invalid index"))?,
        };
        if self.has("stale") && self.has("consistent") {
            return Err(Refusal::bad("Cannot specify ?stale with ?consistent, conflicting semantics."));
        }
        self.here(dialect)?;
        let wait = match u64::try_from(wait) {
            Ok(0) | Err(_) => DEFAULT_WAIT,
            Ok(nanos) => Duration::from_nanos(nanos).min(MAX_WAIT),
        };
        let at_most = wait + (wait / STAGGER).mul_f64(fastrand::f64());
        Ok((above > 0).then_some(Wait { above, at_most }))
    }
}

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let pairs = Query::try_from_uri(&parts.uri).map_err(|error| Refusal::bad(error.to_string()))?;
        let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = || text("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let token = text("x-consul-token").or_else(bearer).map(str::to_owned);
        Ok(Self { pairs: pairs.0, token })
    }
}

fn uint(text: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let fault = if digits { "value out of range" } else { "invalid syntax" };
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| format!("strconv.ParseUint: parsing {text:?}: {fault}"))
}

/// The Content-Length; `None` for a chunked body.
pub(crate) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A request's body, bounded: to `max` bytes, which come of the setting that Consul calls `setting`, and in time.
pub(crate) async fn body(
    app: &App,
    headers: &HeaderMap,
    body: Body,
    (setting, max): (&str, usize),
) -> Result<Bytes, Refusal> {
    let too_large = |size: String| {
        let page = app.dialect().limit_page(setting);
        Refusal::TooLarge(format!("Request body{size} too large, max size: {max} bytes. See {page}."))
    };
    if let Some(size) = announced(headers).filter(|size| *size > max as u64) {
        return Err(too_large(format!("({size} bytes)")));
    }
    let arrives = Limited::new(body, max).collect();
    let arrived = match app.options.read_timeout {
        Some(bound) => tokio::time::timeout(bound, arrives).await.map_err(|_| Refusal::Unanswered)?,
        None => arrives.await,
    };
    match arrived {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(too_large(String::new())),
        Err(error) => Err(Refusal::bad(error.to_string())),
    }
}
