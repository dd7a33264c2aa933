//! CHANGELOG.md, and the notes of a release that scripts/release-notes makes of it.

use std::path::Path;
use std::process::{Command, Output};

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

const CHANGELOG: &str = "\
# Changelog

## Unreleased

- Not yet.

## 0.2.0 - 2026-01-02

The second
[version](docs/run.md), see [below](#added).

### Added

- One thing
  in two lines.
  - A part of it.
- [Another](https://example.org/page).

## 0.1.0

- The first.
";

/// Runs the script of a repository with that changelog, which is at version 0.2.0.
fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("scripts")).unwrap();
    std::fs::copy(Path::new(REPOSITORY).join("scripts/release-notes"), path("scripts/release-notes"))
        .unwrap();
    std::fs::write(path("CHANGELOG.md"), CHANGELOG).unwrap();
    std::fs::write(path("Cargo.toml"), "[workspace.package]\nversion = \"0.2.0\"\n").unwrap();
    // Not by itself: while another thread starts a process, a file just written cannot be executed ("Text file busy").
    let mut command = Command::new("bash");
    command
        .arg(path("scripts/release-notes"))
        .args(arguments)
        .env_remove("GITHUB_REPOSITORY")
        .envs(environment.iter().copied());
    command.output().unwrap()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_version_of_this_tree_has_notes() {
    let version = env!("CARGO_PKG_VERSION");
    let script = Path::new(REPOSITORY).join("scripts/release-notes");
    let output = Command::new(script).args(["--tag", &format!("v{version}")]).output().unwrap();
    assert!(output.status.success(), "{}", text(output.stderr));
}

#[test]
fn the_notes_of_a_version_are_its_section() {
    let output = run(&["0.2.0"], &[]);
    assert!(output.status.success());
    let expected = "\
The second [version](docs/run.md), see [below](#added).

### Added

- One thing in two lines.
  - A part of it.
- [Another](https://example.org/page).
";
    assert_eq!(text(output.stdout), expected);
    assert_eq!(text(run(&["0.1.0"], &[]).stdout), "- The first.\n");
}

#[test]
fn links_of_a_release_lead_to_the_files_of_its_tag() {
    let environment = [("GITHUB_REPOSITORY", "owner/name"), ("GITHUB_SERVER_URL", "https://example.org")];
    let notes = text(run(&["0.2.0"], &environment).stdout);
    for link in [
        "[version](https://example.org/owner/name/blob/v0.2.0/docs/run.md)",
        "[below](https://example.org/owner/name/blob/v0.2.0/CHANGELOG.md#added)",
        "[Another](https://example.org/page)",
    ] {
        assert!(notes.contains(link), "no {link} in {notes}");
    }
}

#[test]
fn a_tag_without_notes_or_of_another_version_is_refused() {
    for (arguments, reason) in [
        (&["--tag", "v0.1.0"][..], "the tag v0.1.0 is not v0.2.0, the version in Cargo.toml"),
        (&["--tag", "0.2.0"], "the tag 0.2.0 is not v0.2.0"),
        (&["0.3.0"], "CHANGELOG.md has no section \"## 0.3.0\""),
        (&["0.2"], "CHANGELOG.md has no section \"## 0.2\""),
        (&[], "which version?"),
    ] {
        let output = run(arguments, &[]);
        let said = text(output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{arguments:?}: {said}");
    }
    assert!(run(&["--tag", "v0.2.0"], &[]).status.success());
}
