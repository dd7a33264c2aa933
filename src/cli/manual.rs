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
            ("0", "Done; of an agent, after everything was given back"),
            ("1", "Anything else, such as a drain that did not finish in time"),
            ("64", "The command line cannot be understood"),
            ("69", "Consul cannot be reached, and waiting for it was bounded"),
            ("75", "Timed out waiting for a slot"),
            ("77", "Consul denies it to the token, or hides from it what has to be known"),
            ("78", "The configuration is wrong, or Consul takes no key of the name that it has"),
            ("80", "The slot was lost"),
        ],
    },
    Section {
        heading: "ENVIRONMENT",
        entries: &[
            ("SLOTKEEPER_CONFIG", "The configuration file, in place of --config"),
            ("SLOTKEEPER_STOP_AFTER", "In place of --stop-after, for run"),
            ("SLOTKEEPER_TERMINATION_MESSAGE", "A file that agent, run and wait say in why they failed"),
            ("SLOTKEEPER_HTTP_LISTEN", "In place of http.listen; where the local agent is asked"),
            ("SLOTKEEPER_CONTROL_LISTEN", "In place of control.listen"),
            ("SLOTKEEPER_READINESS_FILE", "In place of readiness.file; empty for no file"),
            ("SLOTKEEPER_STATE_FILE", "In place of session.state_file; empty for no file"),
            ("SLOTKEEPER_DRAIN_TIMEOUT", "In place of drain.timeout"),
            ("SLOTKEEPER_WORKLOAD_VOLUME", "In place of workload.volume"),
            ("SLOTKEEPER_DRAIN_RELEASE", "In place of drain.release: at_once or after_workload"),
            ("SLOTKEEPER_SESSION_NAME", "In place of session.name"),
            ("SLOTKEEPER_SESSION_TTL", "In place of session.ttl"),
            ("SLOTKEEPER_LOG_FORMAT", "In place of log.format: text or json"),
            ("SLOTKEEPER_LOG_LEVEL", "In place of log.level: error, warn, info, debug, trace"),
            ("SLOTKEEPER_CONSUL_MAX_WAIT", "In place of consul.max_wait"),
            ("SLOTKEEPER_CONSUL_LOGIN_AUTH_METHOD", "In place of consul.login.auth_method"),
            ("SLOTKEEPER_CONSUL_LOGIN_BEARER_TOKEN_FILE", "In place of consul.login.bearer_token_file"),
            ("SLOTKEEPER_CONSUL_LOGIN_META", "In place of consul.login.meta: key=value,key=value"),
            ("SLOTKEEPER_POD_NAME", "The pod, as others are to see us; so are the next two"),
            ("SLOTKEEPER_POD_NAMESPACE", "The pod's namespace"),
            ("SLOTKEEPER_NODE_NAME", "The node's name"),
            (
                "CONSUL_HTTP_ADDR",
                "Consul's address, or several with commas; else this and the following as for consul",
            ),
            ("CONSUL_HTTP_TOKEN", "The ACL token"),
            ("CONSUL_HTTP_TOKEN_FILE", "A file with the ACL token"),
            ("CONSUL_HTTP_SSL", "Whether to use TLS"),
            ("CONSUL_HTTP_SSL_VERIFY", "Whether to check Consul's certificate"),
            ("CONSUL_CACERT", "A file with the certificate authorities"),
            ("CONSUL_CAPATH", "A folder with the certificate authorities"),
            ("CONSUL_CLIENT_CERT", "A file with our certificate"),
            ("CONSUL_CLIENT_KEY", "A file with its key"),
            ("CONSUL_TLS_SERVER_NAME", "The name that Consul's certificate has to have"),
            ("CONSUL_NAMESPACE", "The namespace (Enterprise)"),
            ("CONSUL_PARTITION", "The admin partition (Enterprise)"),
        ],
    },
    Section {
        heading: "FILES",
        entries: &[
            ("the configuration (--config)", "YAML; slotkeeper check says what is wrong with it"),
            ("readiness.file", "There while all required slots are held; JSON"),
            ("session.state_file", "By which a restarted agent takes its own slots up again"),
            (
                "a .lock beside each of both",
                "Keeps two agents from using the same one, and tells slotkeeper reload which it is; it stays",
            ),
            ("control.listen as unix:PATH", "The socket at which clients take slots on demand"),
        ],
    },
];

/// Sections of `slotkeeper run`.
const RUN: &[Section] = &[
    Section {
        heading: "EXIT STATUS",
        entries: &[
            ("the command's own", "Where it has run; 128 and the number of the signal that ended it"),
            ("126, 127", "The command is none that can be run; it is not there"),
            ("75", "No slot in time (--try, --timeout)"),
            ("69", "No answer from Consul in that time"),
            ("80", "The slot was lost, and the command was stopped"),
            ("128 + N", "Signal N ended the wait"),
            ("64, 78, 1", "Wrong usage; wrong configuration; anything else"),
        ],
    },
    Section {
        heading: "ENVIRONMENT OF THE COMMAND",
        entries: &[
            (
                "SLOTKEEPER_FENCING_TOKEN",
                "Grows from holder to holder, so that a resource can refuse old ones",
            ),
            ("SLOTKEEPER_SLOT", "The slot's number, from 0 and below the limit; of a lock 0"),
            ("SLOTKEEPER_LOCK_INDEX", "Of a lock, its LockIndex"),
            (
                "SLOTKEEPER_FENCING_TOKEN_NAME, SLOTKEEPER_SLOT_NAME",
                "The same of each semaphore, NAME in capitals; without it they are the first one's",
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

/// The sections as the end of `--help`.
pub(super) fn help(command: &str) -> String {
    let mut text = String::new();
    for section in sections(command) {
        let heading = section.heading;
        let (first, rest) = heading.split_at(1);
        // Writing to a string never fails.
        let _ = writeln!(text, "{first}{}:", rest.to_lowercase());
        let width = section.entries.iter().map(|(term, _)| term.len()).max().unwrap_or(0);
        for (term, meaning) in section.entries {
            let _ = writeln!(text, "  {term:width$}  {meaning}");
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn every_variable_that_counts_is_told_of_and_no_other() {
        let told: Vec<_> = MAIN[1].entries.iter().map(|(name, _)| *name).collect();
        for name in config::known_variables() {
            // The chart builds addresses from these; slotkeeper does not read them.
            let is_the_charts = matches!(name, "SLOTKEEPER_POD_IP" | "SLOTKEEPER_HOST_IP");
            assert!(told.contains(&name) || is_the_charts, "{name} is not told of");
        }
        for name in told {
            assert!(config::known_variables().any(|known| known == name), "{name} has no effect");
        }
    }

    #[test]
    fn every_exit_code_is_told_of() {
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
