//! `slotkeeper install`: this binary, copied to where another container finds it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::Exit;
use crate::files;

/// What the copy is called where a folder is given.
const NAME: &str = "slotkeeper";
/// Anybody may run it: the workload's container often has another user.
const MODE: u32 = 0o755;

/// Copy this binary, for an init container that brings it into a volume of the workload's.
///
/// The image has nothing in it but slotkeeper, no cp either. The copy is whole or not there: it is written beside its
/// place and moved. One that is there already is replaced, since a pod's volume outlives a restart of its containers.
#[derive(Debug, Args)]
pub(super) struct Install {
    /// A folder, in which the copy is called slotkeeper: one that is there, or a path that ends in `/`. Else the path of the copy.
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

impl Install {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        // What runs, even where its file was replaced or deleted meanwhile.
        let binary = fs::read("/proc/self/exe").context("this binary cannot be read by way of /proc")?;
        let means_folder = self.path.is_dir() || self.path.as_os_str().as_bytes().ends_with(b"/");
        let place = if means_folder { self.path.join(NAME) } else { self.path };
        files::make_folder(&place)?;
        files::replace(&place, &binary, MODE)?;
        Ok(Exit::Done)
    }
}
