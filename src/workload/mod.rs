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
pub(crate) use guard::wire::Offer;
pub use running::{Command, CommandEvent, CommandTimes, Running};

/// The variable of `run --metrics-file`.
pub(crate) const METRICS_FILE_VARIABLE: &str = "SLOTKEEPER_METRICS_FILE";
/// The variable of `run --result-file`.
pub(crate) const RESULT_FILE_VARIABLE: &str = "SLOTKEEPER_RESULT_FILE";
/// Variables that name files of this process.
const FILE_VARIABLES: [&str; 3] = [crate::termination::VARIABLE, METRICS_FILE_VARIABLE, RESULT_FILE_VARIABLE];
/// Variables of flags of one `run`.
pub(crate) const RUN_VARIABLES: &[&str] = &[
    "SLOTKEEPER_LIMIT",
    "SLOTKEEPER_LOCK",
    "SLOTKEEPER_SLOTS",
    "SLOTKEEPER_PRIORITY",
    "SLOTKEEPER_FORMAT",
    "SLOTKEEPER_LIMIT_POLICY",
    "SLOTKEEPER_PRUNE_DELAY",
    "SLOTKEEPER_TRY",
    "SLOTKEEPER_TIMEOUT",
    "SLOTKEEPER_KILL_AFTER",
    "SLOTKEEPER_STOP_AFTER",
    "SLOTKEEPER_SHELL",
];
/// Variables by which a service manager hears of the process that it has started.
pub(crate) const SERVICE_MANAGER_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];
/// Variables that child processes do not inherit: a `run` below this one would write the same files, take the flags of this one
/// for its own, and report its own state to the service manager.
pub(crate) fn own_variables() -> impl Iterator<Item = &'static str> {
    FILE_VARIABLES.iter().chain(RUN_VARIABLES).chain(&SERVICE_MANAGER_VARIABLES).copied()
}

/// The prefixes and keys of the slots on which a command runs, and of those around it, with blanks between them.
pub(crate) const HELD_VARIABLE: &str = "SLOTKEEPER_HELD";

/// Whether `slotkeeper run` sets this variable for its command, where one slotkeeper may run below another.
pub(crate) fn is_child_variable(name: &str) -> bool {
    name == "SLOTKEEPER_SESSION"
        || name == "SLOTKEEPER_SLOT"
        || name == HELD_VARIABLE
        || name.starts_with("SLOTKEEPER_SLOT_")
        || name.starts_with("SLOTKEEPER_FENCING_TOKEN")
        || name.starts_with("SLOTKEEPER_LOCK_INDEX")
}
