//! What a client's command does while the slot is held. It is this program itself, which needs no shell to read a clock.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::getppid;
use slotkeeper::internals::clock;
use slotkeeper_semaphore::Moment;

use crate::turns::Turn;

/// How often a command looks whether its parent is still there.
const LOOK: Duration = Duration::from_secs(1);

/// The work of one client.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    planned: Duration,
    notes: PathBuf,
}

impl Work {
    /// Work without end, for as long as its client lives.
    pub(crate) fn endless() -> Self {
        Self { planned: Duration::from_secs(24 * 60 * 60), notes: "/dev/null".into() }
    }

    /// Work for that time, which notes when it was done in a file of `folder`.
    pub(crate) fn new(planned: Duration, folder: &Path, name: &str) -> Self {
        Self { planned, notes: folder.join(name) }
    }

    /// The command.
    pub(crate) fn words(&self) -> [OsString; 4] {
        let nanoseconds = self.planned.as_nanos().to_string();
        let program = std::env::current_exe().unwrap();
        [program.into(), "work".into(), nanoseconds.into(), self.notes.clone().into()]
    }

    /// When it was done; none where it has not ended.
    pub(crate) fn turn(&self) -> Option<Turn> {
        let text = std::fs::read_to_string(&self.notes).ok()?;
        let (from, to) = text.strip_suffix('\n')?.split_once(' ')?;
        let moment = |text: &str| Moment::from_boot(Duration::from_nanos(text.parse().unwrap()));
        Some(Turn { from: moment(from), to: moment(to), planned: self.planned })
    }
}

/// Does it, in the process that began at that time. Ends without a note once nothing waits for it any more: `consul lock`
/// leaves its command behind where it is killed.
pub(crate) fn work(began: Moment, planned: Duration, notes: &Path) {
    let parent = getppid();
    loop {
        let left = planned.saturating_sub(clock::now().since(began));
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(LOOK));
        if getppid() != parent {
            return;
        }
    }
    let nanoseconds = |moment: Moment| moment.since_boot().as_nanos();
    std::fs::write(notes, format!("{} {}\n", nanoseconds(began), nanoseconds(clock::now()))).unwrap();
}
