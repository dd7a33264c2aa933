//! Where requests go: the URL they begin with, and the connections they take.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HOST, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Method, Url};

use super::{Address, Settings, SetupError, tls};

/// A connection that takes longer is not going to be. Less than a request may take, so that a host which drops
/// packets is known to have got nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One Consul agent or server.
pub(super) struct Endpoint {
    http: reqwest::Client,
    /// Ends in `/v1/`.
    base: Url,
}

impl Endpoint {
    pub(super) fn new(settings: &Settings) -> Result<Self, SetupError> {
        let (base, pinned) = base(settings)?;
        let mut http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config(&settings.tls, settings.address.is_https())?)
            .user_agent(concat!("slotkeeper/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .redirect(Policy::none())
            .referer(false)
            .http1_only()
            .connect_timeout(CONNECT_TIMEOUT)
            // Few, and not for long: each that has died unnoticed costs an attempt to renew.
            .pool_max_idle_per_host(2)
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
        let http = http.build().map_err(|error| SetupError::Http(describe(&error)))?;
        Ok(Self { http, base })
    }

    /// The URL of a path below `/v1/`.
    pub(super) fn url(&self, path: &str) -> Result<Url, impl fmt::Display + use<>> {
        self.base.join(path)
    }

    pub(super) fn request(&self, method: Method, url: Url) -> reqwest::RequestBuilder {
        self.http.request(method, url)
    }

    pub(super) async fn execute(
        &self,
        request: reqwest::Request,
    ) -> Result<reqwest::Response, reqwest::Error> {
        self.http.execute(request).await
    }
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
