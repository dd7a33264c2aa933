//! `slotkeeper schema`: the JSON Schema of the configuration.

use std::io::{self, Write};

use clap::Args;

use super::Exit;
use crate::config::SCHEMA;

/// Print the JSON Schema of the configuration file, for editors.
#[derive(Debug, Args)]
pub(super) struct Schema {}

impl Schema {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let Self {} = self;
        io::stdout().write_all(SCHEMA.as_bytes())?;
        Ok(Exit::Done)
    }
}
