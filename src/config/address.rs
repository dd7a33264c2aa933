//! Addresses of the agent's own servers.

use std::net::{Ipv4Addr, SocketAddr};

use super::kinds::no_system_path;
use super::sections::Listen;
use slotkeeper_consul::{socket_path, without_needless_brackets};

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
        let path = socket_path(path.strip_prefix("//").unwrap_or(path)).map_err(|error| error.to_string())?;
        return no_system_path(&path).map(|()| Listen::Unix(path));
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

#[cfg(test)]
mod tests {
    use super::*;

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
