//! `slotkeeper run`: a command that runs while a slot is held.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::start::{self, Purpose};
use super::{ConsulFlags, Ended, Exit, end_with};
use crate::agent::{Files, ReadConfig};
use crate::config::{self, Environment, Faults, Loaded, Overrides};
use crate::duration::{self, show};
use crate::workload::guard::{self, fence};
use crate::workload::init::{self, Below};
use crate::workload::{Command, unfit_proc};

/// What stands for `--stop-after` in the environment.
const STOP_AFTER: &str = "SLOTKEEPER_STOP_AFTER";
/// Time that a command has for stopping, where nothing is said.
pub(super) const KILL_AFTER: Duration = Duration::from_secs(5);
/// What holds where neither a flag nor the environment says otherwise: many may run on one machine, and beside the
/// command's own output there is to be little of ours.
const DEFAULTS: &str = "http: {listen: off}\nlog: {level: warn}\n";

/// Take a slot of a semaphore, or a lock, run a command while it is held, and give it back.
///
/// With --limit it is a semaphore's slot, as `consul lock -n N` takes it; without, the single-key lock PREFIX/.lock, as
/// `consul lock` takes it.
///
/// The command is stopped before the slot can be anybody else's: with SIGTERM and, after --kill-after, SIGKILL, it and all
/// that it has started. Signals sent to this process are passed on to it, and --stop-after bounds its time to end by one. Exits
/// with the command's own code, or 128 and the signal that ended it; with 75 where there was no slot in time, and with 80 where
/// the slot was lost.
#[derive(Debug, Args)]
#[command(after_long_help = super::manual::help("run"))]
pub(super) struct Run {
    /// Key prefix of the semaphore or lock, such as service/warehouse/writers.
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,
    /// Slots that the semaphore has.
    #[arg(short = 'n', long, value_name = "N", requires = "prefix")]
    limit: Option<u32>,
    /// Take the single-key lock PREFIX/.lock: what is done without --limit, said aloud. Its limit is 1.
    #[arg(long, requires = "prefix")]
    lock: bool,
    /// Slots that the command takes.
    #[arg(long, value_name = "K", requires = "limit", conflicts_with = "lock")]
    slots: Option<u32>,
    /// Higher goes first.
    #[arg(long, value_name = "P", allow_hyphen_values = true, requires = "limit", conflicts_with = "lock")]
    priority: Option<i32>,
    /// Do not wait: exit with 75 where no slot is free, or the lock is not.
    #[arg(long = "try", conflicts_with = "timeout")]
    try_once: bool,
    /// Wait for at most this time, such as 30s or 10m; by default for ever.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// How a new semaphore is written: map, which `consul lock` reads too, or list. By default map, or list where the
    /// command takes more than one slot.
    #[arg(long, value_name = "FORMAT", requires = "limit", conflicts_with = "lock")]
    format: Option<String>,
    /// TTL of the session: a command is stopped so long after contact with Consul is lost, at most.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Catalog node that the session is tied to; by default the addressed agent's own.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// How long the slot of a dead holder rests before it is given on.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "limit", conflicts_with = "lock")]
    prune_delay: Option<Duration>,
    /// How long Consul gives the lock to nobody once our session has ended with it, 0s to 60s; by default 15s.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lock_delay: Option<Duration>,
    /// Several semaphores, hooks and the rest, in place of PREFIX and its flags [env: SLOTKEEPER_CONFIG]
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "prefix", "limit", "lock", "slots", "priority", "try_once", "timeout", "format", "ttl", "node", "prune_delay",
            "lock_delay",
        ]
    )]
    config: Option<PathBuf>,
    /// Time that the command has after SIGTERM before SIGKILL.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    kill_after: Duration,
    /// Time that the command has after SIGTERM, SIGINT or SIGQUIT from outside before SIGKILL ends it and all that it has
    /// started; by default as long as it likes [env: SLOTKEEPER_STOP_AFTER]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    stop_after: Option<Duration>,
    /// Run the command's words as one line of $SHELL, or of /bin/sh.
    #[arg(long)]
    shell: bool,
    /// Tell of what happens, on standard error.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    consul: ConsulFlags,
    /// The command and its arguments.
    #[arg(value_name = "CMD", last = true, required = true, value_hint = clap::ValueHint::CommandName)]
    command: Vec<OsString>,
}

impl Run {
    pub(super) fn run(mut self) -> anyhow::Result<Ended> {
        if self.prefix.is_none() {
            let variable = std::env::var_os("SLOTKEEPER_CONFIG").filter(|path| !path.is_empty());
            self.config = self.config.take().or(variable.map(PathBuf::from));
            if self.config.is_none() {
                return Ok(end_with(
                    Exit::Usage,
                    "which slot? Write PREFIX and --limit N, or PREFIX alone for a lock, or --config FILE; --help says more",
                )?);
            }
        }
        if self.limit.is_some() && !self.lock && self.lock_delay.is_some() {
            return Ok(end_with(Exit::Usage, "--lock-delay is for a lock; leave it out, or --limit")?);
        }
        if self.lock && self.limit.is_some_and(|limit| limit != 1) {
            return Ok(end_with(
                Exit::Usage,
                "a lock is held by one at a time; leave --lock out for a semaphore, or --limit for a lock",
            )?);
        }
        // Before anything is acquired: no slot is safe to use where the command could not be ended with all that it starts.
        if let Some(why) = unfit_proc() {
            return self.refuse(why);
        }
        match stop_after_variable() {
            Ok(time) => self.stop_after = self.stop_after.or(time),
            Err(why) if self.stop_after.is_none() => return self.refuse(&why),
            Err(_) => {}
        }
        // As a container's first process it has to reap what others leave behind, and does that from a process apart.
        if let Some(below) = init::run_below(self.kill_after + guard::MAX_RELEASE)? {
            return Ok(match below {
                // It has said itself why.
                Below::Ended(code) => Exit::PassedOn(code).into(),
                Below::Killed(signal) => {
                    let why = format!(
                        "slotkeeper itself was killed by signal {signal}, so its guard ended the command"
                    );
                    Ended::because(Exit::PassedOn(128_u8.saturating_add(signal)), why)
                }
            });
        }
        let command =
            Command { words: self.words(), kill_after: self.kill_after, stop_after: self.stop_after };
        let file = self.config.clone();
        let read_config: ReadConfig = Arc::new(move || {
            let loaded = self.read()?;
            let wrong = wrong_with(&loaded.config, self.kill_after);
            wrong.map_or(Ok(loaded), Err)
        });
        start::run(file, read_config, Purpose::Command(command))
    }

    /// Says why nothing can be run, and leaves no readiness file of before.
    fn refuse(&self, why: &str) -> anyhow::Result<Ended> {
        if let Some(file) = &self.config {
            Files::forget(file);
        }
        Ok(end_with(Exit::Config, why)?)
    }

    fn words(&self) -> Vec<OsString> {
        if !self.shell {
            return self.command.clone();
        }
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh".into());
        vec![shell, "-c".into(), self.command.join(" ".as_ref())]
    }

    fn read(&self) -> Result<Loaded, Faults> {
        let mut overrides = Overrides::default();
        self.consul.lay_over(&mut overrides);
        overrides.flag("--verbose", "log.level", self.verbose.then_some("info"));
        let environment = Environment::of_process();
        if let Some(file) = &self.config {
            return config::load(file, &overrides, &environment);
        }
        match self.limit.filter(|_| !self.lock) {
            Some(limit) => self.lay_over_semaphore(limit, &mut overrides),
            None => self.lay_over_lock(&mut overrides),
        }
        overrides.flag("--ttl", "session.ttl", self.ttl.map(show));
        overrides.flag("--node", "session.node", self.node.as_deref());
        config::parse("defaults", DEFAULTS, &overrides, &environment)
    }

    fn lay_over_semaphore(&self, limit: u32, overrides: &mut Overrides) {
        let format = self.slots.filter(|slots| *slots > 1).map_or("map", |_| "list");
        overrides.flag("PREFIX", "semaphores[0].name", self.prefix.as_deref().map(name_of));
        overrides.flag("PREFIX", "semaphores[0].prefix", self.prefix.as_deref());
        overrides.flag("--limit", "semaphores[0].limit", Some(limit));
        overrides.flag("--slots", "semaphores[0].slots", self.slots);
        overrides.flag("--priority", "semaphores[0].priority", self.priority);
        overrides.flag("--timeout", "semaphores[0].wait", self.wait());
        overrides.flag("--format", "semaphores[0].format", Some(self.format.as_deref().unwrap_or(format)));
        overrides.flag("--prune-delay", "semaphores[0].prune_delay", self.prune_delay.map(show));
    }

    /// The key is that of `consul lock PREFIX`, which is the one below the prefix.
    fn lay_over_lock(&self, overrides: &mut Overrides) {
        // Whoever writes the key itself means that one.
        let plain = |prefix: &str| {
            let prefix = prefix.trim_end_matches('/');
            prefix.strip_suffix("/.lock").unwrap_or(prefix).to_owned()
        };
        let prefix = self.prefix.as_deref().map(plain);
        let key = prefix.as_ref().map(|prefix| format!("{prefix}/.lock"));
        overrides.flag("PREFIX", "locks[0].name", prefix.as_deref().map(name_of));
        overrides.flag("PREFIX", "locks[0].key", key);
        overrides.flag("--timeout", "locks[0].wait", self.wait());
        overrides.flag("--lock-delay", "session.lock_delay", self.lock_delay.map(show));
    }

    fn wait(&self) -> Option<String> {
        self.timeout.or(self.try_once.then_some(Duration::ZERO)).map(show)
    }
}

/// What the environment says in place of `--stop-after`; an empty one is absent, as with the others.
fn stop_after_variable() -> Result<Option<Duration>, String> {
    let text = std::env::var_os(STOP_AFTER).unwrap_or_default();
    let text = text.to_string_lossy();
    if text.is_empty() {
        return Ok(None);
    }
    duration::parse(&text).map(Some).map_err(|error| format!("{STOP_AFTER}: {error}"))
}

/// What the semaphore is called in metrics and variables: as the last part of its prefix, as far as a name allows.
fn name_of(prefix: &str) -> String {
    let last = prefix.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let name: String = last.chars().map(plain).take(63).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() { "semaphore".to_owned() } else { name.to_owned() }
}

/// What a command cannot be run with.
fn wrong_with(config: &config::Config, kill_after: Duration) -> Option<Faults> {
    if config.required().next().is_none() {
        return Some(config::fault(
            "semaphores",
            "none is held and required, so there is nothing to run the command on",
        ));
    }
    if config.session.state_file.is_some() {
        return Some(config::fault(
            "session.state_file",
            "under `run` a session is not taken up again, since the command of before may still be ending; remove it",
        ));
    }
    if config.workload.is_some() {
        return Some(config::fault(
            "workload",
            "it is for an agent beside its workload, and `run` knows what becomes of its command by itself; remove the section",
        ));
    }
    let ttl = config.session.ttl;
    let longest = fence::longest_kill_after(ttl);
    (longest < kill_after).then(|| {
        let mend = fence::shortest_ttl(kill_after)
            .map_or(String::new(), |ttl| format!(", or a TTL of at least {}", show(ttl)));
        config::fault(
            "session.ttl",
            &format!(
                "under a TTL of {} the command cannot have {} for stopping (--kill-after) and surely be gone before \
                 its slot is; write at most {}{mend}",
                show(ttl),
                show(kill_after),
                show(longest)
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_of_whatever_prefix() {
        for (prefix, name) in [
            ("service/warehouse/writers", "writers"),
            ("a/b c/", "b-c"),
            ("._x", "x"),
            ("é", "semaphore"),
            ("9", "9"),
        ] {
            assert_eq!(name_of(prefix), name);
        }
    }
}
