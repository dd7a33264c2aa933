//! The workload: the command that runs on a slot, the processes that the agent sees, and hooks.

pub mod beside;
pub mod exec;
pub mod guard;
pub mod hooks;
pub mod init;
pub(crate) mod open_files;
pub mod orphans;
mod process;
mod running;
pub(crate) mod signals;
pub(crate) mod terminal;

pub(crate) use guard::holdings::Holdings;
pub(crate) use guard::tree::unfit_proc;
pub use running::{Command, CommandEvent, CommandTimes, Running};

/// The variable of `run --metrics-file`.
pub(crate) const METRICS_FILE_VARIABLE: &str = "SLOTKEEPER_METRICS_FILE";
/// The variable of `run --result-file`.
pub(crate) const RESULT_FILE_VARIABLE: &str = "SLOTKEEPER_RESULT_FILE";
/// Variables that name files of this process. Child processes do not inherit them: a `run` below this one would write the same.
pub(crate) const OWN_FILE_VARIABLES: [&str; 3] =
    [crate::termination::VARIABLE, METRICS_FILE_VARIABLE, RESULT_FILE_VARIABLE];

/// Whether `slotkeeper run` sets this variable for its command, where one slotkeeper may run below another.
pub(crate) fn is_child_variable(name: &str) -> bool {
    name == "SLOTKEEPER_SESSION"
        || name == "SLOTKEEPER_SLOT"
        || name.starts_with("SLOTKEEPER_SLOT_")
        || name.starts_with("SLOTKEEPER_FENCING_TOKEN")
        || name.starts_with("SLOTKEEPER_LOCK_INDEX")
}
