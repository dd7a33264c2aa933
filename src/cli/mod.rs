//! The command line: one file a subcommand.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod dev;
mod exit;

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
    Dev(dev::Dev),
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
        Command::Dev(dev) => dev.run(),
    };
    match ended {
        Ok(exit) => exit.into(),
        Err(error) => {
            // Nothing is left to do where even this cannot be printed.
            let _ = writeln!(io::stderr(), "slotkeeper: {error:#}");
            Exit::Failed.into()
        }
    }
}
