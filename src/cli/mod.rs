//! The command line: one file per subcommand.

use std::fmt::Display;
use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use serde::Serialize;

use crate::config::Faults;
use crate::console;
use crate::escape::escape_control_chars;
use crate::exit::{Ended, Exit};
use crate::files::FileError;
use crate::operator;
use crate::{service_manager, telemetry, termination};
use slotkeeper_consul::SetupError;

mod agent;
mod cells;
mod change;
mod check;
mod completions;
mod consent;
mod consul_flags;
mod destroy;
mod dev;
mod doctor;
mod evict;
mod guard;
mod inspect;
mod install;
mod interrupt;
mod list;
mod live;
mod local;
mod log_flags;
mod man;
mod manual;
mod operator_flags;
mod output;
mod probe;
mod prune;
#[cfg(test)]
#[path = "tests/reference.rs"]
mod reference;
mod reload;
mod run;
mod schema;
mod session_ids;
mod sessions;
mod set_limit;
mod show;
mod start;
mod status;
mod table;
mod version;
mod wait;
mod window;

pub use consul_flags::ConsulFlags;
use operator_flags::run_requests;

/// The subcommands that write a termination message: those that containers run. A `status` that an operator runs in the same
/// container writes none.
const EXPLAINED: [&str; 3] = ["agent", "run", "wait"];

/// Holds slots of Consul semaphores for the workload beside it.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, help_template = manual::COMMANDS, after_long_help = manual::PROGRAM)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Agent(Box<agent::Agent>),
    Run(Box<run::Run>),
    Wait(wait::Wait),
    Probe(probe::Probe),
    Status(status::StatusCommand),
    Reload(reload::Reload),
    Sessions(Box<sessions::Sessions>),
    Inspect(Box<inspect::Inspect>),
    List(Box<list::List>),
    SetLimit(Box<set_limit::SetLimit>),
    Prune(Box<prune::Prune>),
    Destroy(Box<destroy::Destroy>),
    Evict(Box<evict::Evict>),
    Doctor(Box<doctor::Doctor>),
    Check(check::Check),
    Schema(schema::Schema),
    Completions(completions::Completions),
    Man(man::Man),
    Install(install::Install),
    Dev(dev::Dev),
    Version(version::Version),
    Guard(guard::Guard),
    Exec(guard::Exec),
}

/// The command line without hidden commands, for generated pages and completions.
fn shown() -> clap::Command {
    let all = Cli::command();
    let about = all.get_about().cloned().unwrap_or_default();
    clap::Command::new("slotkeeper")
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .subcommand_required(true)
        .subcommands(all.get_subcommands().filter(|one| !one.is_hide_set()).cloned())
}

/// Parses the command line, runs the command and returns the exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let command = std::env::args_os().nth(1).unwrap_or_default();
            let command = EXPLAINED.into_iter().find(|explained| command == *explained);
            if let Some(command) = command.filter(|_| error.use_stderr()) {
                console::speak_for(run::job_of_words());
                return explain(Ok(Ended::because(Exit::Usage, misuse(command, &error))));
            }
            // A failure to print this is ignored.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Done }.into();
        }
    };
    let ended = match cli.command {
        Command::Agent(agent) => return explain(agent.run()),
        Command::Run(run) => return explain(run.run()),
        Command::Wait(wait) => return explain(wait.run()),
        Command::Probe(probe) => probe.run(),
        Command::Status(status) => status.run(),
        Command::Reload(reload) => reload.run(),
        Command::Sessions(sessions) => sessions.run(),
        Command::Inspect(inspect) => inspect.run(),
        Command::List(list) => list.run(),
        Command::SetLimit(set_limit) => set_limit.run(),
        Command::Prune(prune) => prune.run(),
        Command::Destroy(destroy) => destroy.run(),
        Command::Evict(evict) => evict.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Check(check) => check.run(),
        Command::Schema(schema) => schema.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
        Command::Install(install) => install.run(),
        Command::Dev(dev) => dev.run(),
        Command::Version(version) => version.run(),
        Command::Guard(guard) => guard.run(),
        Command::Exec(exec) => Ok(exec.run()),
    };
    ended.unwrap_or_else(|error| failed(&error)).into()
}

/// Ends a command that a container may run: says why on standard error, in the termination message and to the service manager.
fn explain(ended: anyhow::Result<Ended>) -> ExitCode {
    let ended = ended.unwrap_or_else(|error| Ended::because(exit_of(&error), format!("{error:#}")));
    // The log may not have started.
    if log_flags::ask_for_json() {
        telemetry::start_json();
    }
    console::end(&ended);
    if let Some(why) = ended.why {
        termination::write(&why);
        service_manager::report_end(&why);
    }
    ended.exit.into()
}

/// An invalid command line in one line.
fn misuse(command: &str, error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let words: Vec<_> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    let words = words.join(" ").replace(" tip: ", "; ");
    let what = words.trim_start_matches("error: ");
    let is_of_prefix = error.kind() == ErrorKind::ArgumentConflict && what.contains("--config <FILE>");
    let keys = if is_of_prefix { run::KEYS } else { "" };
    let usage =
        text.lines().find_map(|line| line.strip_prefix("Usage: ")).map(|line| format!("usage: {line}"));
    format!("{what}{keys}; {}", usage.unwrap_or_else(|| format!("see slotkeeper {command} --help")))
}

/// Prints the error and returns its exit code.
fn failed(error: &anyhow::Error) -> Exit {
    let reader_is_gone =
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
    if !reader_is_gone {
        // A failure to print this is ignored.
        let _ = print_message(format!("{error:#}"));
    }
    exit_of(error)
}

fn exit_of(error: &anyhow::Error) -> Exit {
    let of_operator = error.downcast_ref::<operator::Error>();
    let misconfigured = of_operator.is_some_and(operator::Error::is_misconfigured);
    if let Some(faults) = error.downcast_ref() {
        exit_of_faults(faults)
    } else if error.is::<SetupError>() || FileError::is_misplaced(error) || misconfigured {
        Exit::Config
    } else if of_operator.is_some_and(operator::Error::is_unavailable) {
        Exit::Unavailable
    } else if error.downcast_ref().is_some_and(operator::Error::is_denied) {
        Exit::Denied
    } else {
        Exit::Failed
    }
}

/// A wrong value of a flag is a usage error.
fn exit_of_faults(faults: &Faults) -> Exit {
    if faults.are_of_flags() { Exit::Usage } else { Exit::Config }
}

/// Prints an error or warning with the program's name.
fn print_message(what: impl Display) -> io::Result<()> {
    writeln!(io::stderr(), "slotkeeper: {what}")
}

/// A value as JSON, escaped for terminals: in one line, or indented.
fn json(value: &impl Serialize, in_one_line: bool) -> anyhow::Result<String> {
    let text = if in_one_line { serde_json::to_string(value) } else { serde_json::to_string_pretty(value) }?;
    Ok(escape_control_chars(&text) + "\n")
}

/// Runs a short command's future to its end.
fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(future);
    // A read that hangs on a slow disk is abandoned.
    runtime.shutdown_background();
    Ok(done)
}
