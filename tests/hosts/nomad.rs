//! The jobs of examples/nomad. Nomad's own types check each file (tests/hosts/nomad). Then its tasks run as Nomad's documentation
//! says that it runs them, with the real binary on a real Consul. No Nomad is run here: docs/nomad.md says what was seen with one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::support::ports::Ports;
use crate::wait_for;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");
const BINARY: &str = env!("CARGO_BIN_EXE_slotkeeper");

/// The program that checks a job file and prints it as JSON, built once.
static CHECKER: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("nomad");
    let go = std::env::var_os("GO_BIN").unwrap_or_else(|| "go".into());
    let output = Command::new(&go)
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(Path::new(REPOSITORY).join("tests/hosts/nomad"))
        .env("GOTOOLCHAIN", "auto")
        .output()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}; scripts/go gets a Go", go.display()));
    assert!(
        output.status.success(),
        "cannot build tests/hosts/nomad: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    (folder, program)
});

/// Checks a job file. Its content, or what is wrong with it.
fn check(path: &Path) -> Result<Value, String> {
    let output = Command::new(&CHECKER.1).arg(path).output().unwrap();
    if output.status.success() {
        Ok(serde_json::from_slice(&output.stdout).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

fn example(name: &str) -> Value {
    check(&Path::new(REPOSITORY).join("examples/nomad").join(name)).unwrap_or_else(|error| panic!("{error}"))
}

/// An allocation of a job with one group: its tasks, and the variables that Nomad gives them.
struct Allocation {
    tasks: Vec<Value>,
    variables: BTreeMap<String, String>,
    folder: TempDir,
    consul: String,
    _ports: Ports,
}

/// A running task. It is killed with this value.
struct Task {
    child: Child,
    kill_signal: Signal,
}

impl Task {
    fn ended(&mut self, what: &str) -> ExitStatus {
        let mut status = None;
        wait_for(what, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Ends it as Nomad does, by the task's kill_signal.
    fn kill(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), self.kill_signal).unwrap();
        self.ended("the task to end after its kill_signal")
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Allocation {
    fn of(job: &Value, consul: &Consul, meta: &[(&str, &str)]) -> Self {
        let group = &job["group"][0];
        let ports = Ports::reserve();
        let mut variables: BTreeMap<_, _> =
            meta.iter().map(|(name, value)| (format!("NOMAD_META_{name}"), (*value).to_owned())).collect();
        let labels = group["network"][0]["port"].as_array().into_iter().flatten();
        for (n, port) in (0..).zip(labels) {
            let label = port["label"].as_str().unwrap();
            variables.insert(format!("NOMAD_PORT_{label}"), ports.addr(n).port().to_string());
        }
        Self {
            tasks: group["task"].as_array().unwrap().clone(),
            variables,
            folder: tempfile::tempdir().unwrap(),
            consul: consul.address(),
            _ports: ports,
        }
    }

    /// Starts a task with its templates and variables.
    fn start(&self, name: &str) -> Task {
        let task = self.tasks.iter().find(|task| task["label"] == name).expect("the job has the task");
        let folder = self.folder.path().join(name);
        let mut variables = self.variables.clone();
        variables.insert("NOMAD_TASK_DIR".to_owned(), folder.join("local").display().to_string());
        let filled = |value: &Value| {
            let text = value.as_str().unwrap().replace("127.0.0.1:8500", &self.consul);
            let text = if text == "/usr/bin/slotkeeper" { BINARY.to_owned() } else { text };
            variables.iter().fold(text, |text, (name, value)| text.replace(&format!("${{{name}}}"), value))
        };
        for template in task["template"].as_array().into_iter().flatten() {
            let path = folder.join(template["destination"].as_str().unwrap());
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, template["data"].as_str().unwrap()).unwrap();
        }
        fs::create_dir_all(&folder).unwrap();
        let own = task["env"].as_object().into_iter().flatten();
        let child = Command::new(filled(&task["config"]["command"]))
            .args(task["config"]["args"].as_array().unwrap().iter().map(filled))
            .current_dir(&folder)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(&variables)
            .envs(own.map(|(name, value)| (name, filled(value))))
            .stdin(Stdio::null())
            .stdout(fs::File::create(self.path(name, "stdout")).unwrap())
            .stderr(fs::File::create(self.path(name, "stderr")).unwrap())
            .spawn()
            .unwrap();
        let kill_signal = match task["kill_signal"].as_str() {
            None => Signal::INT,
            Some("SIGTERM") => Signal::TERM,
            Some(other) => panic!("which signal is {other}?"),
        };
        Task { child, kill_signal }
    }

    fn path(&self, task: &str, stream: &str) -> PathBuf {
        self.folder.path().join(format!("{task}.{stream}"))
    }

    /// What a task has printed.
    fn printed(&self, task: &str) -> String {
        fs::read_to_string(self.path(task, "stdout")).unwrap()
    }

    fn errors(&self, task: &str) -> String {
        fs::read_to_string(self.path(task, "stderr")).unwrap()
    }

    /// The tasks with that hook.
    fn with_lifecycle(&self, hook: &str, sidecar: bool) -> Vec<&str> {
        let tasks = self.tasks.iter().filter(|task| {
            task["lifecycle"]["hook"] == hook && (task["lifecycle"]["sidecar"] == true) == sidecar
        });
        tasks.map(|task| task["label"].as_str().unwrap()).collect()
    }

    fn main(&self) -> Vec<&str> {
        let tasks = self.tasks.iter().filter(|task| task["lifecycle"].is_null());
        tasks.map(|task| task["label"].as_str().unwrap()).collect()
    }
}

/// The prefix that the examples of imports share.
const WRITERS: &str = "service/warehouse/writers";

/// Takes all five slots until the value is dropped.
fn take_all(consul: &Consul) -> Task {
    let child = Command::new(BINARY)
        .args(["run", WRITERS, "--limit", "5", "--format", "map", "--quiet"])
        .args(["--", "sleep", "600"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("CONSUL_HTTP_ADDR", consul.address())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Task { child, kill_signal: Signal::TERM }
}

fn holders(operator: &Operator) -> usize {
    if operator.lock(WRITERS).is_some() { operator.holders(WRITERS).len() } else { 0 }
}

#[test]
fn a_dispatched_import_runs_on_a_slot() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let job = example("wrapper.nomad.hcl");
    assert_eq!(job["parameterized"]["meta_required"][0], "table");
    let mut blockers: Vec<_> = (0..5).map(|_| take_all(&consul)).collect();
    wait_for("all slots to be taken", || holders(&operator) == 5);
    let allocation = Allocation::of(&job, &consul, &[("table", "orders")]);
    let mut import = allocation.start("import");
    wait_for("the import to wait", || operator.keys(WRITERS).len() == 7);
    let waiting = operator
        .keys(WRITERS)
        .iter()
        .any(|pair| String::from_utf8_lossy(&pair.value).contains(r#""name":"import orders""#));
    assert!(waiting && import.is_running() && allocation.printed("import").is_empty());
    blockers[0].kill();
    assert!(import.ended("the import").success(), "{}", allocation.errors("import"));
    assert!(
        allocation.printed("import").starts_with("importing orders on slot "),
        "{}",
        allocation.printed("import")
    );
}

/// As `nomad job stop` does it.
#[test]
fn a_stopped_import_ends_with_its_command_and_releases_its_slot() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let allocation = Allocation::of(&example("wrapper.nomad.hcl"), &consul, &[("table", "orders")]);
    let mut import = allocation.start("import");
    wait_for("the import", || allocation.printed("import").starts_with("importing"));
    assert_eq!(import.kill().code(), Some(143));
    assert_eq!(holders(&operator), 0);
    operator.assert_nothing_left(WRITERS);
}

#[test]
fn the_periodic_backup_runs_on_a_slot() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let job = example("periodic.nomad.hcl");
    assert_eq!(job["periodic"]["crons"][0], "0 1 * * *");
    let allocations: Vec<_> = (0..3).map(|_| Allocation::of(&job, &consul, &[])).collect();
    let mut backups: Vec<_> = allocations.iter().map(|allocation| allocation.start("backup")).collect();
    for (backup, allocation) in backups.iter_mut().zip(&allocations) {
        assert!(backup.ended("the backup").success(), "{}", allocation.errors("backup"));
        let printed = allocation.printed("backup");
        assert!(["backing up on slot 0\n", "backing up on slot 1\n"].contains(&&*printed), "{printed}");
        assert_eq!(allocation.errors("backup"), "", "--quiet");
    }
    operator.assert_nothing_left("service/backup");
}

#[test]
fn the_main_task_starts_when_the_sidecar_holds_the_slot() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let allocation = Allocation::of(&example("sidecar.nomad.hcl"), &consul, &[]);
    assert_eq!(allocation.with_lifecycle("prestart", true), ["slotkeeper"]);
    assert_eq!(allocation.with_lifecycle("prestart", false), ["wait"]);
    assert_eq!(allocation.main(), ["import"]);
    let mut blockers: Vec<_> = (0..5).map(|_| take_all(&consul)).collect();
    wait_for("all slots to be taken", || holders(&operator) == 5);

    // Nomad starts the prestart tasks at once, and the main task when those that are no sidecars have ended well.
    let mut sidecar = allocation.start("slotkeeper");
    let mut wait = allocation.start("wait");
    wait_for("the sidecar to wait", || operator.keys(WRITERS).len() == 7);
    assert!(wait.is_running());
    blockers[0].kill();
    assert!(wait.ended("the wait").success(), "{}", allocation.errors("wait"));
    let mut import = allocation.start("import");
    assert!(import.ended("the import").success());
    assert_eq!(allocation.printed("import"), "importing\n");
    assert_eq!(holders(&operator), 5);
    assert!(sidecar.is_running());

    // When the main tasks have ended, Nomad ends the sidecars.
    assert!(sidecar.kill().success(), "{}", allocation.errors("slotkeeper"));
    assert_eq!(holders(&operator), 4);
}

/// Nomad kills all tasks of an allocation when one of them has failed, also a sidecar.
#[test]
fn a_lost_slot_fails_the_sidecar() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let job = example("sidecar.nomad.hcl");
    assert_eq!(job["group"][0]["restart"]["attempts"], 0);
    let allocation = Allocation::of(&job, &consul, &[]);
    let mut sidecar = allocation.start("slotkeeper");
    assert!(allocation.start("wait").ended("the wait").success());
    operator.destroy(&operator.holders(WRITERS)[0]);
    assert_eq!(sidecar.ended("the sidecar to end").code(), Some(80), "{}", allocation.errors("slotkeeper"));
}

/// Nomad refuses to replace the parameterized job by one that is not.
#[test]
fn the_examples_run_in_one_cluster() {
    let jobs = ["wrapper.nomad.hcl", "periodic.nomad.hcl", "sidecar.nomad.hcl"].map(example);
    let labels: BTreeSet<_> = jobs.iter().map(|job| job["label"].as_str().unwrap()).collect();
    assert_eq!(labels.len(), jobs.len(), "{labels:?}");
}

/// A part of docs/nomad.md is a part of an example, or fits into the wrapper's task.
#[test]
fn the_parts_on_the_page_are_of_the_examples() {
    let read = |path: &str| fs::read_to_string(Path::new(REPOSITORY).join(path)).unwrap();
    let (page, wrapper) = (read("docs/nomad.md"), read("examples/nomad/wrapper.nomad.hcl"));
    let parts: Vec<_> =
        page.split("```hcl\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let (own, others): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| wrapper.contains(part));
    assert_eq!((own.len(), others.len()), (1, 1));
    let folder = tempfile::tempdir().unwrap();
    let job = folder.path().join("job.nomad.hcl");
    let place = "      kill_signal  =";
    assert!(wrapper.contains(place));
    fs::write(&job, wrapper.replace(place, &format!("{}\n{place}", others[0]))).unwrap();
    check(&job).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_checker_refuses_what_nomad_would_refuse() {
    let folder = tempfile::tempdir().unwrap();
    let job = folder.path().join("job.nomad.hcl");
    let text = fs::read_to_string(Path::new(REPOSITORY).join("examples/nomad/sidecar.nomad.hcl")).unwrap();
    for (right, wrong, reason) in [
        (r#"hook    = "prestart""#, r#"hoook = "prestart""#, "not expected here"),
        (r#"kill_timeout = "30s""#, r#"kill_timeout = "30x""#, "unknown unit"),
        ("cpu    = 20", r#"cpu = "some""#, "a number is required"),
        ("template {", "templates {", "Unsupported block type"),
        (r#"hook    = "prestart""#, "", "Missing required argument"),
    ] {
        assert!(text.contains(right), "{right}");
        fs::write(&job, text.replace(right, wrong)).unwrap();
        let refused = check(&job).expect_err(wrong);
        assert!(refused.contains(reason), "{wrong}: {refused}");
    }
}
