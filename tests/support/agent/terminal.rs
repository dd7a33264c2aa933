//! A terminal with a shell on it, as a person has one.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::PATIENCE;

/// Rows and columns that a terminal begins with.
const SIZE: (u16, u16) = (24, 100);

/// An interactive shell on a terminal of its own.
pub(crate) struct Shell {
    child: Child,
    keyboard: File,
    shows: Receiver<Vec<u8>>,
    /// What it has shown and nobody has looked at.
    shown: String,
    /// What all that it was sent has made of its screen.
    screen: vt100::Parser,
}

/// Where the keyboard and the screen are, and the program's end.
pub(crate) fn pseudo_terminal() -> (OwnedFd, impl Fn() -> OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    (master, move || rustix::fs::open(&name, flags, Mode::empty()).unwrap())
}

impl Shell {
    /// One on a terminal of which nothing is known.
    pub(crate) fn start() -> Self {
        Self::start_on(None)
    }

    /// One on a terminal of that name (`TERM`).
    pub(crate) fn start_on(name: Option<&str>) -> Self {
        let (master, end) = pseudo_terminal();
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", "bash", "--norc", "--noediting", "-i"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("PS1", "> ")
            .envs(name.map(|name| ("TERM", name)))
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let (keyboard, shows) = (File::from(master.try_clone().unwrap()), watch(master));
        let screen = vt100::Parser::default();
        let mut shell = Self { child, keyboard, shows, shown: String::new(), screen };
        shell.resize(SIZE.0, SIZE.1);
        shell.expect("> ");
        shell
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Gives the window another size, and whoever is in the foreground its signal.
    pub(crate) fn resize(&mut self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).unwrap();
        let [rows, columns] = [rows, columns].map(|size| NonZero::new(size).unwrap());
        self.screen.screen_mut().set_size(rows, columns);
    }

    /// Waits until it has shown that, after what was expected before.
    pub(crate) fn expect(&mut self, text: &str) {
        self.watch_until(&format!("{text:?} to be shown"), |shell| shell.shown.contains(text));
        let end = self.shown.find(text).unwrap() + text.len();
        self.shown.drain(..end);
    }

    /// Waits until the rows of its screen, one a line, are as they should be; gives them.
    pub(crate) fn await_screen(&mut self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        self.watch_until(what, |shell| is_so(&shell.screen.screen().contents()));
        self.screen.screen().contents()
    }

    #[allow(clippy::disallowed_methods, reason = "a test has no lease")]
    fn watch_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            let left = until.saturating_duration_since(Instant::now());
            match self.shows.recv_timeout(left.max(Duration::from_millis(1))) {
                Ok(more) => {
                    self.screen.process(&more);
                    self.shown.push_str(&String::from_utf8_lossy(&more));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => panic!(
                    "waited in vain for {what}; shown: {:?}; on the screen:\n{}",
                    self.shown,
                    self.screen.screen().contents()
                ),
            }
        }
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
