//! The termination message: a sentence in a file, with which `kubectl describe` shows why a container has ended.
//!
//! It is written when slotkeeper ends with an error, or with a code that is not its workload's own. A failed write changes
//! nothing else.

use crate::log_events::TERMINATION_MESSAGE_NOT_WRITTEN;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;
use tracing::debug;

use slotkeeper_semaphore::printable;

/// The variable that names the file. Child processes do not inherit it: the file belongs to this process.
pub(crate) const VARIABLE: &str = "SLOTKEEPER_TERMINATION_MESSAGE";
/// The largest message that Kubernetes reads.
const MAX_BYTES: usize = 4096;
/// The longest wait for a write: a disk may hang.
const MAX_TIME: Duration = Duration::from_secs(1);

/// Replaces the file's content with the reason why this process ends, if the environment names a file.
pub(crate) fn write(why: &str) {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from) else {
        return;
    };
    let (file, text) = (path.clone(), sentence(why));
    if let Err(error) = in_time(move || replace(&file, &text)) {
        debug!(path = %path.display(), %error, "{TERMINATION_MESSAGE_NOT_WRITTEN}");
    }
}

/// Tells somebody why this process ends, on a thread that may be left behind.
pub(crate) fn in_time(tell: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (done, is_done) = channel();
    thread::Builder::new().name("last words".into()).spawn(move || {
        // After the timeout the receiver is gone.
        let _ = done.send(tell());
    })?;
    is_done.recv_timeout(MAX_TIME).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Written in place: Kubernetes mounts this very file.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A FIFO without a reader does not block, and a link to another file is not followed.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)?;
    file.write_all(text.as_bytes())
}

/// One line with the prefix `slotkeeper: `, since the container's own program may write there too.
fn sentence(why: &str) -> String {
    const CUT: usize = '…'.len_utf8();
    let lines: Vec<_> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    printable(&format!("slotkeeper: {}", lines.join("; ")), MAX_BYTES - CUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_line_that_kubernetes_reads_to_its_end() {
        assert_eq!(sentence("a: is wrong\n\n  b\x1b: too\n"), "slotkeeper: a: is wrong; b\\u{1b}: too");
        for filler in ["x", "é", "☃"] {
            let long = sentence(&filler.repeat(5000));
            assert!(
                long.ends_with('…') && (MAX_BYTES - 4..=MAX_BYTES).contains(&long.len()),
                "{}",
                long.len()
            );
        }
    }

    #[test]
    fn what_stood_there_is_replaced_and_what_cannot_be_written_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("message");
        std::fs::write(&file, "longer than what follows").unwrap();
        replace(&file, "short").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "short");
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(replace(&fifo, "short").is_err());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(replace(&link, "through a link").is_err());
        assert!(replace(&folder.path().join("none/message"), "short").is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "short");
    }
}
