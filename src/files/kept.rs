//! A file that a task of its own keeps up to date, so that a slow disk never delays a renewal.

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

/// Of so many failures in a row one is logged: one in five minutes.
const FAILURES_PER_LOG_LINE: u32 = 60;
/// Interval of checks, and of retries of a failed write.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The handle of the file. Dropping it leaves the file as it is.
#[derive(Debug)]
pub struct KeptFile {
    path: PathBuf,
    wanted: watch::Sender<Wanted>,
    done: watch::Receiver<u64>,
    claim: Arc<Mutex<ClaimId>>,
    task: JoinHandle<()>,
}

/// The wanted state of the file. Numbered, so that the agent can wait for it.
#[derive(Clone, Debug, Default)]
struct Wanted {
    number: u64,
    content: Option<String>,
    /// The wanted content of the lock file.
    claimant: Option<String>,
}

impl KeptFile {
    /// Removes the file of an earlier process, and keeps the claimed file up to date, with this mode.
    ///
    /// # Errors
    ///
    /// The folder cannot be created, or the file cannot be removed.
    pub fn start_absent(path: PathBuf, mode: u32, claim: Claim) -> Result<Self, FileError> {
        make_folder(&path)?;
        remove(&path)?;
        Ok(Self::start(path, mode, claim))
    }

    /// Keeps the claimed file up to date from the first [`Self::set`] on, unless another process claims it.
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

    /// Sets the wanted content. `None`: no file.
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

    /// Writes the claimant into the lock file.
    pub fn introduce(&self, claimant: &Claimant) {
        let text = claimant.to_text();
        self.wanted.send_modify(|wanted| wanted.claimant = Some(text));
    }

    /// The lock file of the current claim.
    pub fn claim(&self) -> ClaimId {
        // Both sides hold the mutex only to copy the value.
        *self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task, which ends only with this handle.
    pub fn task(&self) -> &JoinHandle<()> {
        &self.task
    }

    /// Waits until the file has the wanted state.
    pub async fn settled(&mut self, timeout: Duration) {
        let number = self.wanted.borrow().number;
        let settled = self.done.wait_for(|done| *done >= number);
        if tokio::time::timeout(timeout, settled).await.is_err() {
            error!(path = %self.path.display(), "{FILE_LATE}; continuing");
        }
    }
}

/// Works on the file, on threads that may block.
struct Worker {
    path: PathBuf,
    mode: u32,
    claim: Claim,
    id: Arc<Mutex<ClaimId>>,
    /// The file that was written last.
    own: Option<Own>,
    /// Another process had claimed the file meanwhile and has ended: the file may be that process's.
    inherited: bool,
    logged: Logged,
}

struct Own {
    about: Metadata,
    content: String,
}

/// Conditions that were logged. They are logged again only after they have ended.
#[derive(Default)]
struct Logged {
    claim_lost: bool,
    replaced: bool,
}

/// What is at the path.
enum Found {
    Nothing,
    /// The file that was written last, or that of an earlier process.
    Own,
    /// A file of another process.
    Other,
}

impl Worker {
    /// Writes or removes the file, unless another process has replaced it.
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

    /// Checks the file, and updates it if it was removed or an earlier update has failed.
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
        // Before the first write it is the file of an earlier process.
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
                // From here on this process is responsible for the file.
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
        // Wakes for a new wanted state, and at intervals for checks and retries.
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
                // The first failure is logged, and then one of many.
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

    /// A worker that has written "mine".
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
    fn a_removed_file_is_written_again_and_a_replaced_one_is_left_alone() {
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
    fn a_worker_that_has_lost_its_claim_leaves_the_file_alone() {
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
    fn a_file_claimed_by_another_process_is_written_once_that_has_ended() {
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
    fn earlier_content_is_not_written_after_the_file_was_replaced() {
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
