//! Kinds of values: what a value is read as, or what is wrong with it and what to write instead.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde_yaml::{Mapping, Value};

use crate::duration::{self, show};
use slotkeeper_consul::Secret;

/// A value that was read, or the fault.
pub(super) type Read<T> = Result<T, String>;

/// The maximum of durations that nothing else bounds.
pub(super) const DAY: Duration = seconds(24 * 60 * 60);

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The fault of a value of another type.
pub(super) fn expected(value: &Value, what: &str) -> String {
    let found = match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => format!("boolean `{value}`"),
        Value::Number(value) if value.is_f64() => format!("number `{value}`"),
        Value::Number(value) => format!("integer `{value}`"),
        Value::String(value) => format!("string {value:?}"),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) | Value::Tagged(_) => "a mapping".to_owned(),
    };
    format!("found {found}, expected {what}")
}

pub(super) fn mapping(value: &Value) -> Read<&Mapping> {
    value.as_mapping().ok_or_else(|| expected(value, "a mapping"))
}

/// A list of at most `max` elements. `what`: how a fault of the type describes it.
pub(super) fn list(what: &str, max: usize) -> impl Fn(&Value) -> Read<&Vec<Value>> {
    move |value| {
        let elements = value.as_sequence().ok_or_else(|| expected(value, what))?;
        let count = elements.len();
        if count > max { Err(too_many(count, max)) } else { Ok(elements) }
    }
}

pub(super) fn too_many(count: usize, max: usize) -> String {
    format!("has {count} entries; write at most {max}")
}

pub(super) fn flag(value: &Value) -> Read<bool> {
    value.as_bool().ok_or_else(|| expected(value, "true or false"))
}

pub(super) fn text(value: &Value) -> Read<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| expected(value, "a string"))
}

/// A text; also a bare number, for a better fault than a wrong type.
pub(super) fn text_or_number(value: &Value, what: &str) -> Read<String> {
    let number = value.as_u64().map(|number| number.to_string());
    number.or(value.as_str().map(str::to_owned)).ok_or_else(|| expected(value, what))
}

/// A text for a header, a query or a line: not empty, at most 256 bytes, no control characters.
pub(super) fn line(value: &Value) -> Read<String> {
    const MAX_BYTES: usize = 256;
    let text = text(value)?;
    if text.is_empty() {
        Err("is empty; write a text or remove the key".to_owned())
    } else if text.len() > MAX_BYTES {
        Err(format!("has {} bytes; write at most {MAX_BYTES}", text.len()))
    } else if text.contains(char::is_control) {
        Err("has control characters; remove them".to_owned())
    } else {
        Ok(text)
    }
}

/// An ACL token. No fault shows it, also where YAML takes it for a number.
pub(super) fn secret(value: &Value) -> Read<Secret> {
    match value {
        Value::String(text) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(Secret::new(text.as_str()))
        }
        Value::String(_) => {
            Err("is empty or has characters that an HTTP header cannot carry; write the token alone"
                .to_owned())
        }
        Value::Number(_) => Err("reads as a number; write the token in quotes".to_owned()),
        Value::Null | Value::Bool(_) | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => {
            Err(expected(value, "a token in quotes"))
        }
    }
}

/// A whole number within `bounds`.
pub(super) fn number<T>(bounds: RangeInclusive<T>) -> impl Fn(&Value) -> Read<T>
where
    T: TryFrom<i128> + PartialOrd + Display,
{
    move |value| {
        let number = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
        let number = number.ok_or_else(|| expected(value, "a whole number"))?;
        let inside = T::try_from(number).ok().filter(|number| bounds.contains(number));
        inside
            .ok_or_else(|| format!("{number} is out of bounds; write {} to {}", bounds.start(), bounds.end()))
    }
}

/// A duration within `bounds`.
pub(super) fn duration(bounds: RangeInclusive<Duration>) -> impl Fn(&Value) -> Read<Duration> {
    move |value| {
        let text = text_or_number(value, "a duration such as 30s")?;
        let duration = duration::parse(&text).map_err(|error| error.to_string())?;
        if bounds.contains(&duration) {
            return Ok(duration);
        }
        let (min, max) = (show(*bounds.start()), show(*bounds.end()));
        Err(format!("{} is out of bounds; write {min} to {max}", show(duration)))
    }
}

/// A bound on a wait; none: for ever.
pub(super) fn wait(value: &Value) -> Read<Option<Duration>> {
    let text = text_or_number(value, "`forever` or a duration such as 30s")?;
    if text == "forever" {
        return Ok(None);
    }
    duration::parse(&text).map(Some).map_err(|error| match error {
        duration::Error::Malformed(_) => format!("{error}, or `forever`"),
        duration::Error::NoUnit(_) | duration::Error::TooLong(_) => error.to_string(),
    })
}

/// One of several names.
pub(super) fn choice<T: Copy>(choices: &[(&str, T)]) -> impl Fn(&Value) -> Read<T> {
    move |value| {
        let text = text(value)?;
        let chosen = choices.iter().find(|(name, _)| *name == text).map(|(_, chosen)| *chosen);
        chosen.ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!("`{name}`")).collect();
            format!("unknown value `{text}`, expected {}", names.join(" or "))
        })
    }
}

/// A file's path.
pub(super) fn path(value: &Value) -> Read<PathBuf> {
    let path = value.as_str().ok_or_else(|| expected(value, "a path"))?;
    if path.is_empty() {
        Err("is empty; write a path or remove the key".to_owned())
    } else if path.contains('\0') {
        Err("has a NUL character, which a path cannot have; remove it".to_owned())
    } else {
        Ok(PathBuf::from(path))
    }
}

/// The path of a file that slotkeeper writes, replaces and deletes. An empty one turns the file off.
pub(super) fn own_file(value: &Value) -> Read<Option<PathBuf>> {
    if value.as_str() == Some("") {
        return Ok(None);
    }
    let path = path(value)?;
    no_system_path(&path).map_err(|message| format!("{message}, or an empty text for no file"))?;
    Ok(Some(path))
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
