//! The files of an agent, opened before anything else is done: what an earlier process left must not mislead anybody.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::state_file::{StateFile, StateFileError};
use crate::config::Config;
use crate::files::KeptFile;
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
    pub(super) resume: Option<Resume>,
}

impl Files {
    /// Takes the state file for this process, which no other that runs may have, then removes the readiness file that
    /// a killed process may have left.
    ///
    /// # Errors
    ///
    /// [`StateFileError`]: a folder, or another agent that uses the state file.
    pub fn open(config: &Config) -> Result<Self, StateFileError> {
        let state = config.session.state_file.clone().map(StateFile::open).transpose()?;
        let (state, resume) = state.map_or((None, None), |(state, resume)| (Some(state), resume));
        let readiness = config.readiness.clone().map(|path| KeptFile::start_absent(path, READABLE));
        Ok(Self { state, readiness: readiness.transpose()?, resume })
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
