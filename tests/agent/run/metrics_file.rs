//! `--metrics-file`: what the node exporter reads of a `run`, while it runs and after its end.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use super::job::{Job, bare, run};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::BINARY;
use crate::support::life::MEEK;
use crate::wait_for;

const FILE: &str = "$HOME/nightly.prom";

fn text(job: &Job) -> String {
    fs::read_to_string(job.path("nightly.prom")).unwrap_or_default()
}

fn has(text: &str, sample: &str) -> bool {
    text.lines().any(|line| line == sample)
}

fn assert_has(text: &str, samples: &[&str]) {
    for sample in samples {
        assert!(has(text, sample), "{sample} is missing in\n{text}");
    }
}

#[test]
fn the_last_write_has_the_release_and_the_result() {
    let consul = Consul::start();
    let mut job =
        Job::start(&consul.address(), &["p/one", "-n", "1", "--metrics-file", FILE], &["sh", "-c", "exit 7"]);
    assert_eq!(job.code(), Some(7), "{}", job.log());
    let text = text(&job);
    assert_has(
        &text,
        &[
            "slotkeeper_run_exit_code{run=\"nightly\"} 7",
            "slotkeeper_acquire_duration_seconds_count{run=\"nightly\",semaphore=\"one\"} 1",
            "slotkeeper_hold_duration_seconds_count{run=\"nightly\",semaphore=\"one\"} 1",
            "slotkeeper_consul_requests_total{code=\"200\",operation=\"session_write\",run=\"nightly\"} 2",
        ],
    );
    assert!(text.contains("\nslotkeeper_run_finished_timestamp_seconds{run=\"nightly\"} 1"), "{text}");
    assert!(text.contains("\nslotkeeper_build_info{"), "{text}");
    for gone in ["process_", "slotkeeper_slot_held", "slotkeeper_session_expiry", "slotkeeper_ready"] {
        assert!(!text.contains(gone), "{gone} in\n{text}");
    }
    let about = fs::metadata(job.path("nightly.prom")).unwrap();
    assert_eq!(about.permissions().mode() & 0o777, 0o644);
    let folder = fs::read_dir(job.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = folder.filter(|name| name.to_string_lossy().contains("nightly")).collect();
    assert_eq!(left, ["nightly.prom"], "a temporary or a lock file is left");
}

#[test]
fn a_wait_that_times_out_and_a_lost_slot_are_in_it() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let arguments = ["p/one", "-n", "1", "--metrics-file", FILE];
    let mut holder = Job::live(&consul.address(), &arguments, MEEK);
    holder.await_life();
    let mut late = Job::start(&consul.address(), &[&arguments[..], &["--try"]].concat(), &["true"]);
    assert_eq!(late.code(), Some(75), "{}", late.log());
    let said = text(&late);
    assert_has(
        &said,
        &[
            "slotkeeper_run_exit_code{run=\"nightly\"} 75",
            "slotkeeper_acquire_duration_seconds_count{run=\"nightly\",semaphore=\"one\"} 0",
        ],
    );
    operator.destroy(&operator.holders("p/one")[0]);
    assert_eq!(holder.code(), Some(80), "{}", holder.log());
    assert_has(
        &text(&holder),
        &[
            "slotkeeper_run_exit_code{run=\"nightly\"} 80",
            "slotkeeper_slots_lost_total{reason=\"session_gone\",run=\"nightly\",semaphore=\"one\"} 1",
        ],
    );
}

#[test]
fn it_is_written_while_the_command_runs() {
    let consul = Consul::start();
    let mut job = Job::live(&consul.address(), &["p/one", "--metrics-file", FILE], MEEK);
    job.await_life();
    let acquired = "slotkeeper_acquire_duration_seconds_count{run=\"nightly\",semaphore=\"one\"} 1";
    // The first write was before the acquisition.
    wait_for("a later write", || has(&text(&job), acquired));
    assert!(!text(&job).contains("slotkeeper_run_exit_code"), "{}", text(&job));
    let first = fs::metadata(job.path("nightly.prom")).unwrap().ino();
    fs::remove_file(job.path("nightly.prom")).unwrap();
    wait_for("another file", || job.path("nightly.prom").exists());
    assert!(job.is_running(), "{}", job.log());
    job.signal(Signal::TERM);
    assert_eq!(job.code(), Some(143), "{}", job.log());
    assert_has(&text(&job), &["slotkeeper_run_exit_code{run=\"nightly\"} 143"]);
    assert_ne!(fs::metadata(job.path("nightly.prom")).unwrap().ino(), first, "a file was written in place");
}

#[test]
fn what_is_no_regular_file_is_refused_before_anything_is_acquired() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("target"), "precious").unwrap();
    std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let path = |name: &str| at(name).display().to_string();
    for (file, why) in [
        ("/dev/null".to_owned(), "lies below /dev"),
        ("/proc/self/x.prom".to_owned(), "lies below /proc"),
        (path("link"), "it is a symbolic link"),
        (path("folder"), "it is a folder"),
        (path("pipe"), "it is a pipe"),
    ] {
        for by_flag in [true, false] {
            let arguments = if by_flag {
                vec!["p/one", "-n", "1", "--metrics-file", &file]
            } else {
                vec!["p/one", "-n", "1"]
            };
            let mut command = run(&consul.address(), &arguments, &["true"]);
            if !by_flag {
                command.env("SLOTKEEPER_METRICS_FILE", &file);
            }
            let mut job = Job::spawn(command, tempfile::tempdir().unwrap());
            assert_eq!(job.code(), Some(78), "{file}: {}", job.log());
            let named = if by_flag { "--metrics-file" } else { "SLOTKEEPER_METRICS_FILE" };
            assert!(job.log().contains(why) && job.log().contains(named), "{}", job.log());
        }
    }
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    assert_eq!(fs::read_to_string(at("target")).unwrap(), "precious");
    assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
    assert_eq!(Operator::at(&consul.address()).keys("p/one"), [], "something was acquired");
}

#[test]
fn a_failed_write_is_logged_once_and_ends_nothing() {
    let consul = Consul::start();
    let arguments = ["p/one", "-n", "1", "--metrics-file", "$HOME/missing/nightly.prom"];
    let mut job = Job::start(&consul.address(), &arguments, &["sh", "-c", "exit 3"]);
    assert_eq!(job.code(), Some(3), "{}", job.log());
    assert_eq!(job.log().matches(log_events::FILE_WRITE_FAILED).count(), 1, "{}", job.log());
    assert!(!job.path("missing").exists());
}

#[test]
fn an_invalid_configuration_is_a_result_too() {
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.yaml"), "semaphores: [{name: s, prefix: p/s, limit: none}]")
        .unwrap();
    let mut command = std::process::Command::new(BINARY);
    bare(&mut command);
    command
        .args(["run", "--http-addr", &consul.address(), "--config"])
        .arg(folder.path().join("config.yaml"));
    command.env("SLOTKEEPER_METRICS_FILE", folder.path().join("nightly.prom")).args(["--", "true"]);
    let mut job = Job::spawn(command, folder);
    assert_eq!(job.code(), Some(78), "{}", job.log());
    assert_has(&text(&job), &["slotkeeper_run_exit_code{run=\"nightly\"} 78"]);
}

#[test]
fn the_variable_names_it_too_and_an_empty_one_is_absent() {
    let consul = Consul::start();
    let written = |arguments: &[&str], variable: &dyn Fn(&Path) -> std::ffi::OsString| {
        let folder = tempfile::tempdir().unwrap();
        // The command does not inherit it.
        let mut command =
            run(&consul.address(), arguments, &["sh", "-c", "test -z \"${SLOTKEEPER_METRICS_FILE+set}\""]);
        command.env("SLOTKEEPER_METRICS_FILE", variable(&folder.path().join("nightly.prom")));
        let mut job = Job::spawn(command, folder);
        assert_eq!(job.code(), Some(0), "{}", job.log());
        assert!(!job.log().contains("SLOTKEEPER_METRICS_FILE"), "{}", job.log());
        text(&job).contains("slotkeeper_run_exit_code{run=\"nightly\"} 0")
    };
    let file: &dyn Fn(&Path) -> std::ffi::OsString = &|path| path.into();
    assert!(written(&["p/one", "-n", "1"], file));
    assert!(!written(&["p/one", "-n", "1"], &|_| "".into()));
}

/// The first process of a container runs the same command line below itself, and writes nothing over its files.
#[test]
fn the_first_process_of_a_container_leaves_it_as_it_is() {
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("unshare");
    bare(&mut command);
    command.args([
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        BINARY,
        "run",
    ]);
    command.args(["--http-addr", &consul.address(), "p/one", "-n", "1", "--metrics-file"]);
    command.arg(folder.path().join("nightly.prom")).args(["--", "sh", "-c", "exit 5"]);
    let mut job = Job::spawn(command, folder);
    assert_eq!(job.code(), Some(5), "{}", job.log());
    assert_has(
        &text(&job),
        &[
            "slotkeeper_run_exit_code{run=\"nightly\"} 5",
            "slotkeeper_hold_duration_seconds_count{run=\"nightly\",semaphore=\"one\"} 1",
        ],
    );
}
