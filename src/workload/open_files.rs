//! The limit of open files (`RLIMIT_NOFILE`).
//!
//! The agent raises its soft limit to the hard limit: a semaphore takes a few connections, and 1024 files are soon too few.
//! Its child processes get the original soft limit: programs that close every descriptor up to it, or use `select`, rely
//! on a small one.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The original soft limit. It belongs to the process, and so does this static.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit to the hard one, once. Where that is refused the limit stays as it is.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` is no limit.
    let Some(soft) = current.filter(|soft| maximum.is_none_or(|hard| *soft < hard)) else { return };
    if setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        let _ = BEFORE.set(soft);
    }
}

/// The original soft limit. `None`: it was not raised.
pub(super) fn before() -> Option<u64> {
    BEFORE.get().copied()
}

/// Sets the soft limit of this process, which is about to become or to start another program.
pub(super) fn restore(soft: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Lower than it is: that is always allowed.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum });
}
