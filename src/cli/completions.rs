//! `slotkeeper completions`: prints shell completions.

use std::io::{self, Write};

use clap::Args;
use clap_complete::Shell;

use super::{Exit, shown};

/// Has bash ask `slotkeeper complete` first. The function of the generated script knows the flags.
const BASH: &str = r#"
_slotkeeper_with_consul() {
    local -a offers
    mapfile -t offers < <("$1" complete -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2> /dev/null)
    if ((${#offers[@]})); then COMPREPLY=("${offers[@]}"); else _slotkeeper "$@"; fi
}
if [[ ${BASH_VERSINFO[0]} -ge 4 ]]; then
    complete -F _slotkeeper_with_consul -o bashdefault -o default slotkeeper
fi
"#;

/// The same for fish, which adds the offers to others.
const FISH: &str = r#"
function __slotkeeper_offers
    slotkeeper complete -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token --cut-at-cursor) 2>/dev/null
end
complete -c slotkeeper -n "not __fish_slotkeeper_needs_command" -a "(__slotkeeper_offers)"
"#;

/// The same for zsh.
const ZSH: &str = r#"
_slotkeeper_offers() {
    local -a offers
    offers=("${(@f)$(slotkeeper complete -- "${(@Q)slotkeeper_words}" 2> /dev/null)}")
    offers=(${offers:#})
    if (( $#offers )); then compadd -a offers; else _default; fi
}
"#;

/// Keeps the words of the line: the functions of zsh, which call those for arguments, replace them by a part.
const ZSH_WORDS: &str = r#"_slotkeeper() {
    local -a slotkeeper_words=("${(@)words[1,CURRENT]}")"#;

/// Print shell completions.
///
/// For bash, fish and zsh they also offer the prefixes and sessions in Consul. They wait at most a second for it.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell to complete for.
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        // Write to memory first: clap_complete panics if the pipe is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut shown(), "slotkeeper", &mut script);
        let script = with_consul(self.shell, &String::from_utf8_lossy(&script));
        io::stdout().write_all(script.as_bytes())?;
        Ok(Exit::Done)
    }
}

/// The script, with what completes prefixes and sessions.
fn with_consul(shell: Shell, script: &str) -> String {
    if shell == Shell::Bash {
        format!("{script}{BASH}")
    } else if shell == Shell::Fish {
        format!("{script}{FISH}")
    } else if shell == Shell::Zsh {
        zsh_with_consul(script)
    } else {
        script.to_owned()
    }
}

fn zsh_with_consul(script: &str) -> String {
    let is_offered = |line: &str| {
        let argument = line.trim_start_matches(['\'', ':']);
        ["prefix -- ", "root -- ", "session -- "].iter().any(|name| argument.starts_with(name))
    };
    let with_offers = |line: &str| match line {
        "_slotkeeper() {" => ZSH_WORDS.to_owned(),
        line if is_offered(line) => line.replace(":_default'", ":_slotkeeper_offers'"),
        line => line.to_owned(),
    };
    let mut lines: Vec<_> = script.lines().map(with_offers).collect();
    // The last lines call the function of the script.
    let end =
        lines.iter().rposition(|line| line.starts_with("if [ \"$funcstack[1]\"")).unwrap_or(lines.len());
    lines.insert(end, ZSH.to_owned());
    lines.join("\n") + "\n"
}
