//! `slotkeeper reload`: reloads the local agent's configuration.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use clap::Args;
use http_body_util::Empty;
use hyper::{Request, StatusCode, header};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use super::local::{self, NOT_AN_AGENT, exchange_over, other_file};
use super::output::ResultOutput;
use super::{Exit, block_on, print_message};
use crate::config::{self, Config, Control, Environment, Listen, Loaded, Overrides};
use crate::duration::{self, show};
use crate::escape::escape_control_chars;
use crate::status::{SignalAnswer, Status, pid_namespace};

/// Time between two looks for the agent's answer.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The largest token file, in bytes.
const MAX_TOKEN: u64 = 4 * 1024;

/// Have the local agent reload its configuration and apply all of it.
///
/// The command calls control.listen if the configuration has it. Otherwise it sends SIGHUP to the process that answers at
/// http.listen. Run it where the agent runs, as its user, with its environment. The agent releases entries that were removed
/// from the configuration, which an automatic reload does not.
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
        match block_on(self.ask(&config))?? {
            SignalAnswer::Reloaded(reloaded) => {
                self.output.print(&reloaded, |reloaded| escape_control_chars(&reloaded.to_string()))?;
                Ok(Exit::Done)
            }
            SignalAnswer::Refused(why) => {
                print_message(escape_control_chars(&why))?;
                Ok(Exit::Config)
            }
        }
    }

    async fn ask(&self, config: &Config) -> anyhow::Result<SignalAnswer> {
        let mut failures = Vec::new();
        if let Some(control) = &config.control {
            let shown = match &control.listen {
                Listen::Unix(path) => format!("unix:{}", path.display()),
                Listen::Tcp(address) => address.to_string(),
            };
            let connected = timeout(self.timeout, connect(&control.listen)).await;
            match connected.unwrap_or_else(|_late| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => {
                    let late = |_| Err(anyhow::anyhow!("no response within {}", show(self.timeout)));
                    let answer = timeout(self.timeout, request(stream, control)).await.unwrap_or_else(late);
                    let (status, text) =
                        answer.with_context(|| format!("cannot reload at control.listen, {shown}"))?;
                    return answered(status, &text);
                }
                Err(error) => failures.push(format!("no agent listens at control.listen, {shown}: {error}")),
            }
        }
        match config.http.listen.map(|address| address.to_string()) {
            Some(address) => match status(&address, self.timeout).await {
                Ok(status) => return self.signal(&address, &status).await,
                Err(error) => failures.push(error.to_string()),
            },
            None => failures.push(
                "the agent cannot be found without control.listen or http.listen; set one of them, or send SIGHUP to a \
                 `slotkeeper agent` process (`slotkeeper run` passes it on to the command)"
                    .to_owned(),
            ),
        }
        bail!("no running agent was found:\n  {}", failures.join("\n  "))
    }

    /// Sends SIGHUP to the agent that has this status, and waits until the status has the answer.
    async fn signal(&self, address: &str, before: &Status) -> anyhow::Result<SignalAnswer> {
        let pid = before.agent.who.pid.context("the agent is starting; try again")?;
        let Some(signals) = before.reload_signals() else {
            bail!(
                "nothing was sent to process {pid}: it is `slotkeeper run`, which passes SIGHUP on to the command. It reloads changed \
                 files by itself; for an explicit reload, set control.listen"
            );
        };
        if let Some(file) = other_file(signals, &self.config)? {
            bail!(
                "nothing was sent to process {pid}, which answers at {address}: its configuration is {}; name it by --config, or set the \
                 variables of the agent that is meant, such as SLOTKEEPER_HTTP_LISTEN",
                file.display()
            );
        }
        ensure!(
            signals.pid_namespace == pid_namespace(),
            "the agent that answers is not process {pid} here: it runs in another container; run the command in that one"
        );
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw).context(NOT_AN_AGENT)?;
        kill_process(process, Signal::HUP)
            .with_context(|| format!("cannot signal the agent, process {pid}"))?;
        let until = Instant::now() + self.timeout;
        loop {
            sleep(LOOK_EVERY).await;
            let now = status(address, until.saturating_duration_since(Instant::now())).await.ok();
            let now = now.as_ref().filter(|status| status.agent.who.pid == Some(pid));
            let answered = now.and_then(Status::reload_signals).filter(|now| now.answered > signals.received);
            if let Some(answer) = answered.and_then(|signals| signals.answer.clone()) {
                return Ok(answer);
            }
            ensure!(test_kill_process(process).is_ok(), "the agent, process {pid}, ended during the reload");
            ensure!(
                Instant::now() < until,
                "the agent, process {pid}, has not answered SIGHUP within {}; see its log",
                show(self.timeout)
            );
        }
    }
}

/// The status of the agent that listens there.
async fn status(address: &str, within: Duration) -> anyhow::Result<Status> {
    let answer = local::get(address, "/v1/status", within).await?;
    serde_json::from_str(&answer.text).map_err(|_| anyhow::anyhow!(NOT_AN_AGENT))
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

async fn connect(listen: &Listen) -> io::Result<Box<dyn Stream>> {
    Ok(match listen {
        Listen::Unix(path) => Box::new(UnixStream::connect(path).await?),
        Listen::Tcp(address) => Box::new(TcpStream::connect(address).await?),
    })
}

async fn request(stream: Box<dyn Stream>, control: &Control) -> anyhow::Result<(StatusCode, String)> {
    let request = Request::post("/v1/reload").header(header::CONTENT_LENGTH, 0);
    let request = match &control.listen {
        Listen::Unix(_) => request.header(header::HOST, "slotkeeper"),
        Listen::Tcp(address) => {
            let token = format!("Bearer {}", token(&control.token_file)?);
            request.header(header::HOST, address.to_string()).header(header::AUTHORIZATION, token)
        }
    };
    exchange_over(stream, request.body(Empty::<Bytes>::new())?).await
}

/// The answer of the control endpoints.
fn answered(status: StatusCode, text: &str) -> anyhow::Result<SignalAnswer> {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
    }
    if status == StatusCode::OK {
        let reloaded = serde_json::from_str(text);
        let reloaded =
            reloaded.context("the response at control.listen is not from an agent of this version")?;
        return Ok(SignalAnswer::Reloaded(reloaded));
    }
    let refusal = serde_json::from_str::<Refusal>(text);
    let why = refusal.map_or_else(|_| format!("status {status}"), |refusal| refusal.error);
    ensure!(status == StatusCode::UNPROCESSABLE_ENTITY, escape_control_chars(&why));
    Ok(SignalAnswer::Refused(why))
}

/// The token of a file, whatever its owner.
fn token(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_TOKEN).read_to_string(&mut text));
    read.with_context(|| format!("cannot read control.token_file, {}", path.display()))?;
    Ok(text.trim().to_owned())
}
