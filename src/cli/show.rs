//! What `inspect`, `sessions`, `list` and `status` have in common: they print a view, once or after each change.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::SystemTime;

use clap::Args;
use serde::Serialize;

use super::output::{Form, Output, lines};
use super::table::Layout;
use super::{Exit, live, print_message};
use crate::clock;

/// The flags.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    output: Output,
    /// Show each change until interrupted. On a terminal the tables are redrawn in place.
    #[arg(long)]
    pub(super) watch: bool,
}

/// A view, which serialises to its document.
pub(super) trait View: Clone + PartialEq + Serialize {
    /// The view with the ages at that time.
    #[must_use]
    fn at(self, _now: SystemTime) -> Self {
        self
    }
    fn table(&self, layout: Layout) -> String;
    /// What other commands accept.
    fn names(&self) -> Vec<String>;
    /// The sentence below the table if there is nothing.
    fn nothing(&self) -> Option<String> {
        None
    }
    /// Other sentences below the table: what is hidden, or was not read.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }
    fn exit(&self) -> Exit {
        Exit::Done
    }
}

impl Show {
    /// Whether programs read the output.
    pub(super) fn is_document(&self) -> bool {
        matches!(self.output.form(), Form::Document(_))
    }

    /// Prints the view that `next` reads. `next` waits for a change, except in its first call. `hint` explains why there is nothing.
    pub(super) async fn print<V: View, E: Display + Into<anyhow::Error>>(
        &self,
        hint: &str,
        mut next: impl AsyncFnMut() -> Result<V, E>,
    ) -> anyhow::Result<Exit> {
        let remarks = |seen: &V| {
            let nothing = seen.nothing().filter(|_| !self.is_document());
            nothing.map(|nothing| nothing + hint).into_iter().chain(seen.remarks())
        };
        if self.watch {
            let show = |seen: &V| {
                let text = self.text(seen)?;
                Ok(if matches!(self.output.form(), Form::Table(_)) {
                    text + &lines(remarks(seen))
                } else {
                    text
                })
            };
            let never = live::follow(self.is_document(), next, show).await?;
            match never {}
        }
        let seen = next().await.map_err(Into::into)?;
        io::stdout().write_all(self.text(&seen)?.as_bytes())?;
        // Unwrapped: programs read tables too.
        for remark in remarks(&seen) {
            print_message(remark)?;
        }
        Ok(seen.exit())
    }

    fn text<V: View>(&self, seen: &V) -> anyhow::Result<String> {
        let seen = seen.clone().at(clock::wall().at(clock::now()));
        match self.output.form() {
            Form::Document(format) => format.text(&seen, self.watch),
            Form::Names => Ok(lines(seen.names())),
            Form::Table(layout) => Ok(seen.table(layout)),
        }
    }
}
