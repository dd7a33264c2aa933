//! Signals as a stream of what they ask for.

use std::io;

use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// SIGTERM or SIGINT: give everything back and exit; the second time, exit at once.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// The signals that the agent acts on.
pub struct Asks(Signals);

impl Asks {
    /// Takes the signals over from their default actions.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn listen() -> io::Result<Self> {
        Signals::new([SIGTERM, SIGINT, SIGHUP]).map(Self)
    }

    /// The next one. Never ends: a stream that closed would mean that no signal can come any more.
    pub async fn next(&mut self) -> Ask {
        match self.0.next().await {
            Some(SIGHUP) => Ask::Reload,
            Some(_) => Ask::Stop,
            None => std::future::pending().await,
        }
    }
}
