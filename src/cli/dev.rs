//! `slotkeeper dev`: the embedded Consul-compatible server alone.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, value_parser};

use super::Exit;
use crate::shutdown::{SignalRequest, SignalRequests};
use slotkeeper_consul_dev::{BindError, Dialect, Options, Restricted, Server};

/// The largest value that the flag allows, in bytes. In base64 it fits into the longest response that the client reads.
const MAX_VALUE: i64 = 8 * 1024 * 1024;

/// Run a Consul-compatible server in memory, for development: several agents on one machine can share it.
#[derive(Debug, Args)]
pub(super) struct Dev {
    /// Where to listen; loopback addresses only
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8500", value_parser = loopback)]
    listen: SocketAddr,
    /// The version of Consul whose behaviour the server emulates
    #[arg(long, value_name = "VERSION", default_value_t, value_parser = dialects())]
    behave_like: Dialect,
    #[command(flatten)]
    settings: Settings,
}

/// Settings of a Consul agent.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings, named as Consul's own")]
struct Settings {
    /// The shortest TTL of a session
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = ttl)]
    session_ttl_min: Duration,
    /// The largest value, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 512 * 1024, value_parser = value_parser!(u32).range(1..=MAX_VALUE))]
    kv_max_value_size: u32,
    /// Time in which the body of a request must arrive
    #[arg(long, value_name = "DURATION", value_parser = bound)]
    http_read_timeout: Option<Duration>,
    /// Time in which a response must begin; after it the connection is closed
    #[arg(long, value_name = "DURATION", value_parser = bound)]
    http_write_timeout: Option<Duration>,
    /// Connections that one address may have
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..))]
    http_max_conns_per_client: Option<u32>,
    /// Reads of keys per second, with bursts of ten times as many (limits.request_limits)
    #[arg(long, value_name = "RATE", value_parser = value_parser!(u32).range(1..))]
    read_rate: Option<u32>,
    /// Writes per second, with bursts of ten times as many (limits.request_limits)
    #[arg(long, value_name = "RATE", value_parser = value_parser!(u32).range(1..))]
    write_rate: Option<u32>,
    /// A token with restricted permissions; any other token, and a request without one, has all permissions
    #[arg(long, value_name = "TOKEN")]
    restricted_token: Option<String>,
    /// Prefix of keys that the restricted token may neither read nor write; can be repeated
    #[arg(long, value_name = "PREFIX", requires = "restricted_token")]
    hide_keys: Vec<String>,
    /// Hide all sessions from the restricted token, which can then create none
    #[arg(long, requires = "restricted_token")]
    hide_sessions: bool,
}

/// The names of the dialects, each with its description.
fn dialects() -> impl TypedValueParser<Value = Dialect> {
    let names = Dialect::ALL.map(|it| {
        let stands_for = match it {
            Dialect::V1_8 => "Consul 1.8.7 (2020)",
            Dialect::V1_22 => "Consul 1.22 (2025) and newer",
        };
        PossibleValue::new(it.name()).help(stands_for)
    });
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Dialect>())
}

impl Settings {
    fn options(self, dialect: Dialect) -> Options {
        let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Options {
            dialect,
            min_ttl: self.session_ttl_min,
            max_value: number(self.kv_max_value_size),
            read_timeout: self.http_read_timeout,
            write_timeout: self.http_write_timeout,
            max_connections_per_client: self.http_max_conns_per_client.map(number),
            read_rate: self.read_rate,
            write_rate: self.write_rate,
            restricted: self.restricted_token.map(|token| Restricted {
                token,
                hidden_keys: self.hide_keys,
                hides_sessions: self.hide_sessions,
            }),
            ..Options::default()
        }
    }
}

impl Dev {
    /// Serves until SIGTERM or SIGINT.
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<Exit> {
        // Listen before the address is printed: a reader of the address may send a signal at once.
        let mut signals = SignalRequests::listen().context("cannot listen for signals")?;
        let server = Server::bind_with(self.listen, self.settings.options(self.behave_like))?;
        announce(server.addr()).context("cannot write to the standard output")?;
        let stop = async move {
            // There is no configuration to reload.
            while signals.next().await == SignalRequest::Reload {}
        };
        server.run(stop).await.context("the development server failed")?;
        Ok(Exit::Done)
    }
}

/// Checked during parsing, so that a bad address is a usage error.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let addr: SocketAddr =
        text.parse().map_err(|_| "expected an address such as 127.0.0.1:8500".to_owned())?;
    if addr.ip().is_loopback() { Ok(addr) } else { Err(BindError::NotLoopback(addr).to_string()) }
}

/// A session TTL: at most a day.
fn ttl(text: &str) -> Result<Duration, String> {
    bounded(text, Duration::from_secs(86_400))
}

/// A timeout: at most an hour.
fn bound(text: &str) -> Result<Duration, String> {
    bounded(text, Duration::from_secs(3600))
}

fn bounded(text: &str, most: Duration) -> Result<Duration, String> {
    let parsed = crate::duration::parse(text).map_err(|error| error.to_string())?;
    if (Duration::from_millis(1)..=most).contains(&parsed) {
        Ok(parsed)
    } else {
        Err(format!("write 1ms to {}s", most.as_secs()))
    }
}

fn announce(addr: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "Consul-compatible server on http://{addr}, for development only: all state is in memory")?;
    writeln!(out, "export CONSUL_HTTP_ADDR=http://{addr}")?;
    out.flush()
}
