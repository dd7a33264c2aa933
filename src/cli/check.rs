//! `slotkeeper check`: reports every fault of configuration files in one run.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::Exit;
use crate::config::{self, CommandRules, Config, Environment, Faults, Loaded, Overrides};
use crate::duration::show;
use crate::workload::guard::fence;
use slotkeeper_semaphore::{DEFAULT_TTL, Terms};

/// Duration of an election at Consul's defaults, measured on 1.8 and 1.23.
const OUTAGE: Duration = Duration::from_secs(20);

/// Validate configuration files
///
/// Reports every fault in one run, each with file, line and field. The check reads the files alone: no environment variable, and no
/// file that they name; a hook that does not exist here has a warning. Exits with 78 if there is a fault.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Files to check; `-` is standard input.
    #[arg(required = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    files: Vec<String>,
    /// The command that uses the files: `run` has rules of its own.
    #[arg(long = "for", value_name = "COMMAND", value_enum, default_value = "agent")]
    command: User,
}

/// The command that uses a configuration.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum User {
    Agent,
    Run,
}

impl Check {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        Ok(self.report(&mut io::stdout().lock(), &mut io::stderr().lock())?)
    }

    fn report(self, out: &mut impl Write, err: &mut impl Write) -> io::Result<Exit> {
        let mut exit = Exit::Done;
        for file in &self.files {
            match read(file, self.command) {
                Ok(Loaded { config, warnings }) => {
                    for warning in warnings {
                        writeln!(err, "{warning} (warning)")?;
                    }
                    if let Some(warning) = too_short(config.session.ttl) {
                        writeln!(err, "{file}: session.ttl: {warning} (warning)")?;
                    }
                    for warning in missing_hooks(&config) {
                        writeln!(err, "{file}: {warning} (warning)")?;
                    }
                    writeln!(out, "{file}: ok ({})", summary(&config))?;
                }
                Err(faults) => {
                    exit = Exit::Config;
                    writeln!(err, "{faults}")?;
                }
            }
        }
        Ok(exit)
    }
}

fn read(file: &str, command: User) -> Result<Loaded, Faults> {
    let rules = match command {
        User::Agent => CommandRules::default(),
        User::Run => super::run::RULES,
    };
    let (overrides, environment) = (Overrides::default(), Environment::default());
    if file == "-" {
        let name = "<stdin>";
        config::parse_for(rules, name, &config::read(name, io::stdin().lock())?, &overrides, &environment)
    } else {
        config::load_for(rules, Path::new(file), &overrides, &environment)
    }
}

/// A warning for each hook whose program is not there. It may be there on the machine that runs it.
fn missing_hooks(config: &Config) -> impl Iterator<Item = String> {
    config.hooks.commands().filter_map(|(name, command)| {
        let program = Path::new(command.first()?);
        let is_missing = program.is_absolute() && !program.exists();
        is_missing.then(|| format!("hooks.{name}: {} does not exist on this machine", program.display()))
    })
}

/// The warning about a TTL that does not survive an election.
fn too_short(ttl: Duration) -> Option<String> {
    let survives = Terms::new(ttl).tolerates(Duration::ZERO);
    (survives < OUTAGE).then(|| {
        format!(
            "with a TTL of {}, a slot survives {} s without Consul; an election takes up to {} s at Consul's defaults: use {} or \
             more, unless a dead holder's slot must be free sooner",
            show(ttl),
            survives.as_secs(),
            OUTAGE.as_secs(),
            show(DEFAULT_TTL)
        )
    })
}

fn summary(config: &Config) -> String {
    let count = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        several => Some(format!("{several} {what}s")),
    };
    let counts = [count(config.semaphores.len(), "semaphore"), count(config.locks.len(), "lock")];
    let counts: Vec<_> = counts.into_iter().flatten().collect();
    let ttl = config.session.ttl;
    let seconds = |kill_after| fence::tolerates(ttl, kill_after).as_secs();
    format!(
        "{}; tolerates {} s without Consul, a command under `run` {} s",
        counts.join(", "),
        Terms::new(ttl).tolerates(Duration::ZERO).as_secs(),
        seconds(super::run::KILL_AFTER),
    )
}
