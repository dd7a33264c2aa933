//! docs/troubleshooting.md has a row for each error message of the source, and no row without a message.

mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use source::{Text, VALUE};

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// Texts that need no row.
struct Exempt {
    why: &'static str,
    /// The beginning of the file's path.
    file: &'static str,
    /// How the texts begin, apart from values; none for all texts of the file.
    begin: &'static [&'static str],
}

const fn all(file: &'static str, why: &'static str) -> Exempt {
    Exempt { why, file, begin: &[] }
}

const fn some(file: &'static str, begin: &'static [&'static str], why: &'static str) -> Exempt {
    Exempt { why, file, begin }
}

/// In configuration faults, what precedes the cure. Such a fault needs no row: it says itself what to do.
const CURES: &[&str] =
    &["; write ", "; remove ", "; keep ", "; set ", "; list ", "; save ", "; fix ", "; begin "];

/// Those that an agent meets have rows, as parts of its own messages.
const CONSULS: &str = "an answer of Consul's, as the development server gives it";

const EXEMPT: &[Exempt] = &[
    some("crates/consul/src/probe.rs", &["GET "], "a request"),
    some("src/config/address.rs", &["0.0.0.0:… for every interface"], "an example in a fault"),
    some("src/config/sections/rules.rs", &["the section `workload`"], "a key's name in a fault"),
    some("src/config/kinds.rs", &["or an empty text for no file"], "the end of a fault's cure"),
    all("src/cli/doctor", "lines that say themselves what to do"),
    some("src/cli/run.rs", &["slotkeeper run [OPTIONS]"], "the usage"),
    some("src/cli/mod.rs", &["see slotkeeper"], "says itself what to do"),
    some("src/cli/man.rs", &["TH ", "SH "], "manual pages"),
    some("src/cli/dev.rs", &["Consul 1.22 (2025)", "Consul-compatible server on"], "help; the greeting"),
    all("crates/consul-dev/src/api", CONSULS),
    all("crates/consul-dev/src/store", CONSULS),
    all("crates/consul-dev/src/duration.rs", CONSULS),
    some(
        "crates/consul-dev/src/dialect.rs",
        &[
            "Invalid URL path",
            "raft apply",
            "apply failed",
            "Bad request",
            "Invalid query",
            "Permission denied: token",
        ],
        CONSULS,
    ),
    all("src/metrics", "descriptions of metrics"),
    all("src/http/page.rs", "a header"),
    some("src/http/events.rs", &["event: alive", "id: … event:"], "the stream's syntax"),
    some("src/status/changes.rs", &["this names no event"], "never shown: the stream then begins anew"),
    some("src/log_events.rs", &["ready", "not ready"], "readiness, which is logged as information"),
    all("src/service_manager/words.rs", "the status that systemctl shows"),
    all("src/agent/journal.rs", "what happened, for the event stream"),
    some("src/agent/ending.rs", &["the workload is done"], "an end as intended"),
    some("src/agent/workload.rs", &["the command has ended"], "an end as intended"),
    some("src/http/health.rs", &["all required slots were held"], "a check that succeeds"),
    some("src/cli/check.rs", &["tolerates … s"], "a check that succeeds"),
    some("src/cli/check.rs", &["`check` uses the address in the file"], "says itself what to do"),
    some("src/cli/destroy.rs", &["destroy deletes", "and … of ended", "other key"], "the question"),
    some(
        "src/cli/evict.rs",
        &[
            "which waits for",
            "which was offered",
            "which holds",
            "which is dead",
            "evicts it already",
            "Its slots are free",
            "It is removed",
            "It leaves the queue",
            "It is a foreign",
            "It is notified",
            "is still in the queue",
            "is being evicted",
            "is out",
        ],
        "the question and the result",
    ),
    some(
        "src/cli/prune.rs",
        &["prune removes", "its session", "Their slots are", "no dead holders"],
        "the question and the result",
    ),
    some("src/operator/inspection.rs", &["kind key description"], "names of fields"),
    some(
        "src/operator/list.rs",
        &["semaphores and locks", "keys that may be locks"],
        "a part of a message that has a row",
    ),
    some("src/cli/cells.rs", &["a session without a name", "foreign client: … on"], "cells"),
    some("src/cli/change.rs", &["no slot was granted", "slots were granted"], "the result"),
    some(
        "src/cli/set_limit.rs",
        &["foreign client", "the limit is", "limit changed", "nothing to do"],
        "the result",
    ),
    some(
        "src/cli/inspect/table.rs",
        &["and … more; --output json", "semaphore (…), …", "lock, …", "contender key"],
        "lines of the table, and words of its remarks",
    ),
    some(
        "src/cli/status.rs",
        &["is held by", "as of", "session …, … of its lease left"],
        "lines of the table",
    ),
    some("src/cli/live.rs", &["as of … s ago"], "precedes the failure"),
    some("src/cli/start.rs", &["http://"], "an address"),
    some("src/waiting.rs", &["of … in the queue"], "the line of a wait"),
    some("src/status/semaphore.rs", &["of … in the queue"], "the line of a wait"),
    some("src/files", &["create the folder", "process …)"], "a part of a message that has a row"),
    some(
        "src/workload",
        &["no process id", "the command has no process id", "its slot was lost"],
        "cannot happen; a part of a message that has a row",
    ),
    some("crates/consul/src/token", &["that was given", "in the file"], "a part of a message that has a row"),
    some(
        "crates/consul/src/txn.rs",
        &[
            "index is stale",
            "failed index check",
            "due to lock delay",
            "lock is already held",
            "lock isn't held",
            "failed session check",
        ],
        "answers of Consul that the agent handles: it reads again",
    ),
    some("crates/semaphore/src/keeper.rs", &["lock left behind"], "the name of a session"),
];

/// The keys of a page: the code of the first column of its tables.
fn keys(page: &str) -> Vec<String> {
    let tables = page.split("\n\n").filter(|block| block.starts_with("| message |"));
    let rows = tables.flat_map(|table| table.lines().skip(2));
    rows.flat_map(|row| codes(row.trim_start_matches("| ").split(" | ").next().unwrap())).collect()
}

/// The code spans of a cell. One with backticks in it has two or more around it.
fn codes(cell: &str) -> Vec<String> {
    let mut codes = Vec::new();
    let mut rest = cell;
    while let Some(begin) = rest.find('`') {
        let inner = rest[begin..].trim_start_matches('`');
        let fence = &rest[begin..rest.len() - inner.len()];
        let is_fence = |end: &usize| {
            let is_longer = inner[..*end].ends_with('`') || inner[end + fence.len()..].starts_with('`');
            !is_longer
        };
        let end = inner.match_indices(fence).map(|(end, _)| end).find(is_fence);
        let end = end.unwrap_or_else(|| panic!("an open code span: {cell}"));
        codes.push(inner[..end].trim().to_owned());
        rest = &inner[end + fence.len()..];
    }
    codes
}

/// Whether a key finds a text. A key of one or two words must be the whole of it, since it would find others too.
fn finds(key: &str, text: &Text) -> bool {
    if source::words(key) < 3 { trimmed(key) == trimmed(&text.text) } else { text.text.contains(key) }
}

/// What a text is found by, without what differs at its ends.
fn trimmed(text: &str) -> &str {
    text.trim_matches([VALUE, ' ', ':', ',', ';', '.', '('])
}

fn is_exempt_by(text: &Text, exempt: &Exempt) -> bool {
    let begins = |begin: &&str| trimmed(&text.text).starts_with(*begin);
    text.file.starts_with(exempt.file) && (exempt.begin.is_empty() || exempt.begin.iter().any(begins))
}

fn needs_row(text: &Text) -> bool {
    let has_cure = text.file.starts_with("src/config/") && CURES.iter().any(|cure| text.text.contains(cure));
    text.is_message && !has_cure && !EXEMPT.iter().any(|exempt| is_exempt_by(text, exempt))
}

/// Messages without a row, and rows without a message.
fn differences(page: &str, texts: &[Text]) -> Vec<String> {
    let keys = keys(page);
    let has_row = |text: &&Text| keys.iter().any(|key| finds(key, text));
    let missing = texts.iter().filter(|text| needs_row(text) && !has_row(text));
    let missing = missing.map(|text| format!("no row for {:?} ({}:{})", text.text, text.file, text.line));
    let of_nothing = keys.iter().filter(|key| !texts.iter().any(|text| finds(key, text)));
    missing.chain(of_nothing.map(|key| format!("no message for the row {key:?}"))).collect()
}

/// Exemptions of texts that do not exist, with their reasons.
fn unused(texts: &[Text]) -> Vec<String> {
    let each = EXEMPT.iter().flat_map(|Exempt { why, file, begin }| {
        let begins = if begin.is_empty() { vec![*begin] } else { begin.chunks(1).collect() };
        begins.into_iter().map(|begin| Exempt { why, file, begin })
    });
    let is_used = |exempt: &Exempt| texts.iter().any(|text| text.is_message && is_exempt_by(text, exempt));
    let unused = each.filter(|exempt| !is_used(exempt));
    unused.map(|Exempt { why, file, begin }| format!("{file} {begin:?}: {why}")).collect()
}

#[test]
fn every_message_has_a_row_and_every_row_a_message() {
    let page = fs::read_to_string(Path::new(REPOSITORY).join("docs/troubleshooting.md")).unwrap();
    let texts = source::texts(Path::new(REPOSITORY));
    assert!(texts.len() > 800, "{}", texts.len());
    let differences = differences(&page, &texts);
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    let unused = unused(&texts);
    assert!(unused.is_empty(), "exemptions of nothing:\n{}", unused.join("\n"));
}

#[test]
fn a_message_without_a_row_and_a_row_without_a_message_are_found() {
    let text =
        |text: &str| Text { text: text.to_owned(), file: "src/a.rs".to_owned(), line: 7, is_message: true };
    let texts = [text("the key … is locked"), text("slot lost"), text("lost")];
    let page = "| other |\n|---|\n| `no row` |\n\n\
                | message | meaning |\n|---|---|\n| `the key … is`, ``slot lost`` | `not a key` |\n| `the `` key` | |\n| `slot` | |\n";
    assert_eq!(
        differences(page, &texts),
        [
            "no row for \"lost\" (src/a.rs:7)",
            "no message for the row \"the `` key\"",
            "no message for the row \"slot\""
        ]
    );
}

#[test]
fn the_texts_of_code_are_found() {
    let code = r####"
        use crate::log_events::{SLOT_LOST, DRAINED};
        // warn!("in a comment");
        #[error("it's broken: {0}")]
        #[doc = "not a message at all"]
        fn f<'a>(c: char) -> &'a str {
            if c == '"' { warn!(%error, "{SLOT_LOST} in {place} {{}}"); }
            info!("all is well here: {DRAINED}");
            log_about!(debug, about, "nothing to see here");
            log_about!(error, about, "lost");
            bail!("one \
                   line");
            two(r#"raw "text" of it"#, "name", '\'', "a long text with {}{}", SLOT_LOST)
        }
    "####;
    let constants = [("SLOT_LOST", "slot lost"), ("DRAINED", "drained")];
    let constants = constants.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    let mut logged = BTreeSet::new();
    let texts = source::texts_of("src/a.rs", code, &constants, &mut logged);
    let found: Vec<_> = texts.iter().map(|text| (text.text.as_str(), text.line, text.is_message)).collect();
    assert_eq!(
        found,
        [
            ("it's broken: …", 4, true),
            ("slot lost in … {}", 7, true),
            ("lost", 10, true),
            ("one line", 11, true),
            ("raw \"text\" of it", 13, true),
            ("name", 13, false),
            ("a long text with …", 13, true),
        ]
    );
    assert_eq!(logged, BTreeSet::from(["SLOT_LOST".to_owned()]));
}
