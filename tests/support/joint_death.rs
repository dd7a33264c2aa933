//! The holder of the only slot and its only waiter are killed at one instant, and impatient clients come after them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::processes;
use super::wait::within;

/// The documented bound: Consul ends each session within two TTLs, and each newcomer looks soon.
pub const BOUND: Duration = Duration::from_secs(23);
/// After this no more clients come.
const PATIENCE: Duration = Duration::from_secs(90);
const WAIT: &str = "5s";

/// What the clients are.
#[derive(Clone, Copy, Debug)]
pub enum Client {
    /// Each is a `slotkeeper run`.
    Run,
    /// Each asks one agent for a lease.
    Lease,
}

/// Kills holder and waiter of `prefix`; after how long one of the clients was served that came one after the other.
pub fn play(binary: &str, consul: &str, prefix: &str, client: Client) -> Option<Duration> {
    let consul = consul.trim_start_matches("http://");
    match client {
        Client::Run => runs(binary, consul, prefix),
        Client::Lease => leases(binary, consul, prefix),
    }
}

fn runs(binary: &str, consul: &str, prefix: &str) -> Option<Duration> {
    let run = |timeout: &[&str], command: &[&str]| {
        let mut run = Command::new(binary);
        run.args([
            "run",
            "--http-addr",
            consul,
            "-q",
            "--ttl",
            "10s",
            "--kill-after",
            "1s",
            "-n",
            "1",
            prefix,
        ]);
        run.args(timeout).arg("--").args(command);
        start(run)
    };
    let holder = run(&[], &["sleep", "600"]);
    await_record(consul, prefix, "the holder", |record| !record.contains(r#""Holders":[]"#));
    let waiter = run(&[], &["true"]);
    await_waiter(consul, prefix);
    let guard = processes::guard_of(holder.pid()).expect("a guard");
    let died = kill_all(&[holder.pid(), guard, waiter.pid()]);
    serve(died, || match run(&["--timeout", WAIT], &["true"]).0.wait().unwrap().code() {
        Some(0) => true,
        Some(75) => false,
        code => panic!("a client ended with {code:?}"),
    })
}

fn leases(binary: &str, consul: &str, prefix: &str) -> Option<Duration> {
    let folder = tempfile::tempdir().unwrap();
    let agent = |name: &str| {
        let (file, socket) = (folder.path().join(format!("{name}.yaml")), folder.path().join(name));
        let text = format!(
            "consul: {{address: 'http://{consul}'}}\nhttp: {{listen: off}}\nsession: {{ttl: 10s}}\ncontrol: {{listen: 'unix:{}'}}\n\
             semaphores: [{{name: s, prefix: {prefix}, limit: 1, mode: on_demand}}]",
            socket.display()
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(binary);
        command.args(["agent", "--config"]).arg(file);
        let agent = start(command);
        within(PATIENCE, "the control socket", || UnixStream::connect(&socket).is_ok());
        (agent, socket)
    };
    let (killed, socket) = agent("killed");
    assert_eq!(acquire(&socket, "{}"), 200);
    let mut waiting = UnixStream::connect(&socket).unwrap();
    ask(&mut waiting, r#"{"wait":"60s"}"#);
    await_waiter(consul, prefix);
    let died = kill_all(&[killed.pid()]);
    let (_agent, socket) = agent("next");
    serve(died, || match acquire(&socket, &format!(r#"{{"wait":"{WAIT}"}}"#)) {
        200 => true,
        409 => false,
        status => panic!("an acquire was answered with {status}"),
    })
}

/// Lets one client come after the other until one is served.
fn serve(died: Instant, mut client: impl FnMut() -> bool) -> Option<Duration> {
    while died.elapsed() < PATIENCE {
        if client() {
            return Some(died.elapsed());
        }
    }
    None
}

/// Kills them, at what instant. None of them sees that another one has died.
fn kill_all(processes: &[Pid]) -> Instant {
    for signal in [Signal::STOP, Signal::KILL] {
        for process in processes {
            kill_process(*process, signal).unwrap();
        }
    }
    #[allow(clippy::disallowed_methods, reason = "a test has no lease")]
    Instant::now()
}

fn await_waiter(consul: &str, prefix: &str) {
    await_record(consul, prefix, "the waiter", |record| record.contains(r#""next":["#));
}

fn await_record(consul: &str, prefix: &str, what: &str, is_so: impl Fn(&str) -> bool) {
    within(PATIENCE, what, || {
        let mut stream = TcpStream::connect(consul).unwrap();
        write!(stream, "GET /v1/kv/{prefix}/.lock?raw HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").is_some_and(|(head, body)| head.contains(" 200 ") && is_so(body))
    });
}

fn acquire(socket: &Path, body: &str) -> u16 {
    let mut stream = UnixStream::connect(socket).unwrap();
    ask(&mut stream, body);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

fn ask(stream: &mut UnixStream, body: &str) {
    let head = format!("Host: agent\r\nConnection: close\r\nContent-Length: {}", body.len());
    write!(stream, "POST /v1/semaphores/s/acquire HTTP/1.1\r\n{head}\r\n\r\n{body}").unwrap();
}

/// A process that is killed with its value.
struct Killed(Child);

fn start(mut command: Command) -> Killed {
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Killed(command.spawn().unwrap())
}

impl Killed {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
