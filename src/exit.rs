//! The exit codes, which scripts rely on.

use std::process::ExitCode;

/// How a command ended. The numbers are contract; 64 to 78 are those of BSD's `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done; for the agent, after a clean drain.
    Done,
    /// 1: any other failure.
    Failed,
    /// 64: the command line is invalid.
    Usage,
    /// 69: Consul is unreachable, and the wait had a limit.
    Unavailable,
    /// 75: timed out waiting for a slot.
    Timeout,
    /// 77: Consul denies the request to the token.
    Denied,
    /// 78: the configuration is invalid.
    Config,
    /// 80: the slot was lost and the workload is stopped.
    SlotLost,
    /// The code of `run`'s command; for `run` and `wait`, 128 and the number of the signal that ended the wait.
    PassedOn(u8),
}

impl Exit {
    /// The process exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::Timeout => 75,
            Self::Denied => 77,
            Self::Config => 78,
            Self::SlotLost => 80,
            Self::PassedOn(code) => code,
        }
    }
}

/// How a command ended, and the reason unless its workload is the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The exit code.
    pub exit: Exit,
    /// A sentence for the termination message; none after success, or if the workload has its own code.
    pub why: Option<String>,
}

impl Ended {
    /// An end with a reason.
    pub fn because(exit: Exit, why: impl Into<String>) -> Self {
        Self { exit, why: Some(why.into()) }
    }
}

impl From<Exit> for Ended {
    fn from(exit: Exit) -> Self {
        Self { exit, why: None }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
