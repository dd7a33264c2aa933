//! ACL tokens: kept out of sight, and re-read from their file when it changes.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderValue;
use tokio::time::Instant;

/// Time between two looks at a token file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A token is 36 bytes; a JWT a few thousand. More than this is the wrong file.
const MAX_BYTES: u64 = 16 * 1024;

/// A text that nobody gets to see: neither `Debug` nor `Display` shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Not for logs, not for errors.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Where the token comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// It is given. An empty one is none.
    Value(Secret),
    /// A file has it, with white space around it or not, and is looked at again at most every second and after each
    /// refusal. While a changed file cannot be read, the last good token serves on.
    File(PathBuf),
}

/// Why there is no token to send. The token is never in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("the token file {} cannot be read: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// The file has nothing in it.
    #[error("the token file {} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is far too long for a token.
    #[error("the token file {} has more than {MAX_BYTES} bytes, so it is no token", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A header cannot carry it.
    #[error("the token {} has characters in it that no HTTP header can carry", place(path.as_deref()))]
    NotAHeader {
        /// The file, where it is from one.
        path: Option<PathBuf>,
    },
}

fn place(path: Option<&Path>) -> String {
    path.map_or_else(|| "that was given".into(), |path| format!("in the file {}", path.display()))
}

/// A token that can be sent.
#[derive(Clone)]
pub(super) struct Ready {
    /// To find it in texts that must not have it.
    pub(super) secret: Secret,
    /// Marked sensitive.
    pub(super) header: HeaderValue,
}

impl Ready {
    fn new(text: &str, path: Option<&Path>) -> Result<Arc<Self>, TokenError> {
        let mut header = HeaderValue::from_str(text)
            .map_err(|_| TokenError::NotAHeader { path: path.map(Path::to_path_buf) })?;
        header.set_sensitive(true);
        Ok(Arc::new(Self { secret: Secret::new(text), header }))
    }
}

/// The token to send now.
pub(super) enum Token {
    /// Nobody gave one: the anonymous token's rights.
    Anonymous,
    /// Given once and for all.
    Fixed(Arc<Ready>),
    /// From a file.
    File(TokenFile),
}

impl Token {
    pub(super) fn new(source: Option<&TokenSource>) -> Result<Self, TokenError> {
        match source {
            None => Ok(Self::Anonymous),
            Some(TokenSource::Value(secret)) if secret.expose().is_empty() => Ok(Self::Anonymous),
            Some(TokenSource::Value(secret)) => Ok(Self::Fixed(Ready::new(secret.expose(), None)?)),
            Some(TokenSource::File(path)) => Ok(Self::File(TokenFile::new(path.clone()))),
        }
    }

    pub(super) fn current(&self) -> Result<Option<Arc<Ready>>, TokenError> {
        match self {
            Self::Anonymous => Ok(None),
            Self::Fixed(ready) => Ok(Some(Arc::clone(ready))),
            Self::File(file) => file.current(Instant::now()).map(Some),
        }
    }

    /// After a refusal of `used`: another token, if there is one by now.
    pub(super) fn instead_of(&self, used: Option<&Ready>) -> Option<Arc<Ready>> {
        let Self::File(file) = self else { return None };
        let read = file.reread(Instant::now()).ok()?;
        (used.map(|used| &used.secret) != Some(&read.secret)).then_some(read)
    }

    /// Where the token comes from and what to do about one that was refused, for people.
    pub(super) fn advice(&self) -> String {
        match self {
            Self::Anonymous => {
                "no token was sent: set consul.token_file, CONSUL_HTTP_TOKEN_FILE or CONSUL_HTTP_TOKEN".into()
            }
            Self::Fixed(_) => {
                "the token that was given lacks this right, is mistyped, or has been deleted".into()
            }
            Self::File(file) => match file.reread(Instant::now()) {
                Ok(_) => {
                    format!(
                        "the token in {} lacks this right, is mistyped, or has been deleted",
                        file.path.display()
                    )
                }
                Err(error) => format!("the token that was sent is an old one, since {error}"),
            },
        }
    }
}

/// A token file and what was last read of it.
pub(super) struct TokenFile {
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
    fn new(path: PathBuf) -> Self {
        Self { path, kept: Mutex::default() }
    }

    /// The token, after a look at the file where the last one is a while ago.
    fn current(&self, now: Instant) -> Result<Arc<Ready>, TokenError> {
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
    fn reread(&self, now: Instant) -> Result<Arc<Ready>, TokenError> {
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
    fn a_secret_shows_nothing() {
        let secret = Secret::new("hunter2");
        assert!(!format!("{secret} {secret:?}").contains("hunter2"));
        let source = TokenSource::Value(secret);
        assert!(!format!("{source:?}").contains("hunter2"));
        let ready = Ready::new("hunter2", None).unwrap();
        assert!(!format!("{:?}", ready.header).contains("hunter2"));
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
    fn a_refusal_reads_again_at_once() {
        let (_folder, path) = folder();
        fs::write(&path, "first").unwrap();
        let token = Token::new(Some(&TokenSource::File(path.clone()))).unwrap();
        let used = token.current().unwrap();
        assert!(token.instead_of(used.as_deref()).is_none());
        fs::write(&path, "other").unwrap();
        assert_eq!(token.instead_of(used.as_deref()).unwrap().secret.expose(), "other");
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

    #[test]
    fn an_empty_value_is_no_token() {
        let token = Token::new(Some(&TokenSource::Value(Secret::new("")))).unwrap();
        assert!(token.current().unwrap().is_none());
    }
}
