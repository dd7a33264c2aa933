//! The texts of the source that a user may meet as an error: string literals, with what they are an argument of.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Where products have their messages. The rest of the workspace is for development.
const SOURCES: &[&str] =
    &["src", "crates/semaphore/src", "crates/consul/src", "crates/serve/src", "crates/consul-dev/src"];
/// The constants of all log texts, which are messages where they are logged at `warn` or `error`.
const CONSTANTS: &str = "src/log_events.rs";
/// Only in tests and fuzzing.
const TESTS: &[&str] = &["tests", "tests.rs"];

/// What stands for a value.
pub const VALUE: char = '…';

/// Arguments that are messages, however short.
const MESSAGES: &[&str] =
    &["#error", "warn!", "error!", "bail!", "anyhow!", "ensure!", "context", "with_context"];
/// Arguments that are none: what is logged when all is well, and texts for developers.
const OTHERS: &[&str] = &[
    "info!",
    "debug!",
    "trace!",
    "debug_assert!",
    "assert!",
    "unreachable!",
    "expect",
    "include_str!",
    "env!",
];
/// The macro of the log with the level as its first argument: `log_about!(warn, …)` is as `warn!(…)`.
const LEVELLED: &str = "log_about!";
/// Fewer words make a name, or a part of a sentence that is found by another part.
const MIN_WORDS: usize = 3;

/// A text of the source, with `…` for each value.
#[derive(Debug)]
pub struct Text {
    pub text: String,
    pub file: String,
    pub line: usize,
    /// Whether it is long enough, or stands where only messages do.
    pub is_message: bool,
}

/// All texts of the products that may be error messages.
pub fn texts(repository: &Path) -> Vec<Text> {
    let mut files = BTreeMap::new();
    for folder in SOURCES {
        read_below(repository, &repository.join(folder), &mut files);
    }
    let constants = constants(&files[CONSTANTS]);
    let mut logged = BTreeSet::new();
    let of_code = files.iter().filter(|(file, _)| *file != CONSTANTS);
    let mut texts: Vec<_> =
        of_code.flat_map(|(file, code)| texts_of(file, code, &constants, &mut logged)).collect();
    let line = |name: &str| {
        files[CONSTANTS].split(&format!("const {name}:")).next().unwrap().matches('\n').count() + 1
    };
    texts.extend(logged.iter().map(|name| Text {
        text: constants[name].clone(),
        file: CONSTANTS.to_owned(),
        line: line(name),
        is_message: true,
    }));
    texts
}

/// The texts of one file. The constants that are logged as messages are added to `logged`.
pub fn texts_of(
    file: &str,
    code: &str,
    constants: &BTreeMap<String, String>,
    logged: &mut BTreeSet<String>,
) -> Vec<Text> {
    let mut texts = Vec::new();
    for token in tokens(code).into_iter().filter(|token| !token.is_other()) {
        let is_message = token.is_message();
        match token.what {
            What::Name(name) => {
                logged.extend(constants.contains_key(&name).then_some(name));
            }
            What::Literal(literal) => {
                let text = filled(&literal, constants);
                let words = words(&text);
                let is_message = words >= MIN_WORDS || is_message || text.starts_with("cannot ");
                if words > 0 {
                    texts.push(Text { text, file: file.to_owned(), line: token.line, is_message });
                }
            }
        }
    }
    texts
}

fn read_below(repository: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if TESTS.contains(&name) {
            continue;
        }
        if path.is_dir() {
            read_below(repository, &path, files);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
            let file = path.strip_prefix(repository).unwrap().display().to_string();
            files.insert(file, code.to_owned());
        }
    }
}

/// The text constants of a file, by name.
fn constants(code: &str) -> BTreeMap<String, String> {
    let mut constants = BTreeMap::new();
    let mut name = None;
    for token in tokens(code) {
        match token.what {
            What::Name(next) if next.chars().all(|c| c.is_ascii_uppercase() || c == '_') => name = Some(next),
            What::Name(_) => {}
            What::Literal(text) => {
                constants.extend(name.take().map(|name| (name, text)));
            }
        }
    }
    constants
}

/// A format string with its constants as text, and `…` for other values.
fn filled(format: &str, constants: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let (brace, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            text.push_str(brace);
            rest = after;
            continue;
        }
        let (name, after) =
            if brace == "{" { after.split_once('}').unwrap_or((after, "")) } else { ("", after) };
        match constants.get(name) {
            Some(constant) => text.push_str(constant),
            None if text.ends_with(VALUE) => {}
            None => text.push(VALUE),
        }
        rest = after;
    }
    text.push_str(rest);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How many words a text has, apart from its values.
pub fn words(text: &str) -> usize {
    let letters =
        |word: &&str| word.len() > 1 && word.chars().all(|c| c.is_ascii_alphabetic() || "-'".contains(c));
    let bare = text.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_ascii_alphabetic()));
    bare.filter(letters).count()
}

struct Token {
    what: What,
    line: usize,
    /// What it is an argument of, from the outside in: `warn!`, `context`, or `#error` for an attribute.
    inside: Vec<String>,
}

enum What {
    Name(String),
    Literal(String),
}

impl Token {
    fn is_message(&self) -> bool {
        self.inside.iter().any(|name| MESSAGES.contains(&name.as_str()))
    }

    /// An attribute is a message only if it is that of an error.
    fn is_other(&self) -> bool {
        let is_attribute = self.inside.iter().any(|name| name.starts_with('#')) && !self.is_message();
        is_attribute || self.inside.iter().any(|name| OTHERS.contains(&name.as_str()))
    }
}

/// The names and string literals of Rust code, without those of comments and `use`.
fn tokens(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut inside: Vec<String> = Vec::new();
    let (mut at, mut last, mut is_use) = (0, String::new(), false);
    while at < code.len() {
        let rest = &code[at..];
        let line = || code[..at].matches('\n').count() + 1;
        let first = rest.chars().next().unwrap();
        let mut taken = first.len_utf8();
        if rest.starts_with("//") {
            taken = rest.find('\n').unwrap_or(rest.len());
        } else if let Some((text, length)) = literal(rest) {
            let inside = inside.clone();
            tokens.push(Token { what: What::Literal(text), line: line(), inside });
            taken = length;
        } else if first == '\'' {
            taken = character(rest);
        } else if first.is_ascii_alphabetic() || first == '_' {
            taken = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            rest[..taken].clone_into(&mut last);
            is_use |= last == "use";
            if let Some(macros) = inside.last_mut().filter(|name| *name == LEVELLED) {
                *macros = format!("{last}!");
            } else if !is_use {
                tokens.push(Token { what: What::Name(last.clone()), line: line(), inside: inside.clone() });
            }
            at += taken;
            continue;
        } else {
            match first {
                '(' | '[' | '{' => {
                    let of_attribute = inside.last().is_some_and(|name| name == "#");
                    inside.push(if of_attribute { format!("#{last}") } else { last.clone() });
                    last.clear();
                }
                ')' | ']' | '}' => {
                    inside.pop();
                    last.clear();
                }
                '!' if !last.is_empty() => last.push('!'),
                '#' => "#".clone_into(&mut last),
                ';' => {
                    is_use = false;
                    last.clear();
                }
                _ => last.clear(),
            }
        }
        at += taken;
    }
    tokens
}

/// The string literal at the beginning, and its length in the code.
fn literal(code: &str) -> Option<(String, usize)> {
    let raw = code.strip_prefix('b').unwrap_or(code);
    if let Some(raw) = raw.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let text = raw[hashes..].strip_prefix('"')?;
        let end = text.find(&format!("\"{}", "#".repeat(hashes)))?;
        let length = code.len() - text.len() + end + 1 + hashes;
        return Some((text[..end].to_owned(), length));
    }
    let text = raw.strip_prefix('"')?;
    let mut said = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((said, code.len() - text.len() + at + 1)),
            '\\' => match letters.next()?.1 {
                // The line goes on where the next one has its first letter.
                '\n' => {
                    let blank = text[at + 2..].find(|c: char| !c.is_whitespace())?;
                    letters = text.char_indices();
                    letters.nth(text[..at + 2 + blank].chars().count() - 1);
                }
                'n' | 't' | 'r' => said.push(' '),
                escaped => said.push(escaped),
            },
            letter => said.push(letter),
        }
    }
    None
}

/// The length of the character literal or lifetime at the beginning.
fn character(code: &str) -> usize {
    let mut letters = code.char_indices().skip(1);
    let Some((_, first)) = letters.next() else { return 1 };
    if first == '\\' {
        return letters.skip(1).find(|(_, letter)| *letter == '\'').map_or(1, |(end, _)| end + 1);
    }
    match letters.next() {
        Some((end, '\'')) => end + 1,
        _ => 1,
    }
}
