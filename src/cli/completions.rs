//! `slotkeeper completions`: prints shell completions.

use std::io::{self, Write};

use clap::Args;
use clap_complete::Shell;

use super::{Exit, shown};

/// Print shell completions.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell to complete for.
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        // Write to memory first: clap_complete panics if the pipe is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut shown(), "slotkeeper", &mut script);
        io::stdout().write_all(&script)?;
        Ok(Exit::Done)
    }
}
