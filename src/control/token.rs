//! The token for requests at a TCP address, and its file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::fs::OFlags;
use rustix::rand::GetRandomFlags;
use subtle::ConstantTimeEq;

use slotkeeper_consul::Secret;

use crate::files::{self, FileError};

/// The file's mode: a user who can read it can acquire slots.
const MODE: u32 = 0o600;
/// Mode bits of users who are neither the file's owner nor in its group.
const OTHERS: u32 = 0o007;
/// The largest file.
const MAX_TOKEN_FILE_BYTES: u64 = 4 * 1024;
/// The shortest token: a shorter one could be guessed.
const SHORTEST: usize = 16;

/// Reads the token from the file `path`. A missing file is created, with a new token that only its owner can read.
///
/// # Errors
///
/// The file can be neither created nor read, belongs to another user, is readable or writable for others, or holds no valid
/// token.
pub fn of_file(path: &Path) -> anyhow::Result<Secret> {
    files::make_folder(path)?;
    match open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let token = random().context("cannot create a token")?;
            if files::create(path, format!("{token}\n").as_bytes(), MODE)? {
                return Ok(Secret::new(token));
            }
            // Another agent that shares the file has created it meanwhile.
            read(path, open(path))
        }
        opened => read(path, opened),
    }
}

/// Compares in constant time, so that the duration does not show how much is right.
pub(super) fn is(token: &Secret, borne: &[u8]) -> bool {
    token.expose().as_bytes().ct_eq(borne).into()
}

fn read(path: &Path, opened: io::Result<File>) -> anyhow::Result<Secret> {
    let shown = path.display();
    let cannot = || format!("cannot read the token's file {shown}");
    let file = opened.with_context(cannot)?;
    let about = file.metadata().with_context(cannot)?;
    if !about.is_file() {
        return Err(FileError::misplaced(path, "it exists and is not a regular file").into());
    }
    let mode = about.permissions().mode() & 0o777;
    anyhow::ensure!(
        mode & OTHERS == 0,
        "other users may read or write the token's file {shown}, whose mode is {mode:03o}; chmod it to 600 or 640, and \
         change the token if it may have been read"
    );
    let owner = about.uid();
    anyhow::ensure!(
        owner == 0 || owner == rustix::process::geteuid().as_raw(),
        "the token's file {shown} belongs to user {owner}, who can use the token; chown it to root or to this user, \
         or choose another path"
    );
    let mut bytes = Vec::new();
    file.take(MAX_TOKEN_FILE_BYTES + 1).read_to_end(&mut bytes).with_context(cannot)?;
    anyhow::ensure!(
        bytes.len() as u64 <= MAX_TOKEN_FILE_BYTES,
        "{shown} has more than {MAX_TOKEN_FILE_BYTES} bytes; that is no token"
    );
    let token = bytes.trim_ascii();
    anyhow::ensure!(
        token.len() >= SHORTEST && token.iter().all(u8::is_ascii_graphic),
        "{shown} holds no token; write {SHORTEST} or more visible ASCII characters on one line, or remove the file \
         to have one created"
    );
    Ok(Secret::new(String::from_utf8_lossy(token)))
}

/// 256 random bits, in characters that are valid in a header.
fn random() -> io::Result<String> {
    let mut bits = [0; 32];
    let got = rustix::rand::getrandom(&mut bits, GetRandomFlags::empty())?;
    // The kernel returns so few bytes in one piece.
    if got < bits.len() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    Ok(URL_SAFE_NO_PAD.encode(bits))
}

/// Follows symbolic links, with which an orchestrator mounts secrets; does not block, such as for a pipe's other end.
fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn refused(path: &Path) -> String {
        format!("{:#}", of_file(path).unwrap_err())
    }

    fn write(path: &Path, content: &[u8], mode: u32) {
        fs::write(path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_missing_file_is_created_and_then_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sub/control.token");
        let made = of_file(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.len(), 44);
        assert!(text.ends_with('\n') && is(&made, text.trim().as_bytes()) && !is(&made, text.as_bytes()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing lies beside it");
        assert!(is(&of_file(&path).unwrap(), text.trim().as_bytes()));
        assert!(!format!("{made:?}").contains(text.trim()));
        let other = of_file(&folder.path().join("other")).unwrap();
        assert!(!is(&other, text.trim().as_bytes()));
    }

    #[test]
    fn a_file_must_be_closed_to_other_users() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for mode in [0o600, 0o640, 0o440, 0o660] {
            write(&path, b" 0123456789abcdef\n\n", mode);
            assert!(is(&of_file(&path).unwrap(), b"0123456789abcdef"), "{mode:o}");
        }
        for mode in [0o644, 0o602, 0o666, 0o601] {
            write(&path, b"0123456789abcdef\n", mode);
            let said = refused(&path);
            assert!(
                said.contains("other users may read or write") && said.contains("chmod it to 600"),
                "{mode:o}: {said}"
            );
            assert!(!said.contains("0123456789abcdef"), "{said}");
        }
    }

    #[test]
    fn a_mounted_secret_is_a_link_and_a_dangling_one_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        symlink(&target, &link).unwrap();
        assert!(refused(&link).contains("cannot read the token's file"));
        assert!(!target.exists());
        write(&target, b"0123456789abcdef", 0o600);
        assert!(is(&of_file(&link).unwrap(), b"0123456789abcdef"));
    }

    #[test]
    fn an_invalid_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for content in
            ["", "short", "two words that are long", "0123456789abcde\u{e9}", "0123456789\nabcdefghij"]
        {
            write(&path, content.as_bytes(), 0o600);
            assert!(refused(&path).contains("holds no token; write 16 or more"), "{content:?}");
        }
        write(&path, &[b'x'; 4097], 0o600);
        assert!(refused(&path).contains("more than 4096 bytes"));
        assert!(refused(folder.path()).contains("is not a regular file"));
    }
}
