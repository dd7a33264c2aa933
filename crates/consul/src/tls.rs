//! TLS: the trusted authorities, the client certificate, and the name that the server's certificate must have.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::file::open_regular;
use super::{Address, SetupError, Tls};

/// The maximum size of a file of certificates. The system's bundle has about a quarter of it.
const MAX_BYTES: u64 = 1024 * 1024;

/// The name for the URL, so that TLS requests and checks it: `server_name` if it is a DNS name. An IP address in the URL would be the
/// one to connect to, so [`Verifier`] checks that instead.
pub(super) fn name_in_url(tls: &Tls, address: &Address) -> Option<String> {
    let name = tls.server_name.as_ref().filter(|_| address.is_https())?;
    matches!(ServerName::try_from(name.as_str()), Ok(ServerName::DnsName(_))).then(|| name.clone())
}

/// The TLS configuration of a client. If it is not `used`, no file is read and no authority is trusted.
pub(super) fn config(tls: &Tls, used: bool) -> Result<ClientConfig, SetupError> {
    // Passed here, so that no process-wide provider has to be installed.
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| SetupError(format!("TLS cannot be set up: {error}")))?;
    if !used {
        return Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
    }
    let named_by_address = named_by_address(tls)?;
    let builder = if tls.insecure_skip_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Verifier { provider, named: None }))
    } else {
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(tls)?), Arc::clone(&provider))
            .build()
            .map_err(|error| SetupError(format!("TLS cannot be set up: {error}")))?;
        match named_by_address.clone() {
            Some(name) => {
                let named = Some((name, inner));
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Verifier { provider, named }))
            }
            None => builder.with_webpki_verifier(inner),
        }
    };
    let mut config = match (&tls.cert_file, &tls.key_file) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
            let chain = certificates("client certificate", certificate)?;
            builder.with_client_auth_cert(chain, private_key(key)?).map_err(|error| {
                unusable("client key", key, &format!("it does not fit the certificate: {error}"))
            })?
        }
        (Some(_), None) | (None, Some(_)) => {
            let why = "a client certificate needs its key and a key its certificate: set cert_file and key_file, or neither";
            return Err(SetupError(why.into()));
        }
    };
    config.enable_sni = named_by_address.is_none();
    Ok(config)
}

/// The server's name where it is an IP address.
fn named_by_address(tls: &Tls) -> Result<Option<ServerName<'static>>, SetupError> {
    let Some(name) = &tls.server_name else { return Ok(None) };
    let parsed = ServerName::try_from(name.clone())
        .map_err(|_| SetupError(format!("server_name {name} is neither a DNS name nor an IP address")))?;
    Ok(matches!(parsed, ServerName::IpAddress(_)).then_some(parsed))
}

fn roots(tls: &Tls) -> Result<RootCertStore, SetupError> {
    let mut roots = RootCertStore::empty();
    match (&tls.ca_file, &tls.ca_path) {
        (Some(file), _) => trust(&mut roots, file)?,
        (None, Some(folder)) => {
            for file in files_of(folder)? {
                trust(&mut roots, &file)?;
            }
            if roots.is_empty() {
                return Err(unusable("folder of certificate authorities", folder, "it contains none"));
            }
        }
        (None, None) => {
            // Invalid files among the system's are skipped. Without any valid one there is nothing to trust.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let why = "the address is https, but the system has no certificate authorities; set ca_file (CONSUL_CACERT)";
                return Err(SetupError(why.into()));
            }
        }
    }
    Ok(roots)
}

fn trust(roots: &mut RootCertStore, file: &Path) -> Result<(), SetupError> {
    const WHAT: &str = "file of certificate authorities";
    for certificate in certificates(WHAT, file)? {
        roots.add(certificate).map_err(|error| unusable(WHAT, file, &error.to_string()))?;
    }
    Ok(())
}

/// The regular files of a folder, without the hidden ones: a mounted Kubernetes secret keeps its versions in those.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, SetupError> {
    let unreadable = |error| unreadable("folder of certificate authorities", folder, &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !hidden && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, SetupError> {
    let text = read(what, path)?;
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if found.is_empty() => Err(unusable(what, path, "it contains no PEM certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(unusable(what, path, &error.to_string())),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, SetupError> {
    const WHAT: &str = "client key";
    // The library's message may quote the content, which is a key.
    PrivateKeyDer::from_pem_slice(&read(WHAT, path)?)
        .map_err(|_| unusable(WHAT, path, "it contains no unencrypted PEM private key"))
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, SetupError> {
    let unreadable = |error| unreadable(what, path, &error);
    let mut bytes = Vec::new();
    let file = open_regular(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_BYTES {
        return Err(unusable(what, path, &format!("it has more than {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

fn unreadable(what: &str, path: &Path, error: &io::Error) -> SetupError {
    SetupError(format!("the {what} {} cannot be read: {error}", path.display()))
}

fn unusable(what: &str, path: &Path, why: &str) -> SetupError {
    SetupError(format!("the {what} {} cannot be used: {why}", path.display()))
}

/// Checks the server's certificate for another name than the URL's host, or not at all. The server must have the certificate's key.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// The name, and the verifier of the rest. `None`: any certificate is accepted.
    named: Option<(ServerName<'static>, Arc<WebPkiServerVerifier>)>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.named {
            Some((name, inner)) => {
                inner.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
            }
            None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
