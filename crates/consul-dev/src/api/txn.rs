//! `/v1/txn`: a list of operations, all of which are applied, or none.

use axum::body::Body;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::{HeaderMap, Method, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::App;
use super::answer::{Answer, Refusal, json, json_with, only, with_leader};
use super::json::{Fields, first, kind};
use super::kv::Shown;
use super::params::{self, Params};
use crate::Dialect;
use crate::dialect::{Kind, ReadMeta};
use crate::store::kv::Write;
use crate::store::txn::{Found, Op};

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Outcome {
    results: Option<Vec<Applied>>,
    errors: Option<Vec<Fault>>,
    #[serde(flatten)]
    read: Option<ReadMeta>,
}

#[derive(Debug, Serialize)]
struct Applied {
    #[serde(rename = "KV")]
    kv: Shown,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Fault {
    op_index: usize,
    what: String,
}

/// `/v1/txn`.
pub(crate) async fn txn(
    State(app): State<App>,
    params: Params,
    method: Method,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    only(&method, &[Method::PUT])?;
    let bound = ("txn_max_req_len", app.options.max_txn());
    let body = params::body(&app, &headers, body, bound).await?;
    let ops = parse(&app, &body)?;
    let reads = !ops.iter().any(Op::writes);
    // Reads take the parameters of reads, though a transaction never waits.
    if reads {
        params.wait(app.dialect())?;
    } else {
        params.here(app.dialect())?;
    }
    app.admit(if reads { Kind::Read } else { Kind::Write })?;
    let rights = app.rights(&params);
    let refused = |(at, op)| rights.refuses(op).map(|what| Fault { op_index: at, what });
    let denied: Vec<Fault> = ops.iter().enumerate().filter_map(refused).collect();
    if !denied.is_empty() {
        return refusal(app.dialect(), &params, denied, true, reads);
    }
    match app.shared.with(|store, now| store.txn(ops, now)) {
        Ok(found) => answer(&app, &params, found, reads),
        Err(faults) => {
            let at_once = faults.iter().any(|(_, error)| error.is_found_at_once());
            let tell = |(op_index, error)| Fault { op_index, what: app.dialect().op_refused(&error) };
            refusal(app.dialect(), &params, faults.into_iter().map(tell).collect(), at_once, reads)
        }
    }
}

/// The answer to a committed transaction, without the keys that the token may not read.
fn answer(app: &App, params: &Params, mut found: Vec<Found>, reads: bool) -> Answer {
    let (all, rights) = (found.len(), app.rights(params));
    found.retain(|found| rights.sees_key(&found.entry.key));
    let read = reads.then(|| app.dialect().read_meta(false, found.len() < all));
    let show = |found: Found| Applied {
        kv: if found.with_value { Shown::whole(&found.entry) } else { Shown::bare(&found.entry) },
    };
    let results = Some(found.into_iter().map(show).collect());
    let answer = json(params, &Outcome { results, errors: None, read })?;
    Ok(if reads { with_leader(true, answer) } else { answer })
}

/// The answer to a transaction that was not applied. `at_once`: no operation was checked yet.
fn refusal(dialect: Dialect, params: &Params, faults: Vec<Fault>, at_once: bool, reads: bool) -> Answer {
    let read = reads.then(|| dialect.read_meta(at_once, false));
    let known = read.as_ref().map(|read| read.known_leader);
    let outcome = Outcome { results: None, errors: Some(faults), read };
    let answer = json_with(StatusCode::CONFLICT, dialect.refused_txn_type(), params, &outcome)?;
    Ok(match known {
        Some(known) => with_leader(known, answer),
        None => answer,
    })
}

fn parse(app: &App, body: &[u8]) -> Result<Vec<Op>, Refusal> {
    let max = app.dialect().max_txn_ops();
    let unread = |fault: String| Refusal::bad(format!("Failed to parse body: {fault}"));
    let value = first(body).map_err(unread)?;
    let items = match &value {
        Value::Array(items) => items.as_slice(),
        Value::Null => &[],
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            let fault = format!("json: cannot unmarshal {} into Go value of type api.TxnOps", kind(&value));
            return Err(unread(fault));
        }
    };
    if items.len() > max {
        let text = format!("Transaction contains too many operations ({} > {max})", items.len());
        return Err(Refusal::Status(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    // Operations on services and nodes are ignored: this server has none.
    let kv = |item: &Value| {
        let fields = Fields::new(item.as_object()?, "TxnOp");
        fields.get("KV")?.as_object().map(|object| op(app.dialect(), &Fields::new(object, "KVTxnOp.KV")))
    };
    let ops: Vec<Op> = items.iter().filter_map(kv).collect::<Result<_, _>>().map_err(unread)?;
    let largest = app.options.max_value;
    match ops.iter().filter_map(Op::written).find(|write| write.value.len() > largest) {
        Some(Write { key, value, .. }) => {
            let text = format!("Value for key {key:?} is too large ({} > {largest} bytes)", value.len());
            Err(Refusal::Status(StatusCode::PAYLOAD_TOO_LARGE, text))
        }
        None => Ok(ops),
    }
}

fn op(dialect: Dialect, fields: &Fields<'_>) -> Result<Op, String> {
    let [verb, key, session] = ["Verb", "Key", "Session"].map(|name| fields.text_or_empty(name));
    let (verb, key, session) = (verb?, key?, session?);
    let (flags, index) = (fields.number("Flags")?, fields.number("Index")?);
    let value = match fields.text("Value")? {
        Some(text) => STANDARD.decode(text).map(Bytes::from).map_err(|error| illegal(&error))?,
        None => Bytes::new(),
    };
    let write = Write { key: key.clone(), value, flags };
    Ok(match verb.as_str() {
        "set" => Op::Set(write),
        "cas" => Op::Cas(write, index),
        "lock" => Op::Lock(write, session),
        "unlock" => Op::Unlock(write, session),
        "get" => Op::Get(key),
        "get-tree" => Op::GetTree(key),
        "delete" => Op::Delete(key),
        "delete-cas" => Op::DeleteCas(key, index),
        "delete-tree" => Op::DeleteTree(key),
        "check-session" => Op::CheckSession(key, session),
        "check-index" => Op::CheckIndex(key, index),
        "check-not-exists" => Op::CheckNotExists(key),
        _ => dialect.unknown_verb(verb),
    })
}

/// Go's message: it has the offset of the first byte that is not base64.
fn illegal(error: &base64::DecodeError) -> String {
    match error {
        base64::DecodeError::InvalidByte(at, _)
        | base64::DecodeError::InvalidLastSymbol { offset: at, .. } => {
            format!("illegal base64 data at input byte {at}")
        }
        base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => {
            format!("illegal base64 data: {error}")
        }
    }
}
