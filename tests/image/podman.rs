//! The image and its containers, in the store of scripts/containers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use rustix::process::Signal;

/// The image under test, built once for all tests of this process.
pub(crate) static IMAGE: LazyLock<&str> = LazyLock::new(build);

/// What the image is told of itself.
pub(crate) const REVISION: &str = "0123456789abcdef";
pub(crate) const BUILT: u32 = 1_700_000_000;

/// Everything that a container can be denied. That the root is read-only counts for podman's own additions too.
const RESTRICTED: [&str; 6] = [
    "--network=host",
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--pull=never",
];

/// An image with a shell and a C library, such as a workload has.
pub(crate) fn workload() -> &'static str {
    let dockerfile = include_str!("../../Dockerfile");
    dockerfile.lines().find_map(|line| line.strip_prefix("ARG RUST=")).unwrap()
}

/// A command with the store's settings.
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/containers");
    let storage = folder.join("storage.conf");
    assert!(storage.exists(), "no {}: run scripts/rust-image, which makes it", storage.display());
    let mut command = Command::new(program);
    command.env("CONTAINERS_CONF", folder.join("containers.conf")).env("CONTAINERS_STORAGE_CONF", storage);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Runs podman; what it printed, where all went well.
pub(crate) fn podman(arguments: &[&str]) -> String {
    let output = command("podman").args(arguments).output().expect("podman starts");
    assert!(output.status.success(), "podman {arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn build() -> &'static str {
    const NAME: &str = "slotkeeper-test";
    const STAGE: &str = "slotkeeper-test-build";
    // Another process may want the same; and what is tidied away here may be what it builds on.
    let lock = File::create(Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/containers/build.lock"));
    let lock = lock.expect("run scripts/rust-image, which makes the folder");
    lock.lock().unwrap();
    // Two builds: a stage that bears a name of its own is kept when the rest is tidied away, and the next build begins there.
    for arguments in [&[STAGE, "--target=build"][..], &[NAME]] {
        let output = command(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/image"))
            .args(arguments)
            .args(["--network=host", "--pull=never"])
            .env("BUILDER", "podman")
            .env("REVISION", REVISION)
            .env("SOURCE_DATE_EPOCH", BUILT.to_string())
            .output()
            .unwrap();
        let hint = "is its base there, which scripts/rust-image makes?";
        assert!(output.status.success(), "the image cannot be built ({hint}):\n{}", said(&output));
    }
    // The chart asks for the version.
    podman(&["image", "exists", &format!("{NAME}:{}", env!("CARGO_PKG_VERSION"))]);
    podman(&["image", "prune", "--force"]);
    NAME
}

/// A container. It is removed with this value.
#[derive(Debug)]
pub(crate) struct Container {
    name: String,
}

impl Container {
    /// Starts one that is denied everything; `options` are podman's.
    pub(crate) fn start(image: &str, options: &[&str], arguments: &[&str]) -> Self {
        let container = Self { name: format!("slotkeeper-test-{:016x}", fastrand::u64(..)) };
        // Where the test itself is killed, the container ends all the same.
        let name = ["--detach", "--name", &container.name, "--log-driver=k8s-file", "--timeout=600"];
        podman(&[&["run"], &name[..], &RESTRICTED, options, &[image], arguments].concat());
        container
    }

    /// Its exit code, once it has ended.
    pub(crate) fn ended(&self) -> i32 {
        podman(&["wait", &self.name]).parse().unwrap()
    }

    /// Ends it as an orchestrator does, by SIGTERM and patience; its exit code.
    pub(crate) fn stop(&self) -> i32 {
        podman(&["stop", "--time=60", &self.name]);
        self.ended()
    }

    /// Kills it and starts it again, with the same volumes and an empty root of its own.
    pub(crate) fn restart_killed(&self) {
        podman(&["kill", "--signal", &Signal::KILL.as_raw().to_string(), &self.name]);
        self.ended();
        podman(&["start", &self.name]);
    }

    /// The exit code of a command inside.
    pub(crate) fn exec(&self, arguments: &[&str]) -> Option<i32> {
        command("podman").args(["exec", &self.name]).args(arguments).output().unwrap().status.code()
    }

    /// What it wrote on both streams.
    pub(crate) fn log(&self) -> String {
        said(&command("podman").args(["logs", &self.name]).output().unwrap())
    }

    /// A line of its first process' `/proc/…/status`.
    pub(crate) fn process(&self, field: &str) -> String {
        let pid = podman(&["inspect", "--format={{.State.Pid}}", &self.name]);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap().trim().to_owned()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.name, self.log());
        }
        let _ = command("podman").args(["rm", "--force", "--time=0", &self.name]).output();
    }
}

/// A volume that podman makes, as `docker volume create` does. It is removed with this value.
#[derive(Debug)]
pub(crate) struct Volume {
    name: String,
}

impl Volume {
    pub(crate) fn new() -> Self {
        let name = format!("slotkeeper-test-{:016x}", fastrand::u64(..));
        podman(&["volume", "create", &name]);
        Self { name }
    }

    /// podman's option that mounts it here.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("--volume={}:{path}", self.name)
    }

    /// Where its files lie on this machine.
    pub(crate) fn folder(&self) -> PathBuf {
        podman(&["volume", "inspect", "--format={{.Mountpoint}}", &self.name]).into()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = command("podman").args(["volume", "rm", "--force", &self.name]).output();
    }
}
