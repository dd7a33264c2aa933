//! The base seed of a test process, from which all random choices of its tests follow.
//!
//! `TEST_SEED` sets it; else each process draws one. A test that uses it prints the command that repeats it, and cargo shows that output
//! where the test fails.

#![allow(clippy::print_stdout, reason = "libtest shows it where a test fails")]
#![allow(clippy::panic, reason = "a seed that cannot be read fails the test")]

use std::sync::OnceLock;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

/// The variable that sets the base seed. Its name lacks the product's prefix, because the product warns of unknown variables with it.
pub const VARIABLE: &str = "TEST_SEED";

/// Returns the base seed of this process, and prints the command that repeats the calling test.
pub fn base() -> u64 {
    let seed = value();
    println!("base seed {seed}; to repeat: {}", command(VARIABLE, seed));
    seed
}

/// The configuration of property tests, whose cases follow from the base seed.
pub fn cases() -> ProptestConfig {
    ProptestConfig { rng_seed: RngSeed::Fixed(base()), ..ProptestConfig::default() }
}

/// The command that repeats the test of this thread, with `variable` set to `seed`.
pub fn command(variable: &str, seed: u64) -> String {
    // Cargo sets both while a test runs: a test binary is `target/…/deps/NAME-HASH`.
    let package = std::env::var("CARGO_PKG_NAME").map(|name| format!("-p {name} ")).unwrap_or_default();
    let binary = std::env::current_exe().unwrap_or_default();
    let name = binary.file_stem().unwrap_or_default().to_string_lossy();
    let name = name.rsplit_once('-').map_or(&*name, |(name, _hash)| name);
    let target = match name.starts_with("slotkeeper") {
        true => format!("{package}--lib"),
        false => format!("{package}--test {name}"),
    };
    // On one thread alone the tests run on the main one, which has no test's name.
    let test = std::thread::current().name().filter(|name| *name != "main").unwrap_or_default().to_owned();
    format!("{variable}={seed} cargo test --locked {target} {test}").trim_end().to_owned()
}

fn value() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match std::env::var(VARIABLE) {
        Ok(text) => {
            text.parse().unwrap_or_else(|_| panic!("{VARIABLE}={text} is not a whole number from 0 up"))
        }
        // Few digits are enough, and easier to copy.
        Err(_) => fastrand::u32(..).into(),
    })
}
