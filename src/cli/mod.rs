//! The command line: one file a subcommand.

use std::fmt::Display;
use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Faults;
use crate::operator;

mod agent;
mod check;
mod completions;
mod consent;
mod consul_flags;
mod dev;
mod evict;
mod exit;
mod guard;
mod install;
mod local;
mod operator_flags;
mod probe;
mod run;
mod schema;
mod sessions;
mod set_limit;
mod start;
mod status;
mod wait;

pub use consul_flags::ConsulFlags;
pub use exit::Exit;
use operator_flags::ask;

/// Holds slots of Consul semaphores on behalf of the workload beside it.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
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
    Status(status::Status),
    Sessions(Box<sessions::Sessions>),
    SetLimit(Box<set_limit::SetLimit>),
    Evict(Box<evict::Evict>),
    Check(check::Check),
    Schema(schema::Schema),
    Completions(completions::Completions),
    Install(install::Install),
    Dev(dev::Dev),
    Guard(guard::Guard),
    Exec(guard::Exec),
}

/// Parses the command line, runs the command and says how the process ends.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Done };
            // Nothing is left to do where even this cannot be printed.
            let _ = error.print();
            return exit.into();
        }
    };
    let ended = match cli.command {
        Command::Agent(agent) => agent.run(),
        Command::Run(run) => run.run(),
        Command::Wait(wait) => wait.run(),
        Command::Probe(probe) => probe.run(),
        Command::Status(status) => status.run(),
        Command::Sessions(sessions) => sessions.run(),
        Command::SetLimit(set_limit) => set_limit.run(),
        Command::Evict(evict) => evict.run(),
        Command::Check(check) => check.run(),
        Command::Schema(schema) => schema.run(),
        Command::Completions(completions) => completions.run(),
        Command::Install(install) => install.run(),
        Command::Dev(dev) => dev.run(),
        Command::Guard(guard) => guard.run(),
        Command::Exec(exec) => Ok(exec.run()),
    };
    let exit = ended.unwrap_or_else(|error| {
        let reader_is_gone =
            error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        if !reader_is_gone {
            // Nothing is left to do where even this cannot be printed.
            let _ = writeln!(io::stderr(), "slotkeeper: {error:#}");
        }
        exit_of(&error)
    });
    exit.into()
}

fn exit_of(error: &anyhow::Error) -> Exit {
    if error.is::<Faults>() {
        Exit::Config
    } else if error.downcast_ref().is_some_and(operator::Error::is_unavailable) {
        Exit::Unavailable
    } else {
        Exit::Failed
    }
}

/// Says what is wrong, under the name of the program, as all of its commands do.
fn complain(what: impl Display) -> io::Result<()> {
    writeln!(io::stderr(), "slotkeeper: {what}")
}

/// Another client's text, with nothing in it that a terminal would obey.
fn printable(text: &str) -> String {
    text.escape_debug().take(100).collect()
}

/// Runs a short command's future to its end.
fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future))
}
