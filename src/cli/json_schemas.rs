//! The JSON Schemas of all JSON output, in `docs/schemas`: generated from the types that are serialised.

use std::path::Path;

use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{destroy, doctor, evict, inspect, list, prune, sessions, set_limit};
use crate::control::request::Reloaded;
use crate::http::openapi::remove_unknown;
use crate::status::Status;
use crate::status::changes::ChangeReport;
use crate::status::readiness::Readiness;

/// The schema of one type, with all that it refers to under `$defs`.
fn schema<T: ToSchema>(title: &str) -> Value {
    let mut others = Vec::new();
    T::schemas(&mut others);
    let mut defs = json!({});
    for (name, schema) in others {
        defs[name] = serde_json::to_value(schema).unwrap();
    }
    remove_unknown(&mut defs);
    let mut root = serde_json::to_value(T::schema()).unwrap();
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["title"] = title.into();
    if defs.as_object().is_some_and(|defs| !defs.is_empty()) {
        root["$defs"] = defs;
    }
    refer_to_defs(&mut root);
    root
}

fn refer_to_defs(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == "$ref"
                    && let Some(target) = field.as_str()
                {
                    *field = target.replace("#/components/schemas/", "#/$defs/").into();
                } else {
                    refer_to_defs(field);
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(refer_to_defs),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// One of several schemas.
fn one_of(title: &str, variants: &[Value]) -> Value {
    let mut defs = json!({});
    let mut options = Vec::new();
    for variant in variants {
        let mut variant = variant.clone();
        for (name, schema) in variant["$defs"].take().as_object().into_iter().flatten() {
            defs[name] = schema.clone();
        }
        let fields = variant.as_object_mut().unwrap();
        fields.retain(|name, _| !matches!(name.as_str(), "$defs" | "$schema"));
        options.push(variant);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, "anyOf": options, "$defs": defs,
    })
}

fn schemas() -> Vec<(&'static str, Value)> {
    let mut sessions = schema::<sessions::Report<'_>>("slotkeeper sessions --json");
    // Without a prefix, a session has no role.
    sessions["$defs"]["ParticipantRole"].as_object_mut().unwrap().remove("required");
    let results = [
        schema::<evict::Ended>("slotkeeper evict --json"),
        schema::<set_limit::Done>("slotkeeper set-limit --json"),
        schema::<prune::Done>("slotkeeper prune --json"),
        schema::<destroy::Done>("slotkeeper destroy --json"),
    ];
    vec![
        ("status", schema::<Status>("/v1/status")),
        ("semaphore", schema::<crate::http::api::SemaphoreDocument>("/v1/semaphores/{name}")),
        ("lock", schema::<crate::http::api::LockDocument>("/v1/locks/{name}")),
        ("event", schema::<ChangeReport<'_>>("the event `change` of /v1/events")),
        ("readiness", schema::<Readiness<'_>>("the readiness file")),
        ("inspect", schema::<inspect::report::Report>("slotkeeper inspect --json")),
        ("sessions", sessions),
        ("list", schema::<list::Report>("slotkeeper list --json")),
        ("doctor", schema::<doctor::Report>("slotkeeper doctor --json")),
        ("results", one_of("results of operators' commands", &results)),
        ("run-result", schema::<super::run::RunResult>("the file of slotkeeper run --result-file")),
        ("reload", schema::<Reloaded>("POST /v1/reload")),
    ]
}

#[test]
fn the_schemas_in_the_repository_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas");
    for (name, schema) in schemas() {
        let path = folder.join(format!("{name}.json"));
        let text = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
        if std::env::var_os("SLOTKEEPER_WRITE_GENERATED").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, text).unwrap();
            continue;
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            stored == text,
            "{} is out of date; run: SLOTKEEPER_WRITE_GENERATED=1 cargo test --lib schemas",
            path.display()
        );
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
    for (name, schema) in schemas() {
        let text = schema.to_string();
        for former in former {
            assert!(!text.contains(&format!("\"{former}\":")), "{former} in {name}");
        }
    }
}
