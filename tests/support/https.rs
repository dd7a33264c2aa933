//! A plain HTTPS client with certificates, for what the product's own has no function for.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use slotkeeper_consul::Tls;

use super::http;

/// Asks once, on a connection of its own: status and body.
///
/// # Errors
///
/// No connection, or no whole answer in time.
pub fn try_request(
    addr: SocketAddr,
    tls: &Tls,
    line: &str,
    token: &str,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let name = ServerName::from(addr.ip());
    let connection = ClientConnection::new(config(tls), name).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let length = body.len();
    write!(
        stream,
        "{line} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nX-Consul-Token: {token}\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = http::parse(&answer).ok_or_else(|| std::io::Error::other("half an answer"))?;
    Ok((answer.status, answer.text()))
}

fn config(tls: &Tls) -> Arc<ClientConfig> {
    let certificates = |path| CertificateDer::pem_file_iter(path).unwrap().map(Result::unwrap);
    let mut roots = RootCertStore::empty();
    certificates(tls.ca_file.as_ref().unwrap()).for_each(|certificate| roots.add(certificate).unwrap());
    let key = PrivateKeyDer::from_pem_file(tls.key_file.as_ref().unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates(tls.cert_file.as_ref().unwrap()).collect(), key);
    Arc::new(config.unwrap())
}
