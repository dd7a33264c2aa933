//! The files of an agent, opened before anything else is done: what an earlier process left must not mislead anybody.

use std::path::Path;
use std::time::Duration;

use serde_yaml::Value;
use tokio::task::JoinHandle;
use tracing::warn;

use super::state_file::StateFile;
use crate::config::Config;
use crate::files::{self, Claim, ClaimError, KeptFile};
use crate::semaphore::Resume;

/// Anybody may read the readiness file; it holds no secret.
const READABLE: u32 = 0o644;
/// Time that a file has to be as it should before we go on all the same.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The files that the configuration asks for.
#[derive(Debug)]
pub struct Files {
    pub(super) state: Option<StateFile>,
    pub(super) readiness: Option<KeptFile>,
    _readiness_claim: Option<Claim>,
    pub(super) resume: Option<Resume>,
}

impl Files {
    /// Claims the files for this process, then removes the readiness file that a killed one may have left.
    ///
    /// # Errors
    ///
    /// [`ClaimError`]: a folder that cannot be written to, or another agent that uses one of the files.
    pub fn open(config: &Config) -> Result<Self, ClaimError> {
        let claim = config.readiness.as_ref().map(|path| {
            files::make_folder(path)?;
            Claim::take(path)
        });
        let claim = claim.transpose()?;
        let state = config.session.state_file.clone().map(StateFile::open).transpose()?;
        let (state, resume) = state.map_or((None, None), |(state, resume)| (Some(state), resume));
        let readiness = config.readiness.clone().map(|path| KeptFile::start_absent(path, READABLE));
        Ok(Self { state, readiness: readiness.transpose()?, _readiness_claim: claim, resume })
    }

    /// Removes the readiness file named in a configuration that cannot be used, as far as it can be read: an agent that
    /// does not come back must not leave its workload the word of the one that was killed.
    pub fn forget(configuration: &Path) {
        let text = std::fs::read_to_string(configuration).unwrap_or_default();
        let Ok(document) = serde_yaml::from_str::<Value>(&text) else { return };
        let file = document.get("readiness").and_then(|readiness| readiness.get("file"));
        let Some(path) = file.and_then(Value::as_str).map(Path::new) else { return };
        let free = Claim::take(path).is_ok();
        if free && let Err(error) = files::remove(path) {
            warn!("{error}");
        }
    }

    /// The tasks that write them, which end with this value and not before.
    pub(super) fn tasks(&self) -> impl Iterator<Item = &JoinHandle<()>> {
        self.state
            .as_ref()
            .map(StateFile::task)
            .into_iter()
            .chain(self.readiness.as_ref().map(KeptFile::task))
    }
}
