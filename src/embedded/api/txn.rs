//! `/v1/txn`: a list of operations, applied together or not at all.

use axum::body::Body;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::{HeaderMap, Method, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::App;
use super::answer::{Answer, Refusal, json_with, only, with_leader};
use super::json::{Fields, first, kind};
use super::kv::Shown;
use super::params::{self, Params};
use crate::embedded::store::kv::Write;
use crate::embedded::store::txn::{Faults, Found, Op};

/// Consul's bound up to 1.13.
const MAX_OPS: usize = 64;

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

/// What the answer to a transaction of reads has besides.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ReadMeta {
    index: u64,
    last_contact: u64,
    known_leader: bool,
    consistency_level: &'static str,
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
    let body = params::body(&headers, body, "txn_max_req_len").await?;
    let ops = parse(&body)?;
    let reads = !ops.iter().any(Op::writes);
    // Reads take the parameters of reads, though a transaction never waits.
    if reads {
        params.wait()?;
    } else {
        params.here()?;
    }
    let outcome = app.shared.with(|store, now| store.txn(ops, now));
    let answer = answer(&params, outcome, reads)?;
    Ok(if reads { with_leader(answer) } else { answer })
}

fn answer(params: &Params, outcome: Result<Vec<Found>, Faults>, reads: bool) -> Answer {
    let read =
        reads.then_some(ReadMeta { index: 0, last_contact: 0, known_leader: true, consistency_level: "" });
    match outcome {
        Ok(found) => {
            let show = |found: Found| Applied {
                kv: if found.with_value { Shown::whole(&found.entry) } else { Shown::bare(&found.entry) },
            };
            let results = Some(found.into_iter().map(show).collect());
            json_with(StatusCode::OK, params, &Outcome { results, errors: None, read })
        }
        Err(faults) => {
            let tell = |(op_index, error): (usize, _)| Fault { op_index, what: ToString::to_string(&error) };
            let errors = Some(faults.into_iter().map(tell).collect());
            json_with(StatusCode::CONFLICT, params, &Outcome { results: None, errors, read })
        }
    }
}

fn parse(body: &[u8]) -> Result<Vec<Op>, Refusal> {
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
    if items.len() > MAX_OPS {
        let text = format!("Transaction contains too many operations ({} > {MAX_OPS})", items.len());
        return Err(Refusal::Told(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    // An operation that is not about a key is none: services and nodes are beyond this server.
    let kv = |item: &Value| {
        let fields = Fields::new(item.as_object()?, "TxnOp");
        fields.get("KV")?.as_object().map(|object| op(&Fields::new(object, "KVTxnOp.KV")))
    };
    items.iter().filter_map(kv).collect::<Result<_, _>>().map_err(unread)
}

fn op(fields: &Fields<'_>) -> Result<Op, String> {
    let owned = |name| fields.text(name).map(|text| text.unwrap_or_default().to_owned());
    let (verb, key, session) = (owned("Verb")?, owned("Key")?, owned("Session")?);
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
        _ => Op::Unknown(verb),
    })
}

/// Go tells the place of the first byte that is no base64.
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
