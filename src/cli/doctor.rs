//! `slotkeeper doctor`: tries all that a job needs, and changes nothing.

mod check;
mod consul;
mod machine;
mod stored;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::time::timeout;

use super::check::User;
use super::operator_flags::lock_or_prefix;
use super::output::ResultOutput;
use super::{ConsulFlags, Exit, block_on, exit_of_faults, run_requests};
use crate::config::{self, CommandRules, Environment, Faults, Loaded, Overrides};
use crate::duration;
pub(super) use check::Report;
use check::{Check, fail, warn};
use slotkeeper_consul::{Client, Unobserved};

/// The longest time for all but a long poll.
const MAX_TIME: Duration = Duration::from_secs(13);

/// Try all that a job needs of Consul and of this machine
///
/// Changes nothing. Checks each address of Consul, its certificate and clock; the token and each right that the job needs; the
/// session's node and TTL; what is stored under each prefix; files, folders, hooks and ports. Each line is OK, WARN or FAIL, with
/// what to do. With PREFIX: what `run PREFIX` needs. Without PREFIX and --config: Consul alone. Run it where the job runs, as its
/// user. Exits with 0 if no line is FAIL, else with the code of the first one.
#[derive(Debug, Default, Args)]
pub(super) struct Doctor {
    /// Key prefix of a semaphore or lock, in place of a configuration.
    #[arg(value_parser = no_file)]
    prefix: Option<String>,
    /// Configuration file; `-` is standard input [env: SLOTKEEPER_CONFIG]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with = "prefix")]
    config: Option<PathBuf>,
    /// The command that uses the file: `run` has rules of its own.
    #[arg(long = "for", value_name = "COMMAND", value_enum, default_value = "agent")]
    command: User,
    /// Also keep a long poll open for this time, such as 70s, to find a proxy that ends it earlier.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    long_poll: Option<Duration>,
    #[command(flatten)]
    output: ResultOutput,
    #[command(flatten)]
    consul: ConsulFlags,
}

impl Doctor {
    /// The same as `--config FILE --for COMMAND`.
    pub(super) fn of_file(file: PathBuf, command: User) -> Self {
        Self { config: Some(file), command, ..Self::default() }
    }

    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let configuration = |found| Check::new("configuration", found);
        let Loaded { config: job, warnings } = match self.load() {
            Ok(loaded) => loaded,
            Err(faults) => {
                let exit = exit_of_faults(&faults);
                return self
                    .print(faults.list.iter().map(|fault| configuration(fail(exit, fault))).collect());
            }
        };
        let mut checks: Vec<_> = warnings.iter().map(|warning| configuration(warn(warning))).collect();
        let client = Client::new(&job.consul, Arc::new(Unobserved));
        let examined = async {
            let all = async {
                match &client {
                    Ok(client) => consul::examine(client, self.prefix.as_deref(), &job, &mut checks).await,
                    Err(error) => checks.push(Check::new("consul", fail(Exit::Config, error))),
                }
                let job = job.clone();
                checks.extend(tokio::task::spawn_blocking(move || machine::examine(&job)).await?);
                anyhow::Ok(())
            };
            if let Ok(done) = timeout(MAX_TIME, all).await {
                done?;
            } else {
                let why = format!("not all was answered within {MAX_TIME:?}, so the rest was not checked");
                checks.push(Check::new("time", fail(Exit::Unavailable, why)));
            }
            if let (Some(wait), Ok(client)) = (self.long_poll, &client) {
                checks.push(Check::new("long poll", consul::long_poll(client, wait).await));
            }
            self.print(checks)
        };
        match &client {
            Ok(client) => run_requests(client, examined),
            Err(_) => block_on(examined)?,
        }
    }

    fn print(&self, checks: Vec<Check>) -> anyhow::Result<Exit> {
        let exit = check::exit(&checks);
        self.output.print(&Report::of(checks), Report::table)?;
        Ok(exit)
    }

    /// The configuration. Without a file it has no semaphore and no lock.
    fn load(&self) -> Result<Loaded, Faults> {
        let mut overrides = Overrides::default();
        self.consul.lay_over(&mut overrides);
        let environment = Environment::of_process();
        let variable =
            std::env::var_os("SLOTKEEPER_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        if let Some(file) = self.config.clone().or(variable).filter(|_| self.prefix.is_none()) {
            return super::check::read(&file, self.command, (&overrides, &environment));
        }
        let rules = CommandRules { defaults: &[("http.listen", "off")], ..CommandRules::default() };
        // A configuration must have one.
        overrides.flag("PREFIX", "locks[0].name", Some("none"));
        overrides.flag("PREFIX", "locks[0].key", Some("none"));
        let mut loaded = config::without_file(rules, &overrides, &environment)?;
        loaded.config.locks.clear();
        Ok(loaded)
    }
}

fn no_file(written: &str) -> Result<String, &'static str> {
    if Path::new(written).is_file() {
        Err("it is a file; did you mean --config FILE?")
    } else {
        lock_or_prefix(written)
    }
}
