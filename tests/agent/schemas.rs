//! What is really output, against the JSON Schemas in `docs/schemas`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use slotkeeper_consul::Put;

use crate::consul::Consul;
use crate::control::Desk;
use crate::http::request;
use crate::inspect::operate;
use crate::operator::Operator;
use crate::process::Lodger;
use crate::wait_for;

const PREFIX: &str = "service/s";

const CONFIG: &str = "session: {ttl: 10s}\n\
                      semaphores:\n\
                      - {name: s, prefix: service/s, limit: 2, prune_delay: 10m}\n\
                      - {name: lent, prefix: service/lent, limit: 1, mode: on_demand}\n\
                      locks: [{name: l, key: service/l}]\n\
                      control: {listen: '127.0.0.1:0', token_file: '$HOME/control.token'}\n";

/// Whether an output is valid, and has no field that its schema does not name. The keys of a map are named by users.
const CHECK: &str = r#"
import json, sys
from jsonschema_rs import Draft202012Validator

def names(schema):
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for part in schema.values():
            yield from names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from names(part)

def fields(value):
    if isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from fields(part)
    elif isinstance(value, list):
        for part in value:
            yield from fields(part)

for name, schema, value in json.load(sys.stdin):
    for error in Draft202012Validator(schema, validate_formats=True).iter_errors(value):
        print(f"{name}: {error}")
    for field in set(fields(value)) - set(names(schema)) - {"s", "l"}:
        print(f"{name}: {field} is not in the schema")
"#;

fn schema(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas").join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The faults of outputs, each with the name of its schema.
fn faults(outputs: &[(&str, Value)]) -> String {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/schemathesis/bin/python");
    assert!(python.is_file(), "no {}: run scripts/schemathesis, which gets it", python.display());
    let given: Vec<_> = outputs.iter().map(|(name, value)| json!([name, schema(name), value])).collect();
    let mut command = Command::new(python);
    command.args(["-c", CHECK]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(json!(given).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn every_output_fits_its_schema() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let command = |arguments: &[&str]| {
        let (code, said, errors) = operate(&address, arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {errors}");
        parsed(&said)
    };
    let foreign = operator.create_session();
    operator.put(&format!("{PREFIX}/{foreign}"), "backup.sh", Put::Acquire(&foreign), 0);
    let record = json!({"Limit": 2, "Holders": [foreign]}).to_string();
    operator.put(&format!("{PREFIX}/.lock"), &record, Put::Cas(0), 0);
    let desk = Desk::open_with(&address, CONFIG);
    let waiter = Lodger::start(
        &address,
        "semaphores: [{name: s, prefix: service/s, limit: 2}]\nlocks: [{name: l, key: service/l, required: false}]",
    );
    waiter.await_state("waiting");
    let lease = desk.lease("semaphores/lent");
    let agent = &desk.agent;
    let of = |agent: &str, path: &str| parsed(&request(agent, &format!("GET {path}"), "").body);
    wait_for("the waiter to be seen", || agent.semaphore()["queue_length"] == 1);
    wait_for("the leader to be seen", || of(waiter.address(), "/v1/locks/l")["leader"].is_object());
    let mut outputs = Vec::new();
    for one in [agent.address(), waiter.address()] {
        outputs.push(("status", of(one, "/v1/status")));
        outputs.push(("semaphore", of(one, "/v1/semaphores/s")));
        outputs.push(("lock", of(one, "/v1/locks/l")));
    }
    outputs.push(("semaphore", of(agent.address(), "/v1/semaphores/lent")));
    outputs.push(("readiness", agent.ready_file_says()));
    for prefix in [PREFIX, "service/l"] {
        outputs.push(("inspect", command(&["inspect", prefix, "--json"])));
    }
    let (code, nothing, _) = operate(&address, &["inspect", "service/nothing", "--json"]);
    assert_eq!(code, Some(1));
    outputs.push(("inspect", parsed(&nothing)));
    outputs.push(("list", command(&["list", "--json"])));
    outputs.push(("doctor", command(&["doctor", "--json"])));
    outputs.push(("sessions", command(&["sessions", "--json"])));
    outputs.push(("sessions", command(&["sessions", PREFIX, "--json"])));
    outputs.push(("results", command(&["set-limit", PREFIX, "3", "--json"])));
    waiter.await_state("held");
    operator.destroy(&foreign);
    outputs.push(("inspect", command(&["inspect", PREFIX, "--json"])));
    outputs.push(("results", command(&["prune", PREFIX, "--yes", "--json"])));
    outputs
        .push(("results", command(&["evict", PREFIX, &waiter.session(), "--yes", "--json", "--wait", "0s"])));
    let lent = lease["session"].as_str().unwrap();
    outputs.push(("results", command(&["evict", "service/lent", lent, "--yes", "--json", "--force"])));
    let reply = desk.ask(&format!("DELETE /v1/leases/{}", lease["lease"].as_str().unwrap()), "");
    assert_eq!(reply.status, 204, "{}", reply.body);
    outputs.push(("results", command(&["destroy", "service/lent", "--yes", "--json"])));
    outputs.push(("reload", parsed(&desk.ask("POST /v1/reload", "").body)));
    outputs.extend(crate::events::changes_of(agent).into_iter().map(|change| ("event", change)));
    outputs.push(("status", of(agent.address(), "/v1/status")));
    let names: std::collections::BTreeSet<_> = outputs.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), 11, "{names:?}");
    assert_eq!(faults(&outputs), "");
}

#[test]
fn what_does_not_fit_is_a_fault() {
    let good = json!({"at": "2026-01-02T03:04:05Z", "event": "ready"});
    assert_eq!(faults(&[("event", good.clone())]), "");
    for (field, value) in [("at", json!("soon")), ("event", json!("trouble")), ("what", json!("ready"))] {
        let mut bad = good.clone();
        bad[field] = value;
        assert_ne!(faults(&[("event", bad)]), "", "{field}");
    }
}
