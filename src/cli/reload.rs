//! `slotkeeper reload`: reloads the local agent's configuration.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use clap::Args;
use http_body_util::Empty;
use hyper::{Request, StatusCode, header};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use serde::Deserialize;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout_at;

use super::local::exchange_over;
use super::output::ResultOutput;
use super::{Exit, block_on, print_message};
use crate::clock;
use crate::config::{self, Config, Control, Environment, Listen, Loaded, Overrides};
use crate::control::request::Reloaded;
use crate::duration::{self, show};
use crate::escape::escape_control_chars;
use crate::files::claimant::{Found, NotFound, SignalAnswer, find};

/// Time between two checks for the agent's answer.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Checks for an agent that has not yet written its claim.
const LOOKS: u32 = 10;
/// The largest token file, in bytes.
const MAX_TOKEN: u64 = 4 * 1024;

/// Have the local agent reload its configuration and apply all of it.
///
/// The command calls control.listen if the configuration has it. Otherwise it sends SIGHUP to the process that has claimed
/// readiness.file or session.state_file. Run it where the agent runs, as its user, with its environment. The agent releases
/// entries that were removed from the configuration, which an automatic reload does not.
///
/// Exits with 0 when it is done, with 78 if the agent refused the configuration, and with 1 if no agent was found or none answered.
#[derive(Debug, Args)]
pub(super) struct Reload {
    /// The agent's configuration file.
    #[arg(long, value_name = "FILE", env = "SLOTKEEPER_CONFIG", hide_env_values = true)]
    config: PathBuf,
    /// How long to wait for the agent's answer.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    timeout: Duration,
    #[command(flatten)]
    output: ResultOutput,
}

impl Reload {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let loaded = config::load(&self.config, &Overrides::default(), &Environment::of_process());
        let Loaded { config, .. } =
            loaded.context("the request was not sent, since the agent would refuse this configuration")?;
        let mut failures = Vec::new();
        if let Some(control) = &config.control {
            match block_on(ask(control, self.timeout))?? {
                Asked::Answered(status, text) => return self.answered(status, &text),
                Asked::NoAgent(why) => failures.push(why),
            }
        }
        match agents(&config, &mut failures).as_slice() {
            [] => {
                if failures.is_empty() {
                    failures.push(
                        "the agent cannot be found without control.listen, readiness.file or session.state_file; set one of them, \
                         or send SIGHUP to a `slotkeeper agent` process (`slotkeeper run` passes it on to the command)"
                            .to_owned(),
                    );
                }
                print_message(format!("no running agent was found:\n  {}", failures.join("\n  ")))?;
                Ok(Exit::Failed)
            }
            [(path, agent)] => self.signal(path, agent),
            several => {
                let named = |(path, found): &(&Path, Found)| {
                    format!("{} belongs to process {}", path.display(), found.claimant.pid)
                };
                let several: Vec<_> = several.iter().map(named).collect();
                print_message(format!(
                    "nothing was sent, since these are two agents: {}; reload each with its own configuration and environment",
                    several.join(", and ")
                ))?;
                Ok(Exit::Failed)
            }
        }
    }

    /// Sends SIGHUP and waits for the outcome.
    fn signal(&self, path: &Path, agent: &Found) -> anyhow::Result<Exit> {
        let Found { claimant, process } = agent;
        let pid = claimant.pid;
        if !claimant.takes_sighup {
            print_message(format!(
                "nothing was sent to process {pid}: it is `slotkeeper run`, which passes SIGHUP on to the command. It reloads changed \
                 files by itself; for an explicit reload, set control.listen"
            ))?;
            return Ok(Exit::Failed);
        }
        let asked = claimant.signals.asked;
        pidfd_send_signal(process, Signal::HUP)
            .with_context(|| format!("cannot signal the agent, process {pid}"))?;
        let until = clock::now() + self.timeout;
        loop {
            let ended = has_ended(process, LOOK_EVERY)?;
            // The file may be in the middle of a write.
            let signals =
                find(path).ok().filter(|found| found.claimant.pid == pid).map(|found| found.claimant.signals);
            match signals.filter(|signals| signals.answered > asked).and_then(|signals| signals.answer) {
                Some(SignalAnswer::Reloaded(reloaded)) => return self.done(&reloaded),
                Some(SignalAnswer::Refused(why)) => return refused(&why),
                None if ended => {
                    print_message(format!("the agent, process {pid}, ended during the reload"))?;
                    return Ok(Exit::Failed);
                }
                None if until <= clock::now() => {
                    print_message(format!(
                        "the agent, process {pid}, has not answered SIGHUP within {}; see its log",
                        show(self.timeout)
                    ))?;
                    return Ok(Exit::Failed);
                }
                None => {}
            }
        }
    }

    /// Prints the answer of the control endpoints.
    fn answered(&self, status: StatusCode, text: &str) -> anyhow::Result<Exit> {
        #[derive(Deserialize)]
        struct Refusal {
            error: String,
        }
        if status == StatusCode::OK {
            let reloaded = serde_json::from_str(text)
                .context("the response at control.listen is not from an agent of this version")?;
            return self.done(&reloaded);
        }
        let why = serde_json::from_str::<Refusal>(text)
            .map_or_else(|_| format!("status {status}"), |refusal| refusal.error);
        if status == StatusCode::UNPROCESSABLE_ENTITY {
            return refused(&why);
        }
        print_message(escape_control_chars(&why))?;
        Ok(Exit::Failed)
    }

    fn done(&self, reloaded: &Reloaded) -> anyhow::Result<Exit> {
        self.output.print(reloaded, |reloaded| escape_control_chars(&reloaded.to_string()))?;
        Ok(Exit::Done)
    }
}

/// Waits for the process's end, for at most that time.
fn has_ended(process: &OwnedFd, time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&time));
    match ended {
        Ok(ended) => Ok(ended > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The agents that have claimed a file of the configuration, without duplicates.
fn agents<'c>(config: &'c Config, failures: &mut Vec<String>) -> Vec<(&'c Path, Found)> {
    let mut agents: Vec<(&Path, Found)> = Vec::new();
    for path in config.readiness.iter().chain(&config.session.state_file) {
        match look_for(path) {
            Ok(found) if agents.iter().any(|(_, other)| other.claimant.pid == found.claimant.pid) => {}
            Ok(found) => agents.push((path, found)),
            Err(why) => failures.push(why.to_string()),
        }
    }
    agents
}

/// Reads the claim of an agent that may be writing it.
fn look_for(path: &Path) -> Result<Found, NotFound> {
    for _ in 0..LOOKS {
        match find(path) {
            Err(NotFound::Unclear(_)) => drop(poll(&mut [], Timespec::try_from(LOOK_EVERY).ok().as_ref())),
            found => return found,
        }
    }
    find(path)
}

/// The outcome of a request to the control endpoints.
enum Asked {
    /// The agent's answer.
    Answered(StatusCode, String),
    /// No agent listens there: the reason.
    NoAgent(String),
}

async fn ask(control: &Control, within: Duration) -> anyhow::Result<Asked> {
    let until = tokio::time::Instant::now() + within;
    let request = |host: &str, token: Option<String>| {
        let mut request =
            Request::post("/v1/reload").header(header::HOST, host).header(header::CONTENT_LENGTH, 0);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.body(Empty::<Bytes>::new())
    };
    let (shown, exchanged) = match &control.listen {
        Listen::Unix(path) => {
            let shown = format!("unix:{}", path.display());
            match UnixStream::connect(path).await {
                Ok(stream) => {
                    let request = request("slotkeeper", None)?;
                    (shown, timeout_at(until, exchange_over(stream, request)).await)
                }
                Err(error) => return Ok(no_agent(&shown, &error)),
            }
        }
        Listen::Tcp(address) => {
            let shown = address.to_string();
            match timeout_at(until, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let request = request(&shown, Some(token(&control.token_file)?))?;
                    (shown, timeout_at(until, exchange_over(stream, request)).await)
                }
                Ok(Err(error)) => return Ok(no_agent(&shown, &error)),
                Err(_late) => return Ok(no_agent(&shown, &io::ErrorKind::TimedOut.into())),
            }
        }
    };
    let exchanged = exchanged.map_err(|_late| anyhow::anyhow!("no response within {}", show(within)));
    let (status, text) = exchanged
        .and_then(|exchanged| exchanged)
        .with_context(|| format!("cannot reload at control.listen, {shown}"))?;
    Ok(Asked::Answered(status, text))
}

fn no_agent(address: &str, error: &io::Error) -> Asked {
    Asked::NoAgent(format!("no agent listens at control.listen, {address}: {error}"))
}

/// The token of a file, whatever its owner.
fn token(path: &Path) -> anyhow::Result<String> {
    let cannot = || format!("cannot read control.token_file, {}", path.display());
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(MAX_TOKEN).read_to_string(&mut text)).with_context(cannot)?;
    Ok(text.trim().to_owned())
}

fn refused(why: &str) -> anyhow::Result<Exit> {
    print_message(escape_control_chars(why))?;
    Ok(Exit::Config)
}
