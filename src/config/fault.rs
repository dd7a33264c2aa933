//! Faults of a configuration, and their places.

use std::fmt;

use super::LogFormat;
use super::path::FieldPath;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A command line flag, such as `--http-addr`.
    Flag(&'static str),
    /// An environment variable.
    Variable(&'static str),
    /// A file.
    File {
        /// Its name as it was given.
        name: String,
        /// Line and column, each counted from 1; none for a fault of the whole file.
        at: Option<(usize, usize)>,
    },
    /// Nowhere: there is no file, and no flag or variable sets the value.
    Nowhere,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
            Self::File { name, at: None } => f.write_str(name),
            Self::File { name, at: Some((line, column)) } => write!(f, "{name}:{line}:{column}"),
            Self::Nowhere => f.write_str("configuration"),
        }
    }
}

/// One fault. Displays as `FILE:LINE:COLUMN: field: what is wrong; what to do`. A flag names its field itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where it was written.
    pub place: Place,
    /// The field; the root for a fault of the whole document.
    pub field: FieldPath,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, field, message } = self;
        if *field == FieldPath::root() || matches!(place, Place::Flag(_)) {
            write!(f, "{place}: {message}")
        } else {
            write!(f, "{place}: {field}: {message}")
        }
    }
}

/// All faults of a configuration, in the order of the file, one a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .list.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Faults {
    /// The faults.
    pub list: Vec<Fault>,
    /// The format of the log, as far as it could be read: the faults are reported in it.
    pub log_format: LogFormat,
}

impl Faults {
    /// Whether all of them are in values of flags.
    pub fn are_of_flags(&self) -> bool {
        self.list.iter().all(|fault| matches!(fault.place, Place::Flag(_)))
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self { list: vec![fault], log_format: LogFormat::default() }
    }
}
