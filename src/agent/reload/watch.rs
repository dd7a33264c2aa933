//! The watch of a configuration's files. It polls them, which works alike for a volume that Kubernetes swaps, an editor that
//! renames and a network file system. A file system may not answer, so each poll has a thread of its own. There is one at a time.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::future::pending;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::error;

use super::settle::{Fingerprints, Settling};
use crate::clock;
use crate::log_events::FILES_NOT_WATCHED;
use slotkeeper_consul::{self, open_regular};

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of a file in its fingerprint. The read refuses a longer file.
const MAX_BYTES: u64 = 1024 * 1024;
/// Files of a folder in its fingerprint.
const MAX_FILES: usize = 1000;

/// Polls the files until it is dropped.
#[derive(Debug)]
pub(in crate::agent) struct Watch {
    changes: mpsc::Receiver<Vec<PathBuf>>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Starts to poll the files that were read. None if there are none.
    pub(in crate::agent) fn start(read: Fingerprints) -> Option<Self> {
        if read.is_empty() {
            return None;
        }
        let (sender, changes) = mpsc::channel(1);
        Some(Self { changes, task: tokio::spawn(poll(Settling::new(read), sender)) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits until files have changed and are due for a read, and returns them.
pub(in crate::agent) async fn changed(watch: &mut Option<Watch>) -> Vec<PathBuf> {
    let changed = match watch {
        Some(watch) => watch.changes.recv().await,
        None => None,
    };
    match changed {
        Some(changed) => changed,
        None => pending().await,
    }
}

async fn poll(mut settling: Settling, sender: mpsc::Sender<Vec<PathBuf>>) {
    let paths: Vec<PathBuf> = settling.paths().map(Path::to_path_buf).collect();
    let mut known = Known::default();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let paths = paths.clone();
        let polled = spawn_blocking(move || {
            let seen = known.fingerprints(&paths);
            (known, seen)
        });
        let seen;
        (known, seen) = match polled.await {
            Ok(polled) => polled,
            Err(failure) => return error!(error = %failure, "{FILES_NOT_WATCHED}"),
        };
        if let Some(changed) = settling.observe(&seen, clock::now())
            && sender.send(changed).await.is_err()
        {
            return;
        }
    }
}

/// The files that TLS settings name.
pub(in crate::agent) fn tls_files(tls: &slotkeeper_consul::Tls) -> impl Iterator<Item = PathBuf> + use<> {
    [&tls.ca_file, &tls.ca_path, &tls.cert_file, &tls.key_file].map(Option::clone).into_iter().flatten()
}

/// The current fingerprints of the files. May wait for their file systems.
pub fn fingerprints(paths: impl IntoIterator<Item = PathBuf>) -> Fingerprints {
    Known::default().fingerprints(&paths.into_iter().collect::<Vec<_>>())
}

/// The fingerprints of files by their metadata, so that an unchanged file is not read again.
#[derive(Default)]
struct Known(BTreeMap<PathBuf, (Identity, u64)>);

impl Known {
    fn fingerprints(&mut self, paths: &[PathBuf]) -> Fingerprints {
        paths.iter().map(|path| (path.clone(), self.fingerprint(path).ok())).collect()
    }

    fn fingerprint(&mut self, path: &Path) -> io::Result<u64> {
        let metadata = fs::metadata(path)?;
        if metadata.is_dir() {
            return folder(path);
        }
        let identity = Identity::of(&metadata);
        if let Some((known, print)) = self.0.get(path)
            && *known == identity
        {
            return Ok(*print);
        }
        let mut content = Vec::new();
        open_regular(path)?.take(MAX_BYTES).read_to_end(&mut content)?;
        let print = hash(&content);
        self.0.insert(path.to_path_buf(), (identity, print));
        Ok(print)
    }
}

/// The identity of a file's content by its metadata. It differs for another file and for another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The fingerprint of a folder of authorities, by the metadata of its files: there may be hundreds.
fn folder(path: &Path) -> io::Result<u64> {
    let mut files = Vec::new();
    for entry in fs::read_dir(path)?.take(MAX_FILES) {
        let entry = entry?;
        if let Ok(metadata) = fs::metadata(entry.path())
            && metadata.is_file()
        {
            files.push((entry.file_name(), Identity::of(&metadata)));
        }
    }
    files.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(hash(&files))
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_fingerprint_depends_on_the_content_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // As the kubelet lays out a volume.
        for (version, content) in [("..1", "one"), ("..2", "one"), ("..3", "two")] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("file"), content).unwrap();
        }
        let swap = |version: &str| {
            symlink(version, at("..data_tmp")).unwrap();
            fs::rename(at("..data_tmp"), at("..data")).unwrap();
        };
        swap("..1");
        symlink("..data/file", at("file")).unwrap();
        let mut known = Known::default();
        let mut look = || known.fingerprints(&[at("file")])[&at("file")];
        let first = look();
        assert!(first.is_some());
        swap("..2");
        assert_eq!(look(), first);
        swap("..3");
        let second = look();
        assert!(second.is_some() && second != first);
        // The same file, with as many bytes.
        fs::write(at("..3").join("file"), "six").unwrap();
        assert!(![first, second, None].contains(&look()));
        fs::remove_dir_all(at("..3")).unwrap();
        assert_eq!(look(), None);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(fingerprints([at("pipe")])[&at("pipe")], None, "a pipe is not read");
    }

    #[test]
    fn the_fingerprint_of_a_folder_is_that_of_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let look = || fingerprints([folder.path().to_path_buf()])[folder.path()];
        let mut seen = vec![look()];
        for (name, content) in [("a", "one"), ("b", "two"), ("a", "six, and longer")] {
            fs::write(folder.path().join(name), content).unwrap();
            seen.push(look());
        }
        fs::rename(folder.path().join("a"), folder.path().join("c")).unwrap();
        seen.push(look());
        assert_eq!(look(), seen[4], "the folder is unchanged");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 5);
    }
}
