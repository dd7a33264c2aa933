//! HTTP by hand, so that a test sees exactly what is on the wire.

pub(crate) mod answers;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// For one answer: longer than any of those that is waited for on purpose.
const PATIENCE: Duration = Duration::from_secs(120);

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    /// A header's value, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Asks once on a connection of its own. `line` is method and path; `headers` are whole lines. An agent's answer must be one that
/// its documents describe.
pub(crate) fn request(address: &str, line: &str, headers: &str) -> Reply {
    request_with(address, line, headers, "")
}

/// The same with a body, whose length `headers` says.
pub(crate) fn request_with(address: &str, line: &str, headers: &str, body: &str) -> Reply {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n{body}").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status in {text:?}"));
    let reply = Reply { status, head: head.to_owned(), body: body.to_owned() };
    answers::check(line, &reply);
    reply
}
