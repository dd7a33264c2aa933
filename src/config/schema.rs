//! The JSON Schema of the configuration file.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::path::{FieldPath, Step};
use super::sections::RawConfig;

/// The JSON Schema (draft 2020-12) as text that ends in one line feed.
pub fn text() -> String {
    let mut text = format!("{:#}", schema());
    text.push('\n');
    text
}

/// The keys that `schema` allows in the mapping `at`; none if it is no mapping.
pub(super) fn keys_at<'s>(schema: &'s Value, at: &FieldPath) -> Vec<&'s str> {
    let found = at.steps().iter().try_fold(schema, |schema, step| match step {
        Step::Key(key) => schema.get("properties")?.get(key),
        Step::Index(_) => schema.get("items"),
    });
    let properties = found.and_then(|schema| schema.get("properties")?.as_object());
    properties.map(|properties| properties.keys().map(String::as_str).collect()).unwrap_or_default()
}

/// The JSON Schema.
pub(super) fn schema() -> Value {
    // Without references, since people read the file too.
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<RawConfig>().to_value();
    simplify(&mut schema);
    schema
}

/// Removes details of Rust's types that mean nothing to users: null for an absent key, and the width of a number.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|one| one != "null");
                if let [one] = types.as_mut_slice() {
                    object["type"] = one.take();
                }
            }
            if let Some(Value::Array(choices)) = object.get_mut("anyOf") {
                choices.retain(|one| one["type"] != "null");
                if let [Value::Object(one)] = choices.as_mut_slice() {
                    let one = std::mem::take(one);
                    object.remove("anyOf");
                    for (key, value) in one {
                        object.entry(key).or_insert(value);
                    }
                }
            }
            object.values_mut().for_each(simplify);
        }
        Value::Array(items) => items.iter_mut().for_each(simplify),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_mapping_are_found() {
        let schema = schema();
        let keys = |at| keys_at(&schema, &at);
        assert!(keys(FieldPath::root()).contains(&"semaphores"));
        assert!(keys(FieldPath::of("semaphores[3]")).contains(&"limit"));
        assert!(keys(FieldPath::of("consul.tls")).contains(&"ca_file"));
        assert!(keys(FieldPath::of("hooks.on_lost")).is_empty());
    }
}
