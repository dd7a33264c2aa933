//! Where requests go: the URL they begin with, and the connections they take.
//!
//! Consul allows one address a limited number of connections (`limits.http_max_conns_per_client`, 200). Long polls and all
//! other requests have pools and bounds of their own, so that what keeps a lease waits for no long poll.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HOST, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use tokio::sync::Semaphore;

use super::connections::{Connections, Permit};
use super::{Address, Settings, SetupError, tls};

/// A connection that takes longer is not going to be. Less than a request may take, so that a host which drops
/// packets is known to have got nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The most long polls at once. Each takes a connection, which Consul counts until the poll ends.
pub const MAX_LONG_POLLS: usize = 64;
/// The most other requests at once, and how many of them are for requests that keep a lease.
const MAX_CALLS: usize = 8;
const LEASE_CALLS: usize = 2;

/// Which connections a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// One of those for long polls.
    Poll,
    /// Of sessions and tokens: a connection kept for these, or any other that is free.
    Lease,
    /// Of what changes something or stands for many watches, each in its turn.
    Write,
    /// The same connections, of what reads: however many wait, a write waits for no more of them than there are connections.
    Read,
}

/// One Consul agent or server.
pub(super) struct Endpoint {
    /// Makes what one connection needs.
    make: Box<dyn Fn() -> Result<reqwest::Client, SetupError> + Send + Sync>,
    polls: Connections,
    lease_calls: Connections,
    calls: Connections,
    /// As many reads as may stand in the line for one of these.
    reads: Semaphore,
    /// Ends in `/v1/`.
    base: Url,
}

impl Endpoint {
    pub(super) fn new(settings: &Settings) -> Result<Self, SetupError> {
        let (base, pinned) = base(settings)?;
        let tls = tls::config(&settings.tls, settings.address.is_https())?;
        let settings = settings.clone();
        let make = move || client(&settings, tls.clone(), pinned.clone());
        // What is wrong with the settings is said now.
        make()?;
        Ok(Self {
            make: Box::new(make),
            polls: Connections::new(MAX_LONG_POLLS),
            lease_calls: Connections::new(LEASE_CALLS),
            calls: Connections::new(MAX_CALLS - LEASE_CALLS),
            reads: Semaphore::new(MAX_CALLS - LEASE_CALLS),
            base,
        })
    }

    /// Waits for a connection.
    pub(super) async fn enter(&self, lane: Lane) -> Permit<'_> {
        match lane {
            Lane::Poll => self.polls.one(None).await,
            Lane::Write => self.calls.one(None).await,
            Lane::Read => {
                // The semaphore is never closed.
                let turn = self.reads.acquire().await.ok();
                self.calls.one(turn).await
            }
            Lane::Lease => tokio::select! {
                biased;
                kept = self.lease_calls.one(None) => kept,
                shared = self.calls.one(None) => shared,
            },
        }
    }

    /// What sends on a connection.
    pub(super) fn client<'a>(&self, permit: &'a mut Permit<'_>) -> Result<&'a reqwest::Client, SetupError> {
        permit.client(&self.make)
    }

    /// The URL of a path below `/v1/`.
    pub(super) fn url(&self, path: &str) -> Result<Url, impl fmt::Display + use<>> {
        self.base.join(path)
    }
}

/// A client of the library for one connection.
fn client(
    settings: &Settings,
    tls: rustls::ClientConfig,
    pinned: Option<Pinned>,
) -> Result<reqwest::Client, SetupError> {
    let mut http = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("slotkeeper/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .redirect(Policy::none())
        .referer(false)
        .http1_only()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(1)
        // Not for long: one that has died unnoticed costs an attempt to renew.
        .pool_idle_timeout(Duration::from_secs(30))
        .tcp_nodelay(true)
        // A blocking read is silent for minutes; this is how it learns that the other side is gone.
        .tcp_keepalive(Duration::from_secs(15))
        .tcp_keepalive_interval(Duration::from_secs(5))
        .tcp_keepalive_retries(3);
    if let Address::Unix(path) = &settings.address {
        http = http.unix_socket(path.as_path());
    }
    if let Some(pinned) = pinned {
        let authority = format!("{}:{}", pinned.host, pinned.port);
        let authority = HeaderValue::from_str(&authority).map_err(|error| unfit(settings, &error))?;
        http = http.default_headers(HeaderMap::from_iter([(HOST, authority)])).dns_resolver(pinned);
    }
    http.build().map_err(|error| SetupError::Http(describe(&error)))
}

/// The URL that all requests begin with, and where its host really is if that is not what it says.
fn base(settings: &Settings) -> Result<(Url, Option<Pinned>), SetupError> {
    let address = match &settings.address {
        address @ Address::Http { .. } => address.to_string(),
        // The host is for the header only.
        Address::Unix(_) => "http://localhost".into(),
    };
    let mut base = Url::parse(&format!("{address}/v1/")).map_err(|error| unfit(settings, &error))?;
    let Some(name) = tls::name_to_ask_for(settings) else { return Ok((base, None)) };
    let host = base.host_str().unwrap_or_default().to_owned();
    let port = base.port_or_known_default().unwrap_or(443);
    base.set_host(Some(&name)).map_err(|error| unfit(settings, &error))?;
    Ok((base, Some(Pinned { host, port })))
}

/// Resolves every name to one host: TLS asks for the server's name, TCP goes to the address.
#[derive(Clone)]
struct Pinned {
    /// IPv6 hosts in brackets.
    host: String,
    port: u16,
}

impl Resolve for Pinned {
    fn resolve(&self, _: Name) -> Resolving {
        let place = (self.host.trim_matches(['[', ']']).to_owned(), self.port);
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((place.0.as_str(), place.1)).await?.collect();
            if found.is_empty() {
                return Err(io::Error::other(format!("{} has no address", place.0)).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

fn describe(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn unfit(settings: &Settings, error: &dyn fmt::Display) -> SetupError {
    SetupError::Address(settings.address.to_string(), error.to_string())
}
