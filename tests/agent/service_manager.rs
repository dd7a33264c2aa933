//! What a service manager is told: sd_notify(3), received on a socket like systemd's.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use slotkeeper::internals::log_events;
use tempfile::TempDir;

use crate::consul::Consul;
use crate::process::{Agent, Home};
use crate::run::job::{Job, run};
use crate::support::life::MEEK;
use crate::wait_for;

const SOCKET: &str = "NOTIFY_SOCKET";
const ONE: &str = "semaphores: [{name: one, prefix: p/one, limit: 1}]";

/// The service manager's end.
struct Manager {
    folder: TempDir,
    socket: UnixDatagram,
    /// The lines that were received.
    told: Vec<String>,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { folder, socket, told: Vec::new() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("notify")
    }

    fn start(&self, home: &Home, environment: &[(&str, &str)]) -> Agent {
        let path = self.path().display().to_string();
        let environment: Vec<_> = environment.iter().copied().chain([(SOCKET, path.as_str())]).collect();
        Agent::start_with(home, &[], &environment)
    }

    /// All lines so far.
    fn told(&mut self) -> &[String] {
        let mut bytes = [0; 4096];
        loop {
            match self.socket.recv(&mut bytes) {
                Ok(length) => {
                    self.told.extend(String::from_utf8_lossy(&bytes[..length]).lines().map(str::to_owned));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return &self.told,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Waits for a line with this beginning and part, after those that were awaited before.
    fn awaits(&mut self, from: usize, begin: &str, part: &str) -> usize {
        let mut found = None;
        let what = format!("{begin}{part} after line {from}");
        wait_for(&what, || {
            let matches = |line: &String| line.starts_with(begin) && line.contains(part);
            found = self.told().iter().skip(from).position(matches);
            found.is_some()
        });
        from + found.unwrap_or_default() + 1
    }

    fn has(&mut self, line: &str) -> bool {
        self.told().iter().any(|told| told == line)
    }
}

#[test]
fn a_start_is_complete_when_the_slot_is_held() {
    let consul = Consul::start();
    let holder = Job::live(&consul.address(), &["p/one", "-n", "1", "--name", "import"], MEEK);
    holder.await_life();
    let (home, mut manager) = (Home::new(), Manager::new());
    home.configure(&consul.address(), ONE);
    let mut agent = manager.start(&home, &[]);
    manager.awaits(0, "STATUS=", "waiting for one: 1st of 1 in the queue, held by import");
    manager.awaits(0, "EXTEND_TIMEOUT_USEC=", "30000000");
    assert!(!manager.has("READY=1"), "{:?}", manager.told);

    holder.signal(Signal::TERM);
    manager.awaits(0, "READY=1", "");
    let held = manager.awaits(0, "STATUS=holding one", "");

    agent.signal(Signal::TERM);
    manager.awaits(held, "STOPPING=1", "");
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
}

#[test]
#[allow(clippy::disallowed_methods, reason = "nothing tells of silence but time")]
fn the_watchdog_hears_of_an_agent_that_makes_progress() {
    let consul = Consul::start();
    let (home, mut manager) = (Home::new(), Manager::new());
    home.configure(&consul.address(), ONE);
    let agent = manager.start(&home, &[("WATCHDOG_USEC", "900000")]);
    let first = manager.awaits(0, "WATCHDOG=1", "");
    let second = manager.awaits(first, "WATCHDOG=1", "");
    agent.signal(Signal::STOP);
    // Messages that were under way.
    let mut count = 0;
    wait_for("silence", || {
        std::thread::sleep(Duration::from_millis(900));
        std::mem::replace(&mut count, manager.told().len()) == manager.told.len()
    });
    agent.signal(Signal::CONT);
    manager.awaits(count.max(second), "WATCHDOG=1", "");
}

#[test]
fn the_watchdog_of_another_process_is_left_alone() {
    let consul = Consul::start();
    let (home, mut manager) = (Home::new(), Manager::new());
    home.configure(&consul.address(), ONE);
    let _agent = manager.start(&home, &[("WATCHDOG_USEC", "300000"), ("WATCHDOG_PID", "1")]);
    manager.awaits(0, "STATUS=holding one", "");
    assert!(!manager.has("WATCHDOG=1"), "{:?}", manager.told);
}

#[test]
fn a_failure_is_the_last_status() {
    let consul = Consul::start();
    let holder = Job::live(&consul.address(), &["p/one", "-n", "1"], MEEK);
    holder.await_life();
    let mut manager = Manager::new();
    let mut command = run(&consul.address(), &["p/one", "-n", "1", "--timeout", "1s"], &["true"]);
    command.env(SOCKET, manager.path());
    let mut job = Job::spawn(command, tempfile::tempdir().unwrap());
    assert_eq!(job.code(), Some(75), "{}", job.log());
    let last = manager.told().last().cloned().unwrap_or_default();
    assert!(last.starts_with("STATUS=timed out after 1s waiting for p/one"), "{:?}", manager.told);
    assert!(!manager.has("READY=1"), "{:?}", manager.told);
}

#[test]
fn a_command_reports_nothing_for_us() {
    let consul = Consul::start();
    let mut manager = Manager::new();
    let script = "echo ${NOTIFY_SOCKET-none} ${WATCHDOG_USEC-none} ${WATCHDOG_PID-none}";
    let mut command = run(&consul.address(), &["p/one", "-n", "1"], &["sh", "-c", script]);
    command.env(SOCKET, manager.path()).env("WATCHDOG_USEC", "1000000").env("WATCHDOG_PID", "1");
    let mut job = Job::spawn(command, tempfile::tempdir().unwrap());
    assert_eq!((job.code(), job.out().as_str()), (Some(0), "none none none\n"), "{}", job.log());
    assert!(manager.has("READY=1"), "{:?}", manager.told);
}

#[test]
fn without_the_service_manager_the_agent_goes_on() {
    let consul = Consul::start();
    let (home, mut manager) = (Home::new(), Manager::new());
    home.configure(&consul.address(), ONE);
    let path = manager.path();
    std::fs::remove_file(&path).unwrap();
    let agent = manager.start(&home, &[]);
    agent.await_ready();
    wait_for("the warning", || agent.log().contains(log_events::SERVICE_MANAGER_NOT_NOTIFIED));
    // It is there again, as after a restart of the service manager.
    manager.socket = UnixDatagram::bind(&path).unwrap();
    manager.socket.set_nonblocking(true).unwrap();
    manager.awaits(0, "READY=1", "");
    manager.awaits(0, "STATUS=holding one", "");
    assert_eq!(agent.log().matches(log_events::SERVICE_MANAGER_NOT_NOTIFIED).count(), 1, "{}", agent.log());
}
