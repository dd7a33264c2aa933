//! Asking before something is done that cannot be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use tokio::task::spawn_blocking;

use super::{Exit, complain};

/// The flag of a command that does not act unasked.
#[derive(Debug, Args)]
pub(super) struct Consent {
    /// Do it without asking. Needed where nobody is there to be asked.
    #[arg(short, long)]
    yes: bool,
}

impl Consent {
    /// Says `what` is about to be done, a sentence or some lines without an end of line, and asks on a terminal whether to go
    /// on. `None` is consent; else the command ends so, and has said why. Whoever is asked may take long, and interrupt: the
    /// future can be dropped meanwhile.
    ///
    /// # Errors
    ///
    /// The terminal cannot be written to or read.
    pub(super) async fn refused(&self, what: &str) -> io::Result<Option<Exit>> {
        let mut stderr = io::stderr();
        writeln!(stderr, "{what}")?;
        if self.yes {
            return Ok(None);
        }
        if !(io::stdin().is_terminal() && stderr.is_terminal()) {
            complain("nothing was done: nobody is there to be asked; write --yes to do it")?;
            return Ok(Some(Exit::Usage));
        }
        write!(stderr, "Go on? [y/N] ")?;
        stderr.flush()?;
        let read = spawn_blocking(|| {
            let mut answer = String::new();
            io::stdin().lock().read_line(&mut answer).map(|_| answer)
        });
        if is_yes(&read.await??) {
            return Ok(None);
        }
        complain("nothing was done")?;
        Ok(Some(Exit::Failed))
    }
}

/// Anything that is not clearly a yes is a no, the end of the input too.
fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::is_yes;

    #[test]
    fn only_a_yes_is_one() {
        for yes in ["y\n", "Y\n", " yes \n", "YES"] {
            assert!(is_yes(yes), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "no\n", "yess\n", "y y\n"] {
            assert!(!is_yes(no), "{no:?}");
        }
    }
}
