//! The commands of docs/step-by-step.md, run as they stand: one shell, from top to bottom.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::BINARY;
use crate::readme::Dev;
use crate::support::ports::Ports;

const PAGE: &str = include_str!("../../docs/step-by-step.md");
const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// What blocks of the page can need that this version does not have.
const NOT_YET: [&str; 0] = [];

/// The page's commands. A block begins with ```` ```sh ````, and may say what it needs: ```` ```sh needs=lock ````.
fn commands() -> String {
    let mut commands = String::new();
    let mut runs = None;
    for line in PAGE.lines() {
        match (runs, line.strip_prefix("```")) {
            (None, Some(info)) => {
                let needs = info.strip_prefix("sh needs=");
                runs = Some(info == "sh" || needs.is_some_and(|needs| !NOT_YET.contains(&needs)));
            }
            (Some(_), Some(_)) => runs = None,
            (Some(true), None) => commands.extend([line, "\n"]),
            (_, None) => {}
        }
    }
    commands
}

/// Runs them against the Consul there: whether all went well, and what was said.
fn run(consul: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("bin");
    std::fs::create_dir(&tools).unwrap();
    std::os::unix::fs::symlink(BINARY, tools.join("slotkeeper")).unwrap();
    std::os::unix::fs::symlink(crate::support::consul::binary(), tools.join("consul")).unwrap();
    std::os::unix::fs::symlink(format!("{REPOSITORY}/examples"), folder.path().join("examples")).unwrap();
    let endpoints = Ports::reserve();
    let commands = commands()
        .replace("localhost:8500", consul)
        .replace("127.0.0.1:9377", &endpoints.addr(0).to_string());
    let path = std::env::var("PATH").unwrap_or_default();
    let Output { status, stdout, stderr } = Command::new("timeout")
        .args(["-k", "5", "120", "bash", "-eux", "-c", &commands])
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", format!("{}:{path}", tools.display()))
        .env("CONSUL_HTTP_ADDR", consul)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.success(), format!("{}\n{}", text(&stdout), text(&stderr)))
}

#[test]
fn the_page_runs_from_top_to_bottom() {
    let consul = Consul::start();
    assert_runs(&consul.address());
}

#[test]
fn it_does_so_on_the_development_server() {
    let dev = Dev::start();
    assert_runs(&dev.address);
}

fn assert_runs(consul: &str) {
    let (went_well, said) = run(consul);
    assert!(went_well, "{said}");
    for told in [
        "the dead one is in nobody's way",
        "not to be had now: 75",
        "lost: 80",
        "slot 0",
        r#"{"limit":3,"holders":[]}"#,
        "Thread 15 end!",
    ] {
        assert!(
            said.lines().any(|line| line.contains(told) && !line.starts_with('+')),
            "no {told:?} in {said}"
        );
    }
    let operator = Operator::at(consul);
    operator.assert_nothing_left("service/db");
    assert_eq!(operator.keys("semaphore/mg-init").len(), 1, "no contender is left");
    assert_eq!(operator.record("semaphore/mg-init")["holders"], serde_json::json!([]));
}

/// No block is left out by a slip in how it begins.
#[test]
fn every_block_of_commands_is_known() {
    for block in PAGE.lines().filter_map(|line| line.strip_prefix("```")).filter(|info| !info.is_empty()) {
        let needs = block.strip_prefix("sh").unwrap_or_else(|| panic!("what is {block:?}?"));
        assert!(needs.is_empty() || matches!(needs, " needs=lock" | " needs=control"), "{block:?}");
    }
}
