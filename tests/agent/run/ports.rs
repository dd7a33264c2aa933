//! A time-out is one, and a port that is not Consul's HTTP API is named as that, whatever listens there.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::job::{Job, bare};
use super::permanent::quiet;
use crate::consul::Consul;
use crate::process::{Agent, BINARY, Home};
use crate::wait_for;

const ONE: [&str; 3] = ["p/one", "-n", "1"];
/// What a process needs beyond its bound.
const AT_MOST_LATER: Duration = Duration::from_secs(1);

/// Listens on a port of its own and treats each connection so.
fn port(treat: impl Fn(TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let treat = treat.clone();
            thread::spawn(move || treat(stream));
        }
    });
    address
}

/// Reads a request and closes the connection, as Consul's ports for RPC and gossip do.
fn closes_on_request(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 16]);
}

/// Closes it after a while, whatever comes, as a proxy whose server is down.
fn closes_by_itself(stream: TcpStream) {
    pause(Duration::from_millis(20));
    drop(stream);
}

/// Never answers.
fn stays(mut stream: TcpStream) {
    while stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
}

/// Speaks first, as gRPC (whose settings these are) and many others do.
fn speaks_first(mut stream: TcpStream) {
    let _ = stream
        .write_all(b"\x00\x00\x0c\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00@\x00\x00\x03\x00\x00\x08\x00");
    stays(stream);
}

/// Answers a request, but not by HTTP.
fn answers_otherwise(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(b"-ERR unknown command 'PUT'\r\n");
}

/// Answers what it takes for a query, and closes any other connection after two seconds, as Consul's port for DNS does.
fn answers_dns(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut length = [0; 2];
    if stream.read_exact(&mut length).is_err() {
        return;
    }
    let mut query = vec![0; u16::from_be_bytes(length).into()];
    if stream.read_exact(&mut query).is_ok() {
        let _ = stream.write_all(&[&[0, 12], &query[..2], &[0x80, 5, 0, 0, 0, 0, 0, 0, 0, 0]].concat());
    }
}

/// A proxy of TCP that can lose its server.
struct Door {
    address: String,
    state: Arc<AtomicU8>,
}

const OPEN: u8 = 0;
/// Closes each connection by itself.
const SHUT: u8 = 1;
/// Closes each connection when a request comes.
const SWALLOWS: u8 = 2;

impl Door {
    fn before(consul: String, state: u8) -> Self {
        let state = Arc::new(AtomicU8::new(state));
        let now = Arc::clone(&state);
        let address = port(move |stream| {
            if now.load(Ordering::SeqCst) != SHUT {
                // What has broken off needs nothing more.
                let _ = pass(stream, &consul, &now);
            }
        });
        Self { address, state }
    }

    fn becomes(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
    }
}

/// Passes on what the client sends while the door is open, and all answers.
fn pass(mut client: TcpStream, consul: &str, state: &AtomicU8) -> std::io::Result<()> {
    let mut server = TcpStream::connect(consul)?;
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    let mut part = [0; 16 * 1024];
    loop {
        let read = client.read(&mut part)?;
        if read == 0 || state.load(Ordering::SeqCst) != OPEN {
            let _ = client.shutdown(std::net::Shutdown::Both);
            return server.shutdown(std::net::Shutdown::Both);
        }
        server.write_all(&part[..read])?;
    }
}

#[allow(clippy::disallowed_methods, reason = "a test has no lease")]
fn pause(time: Duration) {
    thread::sleep(time);
}

#[allow(clippy::disallowed_methods, reason = "a test has no lease")]
fn now() -> Instant {
    Instant::now()
}

/// Every kind of port at which no Consul answers, with its name for messages.
fn ports() -> Vec<(&'static str, String)> {
    vec![
        ("closes on a request", port(closes_on_request)),
        ("closes by itself", port(closes_by_itself)),
        ("never answers", port(stays)),
        ("speaks first", port(speaks_first)),
        ("answers otherwise", port(answers_otherwise)),
        ("DNS", port(answers_dns)),
        ("TLS to a port without", format!("https://{}", port(answers_otherwise))),
        ("TLS to a port that closes", format!("https://{}", port(closes_on_request))),
        ("TLS to a port that never answers", format!("https://{}", port(stays))),
    ]
}

#[test]
fn a_bound_ends_the_process_whatever_the_port_does() {
    let starts = |(what, address): (&'static str, String), bound: &[&str], seconds: u64| {
        let until = now() + Duration::from_secs(seconds) + AT_MOST_LATER;
        (what, quiet(&address, &[&ONE[..], bound].concat()), until)
    };
    // What is started at once delays the others.
    let tries = ["closes by itself", "never answers", "TLS to a port that never answers"];
    let tried = ports().into_iter().filter(|(what, _)| tries.contains(what));
    let tried: Vec<_> = tried.map(|port| starts(port, &["--try"], 10)).collect();
    let ended = |(what, mut job, until): (&str, Job, Instant)| {
        ends_by(what, &mut job, until);
        assert_eq!(job.code(), Some(69), "{what}: {}", job.log());
        let said = job.log();
        assert!(!said.contains("drain timed out") && !said.contains("after 0s"), "{what}: {said}");
        assert!(!said.contains("held slots stay valid"), "{what}: {said}");
    };
    tried.into_iter().for_each(ended);
    for port in ports() {
        ended(starts(port, &["--timeout", "2s"], 2));
    }
}

/// Checks that the process has ended at that instant.
fn ends_by(what: &str, job: &mut Job, until: Instant) {
    pause(until.saturating_duration_since(now()));
    assert!(!job.is_running(), "{what}: it has not ended; log:\n{}", job.log());
}

#[test]
fn a_stop_ends_within_a_second_what_has_no_session() {
    for (what, address) in ports() {
        let mut job = quiet(&address, &ONE);
        let home = Home::new();
        home.configure(&address, crate::hold::ONE);
        let mut agent = Agent::start(&home);
        pause(Duration::from_millis(500));
        job.signal(Signal::INT);
        agent.signal(Signal::TERM);
        let until = now() + AT_MOST_LATER;
        ends_by(what, &mut job, until);
        assert!(agent.has_ended(), "{what}: the agent has not ended; log:\n{}", agent.log());
        assert_eq!(job.code(), Some(130), "{what}: {}", job.log());
        assert_eq!(agent.ended().code(), Some(0), "{what}: {}", agent.log());
    }
}

#[test]
fn a_port_of_another_protocol_ends_the_wait_with_its_name() {
    let consul = Consul::start();
    let mut others = ports();
    others.retain(|(what, _)| {
        ["closes on a request", "speaks first", "answers otherwise", "DNS"].contains(what)
    });
    others.extend(consul.other_ports());
    let began = now();
    let jobs: Vec<_> = others.iter().map(|(what, address)| (what, quiet(address, &ONE))).collect();
    for (what, mut job) in jobs {
        assert_eq!(job.code(), Some(69), "{what}: {}", job.log());
        let said = job.log();
        assert!(said.contains("the server there does not speak HTTP"), "{what}: {said}");
        assert!(said.contains("8500") && said.lines().count() == 1, "{what}: {said}");
        assert!(began.elapsed() < Duration::from_secs(10), "{what}: it took {:?}", began.elapsed());
    }
}

#[test]
fn a_proxy_whose_consul_is_still_down_is_named_and_waited_for() {
    let consul = Consul::start();
    let door = Door::before(consul.address(), SHUT);
    let mut job = Job::start(&door.address, &ONE, &["true"]);
    let named = "it is not Consul's HTTP API (port 8500 by default), or a proxy";
    wait_for("the name of what it may be", || job.log().contains(named));
    // More and longer than what ends the wait at a port of another protocol.
    pause(Duration::from_secs(12));
    assert!(job.is_running(), "{}", job.log());
    door.becomes(OPEN);
    assert_eq!(job.code(), Some(0), "{}", job.log());
}

/// Closes each connection after that time, whatever comes.
fn closes_after(time: Duration) -> impl Fn(TcpStream) + Clone + Send + 'static {
    move |stream| {
        pause(time);
        drop(stream);
    }
}

/// A proxy of a slow Consul that closes connections at once on a request for another host or path.
fn closes_on_unknown_host(mut stream: TcpStream) {
    let mut head = [0; 4096];
    let read = stream.read(&mut head).unwrap_or(0);
    let own = stream.local_addr().unwrap();
    let text = String::from_utf8_lossy(&head[..read]).to_lowercase();
    if text.contains(&format!("\r\nhost: {own}\r\n")) && text.contains(" /base/v1/") {
        stays(stream);
    }
}

/// A proxy that breaks the first request of each kind, and closes connections at once on a request for an unknown host or path.
fn breaks_what_it_knows_late(mut stream: TcpStream) {
    let mut head = [0; 4096];
    let read = stream.read(&mut head).unwrap_or(0);
    let own = stream.local_addr().unwrap();
    let text = String::from_utf8_lossy(&head[..read]).to_lowercase();
    if text.contains(&format!("\r\nhost: {own}\r\n")) && text.contains(" /base/v1/") {
        pause(Duration::from_millis(300));
    }
}

/// Lets the first connection wait, and closes others on a request.
fn slow_then_closes() -> impl Fn(TcpStream) + Clone + Send + 'static {
    move |mut stream: TcpStream| {
        let mut head = [0; 4096];
        let read = stream.read(&mut head).unwrap_or(0);
        // Only the library writes names of headers in small letters.
        if head[..read].windows(6).any(|part| part == b"\nhost:") {
            stays(stream);
        }
    }
}

#[test]
fn a_proxy_that_closes_by_itself_or_is_slow_is_waited_for() {
    let mut ports: Vec<_> = [20, 400, 600, 900]
        .map(|after| (format!("closes after {after} ms"), port(closes_after(Duration::from_millis(after)))))
        .into();
    ports.push(("unknown host".into(), format!("{}/base", port(closes_on_unknown_host))));
    ports.push(("unknown host, breaks".into(), format!("{}/base", port(breaks_what_it_knows_late))));
    ports.push(("slow".into(), port(slow_then_closes())));
    let jobs: Vec<_> = ports.iter().map(|(what, address)| (what, quiet(address, &ONE))).collect();
    pause(Duration::from_secs(20));
    for (what, mut job) in jobs {
        assert!(job.is_running(), "{what}: {}", job.log());
        assert!(!job.log().contains("does not speak HTTP"), "{what}: {}", job.log());
    }
}

#[test]
fn a_wait_that_once_had_an_answer_outlasts_a_port_that_closes_on_requests() {
    let consul = Consul::start();
    let first = Job::live(&consul.address(), &ONE, crate::support::life::MEEK);
    first.await_life();
    let door = Door::before(consul.address(), OPEN);
    let mut job = Job::start(&door.address, &ONE, &["true"]);
    wait_for("its place in the queue", || {
        crate::operator::Operator::at(&consul.address()).keys("p/one").len() == 3
    });
    door.becomes(SWALLOWS);
    pause(Duration::from_secs(10));
    assert!(job.is_running(), "{}", job.log());
    door.becomes(OPEN);
    first.signal(Signal::TERM);
    assert_eq!(job.code(), Some(0), "{}", job.log());
}

#[test]
fn port_80_is_named_with_the_port_that_may_be_missing() {
    for (address, part) in
        [("127.0.0.1", "If no port was written, write :8500"), ("127.0.0.1:80", "If no port was")]
    {
        let mut job = quiet(address, &[&ONE[..], &["--timeout", "1s"]].concat());
        assert_eq!(job.code(), Some(69), "{}", job.log());
        assert!(job.log().contains("127.0.0.1:80: ") && job.log().contains(part), "{}", job.log());
    }
}

#[test]
fn white_space_around_an_address_is_no_part_of_it() {
    let consul = Consul::start();
    let mut run = Command::new(BINARY);
    bare(&mut run);
    run.env("CONSUL_HTTP_ADDR", format!(" {} ", consul.address())).arg("run").args(ONE).args(["--", "true"]);
    let mut job = Job::spawn(run, tempfile::tempdir().unwrap());
    assert_eq!(job.code(), Some(0), "{}", job.log());
}
