//! The files of an agent. They are opened first: a stale readiness file must not mislead a workload.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_yaml::Value;
use tokio::task::JoinHandle;
use tracing::warn;

use super::state_file::{Left, StateFile};
use crate::config::{Config, Environment};
use crate::files::{self, KeptFile, LockError};
use crate::log_events::{FILE_RESTORED, READINESS_FILE_LEFT};

/// The readiness file holds no secret.
const READABLE: u32 = 0o644;
/// Time for a file to be written or removed before the agent continues all the same.
pub(super) const FILE_TIMEOUT: Duration = Duration::from_secs(1);

/// The files that the configuration names.
#[derive(Debug)]
pub struct Files {
    pub(super) state: Option<StateFile>,
    pub(super) readiness: Option<KeptFile<String>>,
    /// What is to be resumed.
    pub(super) left: Option<Left>,
}

impl Files {
    /// Locks the files for this process, then removes a stale readiness file.
    ///
    /// # Errors
    ///
    /// A folder is not writable, something else than a regular file is at a path, or another agent uses one of the files.
    pub fn open(config: &Config) -> Result<Self, LockError> {
        // Before anything is created or removed beside them.
        for path in config.readiness.iter().chain(&config.session.state_file) {
            files::refuse_special(path)?;
        }
        let readiness = config.readiness.clone().map(readiness).transpose()?;
        let state = config.session.state_file.clone().map(StateFile::open).transpose()?;
        let (state, left) = state.map_or((None, None), |(state, left)| (Some(state), left));
        Ok(Self { state, readiness, left })
    }

    /// Removes the stale readiness file of a configuration that is missing or invalid, if its path can be found: an agent that
    /// does not start must not leave the readiness of a killed one.
    pub fn forget(configuration: &Path) {
        let environment = Environment::of_process();
        // A pipe has been read to its end already, and would wait for its next writer.
        let path = Some(configuration).filter(|path| path.is_file());
        let text = path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let named = environment.readiness_file().map(Path::to_path_buf).or_else(|| readiness_file(&text));
        let is_file = |path: &PathBuf| path.symlink_metadata().is_ok_and(|about| about.is_file());
        let Some(path) = named.filter(is_file) else { return };
        let lock = files::lock_beside(&path);
        if lock.is_ok()
            && let Err(error) = files::remove(&path)
        {
            warn!(%error, "{READINESS_FILE_LEFT}");
        }
    }

    /// Writes the files again that another process has removed or changed.
    pub(super) fn look(&self) {
        self.readiness.iter().for_each(KeptFile::look);
        self.state.iter().for_each(StateFile::look);
    }

    /// The tasks that write the files. They end with this value.
    pub(super) fn tasks(&self) -> impl Iterator<Item = &JoinHandle<()>> {
        self.state
            .as_ref()
            .map(StateFile::task)
            .into_iter()
            .chain(self.readiness.as_ref().map(KeptFile::task))
    }
}

/// Locks the readiness file, removes that of an earlier process, and keeps it.
fn readiness(path: PathBuf) -> Result<KeptFile<String>, LockError> {
    files::make_folder(&path)?;
    let mut lock = files::lock_beside(&path)?;
    files::remove(&path)?;
    let mut written = None;
    Ok(KeptFile::start(path.clone(), move |content: Option<&String>| -> Result<(), LockError> {
        if !files::is_at(&lock, &files::beside(&path)) {
            files::make_folder(&path)?;
            lock = files::lock_beside(&path)?;
        }
        let Some(content) = content else {
            written = None;
            return Ok(files::remove(&path)?);
        };
        if !files::has(&path, content) {
            if written.as_ref() == Some(content) {
                warn!(path = %path.display(), "{FILE_RESTORED}; writing it again");
            }
            files::replace(&path, content.as_bytes(), READABLE)?;
        }
        written = Some(content.clone());
        Ok(())
    }))
}

/// The readiness file that a configuration's text names. In invalid YAML the section `readiness` may still be readable.
fn readiness_file(text: &str) -> Option<PathBuf> {
    let file = |text: &str| {
        let document: Value = serde_yaml::from_str(text).ok()?;
        document.get("readiness")?.get("file")?.as_str().map(PathBuf::from)
    };
    file(text).or_else(|| {
        let mut lines = text.lines().skip_while(|line| !line.starts_with("readiness:"));
        let first = lines.next()?;
        let rest = lines.take_while(|line| line.is_empty() || line.starts_with([' ', '#']));
        file(&std::iter::once(first).chain(rest).collect::<Vec<_>>().join("\n"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readiness_file_is_found_in_what_is_broken_elsewhere() {
        for text in [
            "readiness: {file: /r}",
            "semaphores: [\nreadiness: {file: /r}",
            "a: 'b\nreadiness:\n\n  # here\n  file: \"/r\" # there\nlog: [",
            "\tx\nreadiness:\n  file: /r",
        ] {
            assert_eq!(readiness_file(text), Some(PathBuf::from("/r")), "{text}");
        }
        for text in
            ["", "x: [", "[\nreadiness: {file: [}", "[\nx: {readiness: {file: /r}", "[\nreadiness:\nfile: /r"]
        {
            assert_eq!(readiness_file(text), None, "{text}");
        }
    }
}
