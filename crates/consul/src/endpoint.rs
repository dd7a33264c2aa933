//! Endpoints: the base URL and the connections of one agent or server.
//!
//! Consul limits the connections of one address (`limits.http_max_conns_per_client`, 200). Long polls and other requests have separate
//! limits, so that a renewal never waits for a long poll. An idle client has one connection for each long poll; other connections are
//! closed soon after their use.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HOST, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use tokio::sync::{Semaphore, watch};

use super::connections::{Connections, IDLE, Permit};
use super::{Address, Settings, SetupError, tls};

/// The time-out of a connection. Shorter than that of a request, so that for a host which drops packets the error is that nothing was
/// sent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same with several addresses: shorter than one attempt to renew, and enough for one lost packet.
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_millis(1500);

/// The idle time after which TCP probes a connection, and the interval of further probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// A connection is closed after this time without an acknowledgement, so that a long poll of minutes notices a dead host.
const SILENCE: Duration = Duration::from_secs(30);

/// The maximum number of long polls at once. Each takes a connection, which Consul counts until the poll ends.
pub const MAX_LONG_POLLS: usize = 64;
/// The maximum number of other requests at once, and how many of them are reserved for requests that keep a lease.
const MAX_CALLS: usize = 8;
const LEASE_CALLS: usize = 2;

/// Which connections a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The connections for long polls.
    Poll,
    /// Sessions and tokens: a reserved connection, or any other free one.
    Lease,
    /// The read that confirms a session's end. Such reads leave one reserved connection to renewals.
    Confirmation,
    /// Writes, and reads for many watches, each in turn.
    Write,
    /// Reads. They share the connections of writes, and a write waits for at most as many reads as there are connections.
    Read,
}

/// One Consul agent or server.
pub(super) struct Endpoint {
    /// Creates the library client of one connection.
    make: Box<dyn Fn() -> Result<reqwest::Client, SetupError> + Send + Sync>,
    connections: Connections,
    polls: Semaphore,
    lease_calls: Semaphore,
    /// The confirmations that may use, or queue for, a reserved connection.
    confirmations: Semaphore,
    calls: Semaphore,
    /// The reads that may queue for `calls`.
    reads: Semaphore,
    /// Ends in `/v1/`.
    base: Url,
    /// Where it listens, if that is TCP without TLS.
    pub(super) plain: Option<(String, u16)>,
    /// A request was answered by HTTP.
    pub(super) is_known: AtomicBool,
    contact: watch::Sender<Contact>,
    /// The long polls that may be given up while Consul still counts their connections.
    orphans: Arc<Semaphore>,
}

/// Whether requests are answered.
#[derive(Default)]
struct Contact {
    /// The last one that ended was not answered in time.
    is_silent: bool,
    /// How often requests were answered again after that.
    returns: u64,
}

impl Endpoint {
    /// An endpoint for each address. Certificates and keys are read now.
    pub(super) fn all(settings: &Settings) -> Result<Vec<Self>, SetupError> {
        let connect = if settings.address.iter().nth(1).is_some() {
            CONNECT_TIMEOUT_OF_SEVERAL
        } else {
            CONNECT_TIMEOUT
        };
        let plain = tls::config(&settings.tls, false)?;
        let any_https = settings.address.iter().any(Address::is_https);
        let secure = any_https.then(|| tls::config(&settings.tls, true)).transpose()?;
        let make = |address: &Address| {
            let secure = secure.as_ref().filter(|_| address.is_https());
            Self::new(settings, address, secure.unwrap_or(&plain).clone(), connect)
        };
        settings.address.iter().map(make).collect()
    }

    fn new(
        settings: &Settings,
        address: &Address,
        tls: rustls::ClientConfig,
        connect: Duration,
    ) -> Result<Self, SetupError> {
        let (base, pinned) = base(settings, address)?;
        let address = address.clone();
        let host = pinned.as_ref().map(|pinned| pinned.host.clone());
        let host = host.or_else(|| Some(base.host_str()?.to_owned()));
        let host = host.map(|host| host.trim_matches(['[', ']']).to_owned());
        let plain = host.filter(|_| matches!(address, Address::Http { https: false, .. }));
        let make = move || client(&address, connect, tls.clone(), pinned.clone());
        let connections = Connections::default();
        // Invalid settings are reported now.
        connections.keep(make()?);
        Ok(Self {
            make: Box::new(make),
            connections,
            polls: Semaphore::new(MAX_LONG_POLLS),
            lease_calls: Semaphore::new(LEASE_CALLS),
            confirmations: Semaphore::new(LEASE_CALLS - 1),
            calls: Semaphore::new(MAX_CALLS - LEASE_CALLS),
            reads: Semaphore::new(MAX_CALLS - LEASE_CALLS),
            plain: plain.zip(base.port_or_known_default()),
            is_known: AtomicBool::new(false),
            contact: watch::Sender::default(),
            orphans: Arc::new(Semaphore::new(MAX_LONG_POLLS)),
            base,
        })
    }

    /// Waits for a connection.
    pub(super) async fn enter(&self, lane: Lane) -> Permit<'_> {
        let one = |permits, turn| self.connections.one(permits, turn);
        match lane {
            Lane::Poll => one(&self.polls, None).await,
            Lane::Write => one(&self.calls, None).await,
            Lane::Read => {
                // The semaphore is never closed.
                let turn = self.reads.acquire().await.ok();
                one(&self.calls, turn).await
            }
            Lane::Lease => tokio::select! {
                biased;
                kept = one(&self.lease_calls, None) => kept,
                shared = one(&self.calls, None) => shared,
            },
            Lane::Confirmation => tokio::select! {
                biased;
                kept = async {
                    let turn = self.confirmations.acquire().await.ok();
                    one(&self.lease_calls, turn).await
                } => kept,
                shared = one(&self.calls, None) => shared,
            },
        }
    }

    /// The library client that sends on a connection.
    pub(super) fn client<'a>(&self, permit: &'a mut Permit<'_>) -> Result<&'a reqwest::Client, SetupError> {
        permit.client(&self.make)
    }

    /// Records that a request was answered, or that it was not answered in time.
    pub(super) fn heard(&self, in_time: bool) {
        self.contact.send_if_modified(|contact| {
            let returns = in_time && contact.is_silent;
            contact.is_silent = !in_time;
            contact.returns += u64::from(returns);
            returns
        });
    }

    /// Returns when the connection of a long poll that begins now, and lasts for `wait`, may be dead: requests have failed in silence,
    /// and are answered again. A proxy that has lost its own connection keeps the client's open for as long as it likes.
    pub(super) async fn poll_may_be_dead(&self, wait: Duration) {
        let mut contact = self.contact.subscribe();
        let orphan = loop {
            // The sender and the semaphore live as long as the endpoint.
            if contact.changed().await.is_err() {
                return std::future::pending().await;
            }
            if let Ok(orphan) = Arc::clone(&self.orphans).try_acquire_owned() {
                break orphan;
            }
        };
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            drop(orphan);
        });
    }

    /// The URL of a path below `/v1/`.
    pub(super) fn url(&self, path: &str) -> Result<Url, impl fmt::Display + use<>> {
        self.base.join(path)
    }
}

/// A client of the library for one connection.
fn client(
    address: &Address,
    connect: Duration,
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
        .connect_timeout(connect)
        .pool_max_idle_per_host(1)
        .pool_idle_timeout(IDLE)
        .tcp_nodelay(true)
        .tcp_keepalive(KEEPALIVE)
        .tcp_keepalive_interval(KEEPALIVE_INTERVAL)
        .tcp_keepalive_retries(3)
        .tcp_user_timeout(SILENCE);
    if let Address::Unix(path) = address {
        http = http.unix_socket(path.as_path());
    }
    if let Some(pinned) = pinned {
        let authority = format!("{}:{}", pinned.host, pinned.port);
        let authority = HeaderValue::from_str(&authority).map_err(|error| unfit(address, &error))?;
        http = http.default_headers(HeaderMap::from_iter([(HOST, authority)]));
        http = http.dns_resolver(pinned);
    }
    http.build()
        .map_err(|error| SetupError(format!("the HTTP client cannot be set up: {}", describe(&error))))
}

/// The base URL, and the address to connect to if it is not the URL's host.
fn base(settings: &Settings, address: &Address) -> Result<(Url, Option<Pinned>), SetupError> {
    let text = match address {
        Address::Http { .. } => address.to_string(),
        // The host is for the header only.
        Address::Unix(_) => "http://localhost".into(),
    };
    let mut base = Url::parse(&format!("{text}/v1/")).map_err(|error| unfit(address, &error))?;
    let host = base.host_str().unwrap_or_default().to_owned();
    let port = base.port_or_known_default().unwrap_or(443);
    let Some(name) = tls::name_in_url(&settings.tls, address) else { return Ok((base, None)) };
    base.set_host(Some(&name)).map_err(|error| unfit(address, &error))?;
    Ok((base, Some(Pinned { host, port })))
}

/// Resolves every name to one host: TLS requests the server's name, TCP connects to the address.
#[derive(Clone)]
struct Pinned {
    /// IPv6 hosts in brackets.
    host: String,
    port: u16,
}

impl Resolve for Pinned {
    fn resolve(&self, _: Name) -> Resolving {
        let (host, port) = (self.host.trim_matches(['[', ']']).to_owned(), self.port);
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), port)).await?.collect();
            if found.is_empty() {
                return Err(io::Error::other(format!("{host} has no address")).into());
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

fn unfit(address: &Address, error: &dyn fmt::Display) -> SetupError {
    SetupError(format!("no URL can be made of the Consul address {address}: {error}"))
}
