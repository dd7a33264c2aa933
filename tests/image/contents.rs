//! What is in the image, and what it says of itself.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use crate::podman::{BUILT, Container, IMAGE, REVISION, podman};
use crate::support::ports::Ports;

/// What the README promises.
const LARGEST: u64 = 10_000_000;

#[test]
fn it_says_what_it_is_and_runs_as_a_user_without_a_name() {
    let said = podman(&["image", "inspect", *IMAGE]);
    let said: Value = serde_json::from_str(&said).unwrap();
    let config = &said[0]["Config"];
    assert_eq!(config["User"], "65532:65532", "kubelet's runAsNonRoot knows numbers only");
    assert_eq!(config["Entrypoint"], serde_json::json!(["/slotkeeper"]));
    assert!(config["Cmd"].is_null(), "{config}");
    for (label, value) in [
        ("title", env!("CARGO_PKG_NAME")),
        ("description", env!("CARGO_PKG_DESCRIPTION")),
        ("licenses", env!("CARGO_PKG_LICENSE")),
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", REVISION),
    ] {
        assert_eq!(config["Labels"][format!("org.opencontainers.image.{label}")], value);
    }
    let created = said[0]["Created"].as_str().unwrap();
    assert_eq!(
        humantime::parse_rfc3339(created).unwrap(),
        std::time::UNIX_EPOCH + std::time::Duration::from_secs(BUILT.into())
    );
}

/// It starts although there is no loader and no library, so the binary is static.
#[test]
fn there_is_a_static_binary_in_it_certificates_and_no_more() {
    let root = podman(&["image", "mount", *IMAGE]);
    let mut files = BTreeMap::new();
    walk(Path::new(&root), Path::new("/"), &mut files);
    let owner = |path: &str| {
        let metadata = std::fs::metadata(format!("{root}{path}")).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
    };
    // Docker gives a new volume the owner of the folder over which it is mounted; podman gives it the container's user.
    assert_eq!(owner("/run/slotkeeper"), (65532, 65532, 0o755));
    assert_eq!(owner("/slotkeeper"), (0, 0, 0o755), "who runs it cannot change it");
    podman(&["image", "unmount", *IMAGE]);
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["/etc/ssl/certs/ca-certificates.crt", "/run/slotkeeper/", "/slotkeeper"]);
    let size: u64 = files.values().sum();
    assert!(size < LARGEST, "{files:?}");

    let version = Container::start(*IMAGE, &[], &["--version"]);
    assert_eq!(version.ended(), 0);
    assert_eq!(version.log().trim(), concat!("slotkeeper ", env!("CARGO_PKG_VERSION")));
}

/// Files with their sizes, and folders with nothing in them.
fn walk(root: &Path, folder: &Path, files: &mut BTreeMap<String, u64>) {
    let entries: Vec<_> =
        root.join(folder.strip_prefix("/").unwrap()).read_dir().unwrap().flatten().collect();
    if entries.is_empty() {
        files.insert(format!("{}/", folder.display()), 0);
    }
    for entry in entries {
        let path = folder.join(entry.file_name());
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            walk(root, &path, files);
        } else {
            files.insert(path.display().to_string(), metadata.len());
        }
    }
}

/// Without any it would not come as far as the handshake.
#[test]
fn the_authorities_are_found_where_none_are_configured() {
    let ports = Ports::reserve();
    let nobody = format!("--http-addr=https://{}", ports.addr(0));
    let sessions = Container::start(*IMAGE, &[], &["sessions", &nobody]);
    assert_ne!(sessions.ended(), 0);
    assert!(sessions.log().contains("refused"), "it has asked");

    let without = ["--env=SSL_CERT_FILE=/nowhere"];
    let sessions = Container::start(*IMAGE, &without, &["sessions", &nobody]);
    assert_ne!(sessions.ended(), 0);
    assert!(!sessions.log().contains("refused"), "it has not, since it trusts nobody");
}
