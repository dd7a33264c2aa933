//! `slotkeeper completions`: what the shell completes.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Exit};

/// Print shell completions.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell to complete for.
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        // Written to memory first: clap_complete panics where the pipe is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "slotkeeper", &mut script);
        io::stdout().write_all(&script)?;
        Ok(Exit::Done)
    }
}
