//! Confirmation before a command that cannot be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use tokio::task::spawn_blocking;

use super::{Exit, print_message};

/// The flag that skips the confirmation.
#[derive(Debug, Args)]
pub(super) struct Consent {
    /// Skip the confirmation. Required where there is no terminal.
    #[arg(short, long)]
    yes: bool,
}

impl Consent {
    /// Prints `what`, which describes the change, and asks on a terminal for confirmation. `None` is consent; otherwise the command
    /// ends with this exit code, and the reason is printed. The future can be dropped while the question is open.
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
            print_message("nothing was done: standard input is no terminal that could confirm; pass --yes")?;
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
        print_message("nothing was done")?;
        Ok(Some(Exit::Failed))
    }
}

/// Only a clear yes is consent; the end of the input is not.
fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::is_yes;

    #[test]
    fn only_a_clear_yes_is_consent() {
        for yes in ["y\n", "Y\n", " yes \n", "YES"] {
            assert!(is_yes(yes), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "no\n", "yess\n", "y y\n"] {
            assert!(!is_yes(no), "{no:?}");
        }
    }
}
