//! The text of a configuration.

use super::assert_harmless;
use crate::config::{self, Environment, Faults, Overrides, Place};

/// Maximum faults of one configuration.
const MAX_FAULTS: usize = 1000;

/// Takes a file's content. It is a configuration, or what is wrong is said harmlessly, each fault within the file's lines.
pub fn configuration(data: &[u8]) {
    let text = match config::read("f", data) {
        Ok(text) => text,
        Err(faults) => return assert_placed(&faults, 0),
    };
    match config::parse("f", &text, &Overrides::default(), &Environment::default()) {
        Ok(loaded) => loaded.warnings.iter().for_each(|warning| assert_harmless(warning)),
        // YAML has breaks of lines that Rust does not count, and a fault may stand behind the last one.
        Err(faults) => {
            assert_placed(&faults, text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count() + 1);
        }
    }
}

fn assert_placed(faults: &Faults, lines: usize) {
    assert!((1..MAX_FAULTS).contains(&faults.list.len()), "{} faults", faults.list.len());
    for fault in &faults.list {
        assert_harmless(&fault.to_string());
        if let Place::File { at: Some((line, column)), .. } = fault.place {
            assert!((1..=lines).contains(&line) && column > 0, "{fault} in a file of {lines} lines");
        }
    }
}
