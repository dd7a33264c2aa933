//! The OpenAPI document of the control address: `openapi.json` beside this file has its own endpoints, and that of `src/http`
//! those that it shares.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::gate::Gate;
use crate::http::json::line;
use crate::http::openapi::{PATH, READ_ONLY};

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    openapi: Value,
    info: Value,
    paths: BTreeMap<String, BTreeMap<String, Value>>,
    components: BTreeMap<String, BTreeMap<String, Value>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    security: Vec<Value>,
}

/// The document of an address with that gate.
pub(super) fn text(gate: &Gate) -> Vec<u8> {
    // Both always parse, as they are part of the program.
    let parse = |text| serde_json::from_str::<Document>(text).unwrap_or_default();
    let (mut document, shared) = (parse(include_str!("openapi.json")), parse(READ_ONLY));
    // The page is only at the read-only address.
    document.paths.extend(shared.paths.into_iter().filter(|(path, _)| path != "/"));
    for (part, entries) in shared.components {
        document.components.entry(part).or_default().extend(entries);
    }
    if matches!(gate, Gate::Open) {
        document.security.clear();
        document.components.retain(|part, _| part == "schemas");
        return line(&document);
    }
    for (path, item) in &mut document.paths {
        for operation in item.values_mut() {
            if path == PATH {
                operation["security"] = json!([]);
            } else {
                operation["responses"]["401"] = json!({"$ref": "#/components/responses/Unauthorized"});
            }
        }
    }
    line(&document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_documents_parse_and_have_this_version() {
        for text in [include_str!("openapi.json"), READ_ONLY] {
            let document: Document = serde_json::from_str(text).unwrap();
            assert_eq!(document.info["version"], env!("CARGO_PKG_VERSION"));
            assert!(!document.paths.is_empty());
        }
    }
}
