//! Tells a release build of a clone which commit it is of. A build for development does not depend on the commit, which would
//! compile everything again after each.

use std::path::Path;
use std::process::Command;

fn main() {
    // The name has no prefix of slotkeeper's: `cargo run` passes the variable on to the program, which warns of unknown variables with it.
    println!("cargo::rerun-if-env-changed=BUILD_REVISION");
    let is_told = std::env::var_os("BUILD_REVISION").is_some();
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    // A package, or sources that are a part of another repository, have no `.git` of their own.
    if is_told || !is_release || !Path::new(".git").exists() {
        return;
    }
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    // Each commit and each checkout adds a line to this file.
    if let (Some(log), Some(commit)) =
        (git(&["rev-parse", "--git-path", "logs/HEAD"]), git(&["rev-parse", "HEAD"]))
    {
        println!("cargo::rerun-if-changed={log}");
        println!("cargo::rustc-env=BUILD_REVISION={commit}");
    }
}
