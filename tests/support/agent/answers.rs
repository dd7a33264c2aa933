//! Every answer of an agent that a suite sees, against the OpenAPI documents; and other JSON against its schema.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use serde_json::Value;

use super::Reply;

static DOCUMENTS: LazyLock<Schemas> = LazyLock::new(|| {
    let texts =
        [include_str!("../../../src/http/openapi.json"), include_str!("../../../src/control/openapi.json")];
    Schemas(texts.map(|text| serde_json::from_str(text).unwrap()).into())
});

/// JSON documents with schemas, which refer to each other.
#[derive(Debug)]
pub(crate) struct Schemas(pub(crate) Vec<Value>);

/// What was found in values.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) faults: Vec<String>,
    /// The schemas of the fields that occurred.
    pub(crate) seen: HashSet<*const Value>,
}

/// Panics if this is an agent's answer that its documents do not describe.
pub(super) fn check(line: &str, reply: &Reply) {
    let marks = [reply.header("x-content-type-options"), reply.header("cache-control")];
    // Consul and proxies do not mark their answers like this.
    if marks == [Some("nosniff"), Some("no-store")] {
        let mut found = Found::default();
        DOCUMENTS.check_answer(line, reply, &mut found);
        assert!(found.faults.is_empty(), "{line}: {:?}, and not as documented: {}", found.faults, reply.body);
    }
}

impl Schemas {
    fn check_answer(&self, line: &str, reply: &Reply, found: &mut Found) {
        let (method, target) = line.split_once(' ').unwrap();
        let path = target.split('?').next().unwrap_or_default();
        // The document describes itself only in outline.
        if method == "HEAD" || (path == "/v1/openapi.json" && reply.status == 200) {
            return;
        }
        let mut paths = self.0.iter().filter_map(|document| document["paths"].as_object()).flatten();
        let item = paths.find(|(template, _)| fits(template, path)).map_or(&Value::Null, |(_, item)| item);
        let answer = &item[method.to_ascii_lowercase()]["responses"][reply.status.to_string()];
        let error = serde_json::json!({"$ref": "#/components/schemas/Error"});
        let kind = reply.header("content-type").and_then(|kind| kind.split(';').next()).unwrap_or_default();
        let schema = match answer.get("content") {
            Some(content) => &content[kind]["schema"],
            None if answer.is_null() && reply.status >= 400 => &error,
            None if answer.is_object() && reply.body.is_empty() => return,
            None => &Value::Null,
        };
        if schema.is_null() {
            found.faults.push(format!("{} with {kind:?} is not in the document", reply.status));
        } else if kind == "application/json" {
            match serde_json::from_str(&reply.body) {
                Ok(value) => self.check(schema, &value, "", found),
                Err(error) => found.faults.push(format!("no JSON: {error}")),
            }
        }
    }

    /// Whether a value is valid, and has no field that its schema does not name.
    pub(crate) fn check(&self, schema: &Value, value: &Value, at: &str, found: &mut Found) {
        self.check_part(schema, value, at, found);
        let fields = self.fields(schema);
        let schema = self.resolve(schema);
        if fields.is_empty() || schema.get("additionalProperties").is_some() {
            return;
        }
        for name in value.as_object().into_iter().flat_map(|object| object.keys()) {
            if !fields.contains_key(name.as_str()) {
                found.faults.push(format!("{at}/{name} is not in the schema"));
            }
        }
    }

    fn check_part(&self, schema: &Value, value: &Value, at: &str, found: &mut Found) {
        let schema = self.resolve(schema);
        for (keyword, rule) in schema.as_object().unwrap() {
            let valid = match keyword.as_str() {
                "type" => list(rule).iter().any(|kind| is(kind.as_str().unwrap(), value)),
                "enum" => list(rule).contains(value),
                "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
                "minItems" => {
                    value.as_array().is_none_or(|items| items.len() as u64 >= rule.as_u64().unwrap())
                }
                "format" if rule == "date-time" => {
                    value.as_str().is_none_or(|text| humantime::parse_rfc3339(text).is_ok())
                }
                "required" => {
                    let missing = |name: &&Value| value.get(name.as_str().unwrap()).is_none();
                    !value.is_object() || !list(rule).iter().any(|name| missing(&name))
                }
                "properties" => {
                    for (name, schema) in rule.as_object().unwrap() {
                        if let Some(field) = value.get(name) {
                            found.seen.insert(schema);
                            self.check(schema, field, &format!("{at}/{name}"), found);
                        }
                    }
                    true
                }
                "additionalProperties" | "items" => {
                    let fields = value.as_object().into_iter().flat_map(|fields| fields.values());
                    for part in value.as_array().into_iter().flatten().chain(fields) {
                        self.check(rule, part, &format!("{at}/*"), found);
                    }
                    true
                }
                "allOf" => {
                    list(rule).iter().for_each(|part| self.check_part(part, value, at, found));
                    true
                }
                "oneOf" | "anyOf" => list(rule).iter().any(|option| {
                    let mut one = Found::default();
                    self.check(option, value, at, &mut one);
                    let fits = one.faults.is_empty();
                    if fits {
                        found.seen.extend(one.seen);
                    }
                    fits
                }),
                // Of ids, which schemathesis checks, and what says nothing of the value.
                "pattern" | "format" | "propertyNames" | "description" | "title" | "deprecated"
                | "$schema" | "$defs" => true,
                other => panic!("the keyword {other} of a schema is new here"),
            };
            if !valid {
                found.faults.push(format!("{at} is {value}, against {keyword}: {rule}"));
            }
        }
    }

    /// The fields that a schema names, also by its parts.
    fn fields<'a>(&'a self, schema: &'a Value) -> BTreeMap<&'a str, &'a Value> {
        let schema = self.resolve(schema);
        let parts = schema["allOf"].as_array().into_iter().flatten();
        let mut fields: BTreeMap<_, _> = parts.flat_map(|part| self.fields(part)).collect();
        let own = schema["properties"].as_object().into_iter().flatten();
        fields.extend(own.map(|(name, schema)| (name.as_str(), schema)));
        fields
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let Some(target) = schema["$ref"].as_str() else { return schema };
        let found = self.0.iter().find_map(|document| document.pointer(target.trim_start_matches('#')));
        self.resolve(found.unwrap_or_else(|| panic!("{target} leads nowhere")))
    }
}

fn fits(template: &str, path: &str) -> bool {
    let (parts, given) = (template.split('/'), path.split('/'));
    parts.clone().count() == given.clone().count()
        && parts.zip(given).all(|(part, given)| part == given || (part.starts_with('{') && !given.is_empty()))
}

fn list(rule: &Value) -> &[Value] {
    rule.as_array().map_or(std::slice::from_ref(rule), Vec::as_slice)
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the type {other} of a schema is new here"),
    }
}
