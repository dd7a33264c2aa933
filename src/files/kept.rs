//! A file that is kept as it ought to be by a task of its own, so that a slow disk never delays a renewal.

use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, error, warn};

use super::claim::{ClaimId, Kept};
use super::claimant::Claimant;
use super::{Claim, FileError, make_folder, open_own, remove, replace};
use crate::log_events::{
    FILE_CLAIM_LOST, FILE_CLAIMED_AGAIN, FILE_LATE, FILE_NOT_KEPT, FILE_REMOVED, FILE_REPLACED,
    FILE_RESTORED, FILE_WRITE_FAILED, FILE_WRITTEN,
};

/// Failures in a row of which one is logged: one in five minutes.
const FAILURES_PER_LOG_LINE: u32 = 60;
/// Wait before a failed write is tried again, and between two looks at what has become of the file.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The handle on the file. Without it the file is left as it is.
#[derive(Debug)]
pub struct KeptFile {
    path: PathBuf,
    wanted: watch::Sender<Wanted>,
    done: watch::Receiver<u64>,
    claim: Arc<Mutex<ClaimId>>,
    task: JoinHandle<()>,
}

/// What the file ought to be: the content, or no file. Numbered, so that one can wait for it.
#[derive(Clone, Debug, Default)]
struct Wanted {
    number: u64,
    content: Option<String>,
    /// What is to stand in the lock file.
    claimant: Option<String>,
}

impl KeptFile {
    /// Removes what an earlier process left, and begins to keep the claimed file, with this mode.
    ///
    /// # Errors
    ///
    /// The folder cannot be made, or the file in it cannot be removed.
    pub fn start_absent(path: PathBuf, mode: u32, claim: Claim) -> Result<Self, FileError> {
        make_folder(&path)?;
        remove(&path)?;
        Ok(Self::start(path, mode, claim))
    }

    /// Begins to keep the claimed file, and leaves it as it is until [`Self::set`] says otherwise, unless another process
    /// claims it meanwhile.
    pub fn start(path: PathBuf, mode: u32, claim: Claim) -> Self {
        let (wanted, wanted_changes) = watch::channel(Wanted::default());
        let (done_sender, done) = watch::channel(0);
        let id = Arc::new(Mutex::new(claim.id()));
        let worker = Worker {
            path: path.clone(),
            mode,
            claim,
            id: Arc::clone(&id),
            own: None,
            inherited: false,
            logged: Logged::default(),
        };
        let task = tokio::spawn(keep(worker, wanted_changes, done_sender));
        Self { path, wanted, done, claim: id, task }
    }

    /// Says what the file ought to be; nothing happens where it is that already.
    pub fn set(&self, content: Option<String>) {
        self.wanted.send_if_modified(|wanted| {
            let changes = wanted.content != content;
            if changes {
                wanted.content = content;
                wanted.number += 1;
            }
            changes
        });
    }

    /// Has this written into the lock file.
    pub fn introduce(&self, claimant: &Claimant) {
        let text = claimant.to_text();
        self.wanted.send_modify(|wanted| wanted.claimant = Some(text));
    }

    /// The lock file by which it is claimed at present.
    pub fn claim(&self) -> ClaimId {
        // Held only to copy it, on either side.
        *self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task that keeps it, which ends only with this handle.
    pub fn task(&self) -> &JoinHandle<()> {
        &self.task
    }

    /// Waits until the file is what was last asked for, at most `timeout` long.
    pub async fn settled(&mut self, timeout: Duration) {
        let number = self.wanted.borrow().number;
        let settled = self.done.wait_for(|done| *done >= number);
        if tokio::time::timeout(timeout, settled).await.is_err() {
            error!(path = %self.path.display(), "{FILE_LATE}; continuing");
        }
    }
}

/// What works on the file, on threads that may block.
struct Worker {
    path: PathBuf,
    mode: u32,
    claim: Claim,
    id: Arc<Mutex<ClaimId>>,
    /// The file that was written last, and is to be there.
    own: Option<Own>,
    /// Another process had claimed the file meanwhile and has ended: what lies there may be its.
    inherited: bool,
    logged: Logged,
}

struct Own {
    about: Metadata,
    content: String,
}

/// What was said once, and is said again only after it was otherwise.
#[derive(Default)]
struct Logged {
    claim_lost: bool,
    replaced: bool,
}

/// What lies where the file ought to be.
enum Found {
    Nothing,
    /// What was written, or what an earlier process has left.
    Own,
    /// What something else has put there, or made of it.
    Other,
}

impl Worker {
    /// Makes the file what is wanted, unless it is somebody else's by now: whoever has replaced it answers for it.
    fn make(&mut self, content: Option<&str>) -> Result<(), FileError> {
        if !self.keep_claim()? {
            return Ok(());
        }
        let found = self.look().map_err(|cause| FileError::open(&self.path, cause))?;
        if let Found::Other = found {
            if !std::mem::replace(&mut self.logged.replaced, true) {
                error!(
                    path = %self.path.display(),
                    "{FILE_REPLACED}; the file is left as it is, and is written again when it has been removed"
                );
            }
            return Ok(());
        }
        self.logged.replaced = false;
        let Some(content) = content else {
            self.own = None;
            remove(&self.path)?;
            self.inherited = false;
            return Ok(());
        };
        if let (Found::Nothing, Some(_)) = (found, &self.own) {
            warn!(path = %self.path.display(), "{FILE_RESTORED}; writing it again");
        }
        make_folder(&self.path)?;
        let about = replace(&self.path, content.as_bytes(), self.mode)?;
        self.own = Some(Own { about, content: content.to_owned() });
        self.inherited = false;
        Ok(())
    }

    /// Looks whether the file is what is wanted, and makes it so where it was removed, or could not be made so when that was
    /// said.
    fn check(&mut self, content: Option<&str>) -> Result<(), FileError> {
        self.keep_claim()?;
        let is_wanted = match (&self.own, content) {
            (None, None) => !self.inherited,
            (Some(own), Some(content)) => own.content == content && matches!(self.look(), Ok(Found::Own)),
            (None, Some(_)) | (Some(_), None) => false,
        };
        if is_wanted { Ok(()) } else { self.make(content) }
    }

    fn look(&self) -> io::Result<Found> {
        let about = match self.path.symlink_metadata() {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) => return Err(error),
        };
        // What lies there before the first write is what an earlier process has left.
        let Some(own) = &self.own else { return Ok(Found::Own) };
        let is_same = (about.dev(), about.ino()) == (own.about.dev(), own.about.ino());
        let when = |about: &Metadata| (about.mtime(), about.mtime_nsec(), about.size());
        if is_same && when(&about) != when(&own.about) {
            let mut content = Vec::new();
            let most = own.content.len() as u64 + 1;
            open_own(&self.path)?.take(most).read_to_end(&mut content)?;
            return Ok(if content == own.content.as_bytes() { Found::Own } else { Found::Other });
        }
        Ok(if is_same { Found::Own } else { Found::Other })
    }

    /// Whether the file is still claimed by this process.
    fn keep_claim(&mut self) -> Result<bool, FileError> {
        let kept = self.claim.keep()?;
        let path = self.path.display();
        match kept {
            Kept::Stands => {}
            Kept::Again => {
                *self.id.lock().unwrap_or_else(PoisonError::into_inner) = self.claim.id();
                // This process answers for it from here on.
                if self.logged.claim_lost {
                    (self.own, self.inherited) = (None, true);
                }
                warn!(%path, "{FILE_CLAIMED_AGAIN}; no other agent uses the file, so it is claimed again");
            }
            Kept::Lost if !self.logged.claim_lost => error!(
                %path,
                "{FILE_CLAIM_LOST}, since its lock file was removed while this agent ran; the file is left to that agent"
            ),
            Kept::Lost => {}
        }
        self.logged.claim_lost = kept == Kept::Lost;
        Ok(kept != Kept::Lost)
    }
}

async fn keep(
    mut worker: Worker,
    mut wanted_changes: watch::Receiver<Wanted>,
    done_sender: watch::Sender<u64>,
) {
    let (mut failures, mut done) = (0_u32, 0);
    loop {
        // Tried again after a while, and looked after now and then; or at once where something else is wanted.
        match tokio::time::timeout(CHECK_INTERVAL, wanted_changes.changed()).await {
            Ok(Err(_handle_is_gone)) => return,
            Ok(Ok(())) => failures = 0,
            Err(_time_is_over) => {}
        }
        let Wanted { number, content, claimant } = wanted_changes.borrow_and_update().clone();
        let (path, there, is_new) = (worker.path.clone(), content.is_some(), number != done);
        let work = tokio::task::spawn_blocking(move || {
            let made =
                if is_new { worker.make(content.as_deref()) } else { worker.check(content.as_deref()) };
            if let Some(claimant) = claimant {
                worker.claim.introduce(&claimant);
            }
            (worker, made)
        });
        let made = match work.await {
            Ok((back, made)) => {
                worker = back;
                made
            }
            Err(failure) => return error!(path = %path.display(), error = %failure, "{FILE_NOT_KEPT}"),
        };
        match made {
            Ok(()) => {
                if is_new {
                    debug!(path = %path.display(), "{}", if there { FILE_WRITTEN } else { FILE_REMOVED });
                }
                (failures, done) = (0, number);
                done_sender.send_replace(number);
            }
            Err(failure) => {
                // Said at once, and then once in a while.
                if failures.is_multiple_of(FAILURES_PER_LOG_LINE) {
                    error!(error = %failure, "{FILE_WRITE_FAILED}; retrying");
                }
                failures = failures.wrapping_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn follows_what_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        std::fs::write(&path, "stale").unwrap();
        let claim = Claim::take(&path).unwrap();
        let mut file = KeptFile::start_absent(path.clone(), 0o644, claim).unwrap();
        assert!(!path.exists());
        for content in ["a", "b"] {
            file.set(Some(content.into()));
            file.settled(TIMEOUT).await;
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        file.set(None);
        file.settled(TIMEOUT).await;
        assert!(!path.exists());
    }

    /// Worker that have written "mine".
    fn worker(path: &std::path::Path) -> Worker {
        let claim = Claim::take(path).unwrap();
        let id = Arc::new(Mutex::new(claim.id()));
        let path = path.to_owned();
        let logged = Logged::default();
        let mut worker = Worker { path, mode: 0o600, claim, id, own: None, inherited: false, logged };
        worker.make(Some("mine")).unwrap();
        worker
    }

    #[test]
    fn what_was_removed_is_written_again_and_what_was_replaced_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/ready");
        make_folder(&path).unwrap();
        let mut worker = worker(&path);
        let text = || std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(folder.path().join("run")).unwrap();
        worker.check(Some("mine")).unwrap();
        assert_eq!(text(), "mine");
        // Written over in its place, and then by another file.
        for replace in [&|| drop(std::fs::write(&path, "theirs")), &|| {
            std::fs::write(folder.path().join("new"), "theirs").unwrap();
            std::fs::rename(folder.path().join("new"), &path).unwrap();
        }] as [&dyn Fn(); 2]
        {
            replace();
            for content in [Some("mine, changed"), None] {
                worker.make(content).unwrap();
                worker.check(content).unwrap();
                assert_eq!(text(), "theirs");
            }
            std::fs::remove_file(&path).unwrap();
            worker.make(Some("mine")).unwrap();
            assert_eq!(text(), "mine");
        }
        // What is only touched is the same.
        std::fs::write(&path, "mine").unwrap();
        worker.make(None).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn whoever_has_lost_its_claim_touches_the_file_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        let mut worker = worker(&path);
        std::fs::remove_file(folder.path().join("ready.lock")).unwrap();
        let _other = Claim::take(&path).unwrap();
        for content in [None, Some("changed")] {
            worker.make(content).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        }
    }

    #[test]
    fn what_another_process_had_claimed_becomes_what_is_wanted_once_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        let text = || std::fs::read_to_string(&path).ok();
        for left in [None, Some("theirs")] {
            for wanted in [Some("changed"), Some("mine"), None] {
                let mut worker = worker(&path);
                std::fs::remove_file(folder.path().join("ready.lock")).unwrap();
                let other = Claim::take(&path).unwrap();
                std::fs::remove_file(&path).unwrap();
                if let Some(left) = left {
                    std::fs::write(&path, left).unwrap();
                }
                worker.make(wanted).unwrap();
                worker.check(wanted).unwrap();
                assert_eq!(text().as_deref(), left);
                drop(other);
                worker.check(wanted).unwrap();
                assert_eq!(text().as_deref(), wanted, "where there was {left:?}");
            }
        }
    }

    #[test]
    fn what_was_wanted_before_the_file_was_replaced_is_not_written_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        let mut worker = worker(&path);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        for wanted in [Some("changed"), None] {
            worker.make(wanted).unwrap();
            worker.check(wanted).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
        }
        std::fs::remove_file(&path).unwrap();
        worker.check(None).unwrap();
        assert!(!path.exists());
    }
}
