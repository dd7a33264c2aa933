//! A token file. It is read again at most once a second, and after a refusal. A file system may hang, so reads are on a blocking
//! thread, one at a time, and a request that has a token waits for a read only shortly.

use std::fmt::Display;
use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::time::{Instant, timeout_at};

use super::{Ready, TokenError};
use crate::file::open_regular;

/// The minimum time between two reads of a token file.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// `wait`: the age of a read after which requests use the previous token. `timeout`: the age after which the read has failed.
const LIMITS: Limits = Limits { wait: Duration::from_secs(1), timeout: Duration::from_secs(10) };

/// A Consul token has 36 bytes, a JWT a few thousand. A longer file is the wrong file.
const MAX_BYTES: u64 = 16 * 1024;

#[derive(Clone, Copy)]
struct Limits {
    wait: Duration,
    timeout: Duration,
}

type Outcome = Result<Arc<Ready>, TokenError>;

/// How a file is read.
type ReadFile = Arc<dyn Fn(&Path) -> Outcome + Send + Sync>;

/// A token file and the result of the last read.
pub(crate) struct TokenFile {
    path: PathBuf,
    read: ReadFile,
    limits: Limits,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    token: Option<Arc<Ready>>,
    /// Why the last read failed, if it did.
    failed: Option<TokenError>,
    /// When the last read began.
    looked: Option<Instant>,
    under_way: Option<Look>,
}

/// A read that has not ended.
#[derive(Clone)]
struct Look {
    began: Instant,
    outcome: Shared<BoxFuture<'static, Outcome>>,
}

impl TokenFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, read: Arc::new(read_token), limits: LIMITS, kept: Arc::default() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The token, from the file if the last read is older than [`READ_INTERVAL`].
    pub(super) async fn current(&self, now: Instant) -> Outcome {
        let (known, looked) = self.keep(|kept| (kept.token.clone(), kept.looked));
        let Some(known) = known else { return self.reread(now).await };
        if looked.is_some_and(|looked| now.duration_since(looked) < READ_INTERVAL) {
            return Ok(known);
        }
        let Look { began, outcome } = self.look(now);
        Ok(timeout_at(began + self.limits.wait, outcome).await.ok().and_then(Result::ok).unwrap_or(known))
    }

    /// Reads the file now.
    pub(super) async fn reread(&self, now: Instant) -> Outcome {
        let Look { began, outcome } = self.look(now);
        let seconds = self.limits.timeout.as_secs();
        let timed_out =
            || unreadable(&self.path, format!("its file system has not answered for {seconds} s"));
        timeout_at(began + self.limits.timeout, outcome).await.unwrap_or_else(|_| Err(timed_out()))
    }

    /// Why the last read failed, if it did.
    pub(super) fn failure(&self) -> Option<TokenError> {
        self.keep(|kept| kept.failed.clone())
    }

    /// The read in flight, or a new one.
    fn look(&self, now: Instant) -> Look {
        self.keep(|kept| {
            if let Some(look) = kept.under_way.as_ref().filter(|look| look.outcome.peek().is_none()) {
                return look.clone();
            }
            kept.looked = Some(now);
            let look = Look { began: Instant::now(), outcome: self.begin().boxed().shared() };
            kept.under_way = Some(look.clone());
            look
        })
    }

    /// Starts a read, which continues if its future is dropped, and stores its result.
    fn begin(&self) -> impl Future<Output = Outcome> + Send + use<> {
        let (path, read, kept) = (self.path.clone(), Arc::clone(&self.read), Arc::clone(&self.kept));
        let what = self.path.clone();
        let task = tokio::task::spawn_blocking(move || {
            let outcome = read(&path);
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.under_way = None;
            kept.failed = outcome.as_ref().err().cloned();
            if let Ok(token) = &outcome {
                kept.token = Some(Arc::clone(token));
            }
            outcome
        });
        async move { task.await.unwrap_or_else(|error| Err(unreadable(&what, error))) }
    }

    fn keep<T>(&self, what: impl FnOnce(&mut Kept) -> T) -> T {
        what(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn unreadable(path: &Path, why: impl Display) -> TokenError {
    TokenError::Unusable(format!("the token file {} cannot be read: {why}", path.display()))
}

fn read_token(path: &Path) -> Outcome {
    let shown = path.display();
    let mut bytes = Vec::new();
    let file = open_regular(path).map_err(|error| unreadable(path, error))?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, error))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_BYTES {
        let why = format!("the token file {shown} has more than {MAX_BYTES} bytes, so it is not a token");
        return Err(TokenError::Unusable(why));
    }
    let place = format!("in the file {shown}");
    match String::from_utf8(bytes).as_deref().map(str::trim) {
        Ok("") => Err(TokenError::Unusable(format!("the token file {shown} is empty"))),
        Ok(text) => Ready::new(text, place),
        Err(_) => Err(TokenError::unfit(place)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        (folder, path)
    }

    fn text(ready: Outcome) -> String {
        ready.unwrap().secret.expose().to_owned()
    }

    #[tokio::test]
    async fn a_changed_file_is_read_again_after_a_second() {
        let (_folder, path) = folder();
        let start = Instant::now();
        fs::write(&path, "  first\n").unwrap();
        let file = TokenFile::new(path.clone());
        assert_eq!(text(file.current(start).await), "first");
        fs::write(&path, "second, longer").unwrap();
        assert_eq!(text(file.current(start).await), "first");
        assert_eq!(text(file.current(start + READ_INTERVAL).await), "second, longer");
    }

    #[tokio::test]
    async fn the_last_valid_token_is_sent_while_the_file_cannot_be_read() {
        let (_folder, path) = folder();
        let mut now = Instant::now();
        fs::write(&path, "first").unwrap();
        let file = TokenFile::new(path.clone());
        assert_eq!(text(file.current(now).await), "first");
        fs::write(&path, "").unwrap();
        now += READ_INTERVAL;
        assert_eq!(text(file.current(now).await), "first");
        assert!(file.failure().unwrap().to_string().ends_with("is empty"));
        fs::remove_file(&path).unwrap();
        now += READ_INTERVAL;
        assert_eq!(text(file.current(now).await), "first");
        fs::write(&path, "second").unwrap();
        now += READ_INTERVAL;
        assert_eq!(text(file.current(now).await), "second");
        assert_eq!(file.failure(), None);
    }

    /// A file system that stops answering after the first read.
    #[tokio::test]
    async fn nothing_waits_for_a_read_that_hangs_and_there_is_one_of_them() {
        let (go_on, gate) = mpsc::channel::<()>();
        let (gate, reads) = (Mutex::new(gate), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&reads);
        let read = move |_: &Path| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            if number > 0 {
                gate.lock().unwrap().recv().unwrap();
            }
            Ready::new(&format!("token {number}"), "")
        };
        let limits = Limits { wait: Duration::from_millis(1), timeout: Duration::from_secs(1) };
        let file = TokenFile { read: Arc::new(read), limits, ..TokenFile::new("/hangs".into()) };
        let mut now = Instant::now();
        assert_eq!(text(file.current(now).await), "token 0");
        for _ in 0..5 {
            now += READ_INTERVAL;
            // It would hang here for ever.
            assert_eq!(text(file.current(now).await), "token 0");
        }
        let failed = file.reread(now).await.err().unwrap().to_string();
        assert!(
            failed.contains("/hangs cannot be read: its file system has not answered for 1 s"),
            "{failed}"
        );
        assert_eq!(reads.load(Ordering::SeqCst), 2, "one that was answered, and one that hangs");
        go_on.send(()).unwrap();
        while file.keep(|kept| kept.under_way.is_some()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(text(file.current(now).await), "token 1");
    }

    #[tokio::test]
    async fn invalid_token_files() {
        let (folder, path) = folder();
        let fault = async |content: &[u8]| {
            fs::write(&path, content).unwrap();
            TokenFile::new(path.clone()).reread(Instant::now()).await.err().unwrap()
        };
        assert!(fault(b" \n").await.to_string().ends_with("is empty"));
        assert!(fault(&[b'x'; 20_000]).await.to_string().contains("more than 16384 bytes"));
        assert!(fault(b"hunter2\nhunter3").await.to_string().contains("no HTTP header"));
        assert!(!fault(b"hunter2\nhunter3").await.to_string().contains("hunter"));
        assert!(fault(&[0xff]).await.to_string().contains("no HTTP header"));
        let missing = async |path: PathBuf| {
            TokenFile::new(path).reread(Instant::now()).await.err().unwrap().to_string()
        };
        assert!(missing(folder.path().join("none")).await.contains("none cannot be read"));
        assert!(missing(folder.path().to_path_buf()).await.contains("not a regular file"));
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert!(missing(pipe).await.contains("not a regular file"));
    }
}
