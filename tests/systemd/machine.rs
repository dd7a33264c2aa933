//! A machine that systemd runs: a bare Debian, booted as process 1 of namespaces.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::wait_for;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");
/// For one command: `systemctl start` waits as long as an agent waits for its slot.
const MAX_SECONDS: &str = "90";

/// A machine of the test's own, with the network of this one. It ends with this value, and with the test's process.
#[derive(Debug)]
pub(crate) struct Machine {
    /// tests/systemd/boot, which ends the machine when its standard input ends.
    launcher: Child,
    /// The process id of its systemd on this machine.
    init: String,
}

impl Machine {
    /// Boots one with the binary under test and the units of this repository, as a package installs them.
    pub(crate) fn boot() -> Self {
        let machine = Self::start(Some(Path::new(env!("CARGO_BIN_EXE_slotkeeper"))));
        let packaging = Path::new(REPOSITORY).join("packaging/systemd");
        for (from, to) in [("", "/usr/lib/systemd/system"), ("sysusers.d", "/usr/lib/sysusers.d")] {
            for entry in std::fs::read_dir(packaging.join(from)).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().display().to_string();
                if path.is_file() {
                    machine.write(&format!("{to}/{name}"), &std::fs::read_to_string(&path).unwrap());
                }
            }
        }
        machine.run(&["systemd-sysusers", "slotkeeper.conf"]);
        machine.systemctl(&["daemon-reload"]);
        machine
    }

    /// Boots one with nothing but Debian and systemd.
    pub(crate) fn boot_bare() -> Self {
        Self::start(None)
    }

    fn start(binary: Option<&Path>) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "only root can boot systemd in namespaces: run the tests as root"
        );
        let suite = std::env::var("SYSTEMD_SUITE").unwrap_or("bookworm".to_owned());
        let root = Path::new(REPOSITORY).join(".tools/systemd-root").join(&suite);
        let made = root.join("etc/made-from").exists();
        assert!(made, "no {}: run scripts/systemd-root {suite}, which makes it", root.display());
        let mut launcher = Command::new(Path::new(REPOSITORY).join("tests/systemd/boot"))
            .arg(root)
            .args(binary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut init = String::new();
        BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut init).unwrap();
        let machine = Self { launcher, init: init.trim().to_owned() };
        assert!(!machine.init.is_empty(), "the machine did not start: its error is above");
        wait_for("the machine to be up", || {
            let state = said(&machine.command(&["systemctl", "is-system-running"]).output().unwrap());
            assert!(state.trim() != "degraded", "{}", machine.run(&["systemctl", "--failed"]));
            state.trim() == "running"
        });
        machine
    }

    /// A command inside, which has at most [`MAX_SECONDS`].
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init, "--mount", "--uts", "--ipc", "--pid", "--cgroup"]);
        command.args(["timeout", "--kill-after=5", MAX_SECONDS]).args(words);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        command
    }

    /// Runs a command inside; what it printed, where all went well.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(output.status.success(), "{words:?} ended with {}:\n{}", output.status, said(&output));
        said(&output).trim().to_owned()
    }

    /// Runs systemctl, which must succeed.
    pub(crate) fn systemctl(&self, arguments: &[&str]) -> String {
        self.run(&[&["systemctl", "--no-pager"], arguments].concat())
    }

    /// A property of a unit.
    pub(crate) fn property(&self, unit: &str, name: &str) -> String {
        self.systemctl(&["show", unit, "--value", "--property", name])
    }

    /// Waits until a property of a unit has this value.
    pub(crate) fn await_property(&self, unit: &str, name: &str, value: &str) {
        wait_for(&format!("{name} of {unit} to be {value}"), || self.property(unit, name) == value);
    }

    /// A file inside, as this machine sees it.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// What a file inside contains, if it is there.
    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    /// Writes a program.
    pub(crate) fn install(&self, path: &str, script: &str) {
        self.write(path, script);
        std::fs::set_permissions(self.path(path), PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// What a unit has logged, and systemd about it.
    pub(crate) fn journal(&self, unit: &str) -> String {
        self.run(&["journalctl", "--no-pager", "--output=cat", "--unit", unit])
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.init.is_empty() {
            let journal =
                self.command(&["journalctl", "--no-pager", "--lines=150", "--output=short-precise"]).output();
            eprintln!("journal of the machine:\n{}", journal.map(|output| said(&output)).unwrap_or_default());
        }
        drop(self.launcher.stdin.take());
        let ended = self.launcher.wait();
        if !std::thread::panicking() {
            assert!(ended.unwrap().success(), "the machine left something behind: the error is above");
        }
    }
}

/// What a command printed, errors first.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stderr[..], &output.stdout].concat()).into_owned()
}
