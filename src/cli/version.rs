//! `slotkeeper version`.

use std::io::{self, Write};

use clap::Args;

use super::Exit;

/// Print the version, as --version does.
#[derive(Debug, Args)]
pub(super) struct Version {}

impl Version {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        writeln!(io::stdout(), "slotkeeper {}", env!("CARGO_PKG_VERSION"))?;
        Ok(Exit::Done)
    }
}
