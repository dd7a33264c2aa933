//! `slotkeeper wait`: blocks until the local agent is ready; for init containers and scripts.

use std::io;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio::time::{Instant, sleep};

use super::local::{LocalAgent, NoAnswer, get};
use super::{Exit, block_on, complain, harmless};
use crate::config::duration;

/// Time between two questions, before jitter.
const EVERY: Duration = Duration::from_millis(250);
/// Time after which whoever watches is told what is being waited for.
const SILENCE: Duration = Duration::from_secs(2);
/// Time for one answer, and the least of it where the wait is nearly over.
const PATIENCE: Duration = Duration::from_secs(5);
const ONE_QUESTION: Duration = Duration::from_secs(1);

/// Block until the local agent holds every required slot.
///
/// Exits with 0 once it does, with 75 where it does not within --timeout, and with 128 and its number on a signal. An agent that is not there yet is waited
/// for in the same way.
#[derive(Debug, Args)]
pub(super) struct Wait {
    /// Give up after this time, such as 30s or 10m; by default never.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    agent: LocalAgent,
}

impl Wait {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let address = match self.agent.address() {
            Ok(address) => address,
            Err(error @ (NoAnswer::Config(_) | NoAnswer::Off | NoAnswer::Unreachable { .. })) => {
                complain(error)?;
                return Ok(Exit::Config);
            }
        };
        let mut last = String::from("nothing was asked yet");
        let began = Instant::now();
        let until = self.timeout.and_then(|timeout| began.checked_add(timeout));
        let left = || until.map_or(PATIENCE, |until| until.duration_since(Instant::now()));
        let wait = async {
            let mut told = false;
            loop {
                // A wait of 0s asks once, and so does one that is over while the agent is slow.
                match get(&address, "/readyz", left().clamp(ONE_QUESTION, PATIENCE)).await {
                    Ok(answer) if answer.ok => return Exit::Done,
                    Ok(answer) => last = missing(&answer.text),
                    Err(error) => last = error.to_string(),
                }
                if left().is_zero() {
                    return Exit::NotInTime;
                }
                if !told && began.elapsed() > SILENCE {
                    told = true;
                    // Whoever reads it may have gone; the waiting goes on.
                    let _ = complain(format!("waiting: {last}"));
                }
                // A fleet that starts together should not ask together.
                sleep(EVERY.mul_f64(1.0 + fastrand::f64()).min(left())).await;
            }
        };
        let exit = block_on(async {
            // As the first process of a container it is ended by no signal but those that it listens to.
            let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
            Ok::<_, io::Error>(tokio::select! {
                waited = wait => waited,
                Some(signal) = signals.next() => Exit::PassedOn(u8::try_from(128 + signal).unwrap_or(u8::MAX)),
            })
        })??;
        if exit == Exit::NotInTime {
            complain(format!("not ready in the time given: {last}"))?;
        }
        Ok(exit)
    }
}

/// What an agent that is not ready says is missing.
fn missing(text: &str) -> String {
    let checks: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("[-]")).map(harmless).collect();
    if checks.is_empty() { "what answers there is no slotkeeper agent".into() } else { checks.join("; ") }
}
