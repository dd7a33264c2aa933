//! The signals that `run` passes on to its command.

use std::fs;

use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::low_level::signal_name;

/// Signals that are passed on; the last two only to a command without a terminal.
const PASSED_ON: [i32; 9] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT];

/// Signals that end a process by default.
const ENDING: [i32; 6] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// The signals to handle. Not those that this process was started to ignore, as under `nohup`: the command ignores them too, as
/// it would without slotkeeper.
pub(crate) fn taken_over() -> impl Iterator<Item = i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    PASSED_ON.into_iter().filter(move |signal| ignored & (1 << (signal - 1)) == 0)
}

/// Signals that only ask a command to end. By SIGHUP many programs reload, and SIGUSR1 and SIGUSR2 have no common meaning.
const STOPPING: [i32; 3] = [SIGTERM, SIGINT, SIGQUIT];

/// Whether the signal asks a process to end.
pub(crate) fn ends(signal: i32) -> bool {
    ENDING.contains(&signal)
}

/// Whether the signal asks a command to end and for nothing else, so that `--stop-after` counts from it.
pub(crate) fn stops(signal: i32) -> bool {
    STOPPING.contains(&signal)
}

/// Its name for people, such as SIGTERM.
pub(crate) fn name(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("a signal")
}

/// The set of ignored signals in `/proc/<pid>/status`, the first in the lowest bit.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_ignored() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored(""), 0);
        assert!(taken_over().any(|signal| signal == SIGTERM));
    }
}
