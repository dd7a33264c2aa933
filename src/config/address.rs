//! Addresses of Consul, and of the agent's own servers.

use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use hyper::http::uri::Authority;

use super::sections::Listen;
use super::value;
use slotkeeper_consul::Address;

/// Consul's address: `http://`, `https://`, `unix://`, or a bare `host:port` as in `CONSUL_HTTP_ADDR`.
pub(super) fn consul(text: &str) -> Result<Address, String> {
    let text = text.trim();
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let https = match scheme {
        "http" => false,
        "https" => true,
        "unix" => return socket(rest).map(Address::Unix),
        _ => {
            return Err(format!("unknown scheme `{scheme}`; write http://, https:// or unix://"));
        }
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let authority = authority_with_port(&without_needless_brackets(authority), if https { 443 } else { 80 })
        .ok_or("is not an address; write http://host:port, https://host:port or unix:///path/to/socket")?;
    let path = path.trim_end_matches('/');
    if !path.chars().all(|c| c.is_ascii_alphanumeric() || "/-._~%".contains(c)) {
        return Err(
            "has characters in its path that must be percent-encoded, or a query; write host, port and path"
                .to_owned(),
        );
    }
    Ok(Address::Http { https, authority, path: path.to_owned() })
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

/// An IP address and port. `localhost` is 127.0.0.1, and no other name is accepted: a server listens at one address.
pub(super) fn tcp(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    without_needless_brackets(text).parse().map_err(|_| {
        let is_port = |port: &str| port.parse::<u16>().is_ok();
        let example = match text.rsplit_once(':') {
            Some(("", port)) if is_port(port) => format!("0.0.0.0:{port} for every interface"),
            None if is_port(text) => format!("127.0.0.1:{text}"),
            Some(_) | None => "127.0.0.1:9377 or [::1]:9377".to_owned(),
        };
        format!("`{text}` is not an IP address with a port; write for example {example}")
    })
}

/// An address that other machines cannot reach: loopback, or a unix socket.
pub(super) fn local(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = socket(path.strip_prefix("//").unwrap_or(path))?;
        return value::no_system_path(&path).map(|()| Listen::Unix(path));
    }
    if text.starts_with('/') {
        return Err(format!("is a path; write unix:{text}"));
    }
    let address = tcp(text).map_err(|_| {
        format!("`{text}` is not an address; write unix:/path/to/socket, or for example 127.0.0.1:9378")
    })?;
    if address.ip().is_loopback() {
        Ok(Listen::Tcp(address))
    } else {
        Err(format!(
            "{address} can be reached from other machines; write a loopback address or unix:/path/to/socket"
        ))
    }
}

fn socket(path: &str) -> Result<PathBuf, String> {
    // `sun_path` has 108 bytes with its closing NUL.
    const MAX_BYTES: usize = 107;
    if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
        return Err("is not the absolute path of a socket; write unix:/path/to/socket".to_owned());
    }
    if path.len() > MAX_BYTES {
        return Err(format!(
            "the socket's path has {} bytes; write at most {MAX_BYTES}, the system's maximum",
            path.len()
        ));
    }
    Ok(PathBuf::from(path))
}

/// `host:port`, with `default` for a missing port; none for any other text.
fn authority_with_port(text: &str, default: u16) -> Option<String> {
    let authority = Authority::try_from(text).ok().filter(|authority| !authority.as_str().contains('@'))?;
    let host = Some(authority.host()).filter(|host| !host.is_empty() && !host.starts_with(':'))?;
    match authority.as_str().strip_prefix(host)? {
        "" => Some(format!("{host}:{default}")),
        _ => authority.port_u16().filter(|port| *port > 0).map(|port| format!("{host}:{port}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(https: bool, authority: &str, path: &str) -> Result<Address, String> {
        Ok(Address::Http { https, authority: authority.to_owned(), path: path.to_owned() })
    }

    #[test]
    fn consul_addresses_have_the_meaning_they_have_for_consul() {
        assert_eq!(consul("127.0.0.1:8500"), http(false, "127.0.0.1:8500", ""));
        assert_eq!(consul("http://consul.example:8500/"), http(false, "consul.example:8500", ""));
        assert_eq!(consul("https://consul.example"), http(true, "consul.example:443", ""));
        assert_eq!(consul("https://gate.example:8443/consul/"), http(true, "gate.example:8443", "/consul"));
        assert_eq!(consul("http://[::1]:8500"), http(false, "[::1]:8500", ""));
        assert_eq!(consul("https://[127.0.0.1]:8501"), http(true, "127.0.0.1:8501", ""));
        assert_eq!(consul("[127.0.0.1]:8500"), http(false, "127.0.0.1:8500", ""));
        assert_eq!(consul("unix:///run/consul.sock"), Ok(Address::Unix("/run/consul.sock".into())));
    }

    #[test]
    fn a_wrong_consul_address_is_refused() {
        for text in [
            "",
            ":8500",
            "http://",
            "http://:8500",
            "ftp://x",
            "http://x:0",
            "http://x:99999",
            "http://x:",
            "http://u:p@x:1",
            "http://x:1/?dc=a",
            "unix://run/x",
            "unix:///",
            "a b:1",
            "http://x:1/ä",
            "127.0.0.1:8500x",
        ] {
            assert!(consul(text).is_err(), "{text:?} gives {:?}", consul(text));
        }
    }

    #[test]
    fn a_listen_address_is_an_ip_address_with_a_port() {
        assert!(tcp("0.0.0.0:9377").is_ok() && tcp("[::]:9377").is_ok());
        assert!(tcp(":9377").unwrap_err().contains("0.0.0.0:9377"));
        assert_eq!(tcp("localhost:9377"), tcp("127.0.0.1:9377"));
        assert!(tcp("9378").unwrap_err().contains("127.0.0.1:9378"));
        assert!(tcp("localhost").is_err() && tcp("example:9377").is_err() && tcp("127.0.0.1").is_err());
        assert_eq!(tcp("[127.0.0.1]:9377"), tcp("127.0.0.1:9377"));
        assert!(tcp("[localhost]:9377").is_err() && tcp("[127.0.0.1:9377").is_err());
    }

    #[test]
    fn the_control_address_is_local() {
        assert_eq!(local("unix:/run/s.sock"), Ok(Listen::Unix("/run/s.sock".into())));
        assert_eq!(local("unix:///run/s.sock"), Ok(Listen::Unix("/run/s.sock".into())));
        assert!(local("127.0.0.1:9378").is_ok() && local("[::1]:9378").is_ok());
        assert!(local("0.0.0.0:9378").is_err() && local("unix:s.sock").is_err());
        assert!(local(&format!("unix:/{}", "x".repeat(200))).is_err());
    }
}
