//! TLS with an authority of our own and client certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use slotkeeper_consul::{Client, Error, Kind, Read, Settings, SetupError, Tls, Unobserved};

use crate::consul::{Consul, Setup};
use crate::support::authority::Authority;
use crate::support::kv::{Put, put};

/// A server that wants client certificates, and the port where it does.
async fn server(authority: &Authority) -> (Consul, u16) {
    let config = format!("verify_incoming_https = true\n{}", authority.server());
    let consul = Consul::start_with(Setup { config, https: true, ..Setup::default() }).await;
    let port = consul.https_port();
    (consul, port)
}

fn setup(host: &str, port: u16, tls: Tls) -> Result<Client, SetupError> {
    let address = format!("https://{host}:{port}").parse().unwrap();
    Client::new(&Settings { address, tls, ..Settings::default() }, Arc::new(Unobserved))
}

async fn write(host: &str, port: u16, tls: Tls) -> Result<bool, Error> {
    crate::write(&setup(host, port, tls).unwrap(), "k").await
}

#[tokio::test]
async fn both_sides_show_certificates() {
    let authority = Authority::new();
    let (_consul, port) = server(&authority).await;
    let client = setup("127.0.0.1", port, authority.client()).unwrap();
    assert!(put(&client, "k", b"x", Put::Cas(0), 0).await.unwrap());
    assert_eq!(client.kv_get("k", Read::consistent()).await.unwrap().value.unwrap().value, b"x");
    let folder = Tls { ca_file: None, ca_path: Some(authority.0.path().to_path_buf()), ..authority.client() };
    assert!(
        setup("127.0.0.1", port, folder).is_err(),
        "a folder with keys in it is no folder of authorities"
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(authority.file("consul-agent-ca.pem"), folder.path().join("ca.pem")).unwrap();
    let tls = Tls { ca_file: None, ca_path: Some(folder.path().to_path_buf()), ..authority.client() };
    assert!(write("127.0.0.1", port, tls).await.unwrap());
}

#[tokio::test]
async fn a_server_has_the_name_that_is_asked_for() {
    let authority = Authority::new();
    let (_consul, port) = server(&authority).await;
    let named = |name: &str| Tls { server_name: Some(name.into()), ..authority.client() };
    // The certificate has localhost, 127.0.0.1 and server.dc1.consul, which no resolver knows.
    for (host, tls) in [
        ("127.0.0.1", named("server.dc1.consul")),
        ("localhost", named("server.dc1.consul")),
        ("localhost", named("127.0.0.1")),
        ("127.0.0.1", named("localhost")),
    ] {
        assert!(write(host, port, tls.clone()).await.unwrap(), "{host} {tls:?}");
    }
    // A name is connected to by one of its addresses, and is still what TLS asks for.
    assert!(write("localhost", port, authority.client()).await.unwrap());
    for name in ["server.dc2.consul", "127.0.0.2"] {
        let error = write("127.0.0.1", port, named(name)).await.unwrap_err();
        assert!(error.kind == Kind::NotConsul && error.detail.contains("not valid for name"), "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    let error = write("127.0.0.2", port, authority.client()).await.unwrap_err();
    assert_eq!(error.kind, Kind::NotSent, "{error}");
}

#[tokio::test]
async fn untrusted_certificates_are_refused_on_both_sides() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (_consul, port) = server(&authority).await;
    let no_certificate = Tls { cert_file: None, key_file: None, ..authority.client() };
    let wrong_certificate = Tls { ca_file: authority.client().ca_file, ..other.client() };
    let wrong_authority = Tls { ca_file: other.client().ca_file, ..authority.client() };
    for (tls, said) in [
        (no_certificate, "received fatal alert"),
        (wrong_certificate, "received fatal alert"),
        (wrong_authority.clone(), "UnknownIssuer"),
    ] {
        let error = write("127.0.0.1", port, tls).await.unwrap_err();
        assert!(error.kind == Kind::NotConsul && error.detail.contains(said), "{error}");
    }
    let careless = Tls { insecure_skip_verify: true, ..wrong_authority };
    assert!(write("127.0.0.1", port, careless).await.unwrap());
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let good = authority.client();
    let refused = |tls: Tls| setup("127.0.0.1", 1, tls).unwrap_err().to_string();
    let missing = Some(PathBuf::from("/nonexistent/file.pem"));
    let key = authority.file("dc1-server-consul-0-key.pem");
    for (tls, words) in [
        (Tls { ca_file: missing.clone(), ..good.clone() }, "/nonexistent/file.pem cannot be read"),
        (Tls { cert_file: missing.clone(), ..good.clone() }, "/nonexistent/file.pem cannot be read"),
        (Tls { key_file: missing, ..good.clone() }, "/nonexistent/file.pem cannot be read"),
        (Tls { key_file: None, ..good.clone() }, "needs its key"),
        (Tls { cert_file: None, ..good.clone() }, "needs its key"),
        (Tls { key_file: good.cert_file.clone(), ..good.clone() }, "no unencrypted PEM private key"),
        (Tls { ca_file: good.key_file.clone(), ..good.clone() }, "no PEM certificate"),
        (Tls { key_file: Some(key), ..good.clone() }, "does not fit the certificate"),
        (Tls { server_name: Some("not a name".into()), ..good.clone() }, "neither a DNS name nor an IP"),
    ] {
        let text = refused(tls);
        assert!(text.contains(words), "{text}");
    }
    let plain: slotkeeper_consul::Address = "127.0.0.1:1".parse().unwrap();
    let unused = Tls { ca_file: Some(Path::new("/nonexistent").into()), ..Tls::default() };
    let settings = Settings { address: plain.into(), tls: unused, ..Settings::default() };
    assert!(Client::new(&settings, Arc::new(Unobserved)).is_ok(), "TLS is not used over http");
}
