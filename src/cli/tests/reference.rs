//! The table of configuration keys in `docs/configuration.md`, from the schema and from what the flags and variables set.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use clap::{CommandFactory as _, Parser};
use serde_json::Value;

use super::ConsulFlags;
use super::log_flags::LogFlags;
use crate::agent::is_fixed;
use crate::config::{self, Config, Environment, Overrides, SCHEMA, variable_fields};

const BEGIN: &str = "<!-- generated: SLOTKEEPER_WRITE_GENERATED=1 cargo test --lib configuration_page -->\n";
/// The pattern of a duration in the schema.
const DURATION: &str = "^([0-9]+(ms|s|m|h|d))+$";
const END: &str = "<!-- end -->\n";

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    log: LogFlags,
    #[command(flatten)]
    consul: ConsulFlags,
}

/// The flags of the keys: those of `ConsulFlags`, and those of the log, which `agent` and `run` have.
fn flags() -> BTreeMap<String, String> {
    let command = Flags::command();
    let options: Vec<_> = command
        .get_arguments()
        .filter_map(|argument| Some((argument.get_long()?, argument.get_possible_values())))
        .filter(|(long, _)| *long != "help")
        .map(|(long, values)| format!("--{long}={}", values.first().map_or("2s", |value| value.get_name())))
        .collect();
    let flags = Flags::parse_from(std::iter::once("test").chain(options.iter().map(String::as_str)));
    let mut overrides = Overrides::default();
    flags.log.lay_over(&mut overrides);
    flags.consul.lay_over(&mut overrides);
    overrides.sources().map(|(flag, field)| (field, flag)).collect()
}

fn kind(schema: &Value) -> String {
    let text = |key: &str| schema[key].as_str().unwrap_or_default().to_owned();
    if let Some(choices) = schema["oneOf"].as_array() {
        let choices: Vec<_> = choices.iter().filter_map(|one| one["const"].as_str()).collect();
        return choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", ");
    }
    match (schema["type"].as_str(), schema["pattern"].as_str()) {
        (Some("string"), Some(pattern)) if pattern == DURATION => "duration".to_owned(),
        (Some("string"), Some(pattern)) if pattern.contains("forever") => "duration, or `forever`".to_owned(),
        (Some("string"), _) => "text".to_owned(),
        (Some("boolean"), _) => "`true`, `false`".to_owned(),
        (Some("integer"), _) => match (schema["minimum"].as_i64(), schema["maximum"].as_i64()) {
            (Some(min), Some(max)) if min >= 0 => format!("{min} to {max}"),
            _ => "whole number".to_owned(),
        },
        (Some("array"), _) => "list of texts".to_owned(),
        (Some("object"), _) => "mapping of texts".to_owned(),
        (None, _) if schema["type"].is_array() => "text, or list of texts".to_owned(),
        _ => text("type"),
    }
}

fn cell(text: Option<&str>) -> String {
    text.map_or(String::new(), |text| format!("`{text}`"))
}

fn rows(schema: &Value, key: &str, flags: &BTreeMap<String, String>, config: &Config, table: &mut String) {
    let join = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    if let Some(properties) = schema["properties"].as_object() {
        for (name, schema) in properties {
            rows(schema, &join(name), flags, config, table);
        }
        return;
    }
    if schema["items"]["properties"].is_object() {
        return rows(&schema["items"], &format!("{key}[]"), flags, config, table);
    }
    let default = match &schema["default"] {
        Value::Null => String::new(),
        Value::String(text) => format!("`{text}`"),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            format!("`{}`", schema["default"])
        }
    };
    let variable = variable_fields().find(|(_, field)| *field == key).map(|(name, _)| name);
    let reload = match key {
        "semaphores[].slots" => "remove, add",
        key if is_fixed(key, config) => "restart",
        _ => "yes",
    };
    let meaning =
        schema["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(
        table,
        "| `{key}` | {} | {default} | {} | {} | {reload} | {} |",
        kind(schema),
        cell(variable),
        cell(flags.get(key).map(String::as_str)),
        meaning.replace('|', "\\|"),
    );
}

fn table() -> String {
    let text = "semaphores: [{name: a, prefix: a, limit: 1}]";
    let config = config::parse("test", text, &Overrides::default(), &Environment::default());
    let config = config.expect("the configuration is valid").config;
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let mut table =
        "| key | value | default | variable | flag | reload | meaning |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    rows(&schema, "", &flags(), &config, &mut table);
    table
}

#[test]
fn the_configuration_page_has_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = std::fs::read_to_string(&path).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the page has the begin mark");
    let (had, after) = rest.split_once(END).expect("the page has the end mark");
    let table = table();
    if std::env::var_os("SLOTKEEPER_WRITE_GENERATED").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).expect("the page is written");
    } else {
        assert!(
            had == table,
            "docs/configuration.md is old; write it again: SLOTKEEPER_WRITE_GENERATED=1 cargo test --lib configuration_page"
        );
    }
}
