//! Where requests go: the URL they begin with, and the connections they take.
//!
//! Consul allows one address a limited number of connections (`limits.http_max_conns_per_client`, 200). Long polls and all
//! other requests have bounds of their own, so that what keeps a lease waits for no long poll. At rest there is one connection
//! for each long poll, and none else: the others are closed soon after their use.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
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

/// A connection that takes longer is not going to be. Less than a request may take, so that a host which drops
/// packets is known to have got nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same where there is another address: within one attempt to renew, and enough for a packet that was lost.
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_millis(1500);

/// A connection that carries nothing is asked after this time whether the other side is still there, and then again and again.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// A connection whose other side has answered nothing for so long, be it a question or data, is given up: a long poll waits
/// minutes for news, and is not to wait them out where none can come.
const SILENCE: Duration = Duration::from_secs(30);

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
    /// The same, of the read that confirms a session's end; such reads leave one of the kept connections to renewals.
    Confirmation,
    /// Of what changes something or stands for many watches, each in its turn.
    Write,
    /// The same connections, of what reads: however many wait, a write waits for no more of them than there are connections.
    Read,
}

/// One Consul agent or server.
pub(super) struct Endpoint {
    /// Makes what one connection needs.
    make: Box<dyn Fn() -> Result<reqwest::Client, SetupError> + Send + Sync>,
    connections: Connections,
    polls: Semaphore,
    lease_calls: Semaphore,
    /// As many confirmations as may take, or stand in the line for, one of these.
    confirmations: Semaphore,
    calls: Semaphore,
    /// As many reads as may stand in the line for one of these.
    reads: Semaphore,
    /// Ends in `/v1/`.
    base: Url,
}

/// The endpoints of all targets, each made when it is used first.
pub(super) struct Endpoints {
    settings: Settings,
    plain: rustls::ClientConfig,
    /// Where any address is https: the files are read once.
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
        // What is wrong with the settings is said now.
        for address in settings.address.iter() {
            endpoints.make(&Target { address: address.clone(), ip: None }, false)?;
        }
        Ok(endpoints)
    }

    /// The endpoint of a target; `several`: there are others.
    pub(super) fn at(&self, target: &Target, several: bool) -> Result<Arc<Endpoint>, SetupError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = made.iter().position(|(of, _)| of == target) {
            // The one that was used last stands last.
            made[at..].rotate_left(1);
            if let Some((_, endpoint)) = made.last() {
                return Ok(Arc::clone(endpoint));
            }
        }
        let endpoint = Arc::new(self.make(target, several)?);
        // Those that were not used for the longest time: of addresses that a name does not have any more. Requests under way keep
        // theirs.
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
        let connect = if several { CONNECT_TIMEOUT_OF_SEVERAL } else { CONNECT_TIMEOUT };
        let make = move || client(&address, connect, tls.clone(), pinned.clone());
        let connections = Connections::default();
        // What is wrong with the settings is said now.
        connections.keep(make()?);
        Ok(Self {
            make: Box::new(make),
            connections,
            polls: Semaphore::new(MAX_LONG_POLLS),
            lease_calls: Semaphore::new(LEASE_CALLS),
            confirmations: Semaphore::new(LEASE_CALLS - 1),
            calls: Semaphore::new(MAX_CALLS - LEASE_CALLS),
            reads: Semaphore::new(MAX_CALLS - LEASE_CALLS),
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
        // Nor does one that has died unnoticed cost an attempt to renew then.
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

/// The URL that all requests begin with, and where its host really is if that is not what it says.
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
    let authority = match tls::name_to_ask_for(&settings.tls, address) {
        Some(name) => {
            base.set_host(Some(&name)).map_err(|error| unfit(address, &error))?;
            Some(format!("{host}:{port}"))
        }
        None if target.ip.is_none() => return Ok((base, None)),
        None => None,
    };
    Ok((base, Some(Pinned { host, port, ip: target.ip, authority })))
}

/// Resolves every name to one host: TLS asks for the server's name, TCP goes to the address.
#[derive(Clone)]
struct Pinned {
    /// IPv6 hosts in brackets.
    host: String,
    port: u16,
    /// The one address of the host's that is meant.
    ip: Option<IpAddr>,
    /// For the header `Host`, where the URL names another one.
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
    fn what_is_used_keeps_its_connections_whatever_a_name_stands_for_in_time() {
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
