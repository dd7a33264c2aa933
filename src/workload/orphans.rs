//! What has lost its parent below us and ends: reaped, or it would stand in the process table for as long as we live.
//!
//! An agent with a command is a subreaper, so that nothing gets away should the guard be killed. So it inherits also what
//! a hook has left behind.

use std::io;

use futures_util::StreamExt;
use rustix::process::{Pid, WaitOptions, getpid, waitpid};
use signal_hook::consts::SIGCHLD;
use signal_hook_tokio::Signals;

use super::guard::tree;

/// Tells when a child has ended.
#[allow(missing_debug_implementations, reason = "a stream of signals shows nothing")]
pub struct Orphans {
    ends: Signals,
}

impl Orphans {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { ends: Signals::new([SIGCHLD])? })
    }

    /// Waits until some child has ended. May be dropped and called again.
    pub async fn ended(&mut self) {
        if self.ends.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// Reaps those that have ended and are nobody's: `own` are the processes that somebody here waits for himself.
pub fn reap(own: &[Option<u32>]) {
    let own = own.iter().flatten().filter_map(|pid| i32::try_from(*pid).ok());
    let own: Vec<_> = own.filter_map(Pid::from_raw).collect();
    for pid in tree::ended_children(getpid()).into_iter().filter(|pid| !own.contains(pid)) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}
