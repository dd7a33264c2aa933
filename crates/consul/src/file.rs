//! Files of other programs: tokens, certificates, keys.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file. Anything else is refused, since the open of a pipe would wait for its writer. If a pipe replaces the file
/// between the check and the open, it is opened without waiting and refused.
///
/// # Errors
///
/// The file cannot be opened, or is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let refused = || io::Error::other("it is not a regular file");
    if !std::fs::metadata(path)?.is_file() {
        return Err(refused());
    }
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused()) }
}
