//! Bounds of single values.

use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::findings::Findings;
use super::path::FieldPath;
use super::scalar::DurationString;
use crate::duration::show;

/// The maximum of durations that nothing else bounds.
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A duration within `bounds`.
pub(super) fn duration(
    written: Option<DurationString>,
    default: Duration,
    bounds: RangeInclusive<Duration>,
    field: &FieldPath,
    findings: &mut Findings,
) -> Duration {
    let duration = written.map_or(default, |DurationString(duration)| duration);
    if !bounds.contains(&duration) {
        let (min, max) = (show(*bounds.start()), show(*bounds.end()));
        findings.fault(field, format!("{} is out of bounds; write {min} to {max}", show(duration)));
    }
    duration
}

/// A whole number within `bounds`.
pub(super) fn number<T>(
    number: i64,
    bounds: RangeInclusive<T>,
    field: &FieldPath,
    findings: &mut Findings,
) -> Option<T>
where
    T: TryFrom<i64> + PartialOrd + std::fmt::Display,
{
    let inside = T::try_from(number).ok().filter(|number| bounds.contains(number));
    if inside.is_none() {
        let (min, max) = (bounds.start(), bounds.end());
        findings.fault(field, format!("{number} is out of bounds; write {min} to {max}"));
    }
    inside
}

/// A file's path.
pub(super) fn path(path: Option<PathBuf>, field: &FieldPath, findings: &mut Findings) -> Option<PathBuf> {
    let path = path?;
    if path.as_os_str().is_empty() {
        findings.fault(field, "is empty; write a path or remove the key");
    }
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        findings.fault(field, "has a NUL character, which a path cannot have; remove it");
    }
    Some(path)
}

/// The path of a file that slotkeeper writes, replaces and deletes. An empty one turns the file off.
pub(super) fn own_file(
    written: Option<PathBuf>,
    field: &FieldPath,
    findings: &mut Findings,
) -> Option<PathBuf> {
    let path = path(written.filter(|path| !path.as_os_str().is_empty()), field, findings)?;
    if let Err(message) = no_system_path(&path) {
        findings.fault(field, format!("{message}, or an empty text for no file"));
    }
    Some(path)
}

/// Refuses a path among devices and the kernel's own files. As root, replacing /dev/null by a file breaks the machine.
///
/// # Errors
///
/// The path lies below one of them. The text says what to do.
pub fn no_system_path(path: &Path) -> Result<(), String> {
    const SYSTEM: [&str; 3] = ["/dev", "/proc", "/sys"];
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(component),
        }
    }
    let below = SYSTEM.iter().find(|system| plain.starts_with(system) && !plain.starts_with("/dev/shm"));
    below.map_or(Ok(()), |system| {
        Err(format!("lies below {system}, where slotkeeper writes no file; write another path"))
    })
}

/// A text for a header, a query or a line: not empty, at most 256 bytes, no control characters.
pub(super) fn line(text: Option<String>, field: &FieldPath, findings: &mut Findings) -> Option<String> {
    const MAX_BYTES: usize = 256;
    let text = text?;
    if text.is_empty() {
        findings.fault(field, "is empty; write a text or remove the key");
    } else if text.len() > MAX_BYTES {
        findings.fault(field, format!("has {} bytes; write at most {MAX_BYTES}", text.len()));
    } else if text.contains(char::is_control) {
        findings.fault(field, "has control characters; remove them");
    }
    Some(text)
}

/// Several such texts.
pub(super) fn lines(texts: Option<Vec<String>>, field: &FieldPath, findings: &mut Findings) -> Vec<String> {
    let texts = texts.unwrap_or_default().into_iter().enumerate();
    texts.filter_map(|(index, text)| line(Some(text), &field.index(index), findings)).collect()
}
