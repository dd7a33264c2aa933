//! Crossed jobs: rounds of `slotkeeper run` that want slots of the same two or three semaphores in different orders, while
//! limits change and jobs are killed. Each job that was not killed ends well.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};

/// The longest time of a round after the last job has started. The slots of a killed one are free after two TTLs of 10 s.
const BOUND: Duration = Duration::from_secs(120);
const BINARY: &str = env!("CARGO_BIN_EXE_slotkeeper");
const POLL: Duration = Duration::from_millis(5);

/// What was done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub rounds: u32,
    pub jobs: u32,
    /// Those that want slots of several semaphores.
    pub groups: u32,
    pub limits_lowered: u32,
    pub limits_raised: u32,
    pub killed: u32,
    pub terminated: u32,
    pub longest: Duration,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, jobs, groups, limits_lowered, limits_raised, killed, terminated, longest } = self;
        write!(
            f,
            "{rounds} rounds, {jobs} jobs ({groups} on several semaphores), limits lowered {limits_lowered} and raised \
             {limits_raised} times, {killed} jobs killed, {terminated} terminated; the longest round took {:.1} s",
            longest.as_secs_f64()
        )
    }
}

/// Plays rounds at a Consul.
pub struct Crossed<'a> {
    consul: String,
    folder: &'a Path,
    rng: Rng,
    pub counts: Counts,
}

struct Semaphore {
    prefix: String,
    limit: u32,
}

struct Job {
    child: Child,
    file: PathBuf,
    hurt: bool,
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Crossed<'a> {
    /// Files are written into the folder.
    pub fn new(consul: String, folder: &'a Path, seed: u64) -> Self {
        Self { consul, folder, rng: Rng::with_seed(seed), counts: Counts::default() }
    }

    /// Plays one round. One in eight has kills, which take two TTLs.
    ///
    /// # Errors
    ///
    /// The jobs that did not end, or failed without a cause.
    #[allow(clippy::disallowed_methods, reason = "a test has no lease, and blocks nobody")]
    pub fn round(&mut self) -> Result<(), String> {
        let began = Instant::now();
        let round = self.counts.rounds;
        let semaphores: Vec<_> = ["a", "b", "c"][..self.rng.usize(2..=3)]
            .iter()
            .map(|name| Semaphore { prefix: format!("crossed/{round}/{name}"), limit: self.rng.u32(1..=3) })
            .collect();
        let kills = round % 8 == 7;
        let mut jobs = Vec::new();
        for number in 0..self.rng.u32(6..=9) {
            jobs.push(self.start(&semaphores, number));
            sleep(Duration::from_millis(self.rng.u64(0..40)));
            match self.rng.u32(0..8) {
                0..=2 => self.change_a_limit(&semaphores),
                3 => self.hurt(&mut jobs, Signal::TERM),
                4 | 5 if kills => self.hurt(&mut jobs, Signal::KILL),
                _ => {}
            }
        }
        // From here on each job's wish fits.
        for one in &semaphores {
            // 1: no job has come yet.
            let code = self.set_limit(one, one.limit);
            if !matches!(code, Some(0 | 1)) {
                return Err(format!("round {round}: set-limit {} {}: {code:?}", one.prefix, one.limit));
            }
        }
        let until = Instant::now() + BOUND;
        let mut failed = Vec::new();
        for job in &mut jobs {
            let status = loop {
                match job.child.try_wait().unwrap() {
                    None if Instant::now() < until => sleep(POLL),
                    status => break status,
                }
            };
            let wanted = || std::fs::read_to_string(&job.file).unwrap_or_default();
            match status {
                None => failed.push(format!("has not ended: {}", wanted())),
                Some(status) if !job.hurt && !status.success() => {
                    failed.push(format!("{status}: {}", wanted()));
                }
                Some(_) => {}
            }
        }
        self.counts.rounds += 1;
        self.counts.longest = self.counts.longest.max(began.elapsed());
        if failed.is_empty() { Ok(()) } else { Err(format!("round {round}:\n{}", failed.join("\n"))) }
    }

    /// Starts a job that wants slots of some of them, in any order.
    fn start(&mut self, semaphores: &[Semaphore], number: u32) -> Job {
        let mut wanted: Vec<_> = semaphores.iter().collect();
        self.rng.shuffle(&mut wanted);
        // Most want several.
        wanted.truncate(if self.rng.u32(0..5) == 0 { 1 } else { self.rng.usize(2..=wanted.len()) });
        let priority = [0, 0, 0, 5, -3][self.rng.usize(0..5)];
        let entries = wanted.iter().enumerate().map(|(place, one)| {
            let Semaphore { prefix, limit } = one;
            let slots = if self.rng.bool() { 1 } else { self.rng.u32(1..=*limit) };
            format!(
                "- {{name: s{place}, prefix: {prefix}, limit: {limit}, slots: {slots}, priority: {priority}}}\n"
            )
        });
        let text = format!("session: {{ttl: 10s}}\nsemaphores:\n{}", entries.collect::<String>());
        self.counts.jobs += 1;
        self.counts.groups += u32::from(wanted.len() > 1);
        let file = self.folder.join(format!("{}-{number}.yaml", self.counts.rounds));
        std::fs::write(&file, text).unwrap();
        let mut run = self.command(&["run", "--quiet", "--config"]);
        run.arg(&file).args(["--", "sleep", &format!("0.0{}", self.rng.u32(1..=4))]);
        Job { child: run.spawn().unwrap(), file, hurt: false }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("CONSUL_HTTP_ADDR", &self.consul);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Lowers or raises a limit, also below what waiters want. There may be no semaphore yet.
    fn change_a_limit(&mut self, semaphores: &[Semaphore]) {
        let one = &semaphores[self.rng.usize(0..semaphores.len())];
        let limit = self.rng.u32(1..=one.limit + 1);
        if self.set_limit(one, limit) == Some(0) {
            self.counts.limits_lowered += u32::from(limit < one.limit);
            self.counts.limits_raised += u32::from(limit > one.limit);
        }
    }

    /// Changes a limit, and returns the exit code.
    fn set_limit(&self, one: &Semaphore, limit: u32) -> Option<i32> {
        self.command(&["set-limit", &one.prefix, &limit.to_string()]).status().unwrap().code()
    }

    fn hurt(&mut self, jobs: &mut [Job], signal: Signal) {
        let job = &mut jobs[self.rng.usize(0..jobs.len())];
        if job.child.try_wait().unwrap().is_none() {
            let pid = Pid::from_raw(job.child.id().cast_signed()).unwrap();
            kill_process(pid, signal).unwrap();
            job.hurt = true;
            let counts = &mut self.counts;
            *(if signal == Signal::KILL { &mut counts.killed } else { &mut counts.terminated }) += 1;
        }
    }
}
