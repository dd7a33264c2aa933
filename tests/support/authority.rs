//! An authority of the test's own, and servers that let in whom it knows.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use slotkeeper_consul::Tls;
use tempfile::TempDir;

use super::consul::binary;

/// Certificates as `consul tls` makes them, in a folder.
#[derive(Debug)]
pub struct Authority(pub TempDir);

impl Authority {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for command in
            [["ca", "create", "-days=2"], ["cert", "create", "-server"], ["cert", "create", "-client"]]
        {
            let status = Command::new(binary())
                .arg("tls")
                .args(command)
                .current_dir(&folder)
                .stdout(Stdio::null())
                .status()
                .unwrap();
            assert!(status.success(), "consul tls {command:?}");
        }
        Self(folder)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What a client has that may enter.
    pub fn client(&self) -> Tls {
        Tls {
            ca_file: Some(self.file("consul-agent-ca.pem")),
            cert_file: Some(self.file("dc1-client-consul-0.pem")),
            key_file: Some(self.file("dc1-client-consul-0-key.pem")),
            ..Tls::default()
        }
    }

    /// What a server's configuration says of its certificates.
    pub fn server(&self) -> String {
        let show = |name: &str| self.file(name).display().to_string();
        format!(
            "ca_file = {:?}\ncert_file = {:?}\nkey_file = {:?}\n",
            show("consul-agent-ca.pem"),
            show("dc1-server-consul-0.pem"),
            show("dc1-server-consul-0-key.pem"),
        )
    }
}
