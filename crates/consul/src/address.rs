//! Addresses of Consul, by the rules of `CONSUL_HTTP_ADDR`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use reqwest::Url;

/// The maximum number of addresses of one client.
pub const MAX_ADDRESSES: usize = 16;

/// The address of a Consul agent or server.
///
/// Parsed by the rules of `CONSUL_HTTP_ADDR`: `host:port`, `http://…`, `https://…` (both with an optional path prefix) or
/// `unix:///path`. The default port is the scheme's, 80 or 443, as in Consul's Go client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Http {
        /// Whether the connection uses TLS.
        https: bool,
        /// `host` or `host:port`; IPv6 hosts in brackets.
        authority: String,
        /// Empty, or `/prefix` without a final slash, for a gateway that serves Consul below a path.
        path: String,
    },
    /// A Unix socket, without TLS.
    Unix(PathBuf),
}

/// A text that is not an address. The text is not shown, since it may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an address of Consul; write host:port, http://host:port, https://host:port or unix:///path, IPv6 hosts in brackets, and \
     no user, password, query or fragment"
)]
pub struct AddressError;

impl Address {
    /// The same address with TLS, as `CONSUL_HTTP_SSL=true` requests. A Unix socket does not change.
    #[must_use]
    pub fn with_tls(self) -> Self {
        match self {
            Self::Http { authority, path, .. } => Self::Http { https: true, authority, path },
            Self::Unix(path) => Self::Unix(path),
        }
    }

    /// True if the connection uses TLS.
    pub fn is_https(&self) -> bool {
        matches!(self, Self::Http { https: true, .. })
    }
}

/// The addresses of one Consul cluster, in the order of preference. Written as a list with commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    first: Address,
    others: Vec<Address>,
}

impl Addresses {
    /// Creates a list; `None` if `all` is empty.
    pub fn of(all: impl IntoIterator<Item = Address>) -> Option<Self> {
        let mut all = all.into_iter();
        Some(Self { first: all.next()?, others: all.collect() })
    }

    /// The preferred address.
    pub fn first(&self) -> &Address {
        &self.first
    }

    /// All addresses, in the order of preference.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl From<Address> for Addresses {
    fn from(first: Address) -> Self {
        Self { first, others: Vec::new() }
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        self.others.iter().try_for_each(|address| write!(f, ",{address}"))
    }
}

impl FromStr for Addresses {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let all: Vec<Address> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Self::of(all).ok_or(AddressError)
    }
}

impl Default for Address {
    /// `http://127.0.0.1:8500`, the local agent.
    fn default() -> Self {
        Self::Http { https: false, authority: "127.0.0.1:8500".into(), path: String::new() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { https: false, authority, path } => write!(f, "http://{authority}{path}"),
            Self::Http { https: true, authority, path } => write!(f, "https://{authority}{path}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let text = text.trim();
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
            None => ("http".into(), text),
        };
        match scheme.as_str() {
            _ if rest.is_empty() => Err(AddressError),
            "http" => tcp(false, rest),
            "https" => tcp(true, rest),
            "unix" => Ok(Self::Unix(PathBuf::from(rest))),
            _ => Err(AddressError),
        }
    }
}

fn tcp(https: bool, rest: &str) -> Result<Address, AddressError> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.is_empty() || rest.contains(['@', '?', '#', '\\', ' ', '\t', '\n', '\r']) {
        return Err(AddressError);
    }
    // ":8500" is the local host, as in Go.
    let authority =
        if authority.starts_with(':') { format!("127.0.0.1{authority}") } else { authority.into() };
    let path = path.trim_end_matches('/');
    let path = if path.is_empty() { String::new() } else { format!("/{path}") };
    let address = Address::Http { https, authority, path };
    Url::parse(&address.to_string()).map_err(|_| AddressError)?;
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(https: bool, authority: &str, path: &str) -> Address {
        Address::Http { https, authority: authority.into(), path: path.into() }
    }

    #[test]
    fn the_forms_of_consul_http_addr() {
        for (text, address) in [
            ("127.0.0.1:8500", http(false, "127.0.0.1:8500", "")),
            ("consul.local", http(false, "consul.local", "")),
            ("http://consul:8500/", http(false, "consul:8500", "")),
            ("HTTPS://consul:8501", http(true, "consul:8501", "")),
            ("https://gateway/consul/eu/", http(true, "gateway", "/consul/eu")),
            ("gateway:80/consul", http(false, "gateway:80", "/consul")),
            ("[::1]:8500", http(false, "[::1]:8500", "")),
            (":8500", http(false, "127.0.0.1:8500", "")),
            (" unix:///run/consul.sock\n", Address::Unix("/run/consul.sock".into())),
            ("unix:///run/we@home/s", Address::Unix("/run/we@home/s".into())),
        ] {
            assert_eq!(text.parse(), Ok(address), "{text}");
        }
    }

    #[test]
    fn invalid_addresses() {
        for text in [
            "",
            "http://",
            "unix://",
            "ftp://consul:21",
            "http://user:hunter2@consul:8500",
            "consul:8500?dc=a",
            "::1:8500",
            "consul:port",
            "consul:99999",
            "a b:8500",
            "http:///v1",
        ] {
            assert_eq!(text.parse::<Address>(), Err(AddressError), "{text}");
        }
    }

    #[test]
    fn display_is_the_inverse_of_parse() {
        for text in ["http://127.0.0.1:8500", "https://gateway/consul", "unix:///run/consul.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_list_is_written_with_commas() {
        let all: Addresses = "http://a:1, https://b:2,unix:///s".parse().unwrap();
        assert_eq!(
            all.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["http://a:1", "https://b:2", "unix:///s"]
        );
        assert_eq!(all.to_string().parse(), Ok(all));
        assert_eq!("http://a:1,".parse::<Addresses>(), Err(AddressError));
    }

    #[test]
    fn ssl_turns_a_bare_address_to_https() {
        assert_eq!("c:1".parse::<Address>().unwrap().with_tls().to_string(), "https://c:1");
        assert_eq!("unix:///s".parse::<Address>().unwrap().with_tls().to_string(), "unix:///s");
    }
}
