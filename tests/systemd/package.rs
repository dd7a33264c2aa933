//! The Debian package on a bare machine: what it installs works, and is removed again.
//!
//! scripts/release builds the packages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::gate::{AGENT, EXIT, await_worker, install_worker, worker};
use crate::job::install_timer;
use crate::machine::Machine;
use crate::support::consul::Setup;
use crate::unit::{Host, PREFIX};
use crate::wait_for;

/// What stays after a purge: records of dpkg and of systemd, and the user, since files of other owners may have its number.
const STAYS: [&str; 5] =
    ["/var/lib/dpkg/", "/var/lib/systemd/", "/var/log/", "/var/cache/", "/etc/.pwd.lock"];

/// The package that a variable names.
fn package(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    let path = path.unwrap_or_else(|| panic!("set {variable} to a package that scripts/release has built"));
    assert!(path.is_file(), "{variable} is {}, which is no file", path.display());
    path
}

impl Host {
    /// A bare machine.
    fn bare() -> Self {
        Self::of(Machine::boot_bare(), Setup::default())
    }

    /// Installs a package as an administrator does. The version that dpkg has installed.
    fn dpkg_install(&self, package: &Path) -> String {
        std::fs::copy(package, self.path("/tmp/package.deb")).unwrap();
        self.run(&["dpkg", "--install", "/tmp/package.deb"]);
        let version = self.run(&["dpkg-query", "--show", "--showformat=${Version}", "slotkeeper"]);
        // Without the Debian revision; a tilde is the hyphen of a pre-release.
        version.rsplit_once('-').map_or(&*version, |(program, _)| program).replace('~', "-")
    }

    /// The version of an instance's process.
    fn running_version(&self, instance: &str) -> String {
        self.status(instance)["agent"]["version"].as_str().unwrap().to_owned()
    }

    /// All paths of the root's own file system.
    fn files(&self) -> BTreeSet<String> {
        let found = self.run(&["find", "/", "-xdev", "-not", "-path", "/tmp/*"]);
        found
            .lines()
            .filter(|path| !STAYS.iter().any(|stays| path.starts_with(stays)))
            .map(str::to_owned)
            .collect()
    }

    /// The processes of slotkeeper, by their command lines.
    fn processes(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("/proc")).unwrap();
        let lines =
            entries.filter_map(|entry| std::fs::read_to_string(entry.unwrap().path().join("cmdline")).ok());
        lines.filter(|line| line.contains("slotkeeper")).collect()
    }
}

#[test]
#[ignore = "needs a package that scripts/release has built, in SLOTKEEPER_DEB"]
fn a_package_holds_slots_and_leaves_nothing_when_purged() {
    let host = Host::bare();
    let before = host.files();
    let version = host.dpkg_install(&package("SLOTKEEPER_DEB"));
    assert_eq!(host.run(&["slotkeeper", "version"]), format!("slotkeeper {version}"));
    assert_eq!(host.processes(), [""; 0], "nothing runs unasked");

    host.configure("writers", EXIT, "");
    install_worker(&host);
    host.systemctl(&["enable", "--now", AGENT]);
    await_worker(&host, &["started, ready"]);
    assert_eq!(host.operator.holders(PREFIX), [host.holding("writers").0]);
    assert_eq!(host.running_version("writers"), version);
    install_timer(&host, "#!/bin/sh\necho \"$*\" >> /run/job\n", "service/nightly");
    host.systemctl(&["start", "nightly-import.timer"]);
    wait_for("the job", || host.read("/run/job") == "--full\n");

    let units = ["import-worker.service", "nightly-import.timer", "nightly-import.service"];
    host.run(&["dpkg", "--remove", "slotkeeper"]);
    assert_eq!(host.processes(), [""; 0]);
    assert_eq!(worker(&host), ["started, ready", "stopped, ready"]);
    host.operator.assert_nothing_left(PREFIX);
    host.systemctl(&[&["disable", "--now"], &units[..2]].concat());
    host.run(&["dpkg", "--purge", "slotkeeper"]);

    // What the test has installed.
    for unit in units {
        host.run(&[
            "rm",
            "-rf",
            &format!("/etc/systemd/system/{unit}"),
            &format!("/etc/systemd/system/{unit}.d"),
        ]);
    }
    host.run(&["rm", "/usr/local/bin/import", "/usr/local/bin/import-worker"]);
    let left: Vec<_> = host.files().difference(&before).cloned().collect();
    assert_eq!(left, [""; 0]);
    assert!(!host.path("/run/slotkeeper").exists());
    host.systemctl(&["daemon-reload"]);
    assert_eq!(host.systemctl(&["list-units", "--all", "--plain", "--no-legend", "slotkeeper@*"]), "");
    assert!(host.read("/etc/passwd").contains("\nslotkeeper:"), "the user stays");
}

#[test]
#[ignore = "needs two packages that scripts/release has built, in SLOTKEEPER_DEB and SLOTKEEPER_DEB_NEXT"]
fn an_upgrade_keeps_the_slot_and_its_place_in_the_queue() {
    let host = Host::bare();
    let version = host.dpkg_install(&package("SLOTKEEPER_DEB"));
    host.configure("writers", EXIT, "");
    host.configure("next", "", "");
    install_worker(&host);
    host.systemctl(&["start", AGENT]);
    host.systemctl(&["start", "--no-block", "slotkeeper@next"]);
    host.await_waiter();
    host.await_files("writers");
    await_worker(&host, &["started, ready"]);
    let (held, process) = (host.holding("writers"), host.main_pid(AGENT));
    let waiting = host.status("next")["session"]["id"].clone();
    assert_eq!(host.running_version("writers"), version);

    // An agent that waits does not keep dpkg waiting.
    let next = host.dpkg_install(&package("SLOTKEEPER_DEB_NEXT"));
    assert_ne!(next, version, "two packages of one version");
    host.await_another_process(AGENT, &process);
    assert_eq!(host.running_version("writers"), next);
    assert_eq!(host.holding("writers"), held);
    let is_next = |status: Value| status["agent"]["version"] == *next && status["session"]["id"] == waiting;
    wait_for("the waiting agent's new version", || host.try_status("next").is_some_and(is_next));
    await_worker(&host, &["started, ready", "stopped, ready", "started, ready"]);

    host.systemctl(&["stop", AGENT]);
    host.await_property("slotkeeper@next", "ActiveState", "active");
    assert_eq!(host.status("next")["session"]["id"], waiting);
}
