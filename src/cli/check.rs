//! `slotkeeper check`: everything that is wrong with configuration files, in one run.

use std::io::{self, Write};
use std::path::Path;

use clap::Args;

use super::Exit;
use crate::config::{self, Config, Environment, Faults, Loaded, Overrides};

/// Validate configuration files
///
/// Every fault is told in one run, each with file, line and field. The files are judged by themselves: no environment variable is looked at, and no file that they name needs to be
/// there. Exits with 78 where anything is wrong.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Files to check; `-` is standard input.
    #[arg(required = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    files: Vec<String>,
}

impl Check {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        Ok(self.report(&mut io::stdout().lock(), &mut io::stderr().lock())?)
    }

    fn report(self, out: &mut impl Write, err: &mut impl Write) -> io::Result<Exit> {
        let mut exit = Exit::Done;
        for file in &self.files {
            match read(file) {
                Ok(Loaded { config, warnings }) => {
                    for warning in warnings {
                        writeln!(err, "{warning} (warning)")?;
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

fn read(file: &str) -> Result<Loaded, Faults> {
    let (overrides, environment) = (Overrides::default(), Environment::default());
    if file == "-" {
        let name = "<stdin>";
        config::parse(name, &config::read(name, io::stdin().lock())?, &overrides, &environment)
    } else {
        config::load(Path::new(file), &overrides, &environment)
    }
}

fn summary(config: &Config) -> String {
    let count = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        several => Some(format!("{several} {what}s")),
    };
    let counts = [count(config.semaphores.len(), "semaphore"), count(config.locks.len(), "lock")];
    counts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
