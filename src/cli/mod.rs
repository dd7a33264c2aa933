//! The command line: one file a subcommand.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod check;
mod completions;
mod consul_flags;
mod exit;
mod schema;

pub use consul_flags::ConsulFlags;
pub use exit::Exit;

/// Holds slots of Consul semaphores on behalf of the workload beside it.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Check),
    Schema(schema::Schema),
    Completions(completions::Completions),
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
    let done = match cli.command {
        Command::Check(check) => check.run(),
        Command::Schema(schema) => schema.run(),
        Command::Completions(completions) => completions.run(),
    };
    // What fails here is the writing of the answer: whoever read it has gone.
    done.unwrap_or(Exit::Failed).into()
}
