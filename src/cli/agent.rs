//! `slotkeeper agent`: the long-running sidecar.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::log_flags::LogFlags;
use super::start::{self, Purpose};
use super::{ConsulFlags, Ended};
use crate::config::{self, Environment, Overrides};

/// Hold slots on behalf of the workload beside this process, until SIGTERM.
///
/// On SIGTERM and SIGINT the agent releases everything and exits with 0; a second signal ends it at once. SIGHUP reloads the
/// configuration.
#[derive(Debug, Args)]
pub(super) struct Agent {
    /// Configuration file.
    #[arg(long, value_name = "FILE", env = "SLOTKEEPER_CONFIG", hide_env_values = true)]
    config: PathBuf,
    /// Start a Consul-compatible server in this process and use it: for development, in memory, on loopback only.
    ///
    /// The server listens at the configured Consul address if that is on this machine and free, else on any free port.
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    log: LogFlags,
    #[command(flatten)]
    consul: ConsulFlags,
}

impl Agent {
    pub(super) fn run(self) -> anyhow::Result<Ended> {
        // A workload beside us may be the same user, and see us in /proc: it shall not find our token by our memory or our root there.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        let mut overrides = Overrides::default();
        self.consul.lay_over(&mut overrides);
        self.log.lay_over(&mut overrides);
        let path = self.config.clone();
        let read_config = move || config::load(&path, &overrides, &Environment::of_process());
        start::run(Some(self.config), Arc::new(read_config), Purpose::Agent { dev: self.dev })
    }
}
