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

/// Print the manual page, or write one per command.
#[derive(Debug, Args)]
pub(super) struct Man {
    /// Folder for the pages, such as /usr/local/share/man/man1; created if it is missing.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let pages = pages()?;
        let Some(dir) = self.dir else {
            if let Some(Page { text, .. }) = pages.first() {
                io::stdout().write_all(text)?;
            }
            return Ok(Exit::Done);
        };
        fs::create_dir_all(&dir).with_context(|| format!("cannot create the folder {}", dir.display()))?;
        for Page { file, text } in pages {
            let path = dir.join(file);
            files::replace(&path, &text, MODE)?;
        }
        Ok(Exit::Done)
    }
}

/// A manual page.
struct Page {
    /// Its file name.
    file: String,
    /// In roff.
    text: Vec<u8>,
}

fn display_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The main page, then one per command.
fn pages() -> io::Result<Vec<Page>> {
    let mut main = shown().disable_help_subcommand(true);
    main.build();
    std::iter::once(&main).chain(main.get_subcommands()).map(|command| page(command, &main)).collect()
}

fn page(command: &Command, main: &Command) -> io::Result<Page> {
    let is_main = command.get_name() == main.get_name();
    // The derived synopsis omits the `--` of a usage.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let page = clap_mangen::Man::new(command.clone().override_usage(usage));
    let version = main.get_version().unwrap_or_default();
    let mut text = Vec::new();
    // Written here, since the library omits an empty date, and every later field then moves up.
    writeln!(text, r#".TH {} 1 "" "slotkeeper {version}" "slotkeeper""#, display_name(command))?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if is_main {
        page.render_subcommands_section(&mut text)?;
    }
    for section in manual::sections(command.get_name()) {
        let mut roff = Roff::new();
        roff.control("SH", [section.heading]);
        for (term, meaning) in section.entries {
            roff.control("TP", []).text([bold(*term)]).text([roman(format!("{meaning}."))]);
        }
        roff.to_writer(&mut text)?;
    }
    if !is_main {
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]);
        roff.text([
            bold("slotkeeper"),
            roman("(1) for what all commands share: exit codes, variables, files."),
        ]);
        roff.to_writer(&mut text)?;
    }
    Ok(Page { file: page.get_filename(), text })
}
