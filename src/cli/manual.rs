//! Reference of the commands besides their flags: exit codes, variables, files. `--help` ends with it, and the manual pages have it
//! as sections.

use std::fmt::Write as _;

/// A section of the reference.
#[derive(Debug)]
pub(super) struct Section {
    /// Its heading in manual pages.
    pub(super) heading: &'static str,
    /// Terms with their meanings.
    pub(super) entries: &'static [(&'static str, &'static str)],
}

/// Sections of slotkeeper as a whole.
const MAIN: &[Section] = &[
    Section {
        heading: "EXIT STATUS",
        entries: &[
            ("0", "Done; for an agent, after everything was released"),
            ("1", "Any other failure, such as a drain that timed out"),
            ("64", "The command line is invalid"),
            (
                "69",
                "Consul is unreachable, and the wait had a limit; another server answers; for wait, no agent answers",
            ),
            ("75", "Timed out waiting for a slot"),
            ("77", "Consul denies the request to the token, or hides keys or sessions that are needed"),
            (
                "78",
                "The configuration is invalid, or Consul does not know its datacenter or node; or a key of another kind, without a holder, is in the way",
            ),
            ("80", "The slot was lost"),
        ],
    },
    Section {
        heading: "ENVIRONMENT",
        entries: &[
            ("SLOTKEEPER_CONFIG", "The configuration file, in place of --config"),
            (
                "SLOTKEEPER_LIMIT",
                "In place of --limit, for run, whose help names the variables of its other flags; its command inherits none",
            ),
            ("SLOTKEEPER_TERMINATION_MESSAGE", "File for the reason of a failure of agent, run or wait"),
            (
                "NOTIFY_SOCKET",
                "The service manager's socket, for agent and run: they report readiness and their position in the queue",
            ),
            ("WATCHDOG_USEC", "The time within which they report to it that they make progress"),
            ("SLOTKEEPER_HTTP_LISTEN", "In place of http.listen; also the address of the local agent"),
            ("SLOTKEEPER_CONTROL_LISTEN", "In place of control.listen"),
            ("SLOTKEEPER_READINESS_FILE", "In place of readiness.file; empty for no file"),
            ("SLOTKEEPER_STATE_FILE", "In place of session.state_file; empty for no file"),
            ("SLOTKEEPER_DRAIN_TIMEOUT", "In place of drain.timeout"),
            ("SLOTKEEPER_WORKLOAD_VOLUME", "In place of workload.volume"),
            ("SLOTKEEPER_DRAIN_RELEASE", "In place of drain.release: at_once or after_workload"),
            ("SLOTKEEPER_SESSION_NAME", "In place of session.name"),
            ("SLOTKEEPER_SESSION_TTL", "In place of session.ttl, and of --ttl"),
            ("SLOTKEEPER_SESSION_NODE", "In place of session.node, and of --node"),
            ("SLOTKEEPER_SESSION_LOCK_DELAY", "In place of session.lock_delay, and of --lock-delay"),
            ("SLOTKEEPER_LOG_FORMAT", "In place of log.format: text or json"),
            ("SLOTKEEPER_LOG_LEVEL", "In place of log.level: error, warn, info, debug, trace"),
            ("SLOTKEEPER_CONSUL_LOGIN_AUTH_METHOD", "In place of consul.login.auth_method"),
            ("SLOTKEEPER_CONSUL_LOGIN_BEARER_TOKEN_FILE", "In place of consul.login.bearer_token_file"),
            ("SLOTKEEPER_CONSUL_LOGIN_META", "In place of consul.login.meta: key=value,key=value"),
            (
                "SLOTKEEPER_NAME",
                "The job's name, shown to other participants like the next three; for run in place of --name",
            ),
            ("SLOTKEEPER_POD_NAME", "The pod's name"),
            ("SLOTKEEPER_POD_NAMESPACE", "The pod's namespace"),
            ("SLOTKEEPER_NODE_NAME", "The node's name"),
            (
                "CONSUL_HTTP_ADDR",
                "Consul's address, or several with commas; this and those that the help of flags names are as for consul",
            ),
            ("CONSUL_HTTP_SSL", "Whether to use TLS"),
            ("CONSUL_HTTP_SSL_VERIFY", "Whether to check Consul's certificate"),
        ],
    },
    Section {
        heading: "FILES",
        entries: &[
            ("the configuration (--config)", "YAML; slotkeeper check reports its faults"),
            ("readiness.file", "Exists while all required slots are held; JSON"),
            ("session.state_file", "With it, a restarted agent resumes its slots"),
            (
                "a .lock beside each of them",
                "Prevents two agents from using the same file, and identifies the agent for slotkeeper reload; never removed",
            ),
            ("control.listen as unix:PATH", "The socket at which clients acquire slots on demand"),
        ],
    },
];

/// Sections of `slotkeeper run`.
const RUN: &[Section] = &[
    Section {
        heading: "EXAMPLES",
        entries: &[
            (
                "slotkeeper run service/backup -n 2 -- ./backup --full",
                "Run ./backup on one of two slots, after a wait for one",
            ),
            (
                "slotkeeper run service/report --try --shell -- 'make report | mail ops'",
                "Run a line of the shell under a lock, or exit with 75 if another job has it",
            ),
        ],
    },
    Section {
        heading: "EXIT STATUS",
        entries: &[
            ("the command's own", "If it has run; 128 and the number of the signal that ended it"),
            ("126, 127", "The command is not executable; it does not exist"),
            ("75", "Timed out waiting for a slot (--try, --timeout)"),
            ("69", "No response from Consul in that time; at once, if another server answers"),
            ("77", "Consul does not know the token, or the token lacks a right"),
            ("80", "The slot was lost, and the command was stopped"),
            ("128 + N", "Signal N ended the wait"),
            ("78", "The configuration is invalid, or a key without a holder is of another kind"),
            ("64, 1", "Invalid usage; any other failure"),
        ],
    },
    Section {
        heading: "ENVIRONMENT OF THE COMMAND",
        entries: &[
            (
                "SLOTKEEPER_FENCING_TOKEN",
                "Increases from holder to holder, so that a resource can reject former holders",
            ),
            ("SLOTKEEPER_SLOT", "The slot's index, from 0 and below the limit; 0 for a lock"),
            ("SLOTKEEPER_LOCK_INDEX", "For a lock, its LockIndex"),
            (
                "SLOTKEEPER_FENCING_TOKEN_NAME, SLOTKEEPER_SLOT_NAME",
                "The same per semaphore, with NAME in capitals; without NAME, those of the first one",
            ),
            ("SLOTKEEPER_SESSION", "The session in Consul"),
            ("CONSUL_LOCK_HELD", "true, as under consul lock"),
        ],
    },
];

/// The sections of a command; `slotkeeper` is the program as a whole.
pub(super) fn sections(command: &str) -> &'static [Section] {
    match command {
        "slotkeeper" => MAIN,
        "run" => RUN,
        _ => &[],
    }
}

/// Columns of a terminal for which the tables are made.
const MAX_COLUMNS: usize = 80;
/// A longer term stands on a line of its own.
const MAX_TERM: usize = 17;

/// Writes a meaning from `column` on, after `start`.
pub(super) fn wrap(start: &str, column: usize, meaning: &str, text: &mut String) {
    let mut line = format!("{start:column$}");
    let mut is_empty = true;
    for word in meaning.split(' ') {
        if !is_empty && line.len() + 1 + word.len() > MAX_COLUMNS {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(column);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(text, "{line}");
}

/// The sections as the end of `--help`. Of the program as a whole these are the exit codes alone: the manual page has the rest.
pub(super) fn help(command: &str) -> String {
    let is_main = command == "slotkeeper";
    let mut text = String::new();
    for section in sections(command).iter().take(if is_main { 1 } else { usize::MAX }) {
        let heading = section.heading;
        let (first, rest) = heading.split_at(1);
        // Writing to a string never fails.
        let _ = writeln!(text, "{first}{}:", rest.to_lowercase());
        let width = section.entries.iter().map(|(term, _)| term.len()).max().unwrap_or(0);
        for (term, meaning) in section.entries {
            if width > MAX_TERM {
                // As clap does with long flags.
                let _ = writeln!(text, "  {term}");
                wrap("", 10, meaning, &mut text);
            } else {
                wrap(&format!("  {term}"), width + 4, meaning, &mut text);
            }
        }
        text.push('\n');
    }
    if is_main {
        text.push_str("`slotkeeper COMMAND --help` has the flags of a command. `slotkeeper man` has the\nvariables and files.");
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;
    use crate::config;
    use crate::workload::SERVICE_MANAGER_VARIABLES;

    #[test]
    fn every_variable_that_has_an_effect_is_documented_and_no_other() {
        let documented: Vec<_> = MAIN[1].entries.iter().map(|(name, _)| *name).collect();
        let mut main = Cli::command();
        main.build();
        let run = main.find_subcommand_mut("run").unwrap().render_long_help().to_string();
        let run = run.split_whitespace().collect::<Vec<_>>().join(" ");
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
    fn no_table_is_wider_than_a_terminal() {
        for command in ["slotkeeper", "run"] {
            let widest = help(command).lines().map(str::len).max();
            assert!(widest <= Some(MAX_COLUMNS), "{command}: {widest:?}");
        }
    }

    #[test]
    fn every_exit_code_is_documented() {
        use crate::exit::Exit;
        let codes: Vec<_> = MAIN[0].entries.iter().map(|(code, _)| code.parse::<u8>().unwrap()).collect();
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
