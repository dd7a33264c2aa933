//! The clients of the control API, each by its own linters and tests, against the real agent; and docs/clients.md, whose examples
//! are theirs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../support/wait.rs"]
mod wait;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// For an installation of the tools, and the tests on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(15 * 60);

/// A script and what it has started. They end with this value.
struct Script(Child);

impl Script {
    fn end(&mut self) -> ExitStatus {
        let mut status = None;
        wait::within(TIME_LIMIT, "the client's tests to end", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Runs the checks and tests of a client.
fn assert_passes(language: &str) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let file = std::fs::File::create(&output).unwrap();
    let path = Path::new(REPOSITORY).join("clients").join(language).join("test");
    let child = Command::new(&path)
        .env("SLOTKEEPER_BIN", env!("CARGO_BIN_EXE_slotkeeper"))
        .env("PATH", search_path())
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .process_group(0)
        .spawn();
    let child = child.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let status = Script(child).end();
    let said = String::from_utf8_lossy(&std::fs::read(&output).unwrap()).into_owned();
    assert!(status.success(), "{}: {status}\n{said}", path.display());
}

/// The `PATH`, with the folders of the named tools first: npm and others start the `node` that they find there.
fn search_path() -> std::ffi::OsString {
    let named = ["GO_BIN", "NODE_BIN"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let folders = named.filter_map(|tool| Some(tool.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap()
}

#[test]
fn python() {
    assert_passes("python");
}

#[test]
fn go() {
    assert_passes("go");
}

#[test]
fn typescript() {
    assert_passes("typescript");
}

/// A file of the repository.
fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(REPOSITORY).join(file))
        .unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The examples of a Markdown file in a language.
fn examples(file: &str, language: &str) -> Vec<String> {
    let text = read(file);
    let opening = format!("```{language}\n");
    let blocks = text.split(&opening).skip(1).filter_map(|rest| rest.split_once("```\n"));
    blocks.map(|(example, _)| example.to_owned()).collect()
}

/// The tests of a client run the examples of its README.
fn assert_has_example_of_readme(client: &str, language: &str) {
    let shown = examples("docs/clients.md", language);
    let readme = format!("clients/{client}/README.md");
    assert_eq!(shown.len(), 1, "docs/clients.md has one example in {client}");
    let is_run = examples(&readme, language).contains(&shown[0]);
    assert!(is_run, "docs/clients.md has another example than {readme}:\n{}", shown[0]);
}

#[test]
fn the_page_has_the_example_in_python_that_is_run() {
    assert_has_example_of_readme("python", "python");
}

#[test]
fn the_page_has_the_example_in_go_that_is_run() {
    assert_has_example_of_readme("go", "go");
}

#[test]
fn the_page_has_the_example_in_typescript_that_is_run() {
    assert_has_example_of_readme("typescript", "ts");
}

#[test]
fn no_other_page_has_examples_in_these_languages() {
    for page in std::fs::read_dir(Path::new(REPOSITORY).join("docs")).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") && name != "clients.md" {
            let shown =
                ["python", "go", "ts"].map(|language| examples(&format!("docs/{name}"), language).len());
            assert_eq!(shown, [0; 3], "docs/{name} has an example that no test runs");
        }
    }
}

#[test]
fn each_package_has_the_licence_of_the_agent() {
    // A package cannot refer to a file outside its folder, and npm leaves a symlink out.
    for language in ["python", "go", "typescript"] {
        let file = format!("clients/{language}/LICENSE");
        let is_file = Path::new(REPOSITORY).join(&file).symlink_metadata().unwrap().is_file();
        assert!(is_file, "{file} is not a regular file");
        assert_eq!(read(&file), read("LICENSE"), "{file} is another one than LICENSE");
    }
}

#[test]
fn the_package_for_python_has_the_version_of_the_agent() {
    let version = format!("\nversion = \"{}\"\n", env!("CARGO_PKG_VERSION"));
    let project = read("clients/python/pyproject.toml");
    assert!(project.contains(&version), "clients/python/pyproject.toml has no line{version}");
}
