//! A terminal and its shell: Ctrl-C, Ctrl-Z, `fg` and `bg` do what they would do without us.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::PATIENCE;
use crate::consul::Consul;
use crate::process::BINARY;

/// An interactive shell on a terminal of its own.
pub(crate) struct Shell {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// What it has shown and nobody has looked at.
    shown: String,
}

impl Shell {
    pub(crate) fn start() -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let end = || rustix::fs::open(&name, flags, Mode::empty()).unwrap();
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", "bash", "--norc", "--noediting", "-i"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("PS1", "> ")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let (keyboard, screen) = (File::from(master.try_clone().unwrap()), watch(master));
        let mut shell = Self { child, keyboard, screen, shown: String::new() };
        shell.expect("> ");
        shell
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until it has shown that, after what was expected before.
    #[allow(clippy::disallowed_methods, reason = "a test has no lease")]
    pub(crate) fn expect(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.shown.contains(text) {
            let left = until.saturating_duration_since(Instant::now());
            let more = self.screen.recv_timeout(left.max(Duration::from_millis(1)));
            let more =
                more.unwrap_or_else(|_| panic!("waited in vain for {text:?}; shown: {:?}", self.shown));
            self.shown.push_str(&String::from_utf8_lossy(&more));
        }
        let end = self.shown.find(text).unwrap() + text.len();
        self.shown.drain(..end);
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the terminal on a thread of its own.
fn watch(terminal: OwnedFd) -> Receiver<Vec<u8>> {
    let (send, shown) = channel();
    std::thread::spawn(move || {
        let mut terminal = File::from(terminal);
        let mut buffer = [0; 4096];
        while let Ok(read) = terminal.read(&mut buffer) {
            if send.send(buffer[..read].to_vec()).is_err() {
                break;
            }
        }
    });
    shown
}

fn run(consul: &Consul, command: &str) -> String {
    format!("{BINARY} run p/one -n 1 --http-addr {} -- {command}", consul.address())
}

const SHOWS_INT: &str =
    r#"sh -c 'trap "echo interrupted; exit 9" INT; echo "up and" "running"; while :; do sleep 0.05; done'"#;

#[test]
fn ctrl_c_is_the_commands() {
    let consul = Consul::start();
    let mut shell = Shell::start();
    shell.press(&format!("{}; echo \"code\" $?\n", run(&consul, SHOWS_INT)));
    shell.expect("up and running");
    shell.press("\x03");
    shell.expect("interrupted");
    shell.expect("code 9");
}

#[test]
fn ctrl_z_suspends_the_job_and_fg_goes_on_with_it() {
    let consul = Consul::start();
    let mut shell = Shell::start();
    shell.press(&format!("{}\n", run(&consul, "sh -c 'echo \"up and\" \"running\"; cat'")));
    shell.expect("up and running");
    shell.press("one\n");
    // As it is typed, and as `cat` has it.
    shell.expect("one\r\none\r\n");
    shell.press("\x1a");
    shell.expect("Stopped");
    shell.press("echo \"the shell\" \"is back\"\n");
    shell.expect("the shell is back");
    shell.press("fg\n");
    shell.expect("cat'");
    shell.press("two\n");
    shell.expect("two\r\ntwo\r\n");
    shell.press("\x04");
    shell.press("echo \"code\" $?\n");
    shell.expect("code 0");
}

#[test]
fn in_the_background_it_stands_still_only_where_it_reads_the_terminal() {
    let consul = Consul::start();
    let mut shell = Shell::start();
    shell.press(&format!(
        "{} &\n",
        run(&consul, "sh -c 'echo \"up and\" \"running\"; read line; echo \"read\" $line'")
    ));
    shell.expect("up and running");
    // A shell tells of it when it is asked.
    shell.press("until jobs | grep Stopped; do sleep 0.05; done\n");
    shell.expect("Stopped");
    shell.expect("read line");
    shell.press("fg\n");
    shell.expect("read line");
    shell.press("something\n");
    shell.expect("read something");
    shell.press("echo \"code\" $?\n");
    shell.expect("code 0");
}

#[test]
fn a_program_behind_it_keeps_the_terminal_until_the_command_reads_it() {
    let consul = Consul::start();
    let mut shell = Shell::start();
    // The one behind reads the terminal first, as a pager does, then the command.
    let behind = r#"sh -c 'read key < /dev/tty; echo "key" $key; cat'"#;
    let command = r#"sh -c 'sleep 0.3; read line; echo "line" $line'"#;
    shell.press(&format!("{} | {behind}\n", run(&consul, command)));
    shell.press("a\n");
    shell.expect("key a");
    shell.press("b\n");
    shell.expect("line b");
}
