//! How operator commands connect to Consul, and log out.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;

use super::interrupt::interruptible;
use super::{ConsulFlags, Exit, print_message};
use crate::bridge;
use crate::config::{self, Environment, Faults, Loaded, Overrides};
use crate::operator;
use slotkeeper_consul::{AddressNews, Client, Code, Observer, Settings, Tried};

/// The longest wait for a logout after the result is known.
const LOGOUT: Duration = Duration::from_secs(2);

/// Consul's own flags and variables, and the `consul` section of an agent's configuration file.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct OperatorFlags {
    /// An agent's configuration file, whose Consul address, token or login, and TLS settings are used. A name of its
    /// semaphores or locks can be given in place of PREFIX.
    #[arg(
        long,
        value_name = "FILE",
        env = "SLOTKEEPER_CONFIG",
        hide_env_values = true,
        help_heading = "Consul"
    )]
    config: Option<PathBuf>,
    #[command(flatten)]
    consul: ConsulFlags,
}

impl OperatorFlags {
    /// A client of the Consul that the flags, the environment and the file configure, and the prefix that `written` means.
    pub(super) fn target(&self, written: &str) -> anyhow::Result<(Client, String)> {
        let (client, prefix) = self.connect(Some(written))?;
        Ok((client, prefix.unwrap_or_default()))
    }

    /// As [`Self::target`], for a command that may be about all of Consul.
    pub(super) fn connect(&self, written: Option<&str>) -> anyhow::Result<(Client, Option<String>)> {
        let (Loaded { config: settings, warnings }, names) = self.read()?;
        for warning in warnings {
            writeln!(io::stderr(), "{warning}")?;
        }
        let prefix = written.map(|written| names.get(written).cloned().unwrap_or_else(|| written.to_owned()));
        let client = Client::new(&settings, Arc::new(AddressReports));
        Ok((client.context("cannot create a client for Consul")?, prefix))
    }

    /// How to reach Consul, and the prefixes of the file's semaphores and locks by their names.
    fn read(&self) -> Result<(Loaded<Settings>, BTreeMap<String, String>), Faults> {
        let mut overrides = Overrides::default();
        self.consul.lay_over(&mut overrides);
        let environment = Environment::of_process();
        let Some(path) = &self.config else {
            return Ok((config::consul_settings(&overrides, &environment)?, BTreeMap::new()));
        };
        let Loaded { config, warnings } = config::load(path, &overrides, &environment)?;
        let entries = config.semaphores.iter().map(|semaphore| &semaphore.entry).chain(&config.locks);
        let prefix = |key: &str| key.strip_suffix("/.lock").unwrap_or(key).to_owned();
        let names = entries.map(|entry| (entry.name.clone(), prefix(&entry.key))).collect();
        Ok((Loaded { config: config.consul, warnings }, names))
    }
}

/// `run` and `consul lock` lock the key that a semaphore's record would have, so both have the same prefix.
pub(super) fn lock_or_prefix(written: &str) -> Result<String, &'static str> {
    let written = written.trim_end_matches('/');
    config::plain_key(written.strip_suffix("/.lock").unwrap_or(written))
}

/// Reports unused addresses, for an operator to correct. Nothing else is observed.
struct AddressReports;

impl Observer for AddressReports {
    fn finished(&self, _: &Tried, _: Code, _: Duration) {}

    fn addresses(&self, news: &AddressNews) {
        // The reader of standard error may be gone.
        let _ = print_message(news);
    }
}

/// Runs a short command's requests to Consul until they end or a signal arrives, then logs out if there was a login.
pub(super) fn run_requests(
    client: &Client,
    question: impl Future<Output = anyhow::Result<Exit>>,
) -> anyhow::Result<Exit> {
    let asked = interruptible(question, async {
        if let Err(error) = client.within(LOGOUT).log_out_for_good().await {
            // The reader of standard error may be gone; the command is done all the same.
            let _ = print_message(format!(
                "{}. The token of the login stays until its auth method's MaxTokenTTL",
                bridge::message(&error)
            ));
        }
    })?;
    asked.map_err(|error| match error.downcast_ref() {
        Some(operator::Error::Missing(_)) if client.is_anonymous() => {
            anyhow!("{error}. No token was given ({TOKEN})")
        }
        Some(operator::Error::Denied(why)) if client.is_anonymous() => {
            operator::Error::Denied(format!("{why}. No token was given ({TOKEN})")).into()
        }
        _ => error,
    })
}

/// The options that provide a token.
const TOKEN: &str = "--token-file, CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_TOKEN";

/// The hint for an empty result: Consul returns nothing for what a token may not read.
pub(super) fn hidden(client: &Client) -> String {
    if client.is_anonymous() {
        format!(", or, if Consul has ACLs, none is readable without a token ({TOKEN})")
    } else {
        ", or none is readable with the token".into()
    }
}
