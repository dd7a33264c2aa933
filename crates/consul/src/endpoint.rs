//! Endpoints: the base URL and the connections of one agent or server.
//!
//! Consul limits the connections of one address (`limits.http_max_conns_per_client`, 200). Long polls and other requests have separate
//! limits, so that a renewal never waits for a long poll. An idle client has one connection for each long poll; other connections are
//! closed soon after their use.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HOST, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use tokio::sync::Semaphore;

use super::connections::{Connections, IDLE, Permit};
use super::selection::Target;
use super::{Address, MAX_ADDRESSES, Settings, SetupError, tls};

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
}

/// The endpoints of all targets, each made when it is used first.
pub(super) struct Endpoints {
    settings: Settings,
    plain: rustls::ClientConfig,
    /// Present if any address is https. The files are read once.
    secure: Option<rustls::ClientConfig>,
    made: Mutex<Vec<(Target, Arc<Endpoint>)>>,
}

impl Endpoints {
    pub(super) fn new(settings: &Settings) -> Result<Self, SetupError> {
        let any_https = settings.address.iter().any(Address::is_https);
        let endpoints = Self {
            plain: tls::config(&settings.tls, false)?,
            secure: any_https.then(|| tls::config(&settings.tls, true)).transpose()?,
            settings: settings.clone(),
            made: Mutex::default(),
        };
        // Invalid settings are reported now.
        for address in settings.address.iter() {
            endpoints.make(&Target { address: address.clone(), ip: None }, false)?;
        }
        Ok(endpoints)
    }

    /// The endpoint of a target; `several`: there are others.
    pub(super) fn at(&self, target: &Target, several: bool) -> Result<Arc<Endpoint>, SetupError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = made.iter().position(|(of, _)| of == target) {
            // The last used one is the last.
            made[at..].rotate_left(1);
            if let Some((_, endpoint)) = made.last() {
                return Ok(Arc::clone(endpoint));
            }
        }
        let endpoint = Arc::new(self.make(target, several)?);
        // Drop the least recently used one: its name has other addresses now. Requests in flight keep their endpoint.
        if made.len() >= MAX_ADDRESSES * 2 {
            made.remove(0);
        }
        made.push((target.clone(), Arc::clone(&endpoint)));
        Ok(endpoint)
    }

    fn make(&self, target: &Target, several: bool) -> Result<Endpoint, SetupError> {
        let secure = self.secure.as_ref().filter(|_| target.address.is_https());
        Endpoint::new(&self.settings, target, secure.unwrap_or(&self.plain).clone(), several)
    }
}

impl Endpoint {
    fn new(
        settings: &Settings,
        target: &Target,
        tls: rustls::ClientConfig,
        several: bool,
    ) -> Result<Self, SetupError> {
        let (base, pinned) = base(settings, target)?;
        let address = target.address.clone();
        let ip = target.ip.map(|ip| ip.to_string());
        let host = ip.or_else(|| Some(base.host_str()?.trim_matches(['[', ']']).to_owned()));
        let plain = host.filter(|_| matches!(address, Address::Http { https: false, .. }));
        let connect = if several { CONNECT_TIMEOUT_OF_SEVERAL } else { CONNECT_TIMEOUT };
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
        if let Some(authority) = &pinned.authority {
            let authority = HeaderValue::from_str(authority).map_err(|error| unfit(address, &error))?;
            http = http.default_headers(HeaderMap::from_iter([(HOST, authority)]));
        }
        http = http.dns_resolver(pinned);
    }
    http.build().map_err(|error| SetupError::Http(describe(&error)))
}

/// The base URL, and the address to connect to if it is not the URL's host.
fn base(settings: &Settings, target: &Target) -> Result<(Url, Option<Pinned>), SetupError> {
    let address = &target.address;
    let text = match address {
        Address::Http { .. } => address.to_string(),
        // The host is for the header only.
        Address::Unix(_) => "http://localhost".into(),
    };
    let mut base = Url::parse(&format!("{text}/v1/")).map_err(|error| unfit(address, &error))?;
    let host = base.host_str().unwrap_or_default().to_owned();
    let port = base.port_or_known_default().unwrap_or(443);
    let authority = match tls::name_in_url(&settings.tls, address) {
        Some(name) => {
            base.set_host(Some(&name)).map_err(|error| unfit(address, &error))?;
            Some(format!("{host}:{port}"))
        }
        None if target.ip.is_none() => return Ok((base, None)),
        None => None,
    };
    Ok((base, Some(Pinned { host, port, ip: target.ip, authority })))
}

/// Resolves every name to one host: TLS requests the server's name, TCP connects to the address.
#[derive(Clone)]
struct Pinned {
    /// IPv6 hosts in brackets.
    host: String,
    port: u16,
    /// The host's address to use, if it has several.
    ip: Option<IpAddr>,
    /// For the header `Host`, if the URL has another host.
    authority: Option<String>,
}

impl Resolve for Pinned {
    fn resolve(&self, _: Name) -> Resolving {
        let (host, port, ip) = (self.host.trim_matches(['[', ']']).to_owned(), self.port, self.ip);
        Box::pin(async move {
            let found: Vec<SocketAddr> = match ip {
                Some(ip) => vec![(ip, port).into()],
                None => tokio::net::lookup_host((host.as_str(), port)).await?.collect(),
            };
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
    SetupError::Address(address.to_string(), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_in_use_is_kept_when_a_name_changes_its_addresses() {
        let endpoints = Endpoints::new(&Settings::default()).unwrap();
        let address: Address = "http://consul:8500".parse().unwrap();
        let at = |host: u8| {
            let ip = Some(IpAddr::from([10, 0, 0, host]));
            endpoints.at(&Target { address: address.clone(), ip }, true).unwrap()
        };
        let used = at(0);
        for host in 1..=100 {
            at(host);
            assert!(Arc::ptr_eq(&used, &at(0)), "after {host} others");
        }
        assert!(endpoints.made.lock().unwrap().len() <= MAX_ADDRESSES * 2);
    }
}
