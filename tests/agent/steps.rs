//! The commands of docs/step-by-step.md, run as they stand: one shell, from top to bottom.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{BINARY, is_running};
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

/// How long all of the page may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long what a step has left running may take for ending, once it is told to.
const GRACE: Duration = Duration::from_secs(5);

/// A shell with a process group to itself. What is left of that ends with the value.
struct Shell(Child);

impl Shell {
    /// Its exit code, once it has ended. It is left to be reaped: until then nobody else can have its group's number.
    fn code(&self) -> Option<i32> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = waitid(WaitId::Pid(self.group()), options).unwrap()?;
        Some(ended.exit_status().unwrap_or(-1))
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Whether any process of its group still runs.
    fn is_alive(&self) -> bool {
        let group = self.0.id().to_string();
        let runs = |stat: String| {
            // After the name: state, parent, process group.
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            let state = fields.next()?;
            Some(state != "Z" && fields.nth(1)? == group)
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|one| std::fs::read_to_string(one.path().join("stat")).ok())
            .any(|stat| runs(stat).unwrap_or_default())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = kill_process_group(self.group(), Signal::TERM);
        within(GRACE, || !self.is_alive());
        let _ = kill_process_group(self.group(), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Runs commands as the page's against the Consul there: whether all went well, and what was said.
fn run(consul: &str, commands: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("bin");
    std::fs::create_dir(&tools).unwrap();
    std::os::unix::fs::symlink(BINARY, tools.join("slotkeeper")).unwrap();
    std::os::unix::fs::symlink(crate::support::consul::binary(), tools.join("consul")).unwrap();
    std::os::unix::fs::symlink(format!("{REPOSITORY}/examples"), folder.path().join("examples")).unwrap();
    let endpoints = Ports::reserve();
    let commands =
        commands.replace("localhost:8500", consul).replace("127.0.0.1:9377", &endpoints.addr(0).to_string());
    let path = std::env::var("PATH").unwrap_or_default();
    // Files, and no pipes: those would be open as long as anything that a step has started runs.
    let (out, errors) = (folder.path().join("out"), folder.path().join("errors"));
    let child = Command::new("bash")
        .args(["-eux", "-c", &commands])
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", format!("{}:{path}", tools.display()))
        .env("CONSUL_HTTP_ADDR", consul)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&errors).unwrap())
        .process_group(0)
        .spawn()
        .unwrap();
    let shell = Shell(child);
    let code = within(PATIENCE, || shell.code().is_some()).then(|| shell.code()).flatten();
    drop(shell);
    let text = |file| String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
    let end = code.map_or_else(|| "not in time".to_owned(), |code| code.to_string());
    (code == Some(0), format!("{}\n{}\nended: {end}", text(&out), text(&errors)))
}

/// Waits until the condition holds, or so long: whether it does.
#[allow(clippy::disallowed_methods, reason = "a test has no lease, and blocks nobody")]
fn within(patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + patience;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
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
    let (went_well, said) = run(consul, &commands());
    assert!(went_well, "{said}");
    for told in [
        "the dead one is in nobody's way",
        "not to be had now: 75",
        "lost: 80",
        "not locked: 1",
        "not released: 1",
        "the key went with its session",
        "the lock is lost: 80",
        "and yet not to be had: 75",
        "the lock-delay is over",
        r#""code":"not_in_time""#,
        r#""code":"lease_expired""#,
        "it has flags 42 and the value",
        "kept out: 75",
        "not in 2 s: 75",
        "all three are taken: 75",
        "the second one gets: 75",
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
    operator.assert_nobody_left("service/db");
    // `consul lock` ends without waiting for whether its session was destroyed; then that has to run out.
    let mut left = operator.sessions();
    left.retain(|session| !session.name.starts_with("Consul lock"));
    assert_eq!(left, [], "sessions are left");
    assert_eq!(operator.keys("semaphore/mg-init").len(), 1, "no contender is left");
    assert_eq!(operator.record("semaphore/mg-init")["holders"], serde_json::json!([]));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test has no lease")]
fn a_step_that_fails_is_told_at_once_and_leaves_nothing_running() {
    let before = Instant::now();
    let (went_well, said) = run("localhost:1", "sleep 600 & echo \"left: $!\"; false; echo 'never said'");
    assert!(!went_well && said.contains("ended: 1") && !said.contains("\nnever said"), "{said}");
    assert!(before.elapsed() < PATIENCE / 2, "it was waited for what the step has left running");
    let left = said.lines().find_map(|line| line.strip_prefix("left: ")).unwrap();
    assert!(within(GRACE, || !is_running(left)), "{left} runs on");
}

/// No block is left out by a slip in how it begins.
#[test]
fn every_block_of_commands_is_known() {
    for block in PAGE.lines().filter_map(|line| line.strip_prefix("```")).filter(|info| !info.is_empty()) {
        let needs = block.strip_prefix("sh").unwrap_or_else(|| panic!("what is {block:?}?"));
        assert!(needs.is_empty() || matches!(needs, " needs=lock" | " needs=control"), "{block:?}");
    }
}
