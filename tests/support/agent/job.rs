//! The real `slotkeeper run` as a process.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::process::BINARY;
use crate::support::life::Life;
use crate::support::processes;
use crate::wait_for;

/// One, with its files in a folder of its own. Whatever is left of it is killed with the value.
pub(crate) struct Job {
    child: Child,
    folder: TempDir,
}

/// The command line of one.
pub(crate) fn run(consul: &str, arguments: &[&str], command: &[&str]) -> Command {
    let mut run = Command::new(BINARY);
    run.arg("run").args(["--http-addr", consul, "--verbose"]).args(arguments).arg("--").args(command);
    bare(&mut run);
    run
}

/// Gives it nothing of our environment: a `CONSUL_HTTP_ADDR` there would win over a configuration file.
pub(crate) fn bare(command: &mut Command) {
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
}

impl Job {
    /// Starts one in a new folder; `$HOME` in its words is that folder.
    pub(crate) fn start(consul: &str, arguments: &[&str], command: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().display().to_string();
        let words =
            |words: &[&str]| words.iter().map(|word| word.replace("$HOME", &home)).collect::<Vec<_>>();
        let (arguments, command) = (words(arguments), words(command));
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        Self::spawn(run(consul, &arguments, &command), folder)
    }

    /// Starts one whose command writes down its life by that script.
    pub(crate) fn live(consul: &str, arguments: &[&str], script: &str) -> Self {
        Self::start(consul, arguments, &["sh", "-c", script, "$HOME/life"])
    }

    pub(crate) fn spawn(mut command: Command, folder: TempDir) -> Self {
        let file = |name: &str| File::create(folder.path().join(name)).unwrap();
        let child = command.stdout(file("out")).stderr(file("log")).spawn().unwrap();
        Self { child, folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn life(&self) -> Life {
        Life::at(self.path("life"))
    }

    pub(crate) fn await_life(&self) -> Life {
        let life = self.life();
        wait_for(&format!("the command to live; log:\n{}", self.log()), || life.has_begun());
        life
    }

    /// What its command has written on standard output.
    pub(crate) fn out(&self) -> String {
        std::fs::read_to_string(self.path("out")).unwrap_or_default()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Its guard's process.
    pub(crate) fn guard(&self) -> Pid {
        let mut found = None;
        wait_for("the guard", || {
            found = processes::guard_of(self.pid());
            found.is_some()
        });
        found.unwrap()
    }

    /// Its command reads the end of standard input.
    pub(crate) fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for(&format!("the end of run; log:\n{}", self.log()), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub(crate) fn code(&mut self) -> Option<i32> {
        self.ended().code()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of run:\n{}", self.log());
        }
    }
}
