//! The JSON Schema is written by hand. These tests hold its keys, types and bounds against what the reader accepts.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::samples::sample;
use slotkeeper::internals::config::{self, Environment, Overrides};

const DURATION: &str = "([0-9]+(ms|s|m|h|d))+";

/// A schema, with the path of the values that it is about: keys, and `0` for the first element of a list.
type Visited<'s> = (Vec<&'s str>, &'s Value);

fn schema() -> Value {
    serde_json::from_str(&sample("slotkeeper.schema.json")).unwrap()
}

/// All parts of the schema, the whole first.
fn visited<'s>(path: Vec<&'s str>, schema: &'s Value, all: &mut Vec<Visited<'s>>) {
    all.push((path.clone(), schema));
    if schema["items"]["properties"].is_object() {
        visited([path.as_slice(), &["0"]].concat(), &schema["items"], all);
    }
    for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
        visited([path.as_slice(), &[key.as_str()]].concat(), schema, all);
    }
}

/// Fields and messages of the faults of a configuration that is valid but for `value` at `path`.
fn faults(path: &[&str], value: Value) -> Vec<(String, String)> {
    let mut document = json!({
        "consul": {"tls": {"cert_file": "/c", "key_file": "/k"}},
        "control": {"listen": "unix:/c"},
        "semaphores": [{"name": "base", "prefix": "base", "limit": 5000}],
    });
    let place = path.iter().fold(&mut document, |place, step| match step.parse::<usize>() {
        Ok(index) => {
            if place.is_null() {
                *place = json!([null]);
            }
            &mut place[index]
        }
        Err(_) => &mut place[*step],
    });
    *place = value;
    let read = config::parse("f", &document.to_string(), &Overrides::default(), &Environment::default());
    let faults = read.err().into_iter().flat_map(|faults| faults.list);
    faults.map(|fault| (fault.field.to_string(), fault.message)).collect()
}

fn shown(path: &[&str]) -> String {
    path.join(".").replace(".0", "[0]")
}

/// Whether `value` at `path` has a fault, or a value in it.
fn is_refused(path: &[&str], value: &Value) -> bool {
    let field = shown(path);
    let covers = |fault: &str| {
        fault.strip_prefix(&field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    faults(path, value.clone()).iter().any(|(fault, _)| covers(fault))
}

#[test]
fn the_schema_has_the_keys_of_the_reader() {
    const UNKNOWN: &str = "zzzzzzzzzzzz";
    let schema = schema();
    let mut all = Vec::new();
    visited(Vec::new(), &schema, &mut all);
    let mut mappings = 0;
    for (path, schema) in all.iter().filter(|(_, schema)| schema["properties"].is_object()) {
        mappings += 1;
        assert_eq!(schema["additionalProperties"], false, "{path:?}");
        let unknown = [path.as_slice(), &[UNKNOWN]].concat();
        let faults = faults(&unknown, json!(1));
        let (_, message) = faults.iter().find(|(field, _)| *field == shown(&unknown)).unwrap();
        let known = message.strip_prefix("unknown key; remove it, or write one of: ").unwrap();
        let known: BTreeSet<_> = known.split(", ").collect();
        let stated: BTreeSet<_> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(stated, known, "{}", shown(path));
    }
    assert!(mappings > 14, "{mappings}");
}

#[test]
fn the_schema_requires_what_the_reader_needs() {
    let schema = schema();
    let mut all = Vec::new();
    visited(Vec::new(), &schema, &mut all);
    for (path, schema) in all.iter().skip(1).filter(|(_, schema)| schema["properties"].is_object()) {
        let below = format!("{}.", shown(path));
        let missing = faults(path, json!({})).into_iter().filter_map(|(field, message)| {
            let field = field.strip_prefix(&below)?.to_owned();
            message.starts_with("missing; ").then_some(field)
        });
        let required = schema["required"].as_array().into_iter().flatten().map(|key| key.as_str().unwrap());
        // A variable may set these instead.
        let by_variable = match below.as_str() {
            "control." => Some("listen"),
            "workload." => Some("volume"),
            _ => None,
        };
        let required: BTreeSet<_> = required.chain(by_variable).map(str::to_owned).collect();
        assert_eq!(required, missing.collect(), "{below}");
    }
}

#[test]
fn the_schema_states_the_types_and_bounds_of_the_reader() {
    let schema = schema();
    let mut all = Vec::new();
    visited(Vec::new(), &schema, &mut all);
    let mut tried = 0;
    for (path, schema) in all.iter().skip(1) {
        let (right, wrong) = values(path, schema);
        for value in &right {
            assert!(!is_refused(path, value), "{} is refused: {value}", shown(path));
        }
        for value in &wrong {
            assert!(is_refused(path, value), "{} is accepted: {value}", shown(path));
        }
        assert!(!wrong.is_empty(), "{}", shown(path));
        if let Some(choices) = schema["oneOf"].as_array() {
            let choices: Vec<_> =
                choices.iter().map(|choice| format!("`{}`", choice["const"].as_str().unwrap())).collect();
            let expected = format!("unknown value `zzz`, expected {}", choices.join(" or "));
            assert!(faults(path, json!("zzz")).iter().any(|(_, message)| *message == expected), "{expected}");
        }
        tried += right.len() + wrong.len();
    }
    assert!(tried > 300, "{tried}");
}

/// Values that a part of the schema accepts, and values that it refuses.
fn values(path: &[&str], schema: &Value) -> (Vec<Value>, Vec<Value>) {
    let texts = |texts: &[&str]| texts.iter().map(|text| json!(text)).collect::<Vec<_>>();
    let long = |length: u64| json!("x".repeat(length.try_into().unwrap()));
    let key = path.last().copied().unwrap_or_default();
    if let Some(choices) = schema["oneOf"].as_array() {
        let right = choices.iter().map(|choice| choice["const"].clone()).collect();
        return (right, vec![json!("zzz"), json!(5), json!([]), json!({})]);
    }
    let (mut right, mut wrong): (Vec<_>, Vec<_>) = match schema["type"].as_str() {
        Some("boolean") => (vec![json!(true), json!(false)], vec![json!("yes"), json!(5)]),
        Some("integer") => {
            let bound = |name: &str| schema[name].as_i64().unwrap();
            let (min, max) = (bound("minimum"), bound("maximum"));
            (vec![json!(min), json!(max)], vec![json!(min - 1), json!(max + 1), json!(1.5), json!("many")])
        }
        Some("string") => match schema["pattern"].as_str() {
            Some(pattern) if pattern.contains(DURATION) => {
                let mut values = durations(schema["description"].as_str().unwrap());
                let forever = if pattern.contains("forever") { &mut values.0 } else { &mut values.1 };
                forever.push(json!("forever"));
                values
            }
            Some(pattern) => {
                assert_eq!(pattern, "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$");
                let wrong = [texts(&["", "-a", "a/b", "ä"]), vec![long(64)]].concat();
                ([texts(&["a", "A.b_c-9"]), vec![long(63)]].concat(), wrong)
            }
            None => (Vec::new(), vec![json!(5)]),
        },
        Some("array") => {
            let entry = |n: u64| json!({"name": format!("n{n}"), "prefix": format!("p/{n}"), "limit": 1});
            let lock = |n: u64| json!({"name": format!("n{n}"), "key": format!("k/{n}")});
            let element = |n: u64| match key {
                "semaphores" => entry(n),
                "locks" => lock(n),
                _ => json!("x"),
            };
            let list = |length: u64| (0..length).map(element).collect::<Value>();
            let max = schema["maxItems"].as_u64();
            let right = max.map_or_else(|| vec![list(1)], |max| vec![list(1), list(max)]);
            let wrong = [json!("x"), json!([5])].into_iter().chain(max.map(|max| list(max + 1)));
            let wrong = wrong.chain((schema["minItems"] == 1).then(|| json!([])));
            (right, wrong.collect())
        }
        Some("object") => match schema["additionalProperties"]["type"].as_str() {
            Some(_) => (vec![json!({"a": "b"})], vec![json!({"a": 5}), json!("x")]),
            None => (Vec::new(), vec![json!("x"), json!(5), json!([])]),
        },
        _ => {
            assert_eq!((key, &schema["type"]), ("address", &json!(["string", "array"])));
            let list = |length: u64| (0..length).map(|n| json!(format!("a:{}", n + 1))).collect::<Value>();
            let max = schema["maxItems"].as_u64().unwrap();
            (vec![json!("a:1,b:2"), list(1), list(max)], vec![list(0), list(max + 1), json!(5), json!([5])])
        }
    };
    right.extend(schema.get("default").cloned());
    if let Some(max) = schema["maxLength"].as_u64() {
        right.push(long(max));
        wrong.push(long(max + 1));
    }
    if schema["minLength"] == 1 {
        wrong.push(json!(""));
    }
    if schema["type"] == "string" && right.is_empty() {
        right.push(if key == "listen" { json!("unix:/x") } else { json!("/x") });
    }
    if schema["type"] != "object" {
        wrong.push(json!({}));
    }
    (right, wrong)
}

/// Values of a key for a duration, whose bounds are in its description: `10s to 24h.` or `at most 24h`.
fn durations(description: &str) -> (Vec<Value>, Vec<Value>) {
    let (mut right, mut wrong) = (vec![json!("10s")], vec![json!("soon"), json!("10"), json!(10), json!("")]);
    let bounds = description.split_once(". ").and_then(|(first, _)| first.split_once(" to "));
    let seconds = bounds.and_then(|(min, _)| min.strip_suffix('s')?.parse::<u64>().ok());
    if let Some(((min, max), seconds)) = bounds.zip(seconds) {
        right.extend([json!(min), json!(max)]);
        wrong.push(json!(format!("{max}1ms")));
        wrong.extend(seconds.checked_sub(1).map(|below| json!(format!("{below}s999ms"))));
    } else if description.contains("at most 24h") {
        right.push(json!("24h"));
        wrong.push(json!("24h1ms"));
    }
    if description.contains("more than 0s") {
        wrong.push(json!("0s"));
    }
    (right, wrong)
}
