//! The seeds, and random edits of them. The edits are drawn from the base seed (`TEST_SEED`);
//! `SLOTKEEPER_HOSTILE_RUNS` makes more.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Once;

use fastrand::Rng;

use super::*;

/// Random edits of each target's seeds.
const RUNS: usize = 5000;

/// Inserts that break parsers more often than random bytes do.
const WORDS: [&str; 26] = [
    "\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\n",
    "\r\n",
    "\r\n\r\n",
    "\0",
    "\\u0000",
    "\u{1b}[2J",
    "\u{202e}",
    "null",
    "-1",
    "1e400",
    "4294967295",
    "18446744073709551615",
    "true",
    "*",
    "&a ",
    "- ",
    "@",
    "f00dcafe-hunter2",
    "0",
];

thread_local! {
    /// A panic of a task does not reach the driver of its runtime.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            PANICS.set(PANICS.get() + 1);
            before(panicked);
        }));
    });
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(name);
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn try_out(name: &str, target: fn(&[u8]), input: &[u8]) {
    let before = PANICS.get();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| target(input)));
    assert!(outcome.is_ok() && PANICS.get() == before, "{name} breaks on b\"{}\"", input.escape_ascii());
}

fn edit(input: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Rng) {
    let from = random.usize(..=input.len());
    let to = (from + random.usize(..16)).min(input.len());
    match random.u8(..6) {
        0 => drop(input.drain(from..to)),
        1 => drop(input.splice(from..to, [random.u8(..)])),
        2 => drop(input.splice(from..from, random.choice(WORDS).unwrap().bytes())),
        3 => drop(input.splice(from..to, random.choice(WORDS).unwrap().bytes())),
        4 => {
            let again = input[from..to].repeat(random.usize(1..50));
            drop(input.splice(from..from, again));
        }
        _ => {
            let other = random.choice(seeds).unwrap();
            input.truncate(from);
            input.extend(&other[random.usize(..=other.len())..]);
        }
    }
}

fn drive(name: &str, target: fn(&[u8])) {
    count_panics();
    let seeds = seeds(name);
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| try_out(name, target, seed));
    let runs = std::env::var("SLOTKEEPER_HOSTILE_RUNS").map_or(RUNS, |runs| runs.parse().unwrap());
    let mut random = Rng::with_seed(slotkeeper_test_seed::base());
    for _ in 0..runs {
        let mut input = random.choice(&seeds).unwrap().clone();
        for _ in 0..random.u8(1..5) {
            edit(&mut input, &seeds, &mut random);
        }
        try_out(name, target, &input);
    }
}

#[test]
fn records() {
    drive("record", record);
}

#[test]
fn entries() {
    drive("entry", entry);
}

#[test]
fn plans() {
    drive("plan", plan);
}

#[test]
fn configurations() {
    drive("configuration", configuration);
}

#[test]
fn answers() {
    drive("answer", answer);
}

#[test]
fn requests() {
    drive("request", request);
}

#[test]
fn a_stream_of_events_is_had_from_its_beginning_to_its_end() {
    let follow = || {
        let told = request::answer(b'r', b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
        String::from_utf8(told).unwrap()
    };
    let is_whole = |text: &String| {
        let has = |event: &str| text.contains(&format!("event: {event}\n"));
        has("status") && has("alive") && text.ends_with("\r\n0\r\n\r\n")
    };
    // On a busy machine the time for one stream may end before the stream does. What has come until then is its beginning.
    let streams: Vec<_> = (0..20).map(|_| follow()).collect();
    assert!(streams.iter().all(|text| text.contains("event: status\n")), "{streams:?}");
    assert!(streams.iter().any(is_whole), "{streams:?}");
}

#[test]
fn a_promise_that_is_broken_is_noticed() {
    count_panics();
    let breaks = |input: &[u8]| assert!(input.is_empty());
    let noticed = panic::catch_unwind(|| try_out("none", breaks, b"x"));
    assert!(noticed.is_err());
    assert!(panic::catch_unwind(|| assert_harmless("\u{1b}[2J")).is_err());
}
