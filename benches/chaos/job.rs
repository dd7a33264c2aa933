//! One `slotkeeper run`, drawn from the seed, and what its command writes down of itself.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fastrand::Rng;
use slotkeeper::internals::log_events;
use tokio::process::{Child, Command};

use crate::support::life::Life;
use crate::support::lives::Lived;

const SLOTKEEPER: &str = env!("CARGO_BIN_EXE_slotkeeper");

/// Beats so often as its first argument says. By the second it ignores SIGTERM, or leaves something behind in a session of
/// its own that does.
const COMMAND: &str = r#"
    echo "$SLOTKEEPER_SESSION $SLOTKEEPER_SLOT" > "$0.who"
    case $2 in *stubborn*) trap '' TERM ;; esac
    case $2 in *stray*) setsid sh -c "$3" "$0.stray" & ;; esac
    n=$1
    while [ "$n" -gt 0 ]; do
        read -r now _ < /proc/uptime
        echo "$now $SLOTKEEPER_FENCING_TOKEN" >> "$0"
        n=$((n-1))
        sleep 0.05
    done"#;

/// What is left behind; it ends by itself only so late that it would be found out.
const STRAY: &str = r#"
    trap '' TERM
    n=4000
    while [ "$n" -gt 0 ]; do
        read -r now _ < /proc/uptime
        echo "$now $SLOTKEEPER_FENCING_TOKEN" >> "$0"
        n=$((n-1))
        sleep 0.05
    done"#;

/// A semaphore of the play.
#[derive(Debug)]
pub(crate) struct Semaphore {
    pub(crate) prefix: &'static str,
    /// It is a single-key lock, without a lock-delay: then only the lease keeps its owners apart.
    pub(crate) is_lock: bool,
    pub(crate) limit: u32,
    /// The most that one takes of it.
    pub(crate) most: u32,
    pub(crate) seats: usize,
}

/// What a job is to be.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) slots: u32,
    pub(crate) priority: i32,
    pub(crate) kill_after: Duration,
    /// How long it waits at most.
    pub(crate) patience: Option<Duration>,
    pub(crate) beats: usize,
    pub(crate) manner: &'static str,
}

impl Job {
    pub(crate) fn draw(rng: &mut Rng, semaphore: &Semaphore, priority: i32) -> Self {
        // Some live for longer than it takes a session to run out: only these can outlive their slot.
        let beats = match rng.u32(0..20) {
            0..2 => 1,
            2..13 => rng.usize(4..40),
            13..16 => rng.usize(50..120),
            _ => rng.usize(450..700),
        };
        Self {
            slots: 1 + rng.u32(0..semaphore.most),
            priority,
            kill_after: Duration::from_millis(if rng.bool() { 1000 } else { 2000 }),
            patience: (rng.u32(0..10) == 0).then_some(Duration::from_secs(4)),
            beats,
            manner: ["meek", "stubborn", "meek stray", "stubborn stray"][rng.usize(0..4)],
        }
    }

    /// Starts it, with its files in `folder`.
    pub(crate) fn start(&self, consul: &str, semaphore: &Semaphore, folder: &Path) -> Child {
        std::fs::create_dir_all(folder).unwrap();
        let mut run = Command::new(SLOTKEEPER);
        run.arg("run").args(["--http-addr", consul, "--verbose", semaphore.prefix]);
        run.args(["--ttl", "10s", "--kill-after", &format!("{}ms", self.kill_after.as_millis())]);
        if semaphore.is_lock {
            run.args(["--lock", "--lock-delay", "0s"]);
        } else {
            run.args(["--format", "list", "-n", &semaphore.limit.to_string()]);
            run.args(["--slots", &self.slots.to_string()]).arg(format!("--priority={}", self.priority));
        }
        if let Some(patience) = self.patience {
            run.args(["--timeout", &format!("{}ms", patience.as_millis())]);
        }
        run.args(["--", "sh", "-c", COMMAND]).arg(folder.join("life"));
        run.args([&self.beats.to_string(), self.manner, STRAY]);
        run.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let log = File::create(folder.join("log")).unwrap();
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        run.spawn().expect("slotkeeper starts")
    }
}

/// The files of a job.
#[derive(Clone, Debug)]
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    /// The session of one whose command has begun, as the command was told.
    fn who(&self) -> Option<(String, Option<u32>)> {
        let text = std::fs::read_to_string(self.0.join("life.who")).ok()?;
        let (session, slot) = text.trim_end().split_once(' ')?;
        Some((session.to_owned(), slot.parse().ok()))
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.join("life").exists()
    }

    /// The session that it has made, as its log says.
    pub(crate) fn session(&self) -> Option<String> {
        let log = self.log();
        let line = log.lines().rev().find(|line| line.contains(log_events::SESSION_CREATED))?;
        line.split("session=").nth(1).map(|id| id.trim().to_owned())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    pub(crate) fn beats(&self) -> usize {
        Life::at(self.0.join("life")).beats()
    }

    /// The life of its command, and of what that left behind.
    pub(crate) fn lived(&self, slots: u32) -> Option<Lived> {
        let lives = ["life", "life.stray"].map(|name| Life::at(self.0.join(name)));
        let entries: Vec<_> = lives.iter().flat_map(Life::entries).collect();
        let (first, token) = *entries.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
        let last = entries.iter().map(|entry| entry.0).fold(first, f64::max);
        let name = self.0.display().to_string();
        let slot = self.who().and_then(|(_, slot)| slot);
        Some(Lived { name, first, last, taken_away: None, slots, slot, token })
    }
}
