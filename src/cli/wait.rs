//! `slotkeeper wait`: blocks until the local agent is ready; for init containers and scripts.

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::local::{LocalAgent, NOT_AN_AGENT, NoAnswer, get};
use super::{Ended, Exit, block_on};
use crate::clock;
use crate::config::Naming;
use crate::duration;
use crate::escape::escape_control_chars;
use crate::status::Status;
use crate::waiting::{Awaited, Wait as Told};
use crate::workload::signals;

/// Time between two requests, before jitter.
const EVERY: Duration = Duration::from_millis(250);
/// Time for one response, and its minimum shortly before the timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Block until the local agent holds every required slot.
///
/// Exits with 0 once it does, with 75 if it does not within --timeout, with 69 if no agent answers in that time, with 78 if that agent has
/// another configuration than --config, and with 128 and the number of a signal that arrives. The command also waits for an agent that has not started. Meanwhile standard error shows what is
/// missing, on a terminal in one line that is updated.
#[derive(Debug, Args)]
pub(super) struct Wait {
    /// Wait at most this time, such as 30s or 10m; by default without a limit.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    agent: LocalAgent,
}

impl Wait {
    pub(super) fn run(self) -> anyhow::Result<Ended> {
        block_on(async {
            // The first process of a container is ended only by signals that it handles.
            let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
            // The file system may not respond.
            let agent = self.agent.clone();
            let address = tokio::select! {
                address = spawn_blocking(move || agent.address()) => address?,
                Some(signal) = signals.next() => return Ok(ended_by(signal, "")),
            };
            match address {
                Ok(address) => self.wait_for(address, signals).await,
                Err(error @ (NoAnswer::Config(_) | NoAnswer::Off | NoAnswer::Unreachable { .. })) => {
                    Ok(Ended::because(Exit::Config, error.to_string()))
                }
            }
        })?
    }

    async fn wait_for(&self, address: String, mut signals: Signals) -> anyhow::Result<Ended> {
        let until = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut waiting = Waiting {
            address,
            until,
            last: "no response yet".into(),
            answered: false,
            told: Told::begin(true, clock::now()),
        };
        let ended = tokio::select! {
            exit = waiting.wait() => Ok(exit),
            Some(signal) = signals.next() => Err(signal),
        };
        let is_done = matches!(ended, Ok(Exit::Done));
        if is_done && let Some(other) = self.agent.is_another(&waiting.address, ANSWER_TIMEOUT).await {
            return Ok(Ended::because(Exit::Config, other));
        }
        Ok(match ended {
            Ok(exit @ (Exit::Timeout | Exit::Unavailable)) => {
                Ended::because(exit, format!("timed out waiting for the agent to be ready: {}", waiting.last))
            }
            Ok(exit) => exit.into(),
            Err(signal) => ended_by(signal, &waiting.last),
        })
    }
}

/// A signal ended the wait; `missing` is what it waited for.
fn ended_by(signal: i32, missing: &str) -> Ended {
    let name = signals::name(signal);
    let separator = if missing.is_empty() { "" } else { ": " };
    Ended::because(
        Exit::PassedOn(u8::try_from(128 + signal).unwrap_or(u8::MAX)),
        format!("ended by {name} while it waited{separator}{missing}"),
    )
}

struct Waiting {
    address: String,
    until: Option<Instant>,
    /// The last response in words.
    last: String,
    /// Whether an agent has answered.
    answered: bool,
    /// What standard error shows.
    told: Option<Told>,
}

impl Waiting {
    fn left(&self) -> Duration {
        self.until.map_or(ANSWER_TIMEOUT, |until| until.duration_since(Instant::now()))
    }

    async fn wait(&mut self) -> Exit {
        loop {
            // A timeout of 0s sends one request, and so does one that ends while the agent is slow.
            match get(&self.address, "/readyz", self.left().clamp(MIN_ANSWER_TIMEOUT, ANSWER_TIMEOUT)).await {
                Ok(answer) if answer.ok => return Exit::Done,
                Ok(answer) => {
                    self.answered |= answer.is_of_agent();
                    self.last = missing(&answer.text);
                    if !self.left().is_zero() {
                        self.tell().await;
                    }
                }
                Err(error) => {
                    self.last = error.to_string();
                    self.show(&Awaited::other("the agent", format!("no agent at {} yet", self.address)));
                }
            }
            if self.left().is_zero() {
                return if self.answered { Exit::Timeout } else { Exit::Unavailable };
            }
            // Jitter, so that a fleet that starts together does not send its requests together.
            sleep(EVERY.mul_f64(1.0 + fastrand::f64()).min(self.left())).await;
        }
    }

    /// Shows what the agent waits for; if that is not known, the text of the readiness endpoint.
    async fn tell(&mut self) {
        if self.told.as_ref().is_none_or(|told| told.next() > clock::now()) {
            return;
        }
        let answer = get(&self.address, "/v1/status", self.left().min(MIN_ANSWER_TIMEOUT)).await.ok();
        let report = answer.and_then(|answer| serde_json::from_str::<Status>(&answer.text).ok());
        let awaited = report.and_then(|report| Awaited::of(&report, Naming::Name));
        self.show(&awaited.unwrap_or_else(|| Awaited::other("the agent", self.last.clone())));
    }

    fn show(&mut self, awaited: &Awaited) {
        if let Some(told) = &mut self.told {
            told.tell(Some(awaited), clock::now());
        }
    }
}

/// The failed checks of an agent that is not ready.
fn missing(text: &str) -> String {
    let checks: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("[-]")).map(escape_control_chars).collect();
    if checks.is_empty() { NOT_AN_AGENT.into() } else { checks.join("; ") }
}
