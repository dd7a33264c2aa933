//! `slotkeeper man`: manual pages, from the same definitions as `--help`.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_mangen::roff::{Roff, bold, roman};

use super::{Exit, manual, shown};
use crate::files;

/// A manual page is readable for every user.
const MODE: u32 = 0o644;
/// The last section of the page of a command.
const SEE_ALSO: &str = ".SH \"SEE ALSO\"
\\fBslotkeeper\\fR(1) for what all commands share: exit codes, variables, files.
";

/// Print the manual page, or write one per command.
#[derive(Debug, Args)]
pub(super) struct Man {
    /// Folder for the pages, such as /usr/local/share/man/man1; created if it is missing.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let mut main = shown().disable_help_subcommand(true);
        main.build();
        let Some(dir) = self.dir else {
            io::stdout().write_all(&page(&main, true)?)?;
            return Ok(Exit::Done);
        };
        fs::create_dir_all(&dir).with_context(|| format!("cannot create the folder {}", dir.display()))?;
        files::replace(&dir.join("slotkeeper.1"), &page(&main, true)?, MODE)?;
        for command in main.get_subcommands() {
            let file = dir.join(format!("slotkeeper-{}.1", command.get_name()));
            files::replace(&file, &page(command, false)?, MODE)?;
        }
        Ok(Exit::Done)
    }
}

fn page(command: &Command, is_main: bool) -> io::Result<Vec<u8>> {
    // The derived synopsis omits the `--` of a usage.
    let usage = command.clone().render_usage().to_string();
    let page =
        clap_mangen::Man::new(command.clone().override_usage(usage.trim_start_matches("Usage: ").to_owned()));
    let name = command.get_display_name().unwrap_or("slotkeeper");
    let mut text = Vec::new();
    // Written here, since the library omits an empty date, and every later field then moves up.
    writeln!(text, r#".TH {name} 1 "" "slotkeeper {}" "slotkeeper""#, env!("CARGO_PKG_VERSION"))?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if is_main {
        page.render_subcommands_section(&mut text)?;
    }
    for part in manual::texts(command.get_name()) {
        sections(part).to_writer(&mut text)?;
    }
    if !is_main {
        text.write_all(SEE_ALSO.as_bytes())?;
    }
    Ok(text)
}

/// A text of help as sections: headings, then terms that two spaces begin and end, each with its meaning.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    for line in text.lines() {
        match (line.strip_suffix(':'), line.strip_prefix("  ")) {
            (Some(heading), None) => {
                roff.control("SH", [heading.to_uppercase().as_str()]);
            }
            (_, Some(meaning)) if meaning.starts_with(' ') => {
                roff.text([roman(meaning.trim())]);
            }
            (_, Some(entry)) => {
                let (term, meaning) = entry.split_once("  ").unwrap_or((entry, ""));
                roff.control("TP", []).text([bold(term)]);
                if !meaning.is_empty() {
                    roff.text([roman(meaning.trim())]);
                }
            }
            (None, None) => {}
        }
    }
    roff
}
