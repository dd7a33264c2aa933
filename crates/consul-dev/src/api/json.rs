//! JSON bodies as Go's decoder takes them: field names in any case, unknown fields and trailing text ignored, null for
//! a field's zero, and its words where a type is wrong.

use serde_json::{Map, Value};

/// The first JSON value of a body. The fault's text begins as Go's does; of the rest a client can make nothing.
pub(crate) fn first(body: &[u8]) -> Result<Value, String> {
    match serde_json::Deserializer::from_slice(body).into_iter().next() {
        None => Err("EOF".to_owned()),
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) if error.is_eof() => Err("unexpected EOF".to_owned()),
        Some(Err(error)) => Err(error.to_string()),
    }
}

/// An object's fields; `path` is what Go calls the object in its messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: &'static str,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(object: &'a Map<String, Value>, path: &'static str) -> Self {
        Self { object, path }
    }

    /// A field that is present and not null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.get_or_null(name).filter(|value| !value.is_null())
    }

    /// A field that is present. It may be null.
    pub(crate) fn get_or_null(&self, name: &str) -> Option<&'a Value> {
        self.object.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(value, name, "string"))
    }

    /// The text of a field, empty without one.
    pub(crate) fn text_or_empty(&self, name: &str) -> Result<String, String> {
        Ok(self.text(name)?.unwrap_or_default().to_owned())
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64, String> {
        let Some(value) = self.get(name) else { return Ok(0) };
        value.as_u64().ok_or_else(|| self.wrong(value, name, "uint64"))
    }

    pub(crate) fn list(&self, name: &str, of: &str) -> Result<Option<&'a Vec<Value>>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_array().map(Some).ok_or_else(|| self.wrong(value, name, &format!("[]{of}")))
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Option<Vec<String>>, String> {
        let Some(list) = self.list(name, "string")? else { return Ok(None) };
        let text = |value: &Value| {
            value.as_str().map(str::to_owned).ok_or_else(|| self.wrong(value, name, "string"))
        };
        list.iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// Go's message for a value of the wrong type.
    pub(crate) fn wrong(&self, value: &Value, name: &str, wanted: &str) -> String {
        let found = match value {
            Value::Number(number) if wanted == "uint64" => format!("number {number}"),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => kind(value).to_owned(),
        };
        format!("json: cannot unmarshal {found} into Go struct field {}.{name} of type {wanted}", self.path)
    }
}

/// Go's name for the type of a value.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
