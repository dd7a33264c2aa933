//! Requests to the agent on this machine.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::config::{self, Environment, Faults, Overrides};
use crate::status::{ReloadSignals, Status, pid_namespace};

/// The default of http.listen.
const DEFAULT: &str = "127.0.0.1:9377";

/// What is wrong if another program answers.
pub(super) const NOT_AN_AGENT: &str =
    "the response is not from a slotkeeper agent; check the address (--address, http.listen)";
/// The largest response body.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// The agent's address: from --address, else SLOTKEEPER_HTTP_LISTEN, else the configuration file, else the default.
#[derive(Clone, Debug, Args)]
pub(super) struct LocalAgent {
    /// The agent's address (its http.listen).
    #[arg(long, value_name = "HOST:PORT", env = "SLOTKEEPER_HTTP_LISTEN", hide_env_values = true, value_parser = place, value_hint = clap::ValueHint::Hostname)]
    address: Option<String>,
    /// The agent's configuration file, from which the address is read.
    #[arg(long, value_name = "FILE", env = "SLOTKEEPER_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
}

/// A response of the agent.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// Whether the status was 200.
    pub(super) ok: bool,
    /// The body.
    pub(super) text: String,
}

impl Answer {
    /// Whether a health endpoint of an agent has answered: it lists its checks.
    pub(super) fn is_of_agent(&self) -> bool {
        self.text.lines().any(|line| line.starts_with("[+]") || line.starts_with("[-]"))
    }
}

/// Why there is no response.
#[derive(Debug, Error)]
pub(super) enum NoAnswer {
    /// The configuration file cannot be read.
    #[error("{0}")]
    Config(#[from] Faults),
    /// The endpoints are off.
    #[error("http.listen is off, so the agent cannot be reached; set an address")]
    Off,
    /// The agent did not respond.
    #[error(
        "no agent answers at http://{address}{path}: {cause}; is it running, and is this its http.listen?"
    )]
    Unreachable { address: String, path: String, cause: String },
}

impl LocalAgent {
    /// What is wrong where the agent that answers at `address` has another configuration file than --config names. In another container a
    /// file may have another path.
    pub(super) async fn is_another(&self, address: &str, within: Duration) -> Option<String> {
        let own = self.config.as_ref()?;
        let answer = get(address, "/v1/status", within).await.ok()?;
        let status: Status = serde_json::from_str(&answer.text).ok()?;
        let signals = status.reload_signals().filter(|signals| signals.pid_namespace == pid_namespace())?;
        let file = other_file(signals, own).ok()??;
        Some(format!(
            "the agent at {address} has the configuration {}, not {}; set another http.listen, or SLOTKEEPER_HTTP_LISTEN, for one of them",
            file.display(),
            own.display()
        ))
    }

    /// Where the agent listens, as `host:port`.
    pub(super) fn address(&self) -> Result<String, NoAnswer> {
        Ok(match (&self.address, &self.config) {
            (Some(off), _) if off == "off" => return Err(NoAnswer::Off),
            (Some(address), _) => address.clone(),
            (None, Some(path)) => {
                let loaded = config::load(path, &Overrides::default(), &Environment::of_process())?;
                loaded.config.http.listen.ok_or(NoAnswer::Off)?.to_string()
            }
            (None, None) => DEFAULT.to_owned(),
        })
    }
}

/// The agent's configuration file, if it is not the one at `own`.
pub(super) fn other_file<'a>(signals: &'a ReloadSignals, own: &Path) -> io::Result<Option<&'a PathBuf>> {
    let own = std::path::absolute(own)?;
    Ok(signals.file.as_ref().filter(|file| **file != own))
}

/// Checked during parsing, so that a bad address is a usage error. `off` is valid in the variable, for the agent.
fn place(text: &str) -> Result<String, String> {
    let text = &slotkeeper_consul::without_needless_brackets(text);
    let is_name = |host: &str| !host.is_empty() && !host.contains([':', '/', '[', ' ']);
    let named =
        text.rsplit_once(':').is_some_and(|(host, port)| is_name(host) && port.parse::<u16>().is_ok());
    if text == "off" || named || text.parse::<SocketAddr>().is_ok() {
        return Ok(text.to_string());
    }
    Err(format!("write a host and a port, such as {DEFAULT}"))
}

/// Sends one request to the agent.
pub(super) async fn get(address: &str, path: &str, within: Duration) -> Result<Answer, NoAnswer> {
    let asked = tokio::time::timeout(within, exchange(address, path)).await;
    let cause = match asked {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => format!("{error:#}"),
        Err(_late) => format!("no response within {} s", within.as_secs_f64()),
    };
    Err(NoAnswer::Unreachable { address: address.to_owned(), path: path.to_owned(), cause })
}

async fn exchange(address: &str, path: &str) -> anyhow::Result<Answer> {
    let stream = connect(address).await?;
    let request = Request::get(path).header(header::HOST, address).body(Empty::<Bytes>::new())?;
    let (status, text) = exchange_over(stream, request).await?;
    Ok(Answer { ok: status == StatusCode::OK, text })
}

/// One request on a connection of its own: without TLS, pools and redirects a whole client would be idle weight in a
/// probe that runs every few seconds.
pub(super) async fn exchange_over(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Empty<Bytes>>,
) -> anyhow::Result<(StatusCode, String)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await
            .map_err(anyhow::Error::from_boxed)?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    };
    tokio::select! {
        answer = exchange => answer,
        Err(error) = connection => Err(error.into()),
    }
}

/// An agent that listens on all addresses is reachable on loopback. `[::]` accepts IPv4 too, and is all there is if IPv6 is off.
async fn connect(address: &str) -> io::Result<TcpStream> {
    match address.parse::<SocketAddr>() {
        Ok(all) if all.ip().is_unspecified() => {
            let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, all.port()));
            let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, all.port()));
            let either = [v6, v4];
            TcpStream::connect(if all.is_ipv4() { &either[1..] } else { &either }).await
        }
        Ok(_) | Err(_) => TcpStream::connect(address).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for good in ["127.0.0.1:9377", "localhost:9377", "[::1]:9377", "0.0.0.0:9377", "off"] {
            assert_eq!(place(good).as_deref(), Ok(good));
        }
        assert_eq!(place("[127.0.0.1]:9377").as_deref(), Ok("127.0.0.1:9377"));
        for bad in ["nonsense", ":9377", "9377", "a:b", "a:70000", "http://a:1", "::1:9377", ""] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }
}
