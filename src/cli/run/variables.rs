//! The variables of `run`'s flags that no configuration key has.
//!
//! clap's `env` does not fit: it takes an empty variable for a value, lets a variable exclude a flag, names the flag in place of the
//! variable, and ends with 64.
//!
//! A flag wins over every variable, also over one for another flag that excludes it. A variable whose value does not fit the flags,
//! such as more slots than the limit, is an error. With `--config` the variables of PREFIX's flags have no effect, as the file has what they set.

use std::fmt::Display;
use std::time::Duration;

use super::Run;
use crate::cli::set_limit::number_of_slots;
use crate::config::boolean;
use crate::duration;
use crate::workload::RUN_VARIABLES;

/// The value of a variable; `None` if it is absent or empty.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads a variable of this process.
pub(super) fn of_process(name: &str) -> Option<String> {
    debug_assert!(RUN_VARIABLES.contains(&name), "{name} would reach the command");
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}

impl Run {
    /// Sets what no flag has set.
    ///
    /// # Errors
    ///
    /// The text for the user, if a value is wrong or two variables exclude each other.
    pub(super) fn take_variables(&mut self, variable: Lookup<'_>) -> Result<(), String> {
        fill(&mut self.kill_after, variable, "SLOTKEEPER_KILL_AFTER", duration::parse)?;
        fill(&mut self.stop_after, variable, "SLOTKEEPER_STOP_AFTER", duration::parse)?;
        switch(&mut self.shell, variable, "SLOTKEEPER_SHELL")?;
        if self.config.is_some() {
            return Ok(());
        }
        if !self.try_once && self.timeout.is_none() {
            fill(&mut self.timeout, variable, "SLOTKEEPER_TIMEOUT", duration::parse)?;
            switch(&mut self.try_once, variable, "SLOTKEEPER_TRY")?;
            if self.try_once && self.timeout.is_some_and(|timeout| timeout > Duration::ZERO) {
                return Err("SLOTKEEPER_TRY and SLOTKEEPER_TIMEOUT exclude each other; unset one".to_owned());
            }
        }
        if self.limit.is_none() && !self.lock {
            // Only a lock has a lock-delay.
            if self.lock_delay.is_none() {
                fill(&mut self.limit, variable, "SLOTKEEPER_LIMIT", number)?;
            }
            switch(&mut self.lock, variable, "SLOTKEEPER_LOCK")?;
            if self.lock && self.limit.is_some_and(|limit| limit > 1) {
                return Err(
                    "SLOTKEEPER_LOCK and SLOTKEEPER_LIMIT exclude each other, since a lock has one holder; unset one"
                        .to_owned(),
                );
            }
        }
        if self.is_semaphore() {
            fill(&mut self.slots, variable, "SLOTKEEPER_SLOTS", number)?;
            fill(&mut self.priority, variable, "SLOTKEEPER_PRIORITY", priority)?;
            fill(&mut self.format, variable, "SLOTKEEPER_FORMAT", str::parse)?;
            fill(&mut self.limit_policy, variable, "SLOTKEEPER_LIMIT_POLICY", str::parse)?;
            fill(&mut self.prune_delay, variable, "SLOTKEEPER_PRUNE_DELAY", duration::parse)?;
        }
        Ok(())
    }
}

fn number(text: &str) -> Result<u32, String> {
    number_of_slots(text).map_err(|error| quoted(text, &error))
}

fn priority(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| quoted(text, &format!("write a whole number from {} to {}", i32::MIN, i32::MAX)))
}

fn quoted(text: &str, error: &str) -> String {
    format!("`{}`: {error}", text.escape_debug())
}

/// Sets a value that no flag has set. The error names the value.
fn fill<T, E: Display>(
    value: &mut Option<T>,
    variable: Lookup<'_>,
    name: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<(), String> {
    if let (None, Some(text)) = (&value, variable(name)) {
        *value = Some(parse(&text).map_err(|error| format!("{name}: {error}"))?);
    }
    Ok(())
}

/// Turns a switch on.
fn switch(is_on: &mut bool, variable: Lookup<'_>, name: &str) -> Result<(), String> {
    let mut value = is_on.then_some(true);
    fill(&mut value, variable, name, |text| boolean(text).map_err(|error| quoted(text, error)))?;
    *is_on = value.unwrap_or_default();
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::config::known_variables;

    fn taken(line: &str, variables: &[(&str, &str)]) -> Result<Run, String> {
        let cli = Cli::try_parse_from(format!("slotkeeper run {line} -- true").split_whitespace());
        let Command::Run(mut run) = cli.expect("the line is valid").command else { panic!("no run: {line}") };
        let lookup = |name: &str| {
            variables.iter().find(|(found, _)| *found == name).map(|(_, value)| (*value).to_owned())
        };
        run.take_variables(&lookup).map(|()| *run)
    }

    #[test]
    fn a_variable_does_what_its_flag_does() {
        for (line, variables) in [
            ("p --limit 3", &[("SLOTKEEPER_LIMIT", "3")][..]),
            ("p --lock", &[("SLOTKEEPER_LOCK", "true")]),
            (
                "p -n 3 --slots 2 --priority -4 --format list --limit-policy set --prune-delay 20s",
                &[
                    ("SLOTKEEPER_LIMIT", "3"),
                    ("SLOTKEEPER_SLOTS", "2"),
                    ("SLOTKEEPER_PRIORITY", "-4"),
                    ("SLOTKEEPER_FORMAT", "list"),
                    ("SLOTKEEPER_LIMIT_POLICY", "set"),
                    ("SLOTKEEPER_PRUNE_DELAY", "20s"),
                ],
            ),
            ("p --try", &[("SLOTKEEPER_TRY", "1")]),
            ("p --timeout 10m", &[("SLOTKEEPER_TIMEOUT", "10m")]),
            (
                "p --kill-after 3s --stop-after 9s --shell",
                &[
                    ("SLOTKEEPER_KILL_AFTER", "3s"),
                    ("SLOTKEEPER_STOP_AFTER", "9s"),
                    ("SLOTKEEPER_SHELL", "true"),
                ],
            ),
        ] {
            let flags = taken(line, &[]).expect("there are no variables");
            let found = taken("p", variables).expect("the variables are valid");
            assert_eq!(format!("{found:?}"), format!("{flags:?}"));
        }
    }

    #[test]
    fn a_flag_wins_over_each_variable_that_excludes_it() {
        for (line, variable, value) in [
            ("p --lock", "SLOTKEEPER_LIMIT", "3"),
            ("p -n 3", "SLOTKEEPER_LOCK", "true"),
            ("p --lock-delay 5s", "SLOTKEEPER_LIMIT", "3"),
            ("p -n 3", "SLOTKEEPER_LIMIT", "4"),
            ("p --lock", "SLOTKEEPER_SLOTS", "2"),
            ("p", "SLOTKEEPER_PRIORITY", "2"),
            ("p --try", "SLOTKEEPER_TIMEOUT", "2s"),
            ("p --timeout 2s", "SLOTKEEPER_TRY", "true"),
            ("p --timeout 2s", "SLOTKEEPER_TIMEOUT", "never read"),
            ("--config f", "SLOTKEEPER_LIMIT", "3"),
            ("--config f", "SLOTKEEPER_TIMEOUT", "3s"),
            ("p", "SLOTKEEPER_LOCK", "false"),
        ] {
            let alone = taken(line, &[]).expect("there are no variables");
            let found = taken(line, &[(variable, value)]).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(format!("{found:?}"), format!("{alone:?}"), "{line} with {variable}");
        }
    }

    #[test]
    fn a_wrong_value_is_named_with_its_variable() {
        for (variables, expected) in [
            (&[("SLOTKEEPER_LIMIT", "many")][..], "SLOTKEEPER_LIMIT: `many`: write a whole number"),
            (&[("SLOTKEEPER_LOCK", "yes")], "SLOTKEEPER_LOCK: `yes`: "),
            (&[("SLOTKEEPER_TIMEOUT", "5")], "SLOTKEEPER_TIMEOUT: `5` has no unit"),
            (
                &[("SLOTKEEPER_TRY", "1"), ("SLOTKEEPER_TIMEOUT", "5s")],
                "SLOTKEEPER_TRY and SLOTKEEPER_TIMEOUT",
            ),
            (&[("SLOTKEEPER_LOCK", "1"), ("SLOTKEEPER_LIMIT", "5")], "SLOTKEEPER_LOCK and SLOTKEEPER_LIMIT"),
        ] {
            let error = taken("p", variables).expect_err("the variables are wrong");
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn each_flag_of_run_has_a_variable_in_its_help() {
        let shown = crate::cli::shown();
        let run = shown.find_subcommand("run").expect("the command exists");
        for argument in run.get_arguments() {
            let Some(long) = argument.get_long().filter(|long| !matches!(*long, "help" | "version")) else {
                continue;
            };
            let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
            let help = help.unwrap_or_default();
            let variable = help.split("[env: ").nth(1).and_then(|rest| rest.split([']', '=']).next());
            let variable = variable.unwrap_or_else(|| panic!("--{long} has no variable: {help}"));
            let known = known_variables().any(|known| known == variable);
            assert!(known, "{variable} of --{long} is not known");
        }
    }
}
