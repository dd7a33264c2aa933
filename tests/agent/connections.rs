//! Clients that mean harm, at every listener, while the agent does its work.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use serde_json::json;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::kv::Put;
use crate::wait_for;

/// More than any listener takes in at once.
const CROWD: usize = 320;
/// Resident memory that an agent may have with all of them, in KiB. It has some 10 MB by itself.
const MEMORY: u64 = 80 * 1024;

/// Where those come from who mean harm. The tests' own clients are at another address.
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Bytes of a status with the worst that others may write into one semaphore.
const LONGEST: usize = 256 * 1024;

/// Where a client comes in.
#[derive(Clone)]
enum Door {
    Tcp(SocketAddrV4),
    Unix(PathBuf),
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Door {
    /// A connection on which nothing is waited for long.
    fn enter(&self) -> io::Result<Box<dyn Stream>> {
        let patience = Some(Duration::from_millis(1));
        match self {
            Self::Tcp(address) => {
                // A neighbour has an address of its own.
                let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
                bind(&socket, &SocketAddrV4::new(NEIGHBOUR, 0))?;
                connect(&socket, address)?;
                let stream = TcpStream::from(socket);
                stream.set_write_timeout(patience)?;
                stream.set_read_timeout(patience)?;
                Ok(Box::new(stream))
            }
            Self::Unix(path) => {
                // A full backlog would be waited for as long as nobody is taken in.
                let socket =
                    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
                connect(&socket, &SocketAddrUnix::new(path)?)?;
                let stream = UnixStream::from(socket);
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(patience)?;
                stream.set_read_timeout(patience)?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// One way of doing harm.
struct Way {
    name: &'static str,
    /// What a client sends at first,
    first: &'static str,
    /// and then again and again for as long as it is let.
    again: &'static str,
    /// Whether it takes what it is answered.
    reads: bool,
}

const fn way(name: &'static str, first: &'static str, again: &'static str) -> Way {
    Way { name, first, again, reads: false }
}

const WAYS: [Way; 11] = [
    way("a slow head", "GET /livez HTTP/1.1\r\nX-", ""),
    way("a head without end", "GET /livez HTTP/1.1\r\n", "X-Header: xxxxxxxxxxxxxxxxxxxxxxxx\r\n"),
    way(
        "a slow body",
        "POST /v1/semaphores/d/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n{",
        "",
    ),
    way(
        "a body without end",
        "POST /v1/semaphores/d/acquire HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        "400\r\n",
    ),
    way(
        "a huge body",
        "POST /v1/semaphores/d/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n",
        "x",
    ),
    way("a flood of requests", "", "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    way("a status that nobody reads", STATUS, STATUS),
    Way { reads: true, ..way("a status, again and again", STATUS, STATUS) },
    way("a semaphore that nobody reads", SEMAPHORE, SEMAPHORE),
    way("events that nobody reads", EVENTS, ""),
    Way { reads: true, ..way("events", EVENTS, "") },
];
const STATUS: &str = "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n";
const SEMAPHORE: &str = "GET /v1/semaphores/big HTTP/1.1\r\nHost: localhost\r\n\r\n";
const EVENTS: &str = "GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Clients that come back as soon as they are thrown out, each in its own way.
struct Attack {
    over: Arc<AtomicBool>,
    /// How often somebody came in, by the way.
    entered: Arc<[AtomicU64; WAYS.len()]>,
    thread: Option<JoinHandle<()>>,
}

impl Attack {
    fn begin(door: Door) -> Self {
        let (over, entered) = (Arc::new(AtomicBool::new(false)), Arc::new(Default::default()));
        let shared: (Arc<AtomicBool>, Arc<[AtomicU64; WAYS.len()]>) =
            (Arc::clone(&over), Arc::clone(&entered));
        let thread = std::thread::spawn(move || {
            let (over, entered) = shared;
            let mut crowd: Vec<Option<Box<dyn Stream>>> = (0..CROWD).map(|_| None).collect();
            for place in (0..CROWD).cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                let nth = place % WAYS.len();
                let way = &WAYS[nth];
                crowd[place] = crowd[place].take().and_then(|stream| torment(stream, way)).or_else(|| {
                    let mut stream = door.enter().ok()?;
                    stream.write_all(way.first.as_bytes()).ok()?;
                    entered[nth].fetch_add(1, Ordering::Relaxed);
                    Some(stream)
                });
                // The agent is to be busy, and not the machine.
                std::thread::park_timeout(Duration::from_millis(1));
            }
        });
        Self { over, entered, thread: Some(thread) }
    }

    /// Whether as many have come in as are let in nowhere at once.
    fn is_under_way(&self) -> bool {
        let each = self.entered.iter().map(|entered| entered.load(Ordering::Relaxed));
        each.sum::<u64>() >= CROWD as u64
    }
}

/// Takes what has come, where it is one that reads, and sends a little more; none where it is not let.
fn torment(mut stream: Box<dyn Stream>, way: &Way) -> Option<Box<dyn Stream>> {
    if way.reads {
        match stream.read(&mut [0; 1 << 20]) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return None,
        }
    }
    if way.again.is_empty() {
        return Some(stream);
    }
    match stream.write(way.again.repeat(4).as_bytes()) {
        Ok(1..) => Some(stream),
        // It is full: nobody reads the answers.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(stream),
        Ok(0) | Err(_) => None,
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The body of an answer that is well, to a client that comes for it.
fn ask(agent: &Agent, path: &str) -> String {
    let reply = agent.get(path);
    assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    reply.body
}

/// How often the session has been renewed.
fn renewals(agent: &Agent) -> f64 {
    agent.metric("slotkeeper_session_renew_duration_seconds_count")
}

fn resident_kib(agent: &Agent) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A semaphore with more holders than a status lists and more in line, each with a name that is longest as JSON.
fn plant_a_crowd(operator: &Operator) {
    let hostile = "\\".repeat(2000);
    let who =
        json!({"pod": hostile, "namespace": hostile, "node": hostile, "host": hostile, "pid": u32::MAX});
    let enter = |state: &str| {
        let session = operator.create_session();
        let entry = json!({"slotkeeper": 1, "state": state, "slots": 1, "who": who});
        operator.put(&format!("service/big/{session}"), &entry.to_string(), Put::Acquire(&session), 0);
        session
    };
    let holders: Vec<_> = (0..120).map(|_| enter("held")).collect();
    let record = json!({"Limit": holders.len(), "Holders": holders});
    (0..30).for_each(|_| drop(enter("waiting")));
    operator.put("service/big/.lock", &record.to_string(), Put::Cas(0), 0);
}

/// An agent that holds a slot, for whose session 20 s are a TTL, sees a crowd at another semaphore, and has a slot to be had
/// on demand.
fn agent(consul: &Consul, home: &Home, control: &str) -> Agent {
    plant_a_crowd(&Operator::at(&consul.address()));
    home.configure(
        &consul.address(),
        &format!(
            "session: {{ttl: 20s}}\nsemaphores: [{{name: s, prefix: service/s, limit: 1}}, \
             {{name: big, prefix: service/big, limit: 120, required: false}}, \
             {{name: d, prefix: service/d, limit: 1, mode: on_demand}}]\n{control}\n"
        ),
    );
    let agent = Agent::start(home);
    agent.await_ready();
    wait_for("the crowd to be seen", || agent.status()["semaphores"][1]["queue_length"] == 31);
    let status = agent.get("/v1/status").body;
    let shown = &agent.status()["semaphores"][1];
    let count = |what: &str| shown[what].as_array().unwrap().len();
    assert_eq!((count("holders"), count("queue"), &shown["holder_count"]), (100, 20, &json!(120)));
    assert!(status.len() < LONGEST, "{} bytes", status.len());
    agent
}

/// Attacks in every way at once, for longer than a lease lasts by itself.
fn withstands(agent: &Agent, door: Door) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let token = agent.semaphore()["fencing_token"].clone();
    let attack = Attack::begin(door);
    wait_for("the crowd", || {
        assert_eq!(ask(agent, "/livez"), "ok\n");
        attack.is_under_way()
    });
    // A lease lasts for three.
    let until = renewals(agent) + 4.0;
    wait_for("the session to be renewed all the same", || {
        assert_eq!(ask(agent, "/livez"), "ok\n");
        assert_eq!(ask(agent, "/readyz"), "ok\n", "readiness is a fresh lease");
        let resident = resident_kib(agent);
        assert!(resident < MEMORY, "{resident} KiB");
        renewals(agent) >= until
    });
    for (way, entered) in WAYS.iter().zip(&*attack.entered) {
        assert!(entered.load(Ordering::Relaxed) > 0, "{}", way.name);
    }
    assert_eq!(agent.semaphore()["fencing_token"], token);
    drop(attack);
    assert_eq!(agent.metric("slotkeeper_slot_held{semaphore=\"s\"}"), 1.0, "held all the while");
}

#[test]
fn the_read_only_endpoints_withstand_bad_clients() {
    let (consul, home) = (Consul::start(), Home::new());
    let agent = agent(&consul, &home, "control: {listen: 'unix:$HOME/s'}");
    withstands(&agent, Door::Tcp(agent.address().parse().unwrap()));
}

#[test]
fn the_control_socket_withstands_bad_clients() {
    let (consul, home) = (Consul::start(), Home::new());
    let path = home.path("s");
    let agent = agent(&consul, &home, "control: {listen: 'unix:$HOME/s'}");
    withstands(&agent, Door::Unix(path));
}

#[test]
fn the_control_address_withstands_clients_without_a_token() {
    let (consul, home) = (Consul::start(), Home::new());
    let mut agent = agent(&consul, &home, "control: {listen: '127.0.0.1:0', token_file: '$HOME/token'}");
    withstands(&agent, Door::Tcp(agent.control_address().parse().unwrap()));
    assert_eq!(agent.terminate(), Some(0));
}
