//! The help of the program itself: its commands in groups, since clap has none for subcommands.

use std::fmt::Write as _;

use clap::Command;

use super::manual::wrap;

/// The commands, by what they are for.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Run work", &["agent", "run", "wait", "probe"]),
    ("Look", &["status", "list", "inspect", "sessions", "doctor"]),
    ("Change", &["set-limit", "evict", "prune", "destroy", "reload"]),
    ("Set up", &["check", "schema", "completions", "man", "install", "dev", "version", "help"]),
];
/// The column of the descriptions.
const COLUMN: usize = 15;

/// The program with its commands in groups.
pub(super) fn grouped(program: Command) -> Command {
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{}\nOptions:\n{{options}}{{after-help}}",
        groups(&program)
    );
    program.help_template(template)
}

fn groups(program: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "\n{heading}:");
        for name in names {
            let about = program.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            let about = about.unwrap_or_else(|| "Print the help of a command".to_owned());
            wrap(&format!("  {name}"), COLUMN, &about, &mut text);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group() {
        let program = crate::cli::shown();
        let mut listed: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut shown: Vec<_> = program.get_subcommands().map(Command::get_name).chain(["help"]).collect();
        listed.sort_unstable();
        shown.sort_unstable();
        assert_eq!(listed, shown);
    }
}
