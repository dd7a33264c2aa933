//! Texts of help and manual pages that no flag has: exit codes, variables, files.

/// Help of the program: its commands in groups, since clap has none for subcommands.
pub(super) const COMMANDS: &str = include_str!("help/commands.txt");
/// The end of the program's help.
pub(super) const PROGRAM: &str = include_str!("help/slotkeeper.txt");
/// The rest of the program's manual page.
const SHARED: &str = include_str!("help/shared.txt");
/// The end of the help of `run`.
pub(super) const RUN: &str = include_str!("help/run.txt");

/// What the manual page of a command has besides its flags; `slotkeeper` is the program.
pub(super) fn texts(command: &str) -> &'static [&'static str] {
    match command {
        "slotkeeper" => &[PROGRAM, SHARED],
        "run" => &[RUN],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::{Cli, shown};
    use crate::config;
    use crate::workload::SERVICE_MANAGER_VARIABLES;

    fn in_one_line(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The terms of the first section, or of all: what a line begins with after two spaces.
    fn terms(text: &str) -> impl Iterator<Item = &str> {
        let entries = text.lines().filter_map(|line| line.strip_prefix("  "));
        entries.filter(|entry| !entry.starts_with(' ')).filter_map(|entry| entry.split("  ").next())
    }

    #[test]
    fn every_variable_that_has_an_effect_is_documented_and_no_other() {
        let (variables, _) = SHARED.split_once("\nFiles:").unwrap();
        let documented: Vec<_> = terms(variables).collect();
        let mut main = Cli::command();
        main.build();
        let run = main.find_subcommand_mut("run").unwrap().render_long_help().to_string();
        let run = in_one_line(&run);
        for name in config::known_variables() {
            // The chart builds addresses from these; slotkeeper does not read them.
            let is_the_charts = matches!(name, "SLOTKEEPER_POD_IP" | "SLOTKEEPER_HOST_IP");
            let is_documented = documented.contains(&name) || run.contains(&format!("[env: {name}]"));
            assert!(is_documented || is_the_charts, "{name} is not documented");
        }
        let known = || config::known_variables().chain(SERVICE_MANAGER_VARIABLES);
        for name in documented {
            assert!(known().any(|known| known == name), "{name} has no effect");
        }
    }

    #[test]
    fn each_command_is_in_the_help_with_its_description_and_no_other() {
        let shown = shown();
        let mut listed: Vec<_> = terms(COMMANDS).collect();
        let mut commands: Vec<_> =
            shown.get_subcommands().map(clap::Command::get_name).chain(["help"]).collect();
        listed.sort_unstable();
        commands.sort_unstable();
        assert_eq!(listed, commands);
        let help = in_one_line(COMMANDS);
        for command in shown.get_subcommands() {
            let line = format!("{} {}", command.get_name(), command.get_about().unwrap());
            assert!(help.contains(&in_one_line(&line)), "help/commands.txt lacks: {line}");
        }
    }

    #[test]
    fn no_table_is_wider_than_a_terminal() {
        for text in [COMMANDS, PROGRAM, SHARED, RUN] {
            let widest = text.lines().map(str::len).max();
            assert!(widest <= Some(80), "{widest:?}: {text}");
        }
    }

    #[test]
    fn every_exit_code_is_documented() {
        use crate::exit::Exit;
        let codes: Vec<_> = terms(PROGRAM).map(|code| code.parse::<u8>().unwrap()).collect();
        let exits = [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::Unavailable,
            Exit::Timeout,
            Exit::Denied,
            Exit::Config,
            Exit::SlotLost,
        ];
        assert_eq!(codes, exits.map(Exit::code));
    }
}
