//! `session.state_file`: what a restarted agent needs to resume its session.
//!
//! Two processes with one session would hold one slot twice. So the agent locks the file for as long as it runs, and the file
//! names itself and the boot of its machine: the session is resumed only from the writer's own file, after the writer has ended.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags, statx};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tracing::warn;
use uuid::Uuid;

use crate::files::{self, FileError, KeptFile, LockError};
use crate::log_events::{FILE_RESTORED, STATE_FILE_IGNORED};
use slotkeeper_semaphore::{Keeper, Resume};

/// A real state file has some hundred bytes.
const MAX_BYTES: u64 = 1024 * 1024;
/// Changes with each boot of the machine, and is the same in all of its containers.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The file's content.
#[derive(Debug, Deserialize, Serialize)]
struct Saved {
    /// A random number of this write. A write that was cut has not the same one at the end.
    begin: u64,
    /// The file that this was written into.
    file: FileId,
    #[serde(flatten)]
    state: State,
    end: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct State {
    session: String,
    /// The session's TTL in milliseconds, which bounds its leases.
    ttl_ms: u64,
    /// Prefixes with keys of the session, each with the fencing token of a slot held there.
    prefixes: BTreeMap<String, Option<u64>>,
    /// The same for the keys of single-key locks.
    locks: BTreeMap<String, Option<u64>>,
}

/// Identifies a file of the running machine. A copy has another identity, and so has every file after a boot and on another machine.
#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
struct FileId {
    /// Unknown in some sandboxes, such as gVisor.
    boot: Option<String>,
    device: u64,
    inode: u64,
    /// The creation time, in seconds and nanoseconds. Some file systems have none.
    born: Option<(i64, u32)>,
}

impl FileId {
    fn of(file: &File) -> io::Result<Self> {
        let about = file.metadata()?;
        let more = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok();
        let more = more.filter(|more| more.stx_mask & StatxFlags::BTIME.bits() != 0);
        let born = more.map(|more| (more.stx_btime.tv_sec, more.stx_btime.tv_nsec));
        let boot = fs::read_to_string(BOOT_ID).ok().map(|id| id.trim().to_owned());
        Ok(Self { boot, device: about.dev(), inode: about.ino(), born })
    }
}

/// The state of an earlier process, which has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) resume: Resume,
    /// The session's TTL.
    pub(super) ttl: Duration,
}

/// The state file, locked by this process.
#[derive(Debug)]
pub(super) struct StateFile(KeptFile<State>);

impl StateFile {
    /// Locks the file and reads the state of an earlier process. State that cannot be used is logged and ignored: the agent
    /// creates a new session, and the old one ends by its TTL.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or created, or another agent uses it.
    pub(super) fn open(path: PathBuf) -> Result<(Self, Option<Left>), LockError> {
        let file = own(&path)?;
        let left = read(&file).unwrap_or_else(|why| {
            ignored(&path, &why);
            None
        });
        let mut writer = Writer { path: path.clone(), file, written: None };
        Ok((Self(KeptFile::start(path, move |state| writer.write(state))), left))
    }

    /// Writes the session and the places of its keys, if they have changed.
    pub(super) fn save(&self, keeper: &Keeper) {
        let Some((Resume { session, prefixes, locks }, lease)) = Resume::of(keeper).zip(keeper.lease())
        else {
            return;
        };
        let ttl_ms = u64::try_from(lease.ttl().as_millis()).unwrap_or(u64::MAX);
        self.0.set(Some(State { session: session.to_string(), ttl_ms, prefixes, locks }));
    }

    /// Writes the file again if it was removed.
    pub(super) fn look(&self) {
        self.0.look();
    }

    /// The task that writes the file.
    pub(super) fn task(&self) -> &JoinHandle<()> {
        self.0.task()
    }

    /// Removes the file: the next process must not resume the session.
    pub(super) async fn clear(&mut self, timeout: Duration) {
        self.0.set(None);
        self.0.settled(timeout).await;
    }
}

/// Writes the locked file.
struct Writer {
    path: PathBuf,
    file: File,
    written: Option<State>,
}

impl Writer {
    fn write(&mut self, state: Option<&State>) -> Result<(), LockError> {
        let is_there = files::is_at(&self.file, &self.path);
        let Some(state) = state else {
            self.written = None;
            files::overwrite(&self.file, &self.path, "")?;
            // Another file is another agent's.
            return if is_there { Ok(files::remove(&self.path)?) } else { Ok(()) };
        };
        if !is_there {
            // Under another name, nobody resumes it beside this process.
            self.written = None;
            files::overwrite(&self.file, &self.path, "")?;
            self.file = own(&self.path)?;
            warn!(path = %self.path.display(), "{FILE_RESTORED}; writing it again");
        }
        if self.written.as_ref() != Some(state) {
            self.written = None;
            let id = FileId::of(&self.file).map_err(|cause| FileError::open(&self.path, cause))?;
            let number = fastrand::u64(..);
            let saved = Saved { begin: number, file: id, state: state.clone(), end: number };
            // Texts and numbers always serialise.
            let text = serde_json::to_string(&saved).unwrap_or_default();
            files::overwrite(&self.file, &self.path, &text)?;
            self.written = Some(state.clone());
        }
        Ok(())
    }
}

/// Locks the file. One that another user has made or may write to is replaced.
fn own(path: &Path) -> Result<File, LockError> {
    files::make_folder(path)?;
    let why = match files::lock(path) {
        Ok(file) => match files::check_own(&file) {
            Ok(()) => {
                files::make_private(&file);
                return Ok(file);
            }
            Err(why) => why.to_string(),
        },
        Err(LockError::File(error)) if error.is_denied() && path.exists() => error.to_string(),
        Err(error) => return Err(error),
    };
    ignored(path, &why);
    files::remove(path)?;
    files::lock(path)
}

fn ignored(path: &Path, why: &str) {
    warn!(path = %path.display(), error = why, "{STATE_FILE_IGNORED}; creating a new session");
}

fn read(file: &File) -> Result<Option<Left>, String> {
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.is_empty() {
        return Ok(None);
    }
    // In the form that Consul writes: the agent would try to renew any other id for ever.
    let is_id = |text: &str| Uuid::parse_str(text).is_ok_and(|id| id.hyphenated().to_string() == text);
    // A longer content of before may follow.
    let saved = serde_json::Deserializer::from_str(&text).into_iter::<Saved>().next().and_then(Result::ok);
    let saved = saved.filter(|saved| saved.begin == saved.end && is_id(&saved.state.session));
    let Saved { file: written, state, .. } =
        saved.ok_or("its content is damaged, or was written by another version")?;
    let id = FileId::of(file).map_err(|error| error.to_string())?;
    if id != written || id.boot.is_none() {
        return Err("it is a copy, or the machine has been restarted since, or has no boot id".to_owned());
    }
    let State { session, ttl_ms, prefixes, locks } = state;
    let resume = Resume { session: session.into(), prefixes, locks };
    Ok(Some(Left { resume, ttl: Duration::from_millis(ttl_ms) }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const SESSION: &str = "5e550000-0000-4000-8000-000000000000";

    fn state() -> State {
        let prefixes = BTreeMap::from([("service/s".to_owned(), Some(7))]);
        State { session: SESSION.to_owned(), ttl_ms: 30_000, prefixes, locks: BTreeMap::new() }
    }

    /// A state file as an agent leaves it that is killed.
    fn left(path: &Path) -> Writer {
        let mut writer = Writer { path: path.to_owned(), file: own(path).unwrap(), written: None };
        writer.write(Some(&state())).unwrap();
        writer
    }

    fn found(path: &Path) -> Result<Option<Left>, String> {
        read(&own(path).unwrap())
    }

    #[test]
    fn what_is_written_is_resumed_from_the_same_file_once_it_is_unlocked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/session.json");
        let writer = left(&path);
        assert!(matches!(own(&path), Err(LockError::InUse { .. })));
        drop(writer);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let Left { resume, ttl } = found(&path).unwrap().unwrap();
        assert_eq!((resume.session.as_str(), ttl), (SESSION, Duration::from_secs(30)));
        assert_eq!(resume.prefixes, state().prefixes);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        // A file that was moved is the same one.
        let moved = folder.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        assert!(found(&moved).unwrap().is_some());
        // One that was removed is another one, whatever is put into it.
        let text = fs::read(&moved).unwrap();
        fs::remove_file(&moved).unwrap();
        assert_eq!(found(&moved), Ok(None));
        fs::write(&moved, text).unwrap();
        assert!(found(&moved).unwrap_err().contains("it is a copy"));
    }

    #[test]
    fn the_device_the_inode_and_the_creation_time_have_to_agree() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session.json");
        drop(left(&path));
        let saved: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for field in ["device", "inode", "born"] {
            let mut other = saved.clone();
            other["file"][field] = match field {
                "born" => serde_json::json!([1, 1]),
                _ => (saved["file"][field].as_u64().unwrap() + 1).into(),
            };
            fs::write(&path, other.to_string()).unwrap();
            assert!(found(&path).unwrap_err().contains("it is a copy"), "{field}");
        }
        fs::write(&path, saved.to_string()).unwrap();
        assert!(found(&path).unwrap().is_some());
    }

    #[test]
    fn a_cut_write_is_not_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session.json");
        drop(left(&path));
        let text = fs::read_to_string(&path).unwrap();
        for end in 1..text.len() {
            fs::write(&path, &text[..end]).unwrap();
            assert!(found(&path).is_err(), "{}", &text[..end]);
        }
        fs::write(&path, "").unwrap();
        assert_eq!(found(&path), Ok(None));
        // The beginning of one write, and the end of another.
        let other = text.replace(r#""end":"#, r#""end":1"#);
        fs::write(&path, &other).unwrap();
        assert!(found(&path).is_err(), "{other}");
        // A write that is whole, before the file is cut to its length.
        fs::write(&path, format!("{text}}}]")).unwrap();
        assert!(found(&path).unwrap().is_some());
        for no_id in ["x y", "5e550000000040008000000000000000", "{5e550000-0000-4000-8000-000000000000}"] {
            fs::write(&path, text.replace(SESSION, no_id)).unwrap();
            assert!(found(&path).is_err(), "{no_id}");
        }
    }

    #[test]
    fn a_file_that_is_removed_is_made_again_unless_another_agent_was_faster() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/session.json");
        let mut writer = left(&path);
        fs::remove_dir_all(folder.path().join("run")).unwrap();
        writer.write(Some(&state())).unwrap();
        assert!(matches!(own(&path), Err(LockError::InUse { .. })));
        let moved = folder.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        writer.write(Some(&state())).unwrap();
        assert_eq!(found(&moved), Ok(None), "the session lives");
        fs::remove_file(&path).unwrap();
        let other = own(&path).unwrap();
        assert!(matches!(writer.write(Some(&state())), Err(LockError::InUse { .. })));
        // Nor is it removed.
        writer.write(None).unwrap();
        assert!(files::is_at(&other, &path));
        drop(other);
        writer.write(Some(&state())).unwrap();
        writer.write(None).unwrap();
        assert!(!path.exists());
    }
}
