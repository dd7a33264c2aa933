//! The flags of the operators' commands: how they reach Consul.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;

use super::ConsulFlags;
use crate::config::{self, Environment, Overrides};
use crate::consul::{Client, Unobserved};

/// Consul's own flags and variables, and what an agent's configuration file says of it.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct OperatorFlags {
    /// An agent's configuration file, to reach Consul as the agent does: with its address, token or login, and TLS.
    #[arg(long, value_name = "FILE", env = "SLOTKEEPER_CONFIG", help_heading = "Consul")]
    config: Option<PathBuf>,
    #[command(flatten)]
    consul: ConsulFlags,
}

impl OperatorFlags {
    /// A client of the Consul that the flags, the environment and the file name.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        let mut overrides = Overrides::default();
        self.consul.lay_over(&mut overrides);
        let environment = Environment::of_process();
        let (settings, warnings) = match &self.config {
            Some(path) => {
                let loaded = config::load(path, &overrides, &environment)?;
                (loaded.config.consul, loaded.warnings)
            }
            None => {
                let loaded = config::consul_settings(&overrides, &environment)?;
                (loaded.config, loaded.warnings)
            }
        };
        for warning in warnings {
            writeln!(io::stderr(), "{warning}")?;
        }
        Client::new(&settings, Arc::new(Unobserved)).context("cannot make a client of Consul")
    }
}
