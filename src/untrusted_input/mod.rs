//! What no input may do, whoever made it: one function a kind of input, which panics where its promise is broken.
//!
//! Two drivers share them. `fuzz/` has libFuzzer look for inputs, which needs a nightly toolchain and time; the tests of this
//! module replay the seeds of `fuzz/seeds/` and what random edits make of them. Not a part of any other build.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a promise that is broken has to stop whoever drives this"
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

/// Asserts that a text for people is of one line that a terminal only shows, and short enough to be read.
fn assert_harmless(text: &str) {
    let odd = text.chars().find(|character| !matches!(character, '"' | '\'' | '\\') && obeyed(*character));
    assert_eq!(odd, None, "{text:?}");
    assert!(text.chars().count() < 4000, "{} characters: {text:.200}…", text.chars().count());
}

/// Whether a terminal might do something with it instead of showing it.
fn obeyed(character: char) -> bool {
    character.escape_debug().count() > 1
}
