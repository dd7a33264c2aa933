//! Addresses of Consul, by the rules of `CONSUL_HTTP_ADDR`.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv4Addr;
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

/// Why a text is not an address, and what to write. The text itself is not shown, since it may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

impl Address {
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
        Ok(Self::of(all).unwrap_or_default())
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
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let (https, default_port) = match scheme {
            "http" => (false, 80),
            "https" => (true, 443),
            "unix" => return socket_path(rest).map(Self::Unix),
            _ => {
                return wrong(format!("unknown scheme `{scheme}`; write http://, https:// or unix://"));
            }
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let Some(authority) = with_port(&without_needless_brackets(authority), default_port) else {
            return wrong(
                "is not an address; write http://host:port, https://host:port or unix:///path/to/socket",
            );
        };
        let path = path.trim_end_matches('/');
        if !path.chars().all(|c| c.is_ascii_alphanumeric() || "/-._~%".contains(c)) {
            return wrong(
                "has characters in its path that must be percent-encoded, or a query; write host, port and path",
            );
        }
        Ok(Self::Http { https, authority, path: path.to_owned() })
    }
}

/// The path of a unix socket.
///
/// # Errors
///
/// If it is not absolute, or too long for the system.
pub fn socket_path(path: &str) -> Result<PathBuf, AddressError> {
    // `sun_path` has 108 bytes with its closing NUL.
    const MAX_BYTES: usize = 107;
    let bytes = path.len();
    if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
        wrong("is not the absolute path of a socket; write unix:/path/to/socket")
    } else if bytes > MAX_BYTES {
        wrong(format!("the socket's path has {bytes} bytes; write at most {MAX_BYTES}, the system's maximum"))
    } else {
        Ok(PathBuf::from(path))
    }
}

/// `[127.0.0.1]:80` as `127.0.0.1:80`. Any other text stays unchanged.
///
/// A pod's manifest writes `[$(POD_IP)]:9377` for an address of either family. An IPv6 address needs the brackets, and a
/// manifest cannot know the family.
pub fn without_needless_brackets(text: &str) -> Cow<'_, str> {
    let needless = || {
        let (host, rest) = text.strip_prefix('[')?.split_once(']')?;
        host.parse::<Ipv4Addr>().ok()?;
        Some(format!("{host}{rest}"))
    };
    needless().map_or(Cow::Borrowed(text), Cow::Owned)
}

/// `host:port`, with `default` for a missing port; none for any other text.
fn with_port(text: &str, default: u16) -> Option<String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok().filter(|port| *port > 0)?),
        Some(_) | None => (text, default),
    };
    // Url would split off a user and a query, and remove some characters.
    let is_plain = host.bytes().all(|byte| byte.is_ascii_graphic() && !b"@?#\\".contains(&byte));
    let is_valid = is_plain && Url::parse(&format!("http://{text}")).is_ok();
    is_valid.then(|| format!("{host}:{port}"))
}

fn wrong<T>(why: impl Into<String>) -> Result<T, AddressError> {
    Err(AddressError(why.into()))
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
            ("consul.local", http(false, "consul.local:80", "")),
            ("http://consul:8500/", http(false, "consul:8500", "")),
            ("https://consul.example", http(true, "consul.example:443", "")),
            ("https://gateway/consul/eu/", http(true, "gateway:443", "/consul/eu")),
            ("gateway:80/consul", http(false, "gateway:80", "/consul")),
            ("[::1]:8500", http(false, "[::1]:8500", "")),
            ("http://[::1]", http(false, "[::1]:80", "")),
            ("https://[127.0.0.1]:8501", http(true, "127.0.0.1:8501", "")),
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
            ":8500",
            "http://",
            "http://:8500",
            "http:///v1",
            "ftp://x",
            "HTTPS://x",
            "http://x:0",
            "http://x:99999",
            "http://x:+80",
            "http://x:",
            "127.0.0.1:8500x",
            "::1:8500",
            "http://u:hunter2@x:1",
            "http://hunter2@x:1",
            "x:1?dc=hunter2",
            "http://x:1/?dc=a",
            "http://x:1/ä",
            "ä:1",
            "a b:1",
            "a\tb:1",
            "a\\b:1",
            "unix://",
            "unix://run/x",
            "unix:///",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("; write ") && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn needless_brackets_are_removed() {
        assert_eq!(without_needless_brackets("[127.0.0.1]:80"), "127.0.0.1:80");
        for text in ["[::1]:80", "[localhost]:80", "127.0.0.1:80"] {
            assert_eq!(without_needless_brackets(text), text);
        }
    }

    #[test]
    fn display_is_the_inverse_of_parse() {
        for text in ["http://127.0.0.1:8500", "https://gateway:443/consul", "unix:///run/consul.sock"] {
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
        assert!("http://a:1,".parse::<Addresses>().is_err());
    }
}
