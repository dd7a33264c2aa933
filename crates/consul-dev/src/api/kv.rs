//! `/v1/kv`: one key, lists, writes and deletes.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::{HeaderMap, Method, StatusCode};
use serde::Serialize;

use super::App;
use super::answer::{Answer, Refusal, json, only, with_index};
use super::params::{self, Params};
use crate::Dialect;
use crate::dialect::Kind;
use crate::shared::Wait;
use crate::store::kv::{Entry, Write};

/// An entry as clients see it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Shown {
    lock_index: u64,
    key: String,
    flags: u64,
    /// Base64; null where the value is empty or not shown.
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    create_index: u64,
    modify_index: u64,
}

impl Shown {
    /// The entry without its value, as transactions show a write.
    pub(crate) fn bare(entry: &Entry) -> Self {
        let Entry { key, flags, lock_index, session, create_index, modify_index, .. } = entry.clone();
        Self { lock_index, key, flags, value: None, session, create_index, modify_index }
    }

    pub(crate) fn whole(entry: &Entry) -> Self {
        let value = (!entry.value.is_empty()).then(|| STANDARD.encode(&entry.value));
        Self { value, ..Self::bare(entry) }
    }
}

/// `/v1/kv/`: the root, which can be listed and deleted but is no key.
pub(crate) async fn root(
    State(app): State<App>,
    params: Params,
    method: Method,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    answer(app, String::new(), params, method, headers, body).await
}

/// `/v1/kv/<key>`.
pub(crate) async fn key(
    State(app): State<App>,
    Path(key): Path<String>,
    params: Params,
    method: Method,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    answer(app, key, params, method, headers, body).await
}

async fn answer(
    app: App,
    key: String,
    params: Params,
    method: Method,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    only(&method, &[Method::GET, Method::PUT, Method::DELETE])?;
    let wait = params.wait(app.dialect())?;
    let key = app.dialect().key(key).map_err(Refusal::failed)?;
    if method == Method::GET {
        return get(&app, &key, wait, &params).await;
    }
    if method == Method::DELETE {
        return delete(&app, &key, &params);
    }
    at_most_one(app.dialect(), &params, &["acquire", "cas", "release"])?;
    need(&key)?;
    let asked = Asked::read(&params)?;
    let bound = ("kv_max_value_size", app.options.max_value);
    let value = params::body(&app, &headers, body, bound).await?;
    put(&app, asked, key, value, &params)
}

/// The kind of a write.
enum Asked {
    Set,
    Cas(u64),
    Acquire(String),
    Release(String),
}

impl Asked {
    fn read(params: &Params) -> Result<(Self, u64), Refusal> {
        let flags = params.number("flags")?.unwrap_or(0);
        let asked = match (params.number("cas")?, params.get("acquire"), params.get("release")) {
            (Some(index), _, _) => Self::Cas(index),
            (None, Some(session), _) => Self::Acquire(session.to_owned()),
            (None, None, Some(session)) => Self::Release(session.to_owned()),
            (None, None, None) => Self::Set,
        };
        Ok((asked, flags))
    }
}

fn put(app: &App, (asked, flags): (Asked, u64), key: String, value: Bytes, params: &Params) -> Answer {
    app.rights(params).write_key(&key)?;
    app.admit(Kind::Write)?;
    let write = Write { key, value, flags };
    let done = app.shared.with(|store, now| match asked {
        Asked::Set => {
            store.set(write, now);
            Ok(true)
        }
        Asked::Cas(index) => Ok(store.cas(write, index, now)),
        Asked::Acquire(session) => store.lock(write, &session, now),
        Asked::Release(session) => store.unlock(write, &session, now),
    });
    json(params, &done.map_err(|error| Refusal::failed(app.dialect().write_refused(&error)))?)
}

fn delete(app: &App, key: &str, params: &Params) -> Answer {
    at_most_one(app.dialect(), params, &["cas", "recurse"])?;
    let recurse = params.has("recurse");
    if !recurse {
        need(key)?;
    }
    let cas = params.number("cas")?;
    let rights = app.rights(params);
    if recurse { rights.write_below(key) } else { rights.write_key(key) }?;
    app.admit(Kind::Write)?;
    let done = app.shared.with(|store, now| match cas {
        Some(index) => store.delete_cas(key, index, now),
        None if recurse => {
            store.delete_tree(key, now);
            true
        }
        None => {
            store.delete(key, now);
            true
        }
    });
    json(params, &done)
}

async fn get(app: &App, key: &str, wait: Option<Wait>, params: &Params) -> Answer {
    let (dialect, rights) = (app.dialect(), app.rights(params));
    if params.has("keys") || params.has("recurse") {
        app.admit(Kind::Read)?;
        let mut read = app.shared.read(wait, |store| store.list(key)).await;
        let all = read.found.len();
        read.found.retain(|entry| rights.sees_key(&entry.key));
        let filtered = read.found.len() < all;
        let answer = if params.has("keys") {
            keys(key, &read.found, params)?
        } else if read.found.is_empty() {
            StatusCode::NOT_FOUND.into_response()
        } else {
            let shown: Vec<Shown> = read.found.iter().map(|entry| Shown::whole(entry)).collect();
            json(params, &shown)?
        };
        return Ok(with_index(dialect, read.index, filtered, answer));
    }
    need(key)?;
    rights.read_key(key)?;
    app.admit(Kind::Read)?;
    let read = app.shared.read(wait, |store| store.key(key)).await;
    let answer = match read.found {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(entry) if params.has("raw") => raw(dialect, &entry),
        Some(entry) => json(params, &[Shown::whole(&entry)])?,
    };
    Ok(with_index(dialect, read.index, false, answer))
}

/// The keys below `prefix`, each cut off after the first separator that follows the prefix.
fn keys(prefix: &str, entries: &[Arc<Entry>], params: &Params) -> Answer {
    if entries.is_empty() && !prefix.is_empty() {
        return Ok(StatusCode::NOT_FOUND.into_response());
    }
    let separator = params.get("separator").unwrap_or_default();
    let cut = |key: &str| {
        let rest = key.get(prefix.len()..).unwrap_or_default();
        let end = rest.find(separator).filter(|_| !separator.is_empty());
        end.map_or(key.len(), |end| prefix.len() + end + separator.len())
    };
    let names: BTreeSet<&str> = entries.iter().filter_map(|entry| entry.key.get(..cut(&entry.key))).collect();
    json(params, &names)
}

/// The raw value. The headers keep a browser from running it as a script.
fn raw(dialect: Dialect, entry: &Entry) -> axum::response::Response {
    let headers = [
        (CONTENT_TYPE, dialect.raw_type()),
        (CONTENT_SECURITY_POLICY, "sandbox"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, entry.value.clone()).into_response()
}

fn need(key: &str) -> Result<(), Refusal> {
    if key.is_empty() { Err(Refusal::bad("Missing key name")) } else { Ok(()) }
}

fn at_most_one(dialect: Dialect, params: &Params, names: &[&str]) -> Result<(), Refusal> {
    let given = |name: &&str| params.get(name).map(|value| format!("{name}={value}"));
    let given: Vec<String> = names.iter().filter_map(given).collect();
    if given.len() > 1 {
        return Err(Refusal::bad(dialect.conflicting(&given.join("&"))));
    }
    Ok(())
}
