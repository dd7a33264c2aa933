//! The configuration's samples and schema, and the commands that read them, on the real binary.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed setup fails the test")]

mod check;
mod layers;
mod rules;
mod samples;
mod schema;

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs slotkeeper with `args`, and with `input` on its standard input.
fn slotkeeper(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_slotkeeper"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads no input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
