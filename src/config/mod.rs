//! Configuration: the user's text, parsed into checked values.
//!
//! A configuration is first a tree of values (`yaml`), then a `document` with the overrides of flags and variables. It is then
//! decoded into raw `sections` and checked. Each step reports every fault and goes on, so that one run shows all of them, each
//! with its file, line (`spans`) and field. The check sends no request to Consul and opens no file that the configuration names,
//! since the machine that checks may differ from the machine that runs.

use std::io::Read;
use std::path::Path;

mod address;
mod decode;
mod document;
mod environment;
mod fault;
mod findings;
mod identity;
mod overrides;
mod path;
mod scalar;
pub mod schema;
mod sections;
mod spans;
mod suggest;
mod value;
mod yaml;

pub use environment::{Environment, boolean};
#[cfg(test)]
pub(crate) use environment::{fields as variable_fields, known as known_variables};
pub use fault::{Fault, Faults, Place};
pub use identity::{Identity, Naming, job_name};
pub use overrides::Overrides;
pub use path::FieldPath;
pub use sections::{
    Acquire, Behavior, Config, Control, Drain, Entry, Format, Hooks, Http, Kind, LimitPolicy, Listen, Log,
    LogFormat, LogLevel, Mode, OnLost, Release, Reload, Semaphore, Session, SessionNode, Wait, Workload,
    plain_key, variable_part,
};
pub use value::no_system_path;

use document::Document;
use findings::Findings;

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
    let mut findings = apply_overrides(Document::empty(), overrides, environment);
    let raw = decode::decode(&mut findings);
    let config = raw.check_consul(&mut findings);
    findings.finish(LogFormat::default()).map(|warnings| Loaded { config, warnings })
}

fn finish(
    rules: CommandRules<'_>,
    document: Document,
    overrides: &Overrides,
    environment: &Environment,
) -> Result<Loaded, Faults> {
    let mut findings = apply_overrides(document, overrides, environment);
    findings.apply_defaults(rules.defaults);
    let raw = decode::decode(&mut findings);
    let config = raw.check(environment.identity(), &mut findings);
    if findings.has_no_fault() {
        (rules.check)(&config).into_iter().for_each(|unfit| findings.unfit(unfit));
    }
    findings.finish(config.log.format).map(|warnings| Loaded { config, warnings })
}

fn apply_overrides(mut document: Document, overrides: &Overrides, environment: &Environment) -> Findings {
    document.apply_overrides(&environment.overrides());
    document.apply_overrides(overrides);
    document.apply_login_meta(environment.login_meta().unwrap_or_default());
    if let Some(variable) = environment.requires_tls() {
        document.require_tls(variable);
    }
    let mut findings = Findings::of(document);
    findings.add(environment.faults(), environment.warnings());
    findings
}

fn whole(name: &str, message: String) -> Faults {
    Fault { place: Place::File { name: name.to_owned(), at: None }, field: FieldPath::default(), message }
        .into()
}
