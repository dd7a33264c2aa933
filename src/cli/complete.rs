//! `slotkeeper complete`: prefixes and sessions for shell completion. The scripts of `slotkeeper completions` call it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches};
use slotkeeper_consul::{Client, TokenSource, Unobserved};

use super::operator_flags::{Connection, OperatorFlags};
use super::{Cli, Exit, block_on};
use crate::operator::{Watch, list};

/// The longest wait for Consul, and for everything else: a person waits at a prompt.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// The most offers.
const MAX_OFFERS: usize = 1000;
/// In place of the word that is completed. The argument that has it is the one to complete.
const MARK: &str = "slotkeeper-completes-this-word";

/// Print the prefixes or sessions that complete the last of these words, one a line.
///
/// Prints nothing if another argument is completed, or if there is no answer within a second. It never prints an error.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(super) struct Complete {
    /// The words of a command line up to the cursor, as bash, fish or zsh splits them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// What a word names.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// A prefix.
    Prefix,
    /// A session at this prefix.
    Session(String),
}

impl Complete {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let (send, offers) = channel();
        // On a thread of its own, which ends with the process: a token file on a slow disk is no reason to wait either.
        std::thread::Builder::new().spawn(move || send.send(offers_for(&words)))?;
        let offers = offers.recv_timeout(TIME_LIMIT).ok().flatten().unwrap_or_default();
        let lines: String = offers.iter().take(MAX_OFFERS).map(|offer| format!("{offer}\n")).collect();
        // The shell may have gone.
        let _ = io::stdout().write_all(lines.as_bytes());
        Ok(Exit::Done)
    }
}

fn offers_for(words: &[String]) -> Option<Vec<String>> {
    let (words, cut) = joined(words);
    let (wanted, flags) = wanted(&words)?;
    let typed = words.last()?;
    let connection = flags.connection().ok()?;
    // A login would leave a token behind at each key press.
    if matches!(connection.settings.token, Some(TokenSource::Login(_))) {
        return None;
    }
    let client = Client::new(&connection.settings, Arc::new(Unobserved)).ok()?;
    let found = block_on(found(&client, &connection, &wanted, typed)).ok()?;
    let offers = found.into_iter().filter(|offer| offer.starts_with(typed) && is_plain(offer));
    Some(offers.filter_map(|offer| offer.get(cut..).map(str::to_owned)).collect())
}

async fn found(client: &Client, connection: &Connection, wanted: &Wanted, typed: &str) -> Vec<String> {
    match wanted {
        Wanted::Prefix => {
            let mut found: Vec<_> = connection.names.keys().cloned().collect();
            found.extend(list::beginning_with(client, typed).await.unwrap_or_default());
            found
        }
        Wanted::Session(prefix) => {
            let prefix = connection.prefix(prefix);
            let snapshot = Watch::new(client, &prefix).next().await;
            let participants = snapshot.map(|snapshot| snapshot.participants()).unwrap_or_default();
            participants.into_iter().map(|one| one.id.to_string()).collect()
        }
    }
}

/// What the last word names, and the flags before it; `None` if it is neither a prefix nor a session.
fn wanted(words: &[String]) -> Option<(Wanted, OperatorFlags)> {
    let (typed, before) = words.split_last()?;
    if typed.starts_with('-') {
        return None;
    }
    let words = before.iter().map(String::as_str).chain([MARK]);
    let matches = Cli::command().ignore_errors(true).try_get_matches_from(words).ok()?;
    let (_, matches) = matches.subcommand()?;
    let value = |id: &str| matches.try_get_one::<String>(id).ok().flatten().map(String::as_str);
    let wanted = if value("prefix") == Some(MARK) || value("root") == Some(MARK) {
        Wanted::Prefix
    } else if value("session") == Some(MARK) {
        Wanted::Session(value("prefix")?.to_owned())
    } else {
        return None;
    };
    Some((wanted, OperatorFlags::from_arg_matches(matches).ok()?))
}

/// The words as they were typed, and the bytes of the last one that the shell does not complete. Bash splits words at `:` and `=`, and
/// completes what follows.
fn joined(words: &[String]) -> (Vec<String>, usize) {
    let mut joined: Vec<String> = Vec::new();
    let (mut cut, mut continues) = (0, false);
    for word in words {
        let separates = !word.is_empty() && word.bytes().all(|byte| matches!(byte, b':' | b'='));
        match joined.last_mut() {
            Some(last) if separates || continues => {
                cut = last.len() + if separates { word.len() } else { 0 };
                last.push_str(word);
            }
            Some(_) | None => {
                cut = 0;
                joined.push(word.clone());
            }
        }
        continues = separates;
    }
    (joined, cut)
}

/// Whether a shell takes the text as one word, as it is. A key may have any characters.
fn is_plain(text: &str) -> bool {
    !text.starts_with('-')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-:@=+,%".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<String> {
        line.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn the_argument_of_a_word_is_found() {
        let found = |line: &[&str]| wanted(&words(line)).map(|(wanted, _)| wanted);
        for line in [
            &["slotkeeper", "inspect", ""][..],
            &["slotkeeper", "inspect", "--http-addr", "h:1", "service/"],
            &["slotkeeper", "list", "serv"],
            &["slotkeeper", "sessions", "-o", "wide", "serv"],
            &["slotkeeper", "run", "-n", "2", "serv"],
            &["slotkeeper", "evict", ""],
        ] {
            assert_eq!(found(line), Some(Wanted::Prefix), "{line:?}");
        }
        let session = Wanted::Session("service/a".into());
        assert_eq!(found(&["slotkeeper", "evict", "service/a", "68"]), Some(session));
        for line in [
            &["slotkeeper", ""][..],
            &["slotkeeper", "ins"],
            &["slotkeeper", "inspect", "--wat"],
            &["slotkeeper", "inspect", "--config", ""],
            &["slotkeeper", "inspect", "service/a", ""],
            &["slotkeeper", "set-limit", "service/a", ""],
            &["slotkeeper", "run", "service/a", "--", "ls", ""],
            &["slotkeeper", "status", ""],
            &[],
        ] {
            assert_eq!(found(line), None, "{line:?}");
        }
        let (_, flags) = wanted(&words(&["slotkeeper", "prune", "--http-addr", "h:1", ""])).unwrap();
        assert_eq!(flags.connection().unwrap().settings.address.to_string(), "http://h:1");
    }

    #[test]
    fn words_that_bash_has_split_are_joined() {
        for (split, whole, cut) in [
            (
                &["a", "--http-addr", "http", ":", "//h", ":", "1", "p"][..],
                &["a", "--http-addr", "http://h:1", "p"][..],
                0,
            ),
            (&["a", "--config", "=", "f", "p:", "x"], &["a", "--config=f", "p:", "x"], 0),
            (&["a", "p/b", ":", "c"], &["a", "p/b:c"], 4),
            (&["a", "p/b", ":"], &["a", "p/b:"], 4),
            (&["a", ""], &["a", ""], 0),
        ] {
            assert_eq!(joined(&words(split)), (words(whole), cut), "{split:?}");
        }
    }

    #[test]
    fn only_what_a_shell_takes_as_it_is_is_offered() {
        assert!(is_plain("service/warehouse-1/a_b.c:d"));
        for odd in ["a b", "a;reboot", "$(x)", "a\nb", "-n", "é", "a'b"] {
            assert!(!is_plain(odd), "{odd}");
        }
    }
}
