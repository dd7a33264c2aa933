//! The sample files are valid, the binary prints the stored schema, and the full sample shows every key.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{slotkeeper, stderr, stdout};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config")
}

pub fn sample(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// The full sample with every commented-out key set.
fn uncommented() -> String {
    let set = |line: &str| match line.split_once('#') {
        Some((indent, key))
            if indent.trim().is_empty() && key.starts_with(|c: char| c == '-' || c.is_alphabetic()) =>
        {
            format!("{indent}{key}\n")
        }
        _ => format!("{line}\n"),
    };
    sample("full.yaml").lines().map(set).collect()
}

#[test]
fn every_sample_is_valid_without_a_warning() {
    let mut checked = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let output = slotkeeper(&["check", path.to_str().unwrap()], "");
            assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{}", path.display());
            assert!(stdout(&output).contains(": ok (1 semaphore; tolerates "));
            checked += 1;
        }
    }
    assert!(checked >= 2);
}

#[test]
fn the_schema_in_the_repository_is_printed() {
    let output = slotkeeper(&["schema"], "");
    assert!(stdout(&output) == sample("slotkeeper.schema.json"));
}

#[test]
fn the_full_sample_shows_every_key() {
    let schema: Value = serde_json::from_str(&sample("slotkeeper.schema.json")).unwrap();
    let shown: Value = serde_yaml::from_str(&uncommented()).unwrap();
    let (mut known, mut present) = (BTreeSet::new(), BTreeSet::new());
    known_keys(&schema, "", &mut known);
    present_keys(&shown, "", &mut present);
    assert!(known.len() > 50, "{known:?}");
    assert_eq!(known, present);
}

fn known_keys(schema: &Value, at: &str, keys: &mut BTreeSet<String>) {
    if let Some(items) = schema.get("items") {
        known_keys(items, at, keys);
    }
    for (key, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let at = format!("{at}.{key}");
        known_keys(schema, &at, keys);
        keys.insert(at);
    }
}

fn present_keys(value: &Value, at: &str, keys: &mut BTreeSet<String>) {
    for element in value.as_array().into_iter().flatten() {
        present_keys(element, at, keys);
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{key}");
        present_keys(value, &at, keys);
        keys.insert(at);
    }
}

#[test]
fn the_commented_out_keys_of_the_full_sample_are_valid() {
    let output = slotkeeper(&["check", "-"], &uncommented());
    let faults = stderr(&output);
    // A token, a token file and a login exclude each other. There is no other fault.
    assert_eq!(faults.lines().count(), 1, "{faults}");
    assert!(faults.contains("more than one of `token`, `token_file` and `login`"), "{faults}");
}

/// A file with all defaults of the schema equals one without them.
#[test]
fn the_defaults_in_the_schema_are_those_of_the_code() {
    use slotkeeper::internals::config::{self, Environment, Overrides};

    let schema: Value = serde_json::from_str(&sample("slotkeeper.schema.json")).unwrap();
    let least = "semaphores: [{name: a, prefix: b, limit: 1}]";
    let mut full: Value = serde_yaml::from_str(least).unwrap();
    let given = give_defaults(&schema, &mut full);
    assert!(given > 15, "{given}");
    let parse = |text: &str| {
        config::parse("test", text, &Overrides::default(), &Environment::default()).unwrap().config
    };
    assert_eq!(parse(&full.to_string()), parse(least));
}

fn give_defaults(schema: &Value, value: &mut Value) -> usize {
    let mut given = 0;
    for element in value.as_array_mut().into_iter().flatten() {
        given += give_defaults(&schema["items"], element);
    }
    for (key, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        // An empty section of these has an effect.
        if matches!(key.as_str(), "login" | "control" | "workload") {
            continue;
        }
        if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
            value[key] = default.clone();
            given += 1;
        } else if schema.get("properties").is_some() {
            if value.get(key).is_none() {
                value[key] = serde_json::json!({});
            }
            given += give_defaults(schema, &mut value[key]);
        } else if value.get(key).is_some() {
            given += give_defaults(schema, &mut value[key]);
        }
    }
    given
}
