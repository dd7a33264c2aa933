//! What is really output, against the JSON Schemas in `docs/schemas`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use slotkeeper_semaphore::Identity;

use crate::consul::Consul;
use crate::control::Desk;
use crate::http::answers::{Found, Schemas};
use crate::http::request;
use crate::inspect::operate;
use crate::operator::Operator;
use crate::process::Lodger;
use crate::support::kv::Put;
use crate::wait_for;

const PREFIX: &str = "service/s";

const CONFIG: &str = "session: {ttl: 10s}\n\
                      semaphores:\n\
                      - {name: s, prefix: service/s, limit: 2, prune_delay: 10m}\n\
                      - {name: lent, prefix: service/lent, limit: 1, mode: on_demand}\n\
                      locks: [{name: l, key: service/l}]\n\
                      control: {listen: '127.0.0.1:0', token_file: '$HOME/control.token'}\n";

fn schema(name: &str) -> Schemas {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas").join(format!("{name}.json"));
    Schemas(vec![serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()])
}

/// Fields that take a state in which this test has no agent. Other tests see them.
const RARE: [&str; 7] = [
    "ConsulAddress/reason",
    "EntryStatus/deferred",
    "EntryStatus/reason",
    "Ring/holder",
    "Ring/prefix",
    "Ring/waiter",
    "SignalAnswer/refused",
];

/// The faults of outputs, each with the name of its schema; and the fields, of types in these schemas, that no output has.
fn faults(outputs: &[(&str, Value)]) -> (Vec<String>, Vec<String>) {
    let mut faults = Vec::new();
    let (mut all, mut present) = (BTreeSet::new(), BTreeSet::new());
    let names: BTreeSet<_> = outputs.iter().map(|(name, _)| *name).collect();
    for name in names {
        let schemas = schema(name);
        let mut found = Found::default();
        for (_, value) in outputs.iter().filter(|(of, _)| *of == name) {
            schemas.check(&schemas.0[0], value, name, &mut found);
        }
        fields(&schemas.0[0], name, &mut |field, schema| {
            if found.seen.contains(&std::ptr::from_ref(schema)) {
                present.insert(field.clone());
            }
            all.insert(field);
        });
        faults.append(&mut found.faults);
    }
    (faults, all.difference(&present).cloned().collect())
}

/// Visits all fields that a document names.
fn fields(schema: &Value, at: &str, visit: &mut dyn FnMut(String, &Value)) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        visit(format!("{at}/{name}"), schema);
        fields(schema, &format!("{at}/{name}"), visit);
    }
    for (name, schema) in schema["$defs"].as_object().into_iter().flatten() {
        fields(schema, name, visit);
    }
    for part in ["allOf", "anyOf", "oneOf"] {
        schema[part].as_array().into_iter().flatten().for_each(|schema| fields(schema, at, visit));
    }
    for part in ["items", "additionalProperties"] {
        schema.get(part).into_iter().for_each(|schema| fields(schema, at, visit));
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// An identity with all its fields, of which a process has only some.
fn whole_identity() -> Value {
    let text = || Some("x".to_owned());
    let identity = Identity {
        name: text(),
        command: text(),
        user: text(),
        pod: text(),
        namespace: text(),
        node: text(),
        host: text(),
        pid: Some(1),
    };
    serde_json::to_value(identity).unwrap()
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
    agent.signal(Signal::HUP);
    wait_for("the answer to the signal", || agent.status()["configuration"]["signals"]["answered"] == 1);
    outputs.extend(crate::events::changes_of(agent).into_iter().map(|change| ("event", change)));
    outputs.push(("status", of(agent.address(), "/v1/status")));
    let mut named = outputs[0].1.clone();
    named["agent"]["who"] = whole_identity();
    outputs.push(("status", named));
    let names: BTreeSet<_> = outputs.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), 11, "{names:?}");
    let (faults, absent) = faults(&outputs);
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(absent, RARE);
}

#[test]
fn what_does_not_fit_is_a_fault() {
    let good = json!({"at": "2026-01-02T03:04:05Z", "event": "ready"});
    assert!(faults(&[("event", good.clone())]).0.is_empty());
    for (field, value) in [("at", json!("soon")), ("event", json!("trouble")), ("what", json!("ready"))] {
        let mut bad = good.clone();
        bad[field] = value;
        assert_eq!(faults(&[("event", bad)]).0.len(), 1, "{field}");
    }
}

/// A type is described in the OpenAPI document and in the schemas of all outputs that have it: in the same words.
#[test]
fn every_description_of_a_type_is_the_same() {
    let documents: Vec<Value> =
        [include_str!("../../src/http/openapi.json"), include_str!("../../src/control/openapi.json")]
            .map(|text| serde_json::from_str(&text.replace("#/components/schemas/", "#/$defs/")).unwrap())
            .into();
    let described =
        |name: &str| documents.iter().find_map(|one| one["components"]["schemas"].get(name)).cloned();
    let mut types = BTreeMap::new();
    for (name, whole) in [
        ("status", "Status"),
        ("semaphore", "SemaphoreDocument"),
        ("lock", "LockDocument"),
        ("reload", "Reloaded"),
    ] {
        let mut schema = schema(name).0.remove(0);
        schema
            .as_object_mut()
            .unwrap()
            .retain(|key, _| !matches!(key.as_str(), "$schema" | "$defs" | "title"));
        assert_eq!(Some(schema), described(whole), "{name}");
    }
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas")).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let schema = schema(file.trim_end_matches(".json")).0.remove(0);
        for (name, one) in schema["$defs"].as_object().into_iter().flatten() {
            // The commands' sessions are not the agent's own; and without a prefix, a session has no role.
            if name == "Session" || (file == "sessions.json" && name == "ParticipantRole") {
                continue;
            }
            let other = types.entry(name.clone()).or_insert_with(|| described(name).unwrap_or(one.clone()));
            assert_eq!(one, other, "{name} in {file}");
        }
    }
}

#[test]
fn names_are_the_same_in_every_schema() {
    // The names that something had before there was one vocabulary.
    let former = [
        "lease_remaining_seconds",
        "alive",
        "queue_position",
        "held_since",
        "waiting_seconds",
        "let_in",
        "dropped",
        "swept",
        "taken_out",
        "what",
    ];
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for former in former {
            assert!(!text.contains(&format!("\"{former}\":")), "{former} in {}", path.display());
        }
    }
}
