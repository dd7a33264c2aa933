//! A token file: read again when it changes.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Ready, TokenError};

/// Time between two looks at a token file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A token is 36 bytes; a JWT a few thousand. More than this is the wrong file.
pub(super) const MAX_BYTES: u64 = 16 * 1024;

/// A token file and what was last read of it.
pub(in crate::consul) struct TokenFile {
    path: PathBuf,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    token: Option<Arc<Ready>>,
    stamp: Option<Stamp>,
    looked: Option<Instant>,
}

/// What is another one when a file was written or replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: (i64, i64),
    bytes: u64,
    file: (u64, u64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            bytes: metadata.len(),
            file: (metadata.dev(), metadata.ino()),
        }
    }
}

impl TokenFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, kept: Mutex::default() }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The token, after a look at the file where the last one is a while ago.
    pub(super) fn current(&self, now: Instant) -> Result<Arc<Ready>, TokenError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = kept.looked.is_some_and(|looked| now.duration_since(looked) < LOOK_EVERY);
        if let (true, Some(token)) = (fresh, &kept.token) {
            return Ok(Arc::clone(token));
        }
        let unchanged = fs::metadata(&self.path)
            .is_ok_and(|metadata| kept.stamp.is_some_and(|stamp| stamp == Stamp::of(&metadata)));
        if let (true, Some(token)) = (unchanged, kept.token.clone()) {
            kept.looked = Some(now);
            return Ok(token);
        }
        match (self.load(&mut kept, now), &kept.token) {
            (Err(_), Some(last_good)) => Ok(Arc::clone(last_good)),
            (read, _) => read,
        }
    }

    /// What the file holds now, whether it looks changed or not.
    pub(super) fn reread(&self, now: Instant) -> Result<Arc<Ready>, TokenError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.load(&mut kept, now)
    }

    fn load(&self, kept: &mut Kept, now: Instant) -> Result<Arc<Ready>, TokenError> {
        kept.looked = Some(now);
        let (stamp, text) = read_file(&self.path)?;
        let text = text.trim();
        if text.is_empty() {
            return Err(TokenError::Empty { path: self.path.clone() });
        }
        let token = Ready::new(text, Some(&self.path))?;
        kept.stamp = Some(stamp);
        kept.token = Some(Arc::clone(&token));
        Ok(token)
    }
}

fn read_file(path: &Path) -> Result<(Stamp, String), TokenError> {
    let unreadable =
        |error: io::Error| TokenError::Unreadable { path: path.to_path_buf(), why: error.to_string() };
    // Asked before it is opened, since opening a named pipe waits for its writer.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unreadable(io::Error::other("it is not a regular file")));
    }
    let file = File::open(path).map_err(unreadable)?;
    // Of the open file, and before reading: a write in between is then seen at the next look.
    let stamp = Stamp::of(&file.metadata().map_err(unreadable)?);
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_BYTES {
        return Err(TokenError::TooLarge { path: path.to_path_buf() });
    }
    let text =
        String::from_utf8(bytes).map_err(|_| TokenError::NotAHeader { path: Some(path.to_path_buf()) })?;
    Ok((stamp, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        (folder, path)
    }

    fn text(ready: Result<Arc<Ready>, TokenError>) -> String {
        ready.unwrap().secret.expose().to_owned()
    }

    #[test]
    fn a_changed_file_is_read_again_after_a_second() {
        let (_folder, path) = folder();
        let start = Instant::now();
        fs::write(&path, "  first\n").unwrap();
        let file = TokenFile::new(path.clone());
        assert_eq!(text(file.current(start)), "first");
        fs::write(&path, "second, longer").unwrap();
        assert_eq!(text(file.current(start)), "first");
        assert_eq!(text(file.current(start + LOOK_EVERY)), "second, longer");
    }

    #[test]
    fn the_last_good_token_serves_while_the_file_cannot_be_read() {
        let (_folder, path) = folder();
        let mut now = Instant::now();
        fs::write(&path, "first").unwrap();
        let file = TokenFile::new(path.clone());
        assert_eq!(text(file.current(now)), "first");
        fs::write(&path, "").unwrap();
        now += LOOK_EVERY;
        assert_eq!(text(file.current(now)), "first");
        fs::remove_file(&path).unwrap();
        now += LOOK_EVERY;
        assert_eq!(text(file.current(now)), "first");
        fs::write(&path, "second").unwrap();
        now += LOOK_EVERY;
        assert_eq!(text(file.current(now)), "second");
    }

    #[test]
    fn what_is_no_token_file() {
        let (folder, path) = folder();
        let fault = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            TokenFile::new(path.clone()).reread(Instant::now()).err().unwrap()
        };
        assert!(matches!(fault(b" \n"), TokenError::Empty { .. }));
        assert!(matches!(fault(&[b'x'; 20_000]), TokenError::TooLarge { .. }));
        assert!(matches!(fault(b"hunter2\nhunter3"), TokenError::NotAHeader { .. }));
        assert!(!fault(b"hunter2\nhunter3").to_string().contains("hunter"));
        assert!(matches!(fault(&[0xff]), TokenError::NotAHeader { .. }));
        let missing = |path: PathBuf| TokenFile::new(path).reread(Instant::now()).err().unwrap();
        assert!(missing(folder.path().join("none")).to_string().contains("none cannot be read"));
        assert!(missing(folder.path().to_path_buf()).to_string().contains("not a regular file"));
    }
}
