//! Reaps orphans, which would otherwise stay in the process table as long as the agent runs.
//!
//! An agent with a command is a subreaper, so that no process escapes if the guard is killed. So it also inherits processes that
//! a hook has left behind.

use std::io;

use futures_util::StreamExt;
use rustix::process::{Pid, WaitOptions, getpid, waitpid};
use signal_hook::consts::SIGCHLD;
use signal_hook_tokio::Signals;

use super::guard::tree;

/// Waits for the end of children.
#[allow(missing_debug_implementations, reason = "a stream of signals shows nothing")]
pub struct Orphans {
    ends: Signals,
}

impl Orphans {
    /// Listens for SIGCHLD.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { ends: Signals::new([SIGCHLD])? })
    }

    /// Waits until a child has ended. Cancel-safe.
    pub async fn ended(&mut self) {
        if self.ends.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// Reaps children that have ended, except those in `own`, which other tasks wait for.
pub fn reap(own: &[Option<u32>]) {
    let own = own.iter().flatten().filter_map(|pid| i32::try_from(*pid).ok());
    let own: Vec<_> = own.filter_map(Pid::from_raw).collect();
    for pid in tree::ended_children(getpid()).into_iter().filter(|pid| !own.contains(pid)) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}
