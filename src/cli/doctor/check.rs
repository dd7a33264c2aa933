//! The result of one check: a line of the table, an entry of the JSON.

use std::fmt::Display;

use serde::Serialize;

use super::super::table::{Layout, always, table};
use super::super::{Exit, exit_of, window};
use crate::escape::escape_control_chars;
use crate::operator::Error;
use crate::schema_version::SchemaVersion;
use slotkeeper_semaphore::Failure;

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// `ok`, `warn` or `fail`.
    verdict: &'static str,
    /// Of a job that does not run.
    #[serde(skip)]
    exit: Option<Exit>,
    /// What was checked, such as `session`, or a key of the configuration.
    name: String,
    /// What was found and, unless it is `ok`, what to do.
    message: String,
}

impl Check {
    pub(super) fn new(name: &str, found: Found) -> Self {
        let (verdict, exit, message) = match found {
            Ok(text) => ("ok", None, text),
            Err((None, why)) => ("warn", None, why),
            Err((Some(exit), why)) => ("fail", Some(exit), why),
        };
        Self { verdict, name: name.to_owned(), exit, message }
    }
}

/// The exit code if the job does not run; none if it runs, but not as expected. And what to do.
pub(super) type Trouble = (Option<Exit>, String);
/// What is fine, or not.
pub(super) type Found = Result<String, Trouble>;

pub(super) fn warn<T>(why: impl Display) -> Result<T, Trouble> {
    Err((None, why.to_string()))
}

pub(super) fn fail<T>(exit: Exit, why: impl Display) -> Result<T, Trouble> {
    Err((Some(exit), why.to_string()))
}

/// A request that failed, with the exit code that it has for other commands.
pub(super) fn failed<T>(failure: Failure) -> Result<T, Trouble> {
    let error = anyhow::Error::from(Error::Failed(failure));
    fail(exit_of(&error), &error)
}

/// The exit code: that of the first check that failed.
pub(super) fn exit(checks: &[Check]) -> Exit {
    checks.iter().find_map(|check| check.exit).unwrap_or(Exit::Done)
}

/// All checks, in the order of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema_version: SchemaVersion,
    /// The exit code.
    exit_code: u8,
    checks: Vec<Check>,
}

impl Report {
    pub(super) fn of(checks: Vec<Check>) -> Self {
        Self { schema_version: SchemaVersion::default(), exit_code: exit(&checks).code(), checks }
    }

    /// The table. Long lines are not cut, since their ends say what to do.
    pub(super) fn table(&self) -> String {
        let layout = Layout { wide: false, short_ids: false, headers: false, columns: window::ENDLESS };
        let plain = |text: &str| escape_control_chars(&text.replace('\n', " "));
        let columns = [
            always("", |check: &Check| check.verdict.to_uppercase()),
            always("", |check: &Check| plain(&check.name)),
            always("", |check: &Check| plain(&check.message)),
        ];
        table(&columns, &self.checks, layout).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_gives_the_exit_code_and_text_from_outside_stays_in_its_line() {
        let checks = vec![
            Check::new("address http://c:8500", Ok("leader x".into())),
            Check::new("agent", warn("called \"n\u{1b}[2J\n1\"")),
            Check::new("session", fail(Exit::Denied, "no")),
            Check::new("hooks.on_lost", fail(Exit::Config, "gone")),
        ];
        assert_eq!((exit(&checks), exit(&checks[..2])), (Exit::Denied, Exit::Done));
        let report = Report::of(checks);
        assert_eq!(
            report.table(),
            "OK    address http://c:8500  leader x\n\
             WARN  agent                  called \"n\\u001b[2J 1\"\n\
             FAIL  session                no\n\
             FAIL  hooks.on_lost          gone"
        );
        assert_eq!(serde_json::to_value(report).unwrap()["checks"][2]["verdict"], "fail");
    }
}
