//! `session.state_file`: what a restarted agent needs to resume its session.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tracing::warn;
use uuid::Uuid;

use crate::files::{self, Claim, ClaimError, ClaimId, KeptFile};
use crate::log_events::{STATE_FILE_CONTESTED, STATE_FILE_IGNORED};
use slotkeeper_semaphore::{Keeper, Resume};

/// A session's id allows to act in its name, as far as a token does, so only this user may read it.
const MODE: u32 = 0o600;
/// A real state file has some hundred bytes.
const MAX_BYTES: u64 = 1024 * 1024;
const VERSION: u32 = 1;
/// The version of a file with locks: an agent that does not know of them must not resume the session and keep them for ever.
const WITH_LOCKS: u32 = 2;

/// The file's content.
#[derive(Debug, Deserialize, Serialize)]
struct Saved {
    version: u32,
    session: String,
    /// Prefixes with keys of the session, each with the fencing token of a slot held there.
    prefixes: BTreeMap<String, Option<u64>>,
    /// The same for the keys of single-key locks.
    #[serde(default)]
    locks: BTreeMap<String, Option<u64>>,
    /// The nonces of the writer and of earlier processes of the session. They distinguish a late request of these from one of
    /// another process that has resumed the session. Older versions write none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    nonces: Vec<String>,
    /// The session's TTL in milliseconds, which bounds its leases. Older versions write none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    /// The writer's lock file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim: Option<ClaimId>,
}

/// The state of an earlier process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) resume: Resume,
    /// The session's TTL, if known.
    pub(super) ttl: Option<Duration>,
    /// The lock file of that process, where it is another one: the process may still run and have the lock of a deleted file.
    pub(super) contested: Option<ClaimId>,
}

/// The state file, claimed by this process.
#[derive(Debug)]
pub(super) struct StateFile {
    file: KeptFile,
    /// The lock file of an earlier process, where it was another one.
    contested: Option<ClaimId>,
}

impl StateFile {
    /// Claims the file and reads the state of an earlier process. A file that cannot be read or parsed is logged and ignored: the
    /// agent creates a new session, and the old one ends by its TTL.
    ///
    /// # Errors
    ///
    /// The folder is not writable, or another agent uses the file.
    pub(super) fn open(path: PathBuf) -> Result<(Self, Option<Left>), ClaimError> {
        files::make_folder(&path)?;
        let claim = Claim::take(&path)?;
        let left = read(&path, claim.id());
        if left.as_ref().is_some_and(|left| left.contested.is_some()) {
            warn!(
                path = %path.display(),
                "{STATE_FILE_CONTESTED}: its lock file is not the one that the writer had. The slots of its session count as \
                 held two TTLs after that agent was told"
            );
        }
        // Two agents with one session would hold one slot twice.
        let contested = left.as_ref().and_then(|left| left.contested);
        Ok((Self { file: KeptFile::start(path, MODE, claim), contested }, left))
    }

    /// Writes the session and the places of its keys, if they have changed.
    pub(super) fn save(&self, keeper: &Keeper) {
        let Some(Resume { session, prefixes, locks, nonces }) = Resume::of(keeper) else { return };
        let version = if locks.is_empty() { VERSION } else { WITH_LOCKS };
        // If this process is killed before the other agent has noticed it, the next process has to wait as well.
        let claim = self.contested.filter(|_| keeper.is_contested()).or(Some(self.file.claim()));
        let ttl = keeper.lease().map(|lease| u64::try_from(lease.ttl().as_millis()).unwrap_or(u64::MAX));
        let session = session.to_string();
        let saved = Saved { version, session, prefixes, locks, nonces, ttl_ms: ttl, claim };
        // A struct of texts and numbers always serialises.
        self.file.set(serde_json::to_string(&saved).ok());
    }

    /// Removes the file until there is a session to save: the next process must not resume the one in it.
    pub(super) fn forget(&self) {
        self.file.set(None);
    }

    pub(super) fn kept(&self) -> &KeptFile {
        &self.file
    }

    /// The task that writes the file.
    pub(super) fn task(&self) -> &JoinHandle<()> {
        self.file.task()
    }

    /// Removes the file: nothing is left to resume.
    pub(super) async fn clear(&mut self, timeout: Duration) {
        self.forget();
        self.file.settled(timeout).await;
    }
}

fn read(path: &Path, claim: ClaimId) -> Option<Left> {
    let mut text = String::new();
    let read = files::open_own(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            warn!(path = %path.display(), %error, "{STATE_FILE_IGNORED}; creating a new session");
            return None;
        }
    }
    // In the form that Consul writes: the agent would try to renew any other id for ever.
    let is_id = |text: &str| Uuid::parse_str(text).is_ok_and(|id| id.hyphenated().to_string() == text);
    let is_ours = |saved: &Saved| matches!(saved.version, VERSION | WITH_LOCKS) && is_id(&saved.session);
    let saved = serde_json::from_str::<Saved>(&text).ok().filter(is_ours);
    let Some(saved) = saved else {
        warn!(
            path = %path.display(), error = "not a state file of this version",
            "{STATE_FILE_IGNORED}; creating a new session"
        );
        return None;
    };
    // Older versions do not record their lock file.
    let contested = saved.claim.filter(|before| !before.agrees(claim));
    let Saved { session, prefixes, locks, nonces, ttl_ms, .. } = saved;
    let resume = Resume { session: session.into(), prefixes, locks, nonces };
    Some(Left { resume, ttl: ttl_ms.map(Duration::from_millis), contested })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use slotkeeper_semaphore::{Event, Identity, Moment, Start, Wall};

    #[tokio::test]
    async fn what_is_saved_is_read_back_and_a_second_agent_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/session.json");
        let (_mine, nothing) = StateFile::open(path.clone()).unwrap();
        assert_eq!(nothing, None);
        let refused = StateFile::open(path.clone()).unwrap_err().to_string();
        assert!(refused.contains("in use by another agent"), "{refused}");
        let session = "5e550000-0000-4000-8000-000000000000";
        let saved = format!(r#"{{"version":1,"session":"{session}","prefixes":{{"p/a":7,"p/b":null}}}}"#);
        std::fs::write(&path, saved).unwrap();
        let id = Claim::take(&folder.path().join("other")).unwrap().id();
        let Left { resume, contested, ttl } = read(&path, id).unwrap();
        assert_eq!((contested, ttl), (None, None));
        assert_eq!(resume.session.as_str(), session);
        assert_eq!((resume.prefixes["p/a"], resume.prefixes["p/b"]), (Some(7), None));
        // An older version has written none.
        assert!(resume.nonces.is_empty());
    }

    #[tokio::test]
    async fn the_nonces_of_all_processes_of_the_session_are_written_down() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session.json");
        let earlier =
            r#"{"version":1,"session":"5e550000-0000-4000-8000-000000000000","prefixes":{},"nonces":["n1"]}"#;
        std::fs::write(&path, earlier).unwrap();
        let (mut state, left) = StateFile::open(path.clone()).unwrap();
        let (now, ttl) = (Moment::from_boot(Duration::from_secs(1000)), Duration::from_secs(30));
        let start = Start {
            ttl,
            watch_grace: None,
            who: Identity::default(),
            wall: Wall::new(SystemTime::UNIX_EPOCH, now),
            seed: 0,
            nonce: 7,
            resume: left.map(|left| left.resume),
            contested: false,
            semaphores: Vec::new(),
            together: Vec::new(),
        };
        let mut keeper = Keeper::new(start, now);
        let sent = keeper.renewals()[0];
        keeper.handle(Event::SessionRenewed(sent, Ok(ttl)), now);
        state.save(&keeper);
        state.file.settled(Duration::from_secs(10)).await;
        let Left { resume, ttl: written, .. } = read(&path, state.file.claim()).unwrap();
        assert_eq!(
            (resume.nonces, written),
            (vec!["n1".to_owned(), "0000000000000007".to_owned()], Some(ttl))
        );
    }

    #[test]
    fn another_lock_file_is_told_by_its_inode_and_not_by_its_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session.json");
        let id = Claim::take(&path).unwrap().id();
        let own = serde_json::to_value(id).unwrap();
        let inode = own["inode"].as_u64().unwrap();
        // As an earlier version wrote it; the number of the device is not what it was.
        let renumbered = serde_json::json!({"device": 1, "inode": inode});
        let other = serde_json::json!({"inode": inode + 1});
        for (claim, contested) in [(own, false), (renumbered, false), (other, true)] {
            let saved = serde_json::json!({
                "version": 1, "session": "5e550000-0000-4000-8000-000000000000", "prefixes": {}, "claim": claim,
            });
            std::fs::write(&path, saved.to_string()).unwrap();
            assert_eq!(read(&path, id).unwrap().contested.is_some(), contested, "{saved}");
        }
    }

    #[test]
    fn rubbish_means_a_new_session() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session.json");
        let id = Claim::take(&path).unwrap().id();
        let with = |session: &str| format!(r#"{{"version":1,"session":"{session}","prefixes":{{}}}}"#);
        let no_ids = ["x y", "5e550000000040008000000000000000", "{5e550000-0000-4000-8000-000000000000}"];
        for rubbish in ["".to_owned(), "{".to_owned()].into_iter().chain(no_ids.map(with)) {
            std::fs::write(&path, rubbish).unwrap();
            assert_eq!(read(&path, id), None);
        }
    }
}
