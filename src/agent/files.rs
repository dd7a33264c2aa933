//! The files of an agent. They are opened first: a stale readiness file must not mislead a workload.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_yaml::Value;
use tokio::task::JoinHandle;
use tracing::warn;

use super::state_file::StateFile;
use crate::config::{Config, Environment};
use crate::files::claimant::Claimant;
use crate::files::{self, Claim, ClaimError, KeptFile};
use crate::log_events::READINESS_FILE_LEFT;
use slotkeeper_semaphore::Resume;

/// The readiness file holds no secret.
const READABLE: u32 = 0o644;
/// Time for a file to be written or removed before the agent continues all the same.
pub(super) const FILE_TIMEOUT: Duration = Duration::from_secs(1);

/// The files that the configuration names.
#[derive(Debug)]
pub struct Files {
    pub(super) state: Option<StateFile>,
    pub(super) readiness: Option<KeptFile>,
    pub(super) resume: Option<Resume>,
    /// The resumed session's TTL, if known.
    pub(super) resumed_ttl: Option<Duration>,
    /// The process that had the session may still run.
    pub(super) contested: bool,
}

impl Files {
    /// Claims the files for this process, then removes a stale readiness file.
    ///
    /// # Errors
    ///
    /// A folder is not writable, something else than a regular file is at a path, or another agent uses one of the files.
    pub fn open(config: &Config) -> Result<Self, ClaimError> {
        // Before anything is created or removed beside them.
        for path in config.readiness.iter().chain(&config.session.state_file) {
            files::refuse_special(path)?;
        }
        let claim = config.readiness.as_ref().map(|path| {
            files::make_folder(path)?;
            Claim::take(path)
        });
        let claim = claim.transpose()?;
        let state = config.session.state_file.clone().map(StateFile::open).transpose()?;
        let (state, left) = state.map_or((None, None), |(state, left)| (Some(state), left));
        let contested = left.as_ref().is_some_and(|left| left.contested.is_some());
        let readiness = config.readiness.clone().zip(claim);
        let readiness = readiness.map(|(path, claim)| KeptFile::start_absent(path, READABLE, claim));
        let resumed_ttl = left.as_ref().and_then(|left| left.ttl);
        let resume = left.map(|left| left.resume);
        Ok(Self { state, readiness: readiness.transpose()?, resume, resumed_ttl, contested })
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
        let claim = Claim::take(&path);
        if claim.is_ok()
            && let Err(error) = files::remove(&path)
        {
            warn!(%error, "{READINESS_FILE_LEFT}");
        }
    }

    /// Writes this process into the lock files.
    pub(super) fn introduce(&self, claimant: &Claimant) {
        let kept = self.readiness.iter().chain(self.state.as_ref().map(StateFile::kept));
        kept.for_each(|file| file.introduce(claimant));
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
