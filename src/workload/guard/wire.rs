//! The protocol of agent and guard: one JSON object a line, over a socket of their own.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::fence::Why;
use super::holdings::Holdings;

/// From the agent to the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// The first one: start the command.
    Begin {
        /// When the lease ends, in milliseconds on the lease clock.
        lease_ends: u64,
        /// What to release if the agent is killed.
        holdings: Option<Box<Holdings>>,
    },
    /// The lease was renewed: when it ends, in milliseconds on the lease clock.
    Lease(u64),
    /// The holdings have changed.
    Holdings(Box<Holdings>),
    /// Signal the command's process group.
    Signal(i32),
    /// Stop the command.
    Stop,
    /// The agent's own job was continued after the command was suspended.
    Continue,
    /// The last one: the agent has released what it held, or gives that up, and ends. Of these offers the guard takes over the
    /// responsibility, and then ends the session.
    Over(Vec<Offer>),
}

/// A slot that the agent has offered to a waiter, which has not accepted it yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The semaphore's prefix.
    pub(crate) prefix: String,
    /// The waiter's session.
    pub(crate) taker: String,
    /// The index of the offer.
    pub(crate) index: u64,
}

/// From the guard to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// The command runs, as this process and the group of that number.
    Started(i32),
    /// The command was suspended from its terminal.
    Suspended,
    /// The command is being stopped.
    Stopping(Why),
    /// The command has ended.
    Ended(Outcome),
    /// No process is left.
    Gone,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With this exit code.
    Exited(u8),
    /// By this signal.
    Signaled(u8),
}

impl Outcome {
    /// The exit code, as of a shell: for a signal 128 and its number.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128_u8.saturating_add(signal),
        }
    }
}

/// Reads one side's lines.
#[derive(Debug)]
pub(crate) struct Reader(Lines<BufReader<OwnedReadHalf>>);

/// Writes the other side's.
#[derive(Debug)]
pub(crate) struct Writer(OwnedWriteHalf);

/// Both ends of a connection.
pub(crate) fn split(stream: UnixStream) -> (Reader, Writer) {
    let (read, write) = stream.into_split();
    (Reader(BufReader::new(read).lines()), Writer(write))
}

impl Reader {
    /// The next line. `None`: the other side has gone. Cancel-safe.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        // Both sides are the same binary: an invalid line is a defect, and ends the connection.
        let line = self.0.next_line().await.ok().flatten()?;
        serde_json::from_str(&line).ok()
    }
}

impl Writer {
    pub(crate) async fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.0.write_all(&line).await
    }
}
