//! `slotkeeper probe`: an exec probe for images without curl.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::local::{LocalAgent, get};
use super::{Exit, block_on, print_message};
use crate::duration;
use crate::escape::escape_control_chars;

/// Query the local agent's health endpoint: exits with 0 if it is healthy and with 1 if it is not.
#[derive(Debug, Args)]
pub(super) struct Probe {
    /// The endpoint to query.
    #[arg(value_enum, default_value_t = Endpoint::Ready)]
    endpoint: Endpoint,
    /// Time for the response.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    timeout: Duration,
    #[command(flatten)]
    agent: LocalAgent,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Endpoint {
    /// Whether the agent's own loop makes progress.
    Live,
    /// Whether every required slot is held.
    Ready,
    /// Whether all required slots were held at some time.
    Startup,
}

impl Probe {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let path = match self.endpoint {
            Endpoint::Live => "/livez",
            Endpoint::Ready => "/readyz",
            Endpoint::Startup => "/startupz",
        };
        let asked = async { get(&self.agent.address()?, path, self.timeout).await };
        match block_on(asked)? {
            Ok(answer) if answer.ok => Ok(Exit::Done),
            Ok(answer) if !answer.is_of_agent() => {
                let address = self.agent.address()?;
                print_message(format!(
                    "the server at http://{address}{path} is not a slotkeeper agent; is this the agent's http.listen?"
                ))?;
                Ok(Exit::Failed)
            }
            Ok(answer) => {
                writeln!(io::stderr(), "{}", escape_control_chars(answer.text.trim_end()))?;
                Ok(Exit::Failed)
            }
            Err(error) => {
                print_message(error)?;
                Ok(Exit::Failed)
            }
        }
    }
}
