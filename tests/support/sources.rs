//! The addresses that a proxy's connections to Consul come from.
//!
//! Consul allows one client address 200 connections by default, and all clients of a proxy share its address. So the proxy
//! takes a further loopback address for every [`MAX_REQUESTS`] requests that are under way at once, as many clients on
//! several hosts have several addresses. Few clients come from the usual address alone.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};

use axum::body::Body;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Requests under way from one address. The HTTP library may open twice as many connections: it opens one while another
/// one becomes free.
const MAX_REQUESTS: usize = 90;

/// 127.0.0.1 and those that follow, in order.
#[derive(Debug, Default)]
pub struct Sources(Mutex<Vec<Source>>);

#[derive(Debug)]
struct Source {
    client: Client<HttpConnector, Body>,
    requests: usize,
}

/// The right to one request. It ends with this value.
#[derive(Debug)]
pub struct Permit<'a> {
    of: &'a Sources,
    number: usize,
    client: Client<HttpConnector, Body>,
}

impl Sources {
    /// One request from the first address that has room for it.
    pub fn take(&self) -> Permit<'_> {
        let mut sources = self.0.lock().unwrap();
        let free = sources.iter().position(|source| source.requests < MAX_REQUESTS);
        let number = free.unwrap_or(sources.len());
        if number == sources.len() {
            sources.push(Source { client: client(number), requests: 0 });
        }
        sources[number].requests += 1;
        Permit { of: self, number, client: sources[number].client.clone() }
    }
}

impl Permit<'_> {
    /// What sends from that address.
    pub fn client(&self) -> &Client<HttpConnector, Body> {
        &self.client
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut sources = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources[self.number].requests -= 1;
    }
}

fn client(number: usize) -> Client<HttpConnector, Body> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    if number > 0 {
        let last = u8::try_from(number + 1).expect("no more requests at once than loopback addresses allow");
        connector.set_local_address(Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))));
    }
    Client::builder(TokioExecutor::new()).build(connector)
}
