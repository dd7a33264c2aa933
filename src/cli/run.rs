//! `slotkeeper run`: runs a command while it holds a slot.

mod output_files;
mod result;
mod variables;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args, CommandFactory};

use super::log_flags::LogFlags;
use super::set_limit::number_of_slots;
use super::start::{self, Purpose};
use super::{Cli, ConsulFlags, Ended, Exit};
use crate::agent::{Files, ReadConfig};
use crate::config::{
    self, CommandRules, Config, Environment, Faults, Identity, Loaded, Naming, Overrides, Unfit,
};
use crate::console;
use crate::duration::{self, show};
use crate::escape::printable;
use crate::workload::guard::{self, fence};
use crate::workload::init::{self, Below};
use crate::workload::{Command, CommandTimes, METRICS_FILE_VARIABLE, RESULT_FILE_VARIABLE, exec, unfit_proc};
pub(super) use output_files::OutputFiles;
use result::Outcome;

/// Default of `--kill-after`.
pub(super) const KILL_AFTER: Duration = Duration::from_secs(5);
/// What `run --config` adds to the rules of a configuration, without the flag --kill-after.
pub(super) const RULES: CommandRules<'static> =
    CommandRules { defaults: DEFAULTS, check: &|config| unfit(config, None) };

/// Many instances may run on one machine, so the endpoints are off unless they are configured. The command's own output should stand
/// out.
const DEFAULTS: &[(&str, &str)] = &[("http.listen", "off"), ("log.level", "warn")];

/// What to do where --config excludes a flag of PREFIX.
pub(super) const KEYS: &str = "; write its key in FILE instead: `wait` for --timeout and --try, `limit` for -n, and those of the other flags have their names";

const USAGE: &str = "slotkeeper run [OPTIONS] PREFIX [-n N] -- CMD...\n       slotkeeper run [OPTIONS] --config FILE -- CMD...";

/// Acquire a slot of a semaphore, or a lock, run a command while it is held, and release it.
///
/// With --limit, acquires a slot of a semaphore, as `consul lock -n N` does. Without, acquires the single-key lock PREFIX/.lock, as
/// `consul lock` does.
///
/// The command is stopped before another client can acquire the slot: with SIGTERM and, after --kill-after, with SIGKILL, together
/// with all its processes. Signals to this process are passed on to the command; --stop-after limits its time after them. Exits with
/// the command's own code, or with 128 and the number of the signal that ended it; with 75 if the acquisition timed out, and with 80
/// if the slot was lost.
#[derive(Debug, Args)]
#[command(override_usage = USAGE, after_long_help = super::manual::RUN, disable_help_flag = true, disable_version_flag = true)]
pub(super) struct Run {
    /// Key prefix of the semaphore or lock, such as service/warehouse/writers.
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,
    /// The command and its arguments.
    #[arg(value_name = "CMD", last = true, required = true, value_hint = clap::ValueHint::CommandName)]
    command: Vec<OsString>,
    /// The semaphore's limit: its number of slots [env: SLOTKEEPER_LIMIT]
    #[arg(help_heading = "Slot", short = 'n', long, value_name = "N", value_parser = number_of_slots, requires = "prefix")]
    limit: Option<u32>,
    /// Acquire the single-key lock PREFIX/.lock, which is also the default without --limit. Its limit is 1 [env: SLOTKEEPER_LOCK]
    #[arg(help_heading = "Slot", long, requires = "prefix")]
    lock: bool,
    /// Slots that the command needs; by default 1 [env: SLOTKEEPER_SLOTS]
    #[arg(help_heading = "Slot", long, value_name = "K", value_parser = number_of_slots, requires = "prefix", conflicts_with = "lock")]
    slots: Option<u32>,
    /// Priority in the queue; a higher one is served first; by default 0 [env: SLOTKEEPER_PRIORITY]
    #[arg(
        help_heading = "Slot",
        long,
        value_name = "P",
        allow_hyphen_values = true,
        requires = "prefix",
        conflicts_with = "lock"
    )]
    priority: Option<i32>,
    /// Format of a new semaphore: map, which `consul lock` reads too, or list. By default map, or list if the
    /// command needs more than one slot [env: SLOTKEEPER_FORMAT]
    #[arg(help_heading = "Slot", long, value_name = "FORMAT", value_parser = ["map", "list"], requires = "prefix", conflicts_with = "lock")]
    format: Option<String>,
    /// What to do if the stored limit differs from --limit: adopt it, set it to --limit, or refuse to run [env: SLOTKEEPER_LIMIT_POLICY]
    #[arg(
        help_heading = "Slot",
        long,
        value_name = "POLICY",
        value_parser = ["adopt", "set", "refuse"],
        requires = "prefix",
        conflicts_with = "lock"
    )]
    limit_policy: Option<String>,
    /// Configuration file, for several semaphores, hooks and the rest, in place of PREFIX and its flags [env: SLOTKEEPER_CONFIG]
    #[arg(
        help_heading = "Slot",
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "prefix", "limit", "lock", "slots", "priority", "try_once", "timeout", "format", "limit_policy", "ttl", "node",
            "prune_delay", "lock_delay",
        ]
    )]
    config: Option<PathBuf>,
    /// Do not wait: exit with 75 if no slot, or the lock, is free [env: SLOTKEEPER_TRY]
    #[arg(help_heading = "Waiting", long = "try", conflicts_with = "timeout")]
    try_once: bool,
    /// Wait at most this time, such as 30s or 10m; by default without a limit [env: SLOTKEEPER_TIMEOUT]
    #[arg(help_heading = "Waiting", long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// TTL of the session, and the longest time that a command runs after contact with Consul is lost; by default 45s [env: SLOTKEEPER_SESSION_TTL]
    #[arg(help_heading = "Session", long, value_name = "DURATION", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Catalog node that the session is tied to; `auto`, `agent` or a name; by default `auto` [env: SLOTKEEPER_SESSION_NODE]
    #[arg(help_heading = "Session", long, value_name = "NODE")]
    node: Option<String>,
    /// Time from the death of a holder until its slot is reclaimed; by default 0s [env: SLOTKEEPER_PRUNE_DELAY]
    #[arg(help_heading = "Session", long, value_name = "DURATION", value_parser = duration::parse, requires = "prefix", conflicts_with = "lock")]
    prune_delay: Option<Duration>,
    /// Consul's lock-delay after our session ends with the lock held, 0s to 60s; by default 15s [env: SLOTKEEPER_SESSION_LOCK_DELAY]
    #[arg(help_heading = "Session", long, value_name = "DURATION", value_parser = duration::parse)]
    lock_delay: Option<Duration>,
    /// Name of the job, shown to other participants with host and process id; by default the command's file name, or the
    /// beginning of the line of --shell [env: SLOTKEEPER_NAME]
    #[arg(help_heading = "Command", long, value_name = "TEXT", value_parser = config::job_name)]
    name: Option<String>,
    /// Time from SIGTERM to SIGKILL, for the command; by default 5s, or less if the TTL allows less [env: SLOTKEEPER_KILL_AFTER]
    #[arg(help_heading = "Command", long, value_name = "DURATION", value_parser = duration::parse)]
    kill_after: Option<Duration>,
    /// Time from SIGTERM, SIGINT or SIGQUIT to this process until SIGKILL ends the command and all its processes; by default
    /// without a limit [env: SLOTKEEPER_STOP_AFTER]
    #[arg(help_heading = "Command", long, value_name = "DURATION", value_parser = duration::parse)]
    stop_after: Option<Duration>,
    /// Run the command's words as one line of $SHELL, or of /bin/sh [env: SLOTKEEPER_SHELL]
    #[arg(help_heading = "Command", long)]
    shell: bool,
    /// Log each step on standard error [env: SLOTKEEPER_LOG_LEVEL=info]
    #[arg(help_heading = "Output", short, long, conflicts_with_all = ["quiet", "log_level"])]
    verbose: bool,
    /// Print failures alone: no progress and no warnings [env: SLOTKEEPER_LOG_LEVEL=error]
    #[arg(help_heading = "Output", short, long, conflicts_with = "log_level")]
    quiet: bool,
    #[command(flatten)]
    log: LogFlags,
    /// File for metrics and the result, in the format of the node exporter's textfile collector; written every 15 s and at the end
    /// [env: SLOTKEEPER_METRICS_FILE]
    #[arg(help_heading = "Output", long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    metrics_file: Option<PathBuf>,
    /// File for the result as JSON, written at the end: whether a slot was acquired, the times, the exit codes and the reason
    /// [env: SLOTKEEPER_RESULT_FILE]
    #[arg(help_heading = "Output", long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    result_file: Option<PathBuf>,
    /// Print help; a summary with -h
    #[arg(help_heading = "General", short, long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Print version
    #[arg(help_heading = "General", short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
    #[command(flatten)]
    consul: ConsulFlags,
}

/// What the flags say of the command.
pub(super) struct CommandFlags {
    words: Vec<OsString>,
    kill_after: Option<Duration>,
    stop_after: Option<Duration>,
    times: Arc<CommandTimes>,
}

impl CommandFlags {
    /// The command, in a session with this TTL.
    pub(super) fn command(self, ttl: Duration) -> Command {
        let Self { words, kill_after, stop_after, times } = self;
        let kill_after = kill_after.unwrap_or_else(|| KILL_AFTER.min(fence::max_kill_after(ttl)));
        Command { words, kill_after, stop_after, times }
    }
}

impl Run {
    pub(super) fn run(mut self) -> anyhow::Result<Ended> {
        console::speak_for(job(self.prefix.as_deref(), self.name.as_deref(), &self.command));
        if self.prefix.is_none() {
            let variable = std::env::var_os("SLOTKEEPER_CONFIG").filter(|path| !path.is_empty());
            self.config = self.config.take().or(variable.map(PathBuf::from));
            if self.config.is_none() {
                return Ok(Ended::because(
                    Exit::Usage,
                    "no slot is named; pass PREFIX and --limit N, or PREFIX alone for a lock, or --config FILE; see --help",
                ));
            }
        }
        if let Err(why) = self.take_variables(&variables::of_process) {
            return Ok(self.refuse(Exit::Config, why));
        }
        if let Some(why) = self.misuse() {
            return Ok(Ended::because(Exit::Usage, why));
        }
        let mut files = match self.output_files() {
            Ok(files) => files,
            Err(why) => return Ok(self.refuse(Exit::Config, why)),
        };
        let ended = self.supervise(&mut files);
        files.finish(Outcome::of(&ended));
        ended
    }

    /// Flags that exclude each other.
    fn misuse(&self) -> Option<String> {
        let flag = self.flag_of_semaphores().filter(|_| !self.is_semaphore());
        if let Some(flag) = flag {
            return Some(format!("{flag} is for a semaphore; pass --limit N"));
        }
        if self.is_semaphore() && self.lock_delay.is_some() {
            return Some("--lock-delay is for a lock; omit it, or --limit".to_owned());
        }
        if self.lock && self.limit.is_some_and(|limit| limit != 1) {
            return Some(
                "a lock has one holder; omit --lock for a semaphore, or --limit for a lock".to_owned(),
            );
        }
        let line = self.command.first().filter(|_| !self.shell && is_shell_line(&self.command))?;
        Some(format!(
            "no program is called `{}`; pass --shell for a line of the shell, or its words without quotes",
            line.to_string_lossy().escape_debug()
        ))
    }

    fn supervise(self, files: &mut OutputFiles) -> anyhow::Result<Ended> {
        // Check before the acquisition: a slot is not safe to use if the command and all its processes cannot be ended.
        if let Some(why) = unfit_proc() {
            return Ok(self.refuse(Exit::Config, why));
        }
        // Said before the wait, which may last for hours.
        let words = self.words();
        if let Some((code, why)) = words.first().and_then(|program| exec::foreseen_failure(program)) {
            return Ok(self.refuse(Exit::PassedOn(code), why));
        }
        // As a container's first process it must reap orphans, which it does from a separate process.
        if let Some(below) = init::run_below(self.kill_after.unwrap_or(KILL_AFTER) + guard::MAX_RELEASE)? {
            return Ok(match below {
                // That process has printed the reason and written the files.
                Below::Ended(code) => {
                    files.leave();
                    Exit::PassedOn(code).into()
                }
                Below::Killed(signal) => {
                    let why = format!(
                        "slotkeeper itself was killed by signal {signal}, so its guard ended the command"
                    );
                    Ended::because(Exit::PassedOn(128_u8.saturating_add(signal)), why)
                }
            });
        }
        let command = CommandFlags {
            words,
            kill_after: self.kill_after,
            stop_after: self.stop_after,
            times: Arc::clone(files.times()),
        };
        let (file, times) = (self.config.clone(), Arc::clone(files.times()));
        let read_config: ReadConfig = Arc::new(move || self.read());
        let mut ended = start::run(file, read_config, Purpose::Command(command, files))?;
        let done = match times.started.get() {
            None => "; the command did not start",
            Some(_) if ended.exit == Exit::SlotLost => "; the command was stopped",
            Some(_) => "",
        };
        ended.why.iter_mut().for_each(|why| why.push_str(done));
        Ok(ended)
    }

    /// The files that it writes for other programs.
    fn output_files(&self) -> Result<OutputFiles, String> {
        let named = |flag, file: &Option<PathBuf>, variable| match file {
            Some(file) => (flag, Some(file.clone())),
            None => (variable, std::env::var_os(variable).map(PathBuf::from)),
        };
        let metrics = named("--metrics-file", &self.metrics_file, METRICS_FILE_VARIABLE);
        let result = named("--result-file", &self.result_file, RESULT_FILE_VARIABLE);
        OutputFiles::check(metrics, result)
    }

    /// The command cannot run. Removes a readiness file of an earlier process.
    fn refuse(&self, exit: Exit, why: impl Into<String>) -> Ended {
        if let Some(file) = &self.config {
            Files::forget(file);
        }
        Ended::because(exit, why)
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
        self.log.lay_over(&mut overrides);
        overrides.flag("--verbose", "log.level", self.verbose.then_some("info"));
        overrides.flag("--quiet", "log.level", self.quiet.then_some("error"));
        let environment = Environment::of_process();
        let check = |config: &Config| unfit(config, self.kill_after);
        let rules = |defaults| CommandRules { defaults, check: &check };
        let mut loaded = match &self.config {
            Some(file) => config::load_for(rules(DEFAULTS), file, &overrides, &environment)?,
            None => {
                self.lay_over_flags(&mut overrides);
                config::without_file(rules(DEFAULTS), &overrides, &environment)?
            }
        };
        if self.config.is_none() {
            loaded.config.naming = Naming::Prefix;
        }
        self.identify(&mut loaded.config.identity);
        Ok(loaded)
    }

    fn lay_over_flags(&self, overrides: &mut Overrides) {
        match self.limit.filter(|_| self.is_semaphore()) {
            Some(limit) => self.lay_over_semaphore(limit, overrides),
            None => self.lay_over_lock(overrides),
        }
        overrides.flag("--ttl", "session.ttl", self.ttl.map(show));
        overrides.flag("--node", "session.node", self.node.as_deref());
    }

    /// Adds the job to the identity.
    fn identify(&self, identity: &mut Identity) {
        let name = self.name.as_deref();
        if self.shell {
            identity.set_line(name, &self.command.join(" ".as_ref()).to_string_lossy());
        } else if let Some(program) = self.command.first() {
            let file = Path::new(program).file_name().unwrap_or(program);
            identity.set_program(name, &file.to_string_lossy());
        }
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
        overrides.flag("--limit-policy", "semaphores[0].limit_policy", self.limit_policy.as_deref());
        overrides.flag("--prune-delay", "semaphores[0].prune_delay", self.prune_delay.map(show));
    }

    /// The key of `consul lock PREFIX`, below the prefix.
    fn lay_over_lock(&self, overrides: &mut Overrides) {
        // A prefix that ends in `/.lock` is the key itself.
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

    fn is_semaphore(&self) -> bool {
        self.limit.is_some() && !self.lock
    }

    /// A flag that is set and that only a semaphore has.
    fn flag_of_semaphores(&self) -> Option<&'static str> {
        [
            (self.slots.is_some(), "--slots"),
            (self.priority.is_some(), "--priority"),
            (self.format.is_some(), "--format"),
            (self.limit_policy.is_some(), "--limit-policy"),
            (self.prune_delay.is_some(), "--prune-delay"),
        ]
        .into_iter()
        .find_map(|(is_set, flag)| is_set.then_some(flag))
    }

    fn wait(&self) -> Option<String> {
        self.timeout.or(self.try_once.then_some(Duration::ZERO)).map(show)
    }
}

/// What each line on standard error names: the prefix, or else the job.
fn job(prefix: Option<&str>, name: Option<&str>, command: &[OsString]) -> Option<String> {
    let job = match prefix {
        Some(prefix) => Naming::Prefix.of("", prefix.trim_end_matches('/')).to_owned(),
        None => name.map(str::to_owned).or(std::env::var("SLOTKEEPER_NAME").ok()).or_else(|| {
            let line = command.first()?.to_string_lossy();
            let program = Path::new(line.split_whitespace().next()?).file_name()?;
            Some(program.to_string_lossy().into_owned())
        })?,
    };
    Some(printable(&job)).filter(|job| !job.is_empty())
}

/// The same of an invalid command line, as far as it can be read.
pub(super) fn job_of_words() -> Option<String> {
    let matches = Cli::command().ignore_errors(true).try_get_matches().ok()?;
    let run = matches.subcommand_matches("run")?;
    let text = |id| run.try_get_one::<String>(id).ok().flatten().map(String::as_str);
    let command = run.try_get_many::<OsString>("command").ok().flatten().into_iter().flatten();
    job(text("prefix"), text("name"), &command.cloned().collect::<Vec<_>>())
}

/// A command of one word with spaces, which is not the name of a program: `consul lock` passes it to a shell.
fn is_shell_line(command: &[OsString]) -> bool {
    let [word] = command else { return false };
    let has_spaces = word.to_string_lossy().trim().contains(char::is_whitespace);
    has_spaces && exec::foreseen_failure(word).is_some_and(|(code, _)| code == exec::NOT_FOUND)
}

/// The semaphore's name in metrics and variables: the last part of its prefix, as far as it is a valid name.
fn name_of(prefix: &str) -> String {
    let last = prefix.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let name: String = last.chars().map(plain).take(63).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() { "semaphore".to_owned() } else { name.to_owned() }
}

/// What a command cannot run with.
fn unfit(config: &Config, kill_after: Option<Duration>) -> Vec<Unfit> {
    let mut unfit = Vec::new();
    let mut add = |flag, field, message: &str| unfit.push(Unfit { flag, field, message: message.to_owned() });
    if config.required().next().is_none() {
        add(
            None,
            "semaphores",
            "no semaphore or lock is required, so the command has no slot to run on; add one with `mode: hold`",
        );
    }
    if config.session.state_file.is_some() {
        add(
            None,
            "session.state_file",
            "`run` does not resume a session, since the earlier command may still be ending; remove it",
        );
    }
    if config.workload.is_some() {
        add(
            None,
            "workload",
            "the section is for an agent beside its workload, and `run` supervises its command itself; remove the section",
        );
    }
    let ttl = config.session.ttl;
    let max = fence::max_kill_after(ttl);
    if let Some(kill_after) = kill_after.filter(|kill_after| *kill_after > max) {
        let fix = fence::shortest_ttl(kill_after).map_or(String::new(), |ttl| {
            format!(", or a TTL of at least {} (--ttl, session.ttl)", show(ttl))
        });
        let (kill_after, ttl, max) = (show(kill_after), show(ttl), show(max));
        let message = format!(
            "{kill_after} is too long for the command to end before its slot is lost, with a TTL of {ttl}; use at most {max}{fix}"
        );
        add(Some("--kill-after"), "session.ttl", &message);
    }
    unfit
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
