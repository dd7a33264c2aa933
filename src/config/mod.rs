//! Configuration: the user's text, parsed into checked values.
//!
//! A configuration is first a tree of values (`yaml`), then a `document` with the overrides of flags and variables. The `sections`
//! then read it key by key (`fields`). Every fault is reported, so that one run shows all of them, each
//! with its file, line (`spans`) and field. The check sends no request to Consul and opens no file that the configuration names,
//! since the machine that checks may differ from the machine that runs.

use std::io::Read;
use std::path::Path;

mod address;
mod document;
mod environment;
mod fault;
mod fields;
mod findings;
mod identity;
mod kinds;
mod overrides;
mod path;
mod sections;
mod spans;
mod suggest;
mod yaml;

pub use environment::{Environment, boolean};
#[cfg(test)]
pub(crate) use environment::{fields as variable_fields, known as known_variables};
pub use fault::{Fault, Faults, Place};
pub use identity::{Identity, Naming, job_name};
pub use kinds::no_system_path;
pub use overrides::Overrides;
pub use path::FieldPath;
pub use sections::{
    Acquire, Config, Control, Drain, Entry, Hooks, Http, Kind, Listen, Log, LogFormat, LogLevel, Mode,
    Release, Reload, Semaphore, Session, SessionNode, Workload, plain_key, variable_part,
};

use document::Document;
use fields::Fields;

/// The JSON Schema of the file.
pub const SCHEMA: &str = include_str!("../../config/slotkeeper.schema.json");

/// Bytes of a configuration file. A usual one has a few thousand; 256 semaphores fit.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// A checked configuration, with its warnings.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded<T = Config> {
    /// The checked values.
    pub config: T,
    /// Lines for the log, each with its place.
    pub warnings: Vec<String>,
}

/// What one command adds to the rules of a configuration.
#[derive(Clone, Copy)]
pub struct CommandRules<'a> {
    /// Fields, with the value that they have if no source sets them.
    pub defaults: &'a [(&'static str, &'static str)],
    /// Finds what the command cannot run with, in a configuration without faults.
    pub check: &'a dyn Fn(&Config) -> Vec<Unfit>,
}

impl Default for CommandRules<'_> {
    fn default() -> Self {
        Self { defaults: &[], check: &|_| Vec::new() }
    }
}

/// A value that a configuration may have and a command cannot run with.
pub struct Unfit {
    /// The command's flag that does not fit it; none if the value is wrong by itself.
    pub flag: Option<&'static str>,
    /// The field.
    pub field: &'static str,
    /// What is wrong and what to do.
    pub message: String,
}

/// Reads the file `path`, with `overrides` (flags) before `environment` before the file.
///
/// # Errors
///
/// All faults of the three.
pub fn load(path: &Path, overrides: &Overrides, environment: &Environment) -> Result<Loaded, Faults> {
    load_for(CommandRules::default(), path, overrides, environment)
}

/// Reads the file `path`, as [`load`] does, for a command.
///
/// # Errors
///
/// As [`load`].
pub fn load_for(
    rules: CommandRules<'_>,
    path: &Path,
    overrides: &Overrides,
    environment: &Environment,
) -> Result<Loaded, Faults> {
    let name = path.display().to_string();
    let file =
        std::fs::File::open(path).map_err(|error| whole(&name, format!("cannot be opened: {error}")))?;
    parse_for(rules, &name, &read(&name, file)?, overrides, environment)
}

/// The text of a file called `name`, bounded.
///
/// # Errors
///
/// If it cannot be read, is too large, or is not UTF-8.
pub fn read(name: &str, file: impl Read) -> Result<String, Faults> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| whole(name, format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(whole(name, format!("is larger than {MAX_FILE_BYTES} bytes; write a smaller one")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        whole(name, format!("is not UTF-8 from byte {at} on; save it as UTF-8"))
    })
}

/// Reads the text of a file called `name`, as [`load`] does.
///
/// # Errors
///
/// As [`load`].
pub fn parse(
    name: &str,
    text: &str,
    overrides: &Overrides,
    environment: &Environment,
) -> Result<Loaded, Faults> {
    parse_for(CommandRules::default(), name, text, overrides, environment)
}

/// Reads the text of a file called `name`, as [`load_for`] does.
///
/// # Errors
///
/// As [`load`].
pub fn parse_for(
    rules: CommandRules<'_>,
    name: &str,
    text: &str,
    overrides: &Overrides,
    environment: &Environment,
) -> Result<Loaded, Faults> {
    finish(rules, Document::read(name, text)?, overrides, environment)
}

/// A configuration of flags and variables alone.
///
/// # Errors
///
/// As [`load`].
pub fn without_file(
    rules: CommandRules<'_>,
    overrides: &Overrides,
    environment: &Environment,
) -> Result<Loaded, Faults> {
    finish(rules, Document::empty(), overrides, environment)
}

/// How to reach Consul, by flags and variables alone, for commands that need no other setting.
///
/// # Errors
///
/// As [`load`].
pub fn consul_settings(
    overrides: &Overrides,
    environment: &Environment,
) -> Result<Loaded<slotkeeper_consul::Settings>, Faults> {
    let Document { tree, mut findings } = overlaid(Document::empty(), overrides, environment);
    let at = FieldPath::of("consul");
    let tls = environment.requires_tls();
    let config = Fields::of(at, tree.get("consul"), &mut findings, |f| sections::consul::read(tls, f));
    findings.finish(LogFormat::default()).map(|warnings| Loaded { config, warnings })
}

fn finish(
    rules: CommandRules<'_>,
    document: Document,
    overrides: &Overrides,
    environment: &Environment,
) -> Result<Loaded, Faults> {
    let mut document = overlaid(document, overrides, environment);
    rules.defaults.iter().for_each(|(field, value)| document.apply_default(field, value));
    let Document { tree, mut findings } = document;
    let root = FieldPath::root();
    let mut config = Fields::of(root, Some(&tree), &mut findings, |f| Config::read(environment, f));
    config.check(&mut findings);
    if findings.has_no_fault() {
        (rules.check)(&config).into_iter().for_each(|unfit| findings.unfit(unfit));
    }
    findings.finish(config.log.format).map(|warnings| Loaded { config, warnings })
}

/// The document with the values of flags and variables.
fn overlaid(mut document: Document, overrides: &Overrides, environment: &Environment) -> Document {
    document.apply_overrides(&environment.overrides());
    document.apply_overrides(overrides);
    document.apply_login_meta(&environment.login_meta().unwrap_or_default());
    document.findings.add(environment.faults(), environment.warnings());
    document
}

fn whole(name: &str, message: String) -> Faults {
    Fault { place: Place::File { name: name.to_owned(), at: None }, field: FieldPath::default(), message }
        .into()
}
