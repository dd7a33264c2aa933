//! Habits of `consul lock` and of other programs: the command line that was meant in place of one that was refused.

use std::ffi::OsString;

use clap::Parser as _;

use super::Cli;
use crate::workload::exec;

/// Flags of `consul lock`, and those of slotkeeper in their place; none if slotkeeper needs no such flag.
const CONSUL_FLAGS: &[(&str, Option<&str>)] = &[
    ("n", Some("-n")),
    ("try", Some("--timeout")),
    ("monitor-retry", None),
    ("child-exit-code", None),
    ("pass-stdin", None),
    ("stale", None),
];
/// Flags without a value.
const SWITCHES: &[&str] =
    &["lock", "shell", "verbose", "quiet", "dev", "child-exit-code", "pass-stdin", "stale"];

/// The command line that was probably meant by the arguments `words` of the program, if it is a valid one.
pub(super) fn corrected(words: &[OsString]) -> Option<String> {
    let words: Option<Vec<_>> = words.iter().map(|word| word.to_str()).collect();
    let words = words?;
    let meant = match words.split_first()? {
        (&"run" | &"lock", rest) => run(rest)?,
        (&"agent", rest) => agent(rest)?,
        _ => return None,
    };
    let is_valid =
        Cli::try_parse_from(std::iter::once("slotkeeper").chain(meant.iter().map(String::as_str))).is_ok();
    (is_valid && meant != words).then(|| format!("slotkeeper {}", shell_line(&meant)))
}

/// A command of one word with spaces, which is not the name of a program: `consul lock` passes it to a shell.
pub(super) fn is_shell_line(command: &[OsString]) -> bool {
    let [word] = command else { return false };
    let has_spaces = word.to_string_lossy().trim().contains(char::is_whitespace);
    has_spaces && exec::foreseen_failure(word).is_some_and(|(code, _)| code == exec::NOT_FOUND)
}

/// `consul lock [options] PREFIX CMD…`, in the words of `run`.
fn run(words: &[&str]) -> Option<Vec<String>> {
    let mut flags = Vec::new();
    let mut others = Vec::new();
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        if word == "--" {
            others.extend(rest.by_ref());
        } else if let Some(flag) = word.strip_prefix('-').filter(|flag| !flag.is_empty()) {
            let flag = flag.trim_start_matches('-');
            let (name, mut value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, None),
            };
            let is_switch = SWITCHES.contains(&name) || word == "--try";
            if value.is_none() && !is_switch && name != "v" {
                value = Some(rest.next()?);
            }
            let own = CONSUL_FLAGS.iter().find(|(consuls, _)| *consuls == name);
            match (own, value) {
                _ if word == "--try" || (name == "shell" && value.is_none()) => flags.push(word.to_owned()),
                (Some((_, None)), _) => {}
                (Some((_, Some(own))), Some(value)) => flags.extend([(*own).to_owned(), value.to_owned()]),
                // A shell is the default of `consul lock`, and not of `run`.
                (None, Some("false" | "true")) if name == "shell" => {}
                (_, Some(value)) => flags.extend([format!("--{name}"), value.to_owned()]),
                (_, None) if name == "v" => flags.push("-v".to_owned()),
                (_, None) => flags.push(format!("--{name}")),
            }
        } else {
            others.push(word);
            // What follows the prefix and a word of the command belongs to the command.
            if others.len() > 1 {
                others.extend(rest.by_ref());
            }
        }
    }
    let (prefix, command) = others.split_first()?;
    if let [line] = command
        && is_shell_line(&[line.into()])
        && !flags.iter().any(|flag| flag == "--shell")
    {
        flags.push("--shell".to_owned());
    }
    let head = ["run", prefix].map(str::to_owned).into_iter();
    Some(
        head.chain(flags)
            .chain(["--".to_owned()])
            .chain(command.iter().map(|word| (*word).to_owned()))
            .collect(),
    )
}

/// `agent FILE`.
fn agent(words: &[&str]) -> Option<Vec<String>> {
    let at = words.iter().position(|word| !word.starts_with('-'))?;
    let mut meant: Vec<_> =
        std::iter::once("agent").chain(words.iter().copied()).map(str::to_owned).collect();
    meant.insert(at + 1, "--config".to_owned());
    Some(meant)
}

/// The words as a line for a shell.
fn shell_line(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = |word: &String| match word.as_str() {
        "" => "''".to_owned(),
        plain if plain.chars().all(is_plain) => plain.to_owned(),
        other => format!("'{}'", other.replace('\'', r"'\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(line: &[&str]) -> Option<String> {
        corrected(&line.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_command_line_of_consul_lock_is_corrected() {
        for (line, expected) in [
            (&["run", "service/a", "-n", "1", "ls", "-l"][..], "slotkeeper run service/a -n 1 -- ls -l"),
            (
                &["run", "-n", "2", "service/a", "echo hi"],
                "slotkeeper run service/a -n 2 --shell -- 'echo hi'",
            ),
            (&["run", "-n=2", "service/a", "ls"], "slotkeeper run service/a -n 2 -- ls"),
            (
                &["run", "service/a", "-n", "1", "-timeout", "3s", "--", "ls"],
                "slotkeeper run service/a -n 1 --timeout 3s -- ls",
            ),
            (&["run", "-try=10s", "service/a", "ls"], "slotkeeper run service/a --timeout 10s -- ls"),
            (&["run", "service/a", "ls"], "slotkeeper run service/a -- ls"),
            (
                &["run", "-child-exit-code", "-pass-stdin", "-n=2", "service/a", "./import", "all"],
                "slotkeeper run service/a -n 2 -- ./import all",
            ),
            (
                &["run", "-shell=false", "-monitor-retry=3", "service/a", "ls"],
                "slotkeeper run service/a -- ls",
            ),
            (
                &["run", "-verbose", "-http-addr=consul:8500", "service/a", "it's"],
                r"slotkeeper run service/a --verbose --http-addr consul:8500 -- 'it'\''s'",
            ),
            (
                &["run", "service/a", "-n", "1", "--", "echo hi"],
                "slotkeeper run service/a -n 1 --shell -- 'echo hi'",
            ),
            (&["lock", "-n", "2", "service/a", "ls"], "slotkeeper run service/a -n 2 -- ls"),
            (&["agent", "slotkeeper.yaml"], "slotkeeper agent --config slotkeeper.yaml"),
            (&["agent", "--dev", "slotkeeper.yaml"], "slotkeeper agent --dev --config slotkeeper.yaml"),
        ] {
            assert_eq!(meant(line).as_deref(), Some(expected), "{line:?}");
        }
    }

    #[test]
    fn a_line_that_is_valid_or_beyond_repair_has_no_correction() {
        for line in [
            &["run", "service/a", "-n", "1", "--", "ls"][..],
            &["run", "service/a", "-n", "five", "--", "ls"],
            &["run", "service/a"],
            &["run"],
            &["status", "x"],
            &[],
        ] {
            assert_eq!(meant(line), None, "{line:?}");
        }
    }
}
