//! Files that other processes read while the agent writes them.

mod kept;
mod lock;

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use thiserror::Error;

pub use kept::KeptFile;
pub use lock::{LockError, beside, check_unlocked, is_at, lock, lock_beside, make_private};

/// A folder where a file is configured.
const FOUND_FOLDER: &str = "it is a folder";

/// The advice after a failed write.
const WRITABLE: &str = "see that its folder exists, has room and is writable for this user";

/// Users that could write to a folder could replace the files in it.
const FOLDER: u32 = 0o755;

/// A file could not be written or removed.
#[derive(Debug, Error)]
#[error("cannot {what} {}: {cause}; {advice}", path.display())]
pub struct FileError {
    what: &'static str,
    path: PathBuf,
    advice: &'static str,
    /// Something is at the path that slotkeeper must not replace or delete.
    misplaced: bool,
    /// Part of the message already, so not its source.
    cause: io::Error,
}

impl FileError {
    /// The file cannot be opened or created.
    pub fn open(path: &Path, cause: io::Error) -> Self {
        let denied = cause.kind() == io::ErrorKind::PermissionDenied && path.exists();
        let advice = match denied {
            true => "it belongs to another user: remove it, or configure another path",
            false => "see that its folder is there and writable for this user",
        };
        Self::new("open", path, advice, cause)
    }

    fn new(what: &'static str, path: &Path, advice: &'static str, cause: io::Error) -> Self {
        Self { what, path: path.to_owned(), advice, misplaced: false, cause }
    }

    /// The system denies it to this user.
    pub fn is_denied(&self) -> bool {
        self.cause.kind() == io::ErrorKind::PermissionDenied
    }

    /// Something else is at `path`, such as "it is a folder".
    pub fn misplaced(path: &Path, found: &'static str) -> Self {
        let advice = match found {
            FOUND_FOLDER => "configure the path of a file in it, such as slotkeeper-ready",
            _ => "slotkeeper does not touch it; configure another path",
        };
        Self { misplaced: true, ..Self::new("use", path, advice, io::Error::other(found)) }
    }

    /// Whether the configuration names a path that slotkeeper must not use.
    pub fn is_misplaced(error: &anyhow::Error) -> bool {
        error.chain().any(|cause| {
            let file = match cause.downcast_ref() {
                Some(LockError::File(file)) => Some(file),
                Some(LockError::InUse { .. }) | None => cause.downcast_ref::<Self>(),
            };
            file.is_some_and(|file| file.misplaced)
        })
    }
}

/// Refuses a path of something else than a regular file. A device, a pipe or a link would otherwise be replaced by the file and
/// deleted with it: as root, /dev/null too.
///
/// # Errors
///
/// [`FileError::misplaced`].
pub fn refuse_special(path: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::FileTypeExt;
    // If the path cannot be read, the next operation on it fails.
    let Ok(about) = path.symlink_metadata() else { return Ok(()) };
    let kind = about.file_type();
    let found = if kind.is_file() {
        return Ok(());
    } else if kind.is_symlink() {
        "it is a symbolic link"
    } else if kind.is_dir() {
        FOUND_FOLDER
    } else if kind.is_char_device() || kind.is_block_device() {
        "it is a device"
    } else if kind.is_fifo() {
        "it is a pipe"
    } else {
        "it is not a regular file"
    };
    Err(FileError::misplaced(path, found))
}

/// Creates the folder of a file, if it is missing. Only this user may write to it, whatever the umask is.
///
/// # Errors
///
/// The folder cannot be created, or its path has a symbolic link that belongs to another user than root and this one.
pub fn make_folder(path: &Path) -> Result<(), FileError> {
    let folder = folder(path);
    let failed = |advice| move |cause| FileError::new("create the folder", folder, advice, cause);
    refuse_links_of_others(folder).map_err(failed("name the folder itself, if you mean it"))?;
    let made = DirBuilder::new().recursive(true).mode(FOLDER).create(folder);
    made.map_err(failed("create it before, writable for this user"))
}

/// Where every user may write, as in /tmp, another user's link would redirect the files to a harmful place.
fn refuse_links_of_others(folder: &Path) -> io::Result<()> {
    for part in folder.ancestors() {
        if let Ok(about) = part.symlink_metadata()
            && about.is_symlink()
            && !is_trusted(&about)
        {
            let (part, owner) = (part.display(), about.uid());
            return Err(io::Error::other(format!("{part} is a symbolic link of user {owner}")));
        }
    }
    Ok(())
}

fn is_trusted(about: &Metadata) -> bool {
    about.uid() == 0 || about.uid() == rustix::process::geteuid().as_raw()
}

/// Checks that nobody but this user and root may have written the file.
///
/// # Errors
///
/// It is not a regular file, has several names, belongs to another user, or every user may write to it.
pub fn check_own(file: &File) -> io::Result<()> {
    let about = file.metadata()?;
    let wrong = if !about.is_file() {
        "it is not a regular file".to_owned()
    } else if about.nlink() > 1 {
        "it has several names (hard links)".to_owned()
    } else if !is_trusted(&about) {
        format!("it belongs to user {}", about.uid())
    } else if about.permissions().mode() & 0o002 != 0 {
        "every user may write to it".to_owned()
    } else {
        return Ok(());
    };
    Err(io::Error::other(wrong))
}

/// Whether this user's file at the path has this content.
pub fn has(path: &Path, content: &str) -> bool {
    let flags = custom_flags(OFlags::NOFOLLOW | OFlags::NONBLOCK);
    let mut found = Vec::new();
    let read = OpenOptions::new().read(true).custom_flags(flags).open(path).and_then(|file| {
        check_own(&file)?;
        file.take(content.len() as u64 + 1).read_to_end(&mut found)
    });
    read.is_ok() && found == content.as_bytes()
}

fn custom_flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or(0)
}

/// Writes a file atomically: a temporary file in the same folder, then a rename.
///
/// # Errors
///
/// The folder is missing, read-only or full, or something else than a regular file is at the path. Nothing has changed then.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    refuse_special(path)?;
    let failed = |cause| FileError::new("write", path, WRITABLE, cause);
    let temporary = temporary(path);
    let written = write_new(&temporary, content, mode).and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|cause| {
        // The temporary file is useless. If it cannot be removed, that is part of the same failure.
        let _ = std::fs::remove_file(&temporary);
        failed(cause)
    })
}

/// Writes a file in place, through the descriptor that has it locked. A write that is cut leaves a part of the content before.
///
/// # Errors
///
/// The disk is full or fails.
pub fn overwrite(file: &File, path: &Path, content: &str) -> Result<(), FileError> {
    let written = file.write_all_at(content.as_bytes(), 0).and_then(|()| file.set_len(content.len() as u64));
    written.map_err(|cause| FileError::new("write", path, WRITABLE, cause))
}

/// Creates a file atomically, unless something is at its path, be it a symbolic link. Returns whether it was created.
///
/// # Errors
///
/// The folder is missing, read-only or full, or its file system has no hard links.
pub fn create(path: &Path, content: &[u8], mode: u32) -> Result<bool, FileError> {
    let temporary = temporary(path);
    let linked = write_new(&temporary, content, mode).and_then(|()| std::fs::hard_link(&temporary, path));
    // The temporary name is not needed any more.
    let _ = std::fs::remove_file(&temporary);
    match linked {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(cause) => {
            let advice =
                "create it before, or see that its folder exists, has room and is writable for this user";
            Err(FileError::new("make", path, advice, cause))
        }
    }
}

/// Removes a file, if there is one.
///
/// # Errors
///
/// The folder is read-only, or something else than a regular file is at the path.
pub fn remove(path: &Path) -> Result<(), FileError> {
    refuse_special(path)?;
    match std::fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            let advice = "remove it by hand, and see that its folder is writable for this user";
            Err(FileError::new("remove", path, advice, cause))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // A killed process may have left one: `create_new` would fail, and writing to it might follow a link.
    let _ = std::fs::remove_file(path);
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    // The umask has reduced the mode above.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    folder(path).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_whole_with_the_mode_and_leaves_nothing_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sub/ready");
        make_folder(&path).unwrap();
        for content in ["first, longer", "second"] {
            replace(&path, content.as_bytes(), 0o644).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn only_a_regular_file_is_replaced_or_removed() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("target"), "precious").unwrap();
        std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let mut special = vec![("link", "a symbolic link"), ("folder", "a folder"), ("pipe", "a pipe")];
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        // Only root can make one: a copy of /dev/null.
        let null = rustix::fs::makedev(1, 3);
        if mknodat(CWD, at("device"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), null).is_ok() {
            special.push(("device", "a device"));
        }
        for (name, kind) in special {
            let before = std::fs::symlink_metadata(at(name)).unwrap();
            for done in [replace(&at(name), b"new", 0o600), remove(&at(name))] {
                let error = anyhow::Error::from(done.unwrap_err());
                let said = error.to_string();
                assert!(said.contains(kind) && said.contains("configure "), "{said}");
                assert!(FileError::is_misplaced(&error), "{said}");
            }
            let after = std::fs::symlink_metadata(at(name)).unwrap();
            assert_eq!((after.ino(), after.mode()), (before.ino(), before.mode()), "{name}");
        }
        assert_eq!(std::fs::read_to_string(at("target")).unwrap(), "precious");
        std::fs::hard_link(at("target"), at("other")).unwrap();
        replace(&at("other"), b"new", 0o600).unwrap();
        remove(&at("other")).unwrap();
        assert_eq!(std::fs::read_to_string(at("target")).unwrap(), "precious");
    }

    #[test]
    fn a_file_is_made_where_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(create(&path, b"first", 0o600).unwrap());
        assert!(!create(&path, b"second", 0o600).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(create(Path::new("/nonexistent/token"), b"", 0o600).is_err());
    }

    #[test]
    fn a_failure_says_what_to_do() {
        let error = replace(Path::new("/nonexistent/ready"), b"", 0o644).unwrap_err().to_string();
        assert!(error.starts_with("cannot write /nonexistent/ready: No such file"), "{error}");
        assert!(error.contains("see that its folder exists"), "{error}");
    }
}
