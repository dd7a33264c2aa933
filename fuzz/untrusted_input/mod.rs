//! Checks of untrusted input: one function for each kind of input, which panics if its promise is broken.
//!
//! Two drivers share them. `fuzz/` has libFuzzer generate inputs, which needs a nightly toolchain and time. The tests of this
//! module replay the seeds of `fuzz/seeds/` and random edits of them. No other build contains this module.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a broken promise has to stop the driver"
)]

mod answer;
mod configuration;
mod entry;
mod plan;
mod record;
mod request;
#[cfg(test)]
mod tests;

pub use answer::answer;
pub use configuration::configuration;
pub use entry::entry;
pub use plan::plan;
pub use record::record;
pub use request::request;

/// Asserts that a text is one line without control characters, and of bounded length.
fn assert_harmless(text: &str) {
    let odd = text.chars().find(|character| !matches!(character, '"' | '\'' | '\\') && obeyed(*character));
    assert_eq!(odd, None, "{text:?}");
    assert!(text.chars().count() < 4000, "{} characters: {text:.200}…", text.chars().count());
}

/// Whether a terminal might act on the character instead of showing it.
fn obeyed(character: char) -> bool {
    character.escape_debug().count() > 1
}
