//! `slotkeeper check`: reports every fault of configuration files in one run.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::Exit;
use super::doctor::Doctor;
use crate::config::{self, CommandRules, Config, Environment, Faults, Loaded, Overrides};
use crate::duration::show;
use crate::workload::guard::fence;
use slotkeeper_semaphore::{DEFAULT_TTL, Terms};

/// Duration of an election at Consul's defaults, measured on 1.8 and 1.23.
const OUTAGE: Duration = Duration::from_secs(20);

/// Validate configuration files
///
/// Reports every fault in one run, each with file, line and field. Without --connect the check reads the files alone: no environment
/// variable, and no file that they name. Exits with 78 if there is a fault.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Files to check; `-` is standard input.
    #[arg(required = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    files: Vec<String>,
    /// The command that uses the files: `run` has rules of its own.
    #[arg(long = "for", value_name = "COMMAND", value_enum, default_value = "agent")]
    command: User,
    /// Check what the files need of Consul and of this machine too, as `slotkeeper doctor --config FILE` does.
    #[arg(long)]
    connect: bool,
    #[arg(long, hide = true, value_parser = in_doctor)]
    http_addr: Option<String>,
}

fn in_doctor(_: &str) -> Result<String, &'static str> {
    Err("`check` uses the address in the file; use `slotkeeper doctor --config FILE --http-addr ADDRESS`")
}

/// The command that uses a configuration.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum User {
    #[default]
    Agent,
    Run,
}

impl Check {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        if self.connect {
            let ended = self.files.iter().map(|file| Doctor::of_file(file.into(), self.command).run());
            let ended: Vec<_> = ended.collect::<Result<_, _>>()?;
            return Ok(ended.into_iter().find(|exit| *exit != Exit::Done).unwrap_or(Exit::Done));
        }
        Ok(self.report(&mut io::stdout().lock(), &mut io::stderr().lock())?)
    }

    fn report(self, out: &mut impl Write, err: &mut impl Write) -> io::Result<Exit> {
        let mut exit = Exit::Done;
        for file in &self.files {
            match read(Path::new(file), self.command, (&Overrides::default(), &Environment::default())) {
                Ok(Loaded { config, warnings }) => {
                    for warning in warnings {
                        writeln!(err, "{warning} (warning)")?;
                    }
                    if let Some(warning) = too_short(config.session.ttl) {
                        writeln!(err, "{file}: session.ttl: {warning} (warning)")?;
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

/// Reads a configuration file, or standard input if it is `-`.
pub(super) fn read(file: &Path, by: User, more: (&Overrides, &Environment)) -> Result<Loaded, Faults> {
    let rules = match by {
        User::Agent => CommandRules::default(),
        User::Run => super::run::RULES,
    };
    if file == Path::new("-") {
        let name = "<stdin>";
        config::parse_for(rules, name, &config::read(name, io::stdin().lock())?, more.0, more.1)
    } else {
        config::load_for(rules, file, more.0, more.1)
    }
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
