//! `slotkeeper install`: copies this binary to where another container finds it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::Exit;
use crate::files;

/// The copy's file name in a folder.
const NAME: &str = "slotkeeper";
/// Executable for every user: the workload's container often has another one.
const MODE: u32 = 0o755;

/// Copy this binary: for an init container that installs it into a volume of the workload.
///
/// The image contains slotkeeper alone, without cp. The copy is atomic: the file is written next to its destination and renamed.
/// An existing file is replaced, since a pod's volume outlives a restart of its containers.
#[derive(Debug, Args)]
pub(super) struct Install {
    /// A folder, for a copy named slotkeeper: an existing one, or a path that ends in `/`. Otherwise the path of the copy.
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

impl Install {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        // The running binary, even if its file was replaced or deleted meanwhile.
        let binary = fs::read("/proc/self/exe").context("cannot read this binary through /proc")?;
        let means_folder = self.path.is_dir() || self.path.as_os_str().as_bytes().ends_with(b"/");
        let place = if means_folder { self.path.join(NAME) } else { self.path };
        files::make_folder(&place)?;
        files::replace(&place, &binary, MODE)?;
        Ok(Exit::Done)
    }
}
