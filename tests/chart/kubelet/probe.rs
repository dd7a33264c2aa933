//! A probe, and when it is asked.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{list, text};

/// As long as a busy machine may stand still. A probe gives up no sooner, or it would end what is as it should be; who has died or is
/// not ready is known by another answer than none.
const BUSY: Duration = Duration::from_secs(5);

/// What its last answers come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not known yet, or not often enough.
    Open,
    Passed,
    /// `failureThreshold` times in a row.
    Failed,
}

/// One probe of a running container.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    address: SocketAddr,
    path: String,
    period: Duration,
    timeout: Duration,
    threshold: u64,
    failures: u64,
    due: Instant,
}

impl Probe {
    /// The container's probe of this name, where it has one.
    pub(super) fn of(container: &Value, name: &str, ip: &str) -> Option<Self> {
        let spec = container.get(name)?;
        let get = &spec["httpGet"];
        assert!(get.is_object(), "only httpGet is known: {spec}");
        let number = |key: &str, default: u64| spec[key].as_u64().unwrap_or(default);
        let seconds = |key: &str, default| Duration::from_secs(number(key, default));
        Some(Self {
            address: format!("{ip}:{}", port(container, &get["port"])).parse().unwrap(),
            path: text(&get["path"], "a path").to_owned(),
            period: seconds("periodSeconds", 10),
            timeout: seconds("timeoutSeconds", 1).max(BUSY),
            threshold: number("failureThreshold", 3),
            failures: 0,
            due: Instant::now() + seconds("initialDelaySeconds", 0),
        })
    }

    /// Asks, where it is time to.
    pub(super) fn tick(&mut self) -> Verdict {
        if Instant::now() < self.due {
            return Verdict::Open;
        }
        self.due = Instant::now() + self.period;
        if self.ask().is_some_and(|status| (200..400).contains(&status)) {
            self.failures = 0;
            return Verdict::Passed;
        }
        self.failures += 1;
        if self.failures >= self.threshold { Verdict::Failed } else { Verdict::Open }
    }

    fn ask(&self) -> Option<u16> {
        let mut stream = TcpStream::connect_timeout(&self.address, self.timeout).ok()?;
        stream.set_read_timeout(Some(self.timeout)).ok()?;
        write!(stream, "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.path, self.address)
            .ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
    }
}

/// A number, or the name of a port of this same container.
fn port(container: &Value, port: &Value) -> u64 {
    port.as_u64().unwrap_or_else(|| {
        let named = list(container, "ports").into_iter().find(|one| one["name"] == *port);
        named.and_then(|one| one["containerPort"].as_u64()).unwrap_or_else(|| {
            panic!("the container {} has no port {port}", container["name"]);
        })
    })
}
