//! The examples that take leases of an agent beside them, each against a real agent on a real Consul.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home, is_running};
use crate::support::kv::Put;
use crate::wait_for;

const PREFIX: &str = "service/writers";
const LIMIT: usize = 3;

/// Consul, an agent with one semaphore that is taken on demand, and who looks at it all.
struct Stage {
    // In the order in which they are to end.
    agent: Agent,
    home: Home,
    operator: Operator,
    _consul: Consul,
}

impl Stage {
    fn set() -> Self {
        Self::set_with("")
    }

    /// One whose agent's control has other bounds too.
    fn set_with(bounds: &str) -> Self {
        let consul = Consul::start();
        let operator = Operator::at(&consul.address());
        let home = Home::new();
        home.configure(
            &consul.address(),
            &format!(
                "session: {{ttl: 10s}}\ncontrol: {{listen: 'unix:$HOME/control.sock'{bounds}}}\n\
                 semaphores: [{{name: writers, prefix: {PREFIX}, limit: {LIMIT}, mode: on_demand}}]"
            ),
        );
        let agent = Agent::start(&home);
        wait_for("the control socket", || home.path("control.sock").exists());
        Self { agent, home, operator, _consul: consul }
    }

    /// Starts an example; `$SOCKET` in its words is where the agent's control listens.
    fn play(&self, example: &str, arguments: &[&str]) -> Example {
        self.play_with(example, arguments, "60s", Stdio::null())
    }

    /// Starts one that waits so long for its slot, and reads from there.
    fn play_with(&self, example: &str, arguments: &[&str], wait: &str, input: Stdio) -> Example {
        let socket = self.home.path("control.sock").display().to_string();
        let play = fastrand::u32(..);
        let log = self.home.path(&format!("{example}.{play}.log"));
        let errors = log.with_extension("errors");
        let path = format!("{}/examples/{example}", env!("CARGO_MANIFEST_DIR"));
        let child = Command::new(path)
            .args(arguments.iter().map(|word| word.replace("$SOCKET", &socket)))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CONTROL_SOCKET", &socket)
            .env("WAIT", wait)
            .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/clients/python/src"))
            // Nothing of the tests' lies in the repository.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(input)
            .stdout(std::fs::File::create(&log).unwrap())
            .stderr(std::fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        Example { child, log, errors }
    }

    fn holders(&self) -> Vec<String> {
        if self.operator.lock(PREFIX).is_some() { self.operator.holders(PREFIX) } else { Vec::new() }
    }

    /// All leases have been given back; then the agent ends, and nothing at all is left.
    fn assert_empty(mut self) {
        wait_for("all leases to be given back", || {
            self.holders().is_empty() && self.operator.keys(PREFIX).len() == 1
        });
        assert_eq!(self.agent.terminate(), Some(0));
        self.operator.assert_nothing_left(PREFIX);
    }
}

/// An example that runs. It is killed when the value goes, unless it has ended.
struct Example {
    child: Child,
    log: PathBuf,
    errors: PathBuf,
}

impl Example {
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the example to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a log's lines tell: who begins and ends, in the order of their times, whatever the order of the lines.
struct Life {
    most_at_once: usize,
    ended: usize,
}

/// Reads lines `<time> <who> <what>`: `who` is what comes before the word `begins` or `ends`.
fn life(log: &str, begins: &str, ends: &str) -> Life {
    let mut lines: Vec<(f64, &str)> = log
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(time, said)| (time.parse().unwrap(), said))
        .collect();
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut inside, mut life) = (BTreeSet::new(), Life { most_at_once: 0, ended: 0 });
    for (_, said) in lines {
        if let Some((who, _)) = said.split_once(begins) {
            assert!(inside.insert(who), "{who} has begun twice:\n{log}");
        } else if let Some((who, _)) = said.split_once(ends) {
            assert!(inside.remove(who), "{who} has not begun:\n{log}");
            life.ended += 1;
        } else {
            panic!("neither {begins} nor {ends}: {said}");
        }
        life.most_at_once = life.most_at_once.max(inside.len());
    }
    assert!(inside.is_empty(), "some have not ended: {inside:?}");
    life
}

#[test]
fn fifteen_threads_and_never_more_than_three_at_once() {
    let stage = Stage::set();
    let arguments = ["--control", "unix:$SOCKET", "--semaphore", "writers", "--longest", "2"];
    let mut threads = stage.play("fifteen_threads.py", &arguments);
    assert!(threads.ended().success(), "{}", threads.errors());
    let life = life(&threads.log(), " start!", " end!");
    assert_eq!(life.ended, 15);
    assert_eq!(life.most_at_once, LIMIT, "all slots are used:\n{}", threads.log());
    stage.assert_empty();
}

#[test]
fn two_pools_of_workers_share_the_slots() {
    let stage = Stage::set();
    let arguments = [
        "--control",
        "unix:$SOCKET",
        "--semaphore",
        "writers",
        "--workers",
        "4",
        "--items",
        "10",
        "--seconds",
        "0.3",
    ];
    let mut pools = [(); 2].map(|()| stage.play("worker_pool.py", &arguments));
    for pool in &mut pools {
        assert!(pool.ended().success(), "{}", pool.errors());
    }
    // The clock is the same for both; their workers have the same names.
    let log: String = pools
        .iter()
        .zip(["a", "b"])
        .flat_map(|(pool, name)| {
            let named = |line: &str| line.replacen(" worker", &format!(" {name} worker"), 1) + "\n";
            pool.log().lines().map(named).collect::<Vec<_>>()
        })
        .collect();
    let life = life(&log, " start", " end");
    assert_eq!(life.ended, 20);
    assert!(life.most_at_once <= LIMIT, "{log}");
    stage.assert_empty();
}

#[test]
fn a_worker_that_loses_its_lease_stops_and_the_item_is_done_again() {
    let stage = Stage::set();
    let arguments = [
        "--control",
        "unix:$SOCKET",
        "--semaphore",
        "writers",
        "--workers",
        "1",
        "--items",
        "1",
        "--seconds",
        "8",
    ];
    let mut pool = stage.play("worker_pool.py", &arguments);
    wait_for("the worker to hold", || stage.holders().len() == 1 && pool.log().contains("start"));
    stage.operator.destroy(&stage.holders()[0]);
    wait_for("the worker to stop", || pool.log().contains("worker 0 item 0 lost"));
    assert!(!pool.log().contains("end"), "{}", pool.log());
    assert!(pool.ended().success(), "{}", pool.errors());
    let said: Vec<_> =
        pool.log().lines().map(|line| line.split(' ').nth(5).unwrap_or_default().to_owned()).collect();
    assert_eq!(said, ["start", "lost", "start", "end"]);
    stage.assert_empty();
}

#[test]
fn a_stopped_pool_finishes_the_items_that_it_has_begun() {
    let stage = Stage::set();
    let arguments =
        ["--control", "unix:$SOCKET", "--semaphore", "writers", "--items", "100", "--seconds", "1"];
    let mut pool = stage.play("worker_pool.py", &arguments);
    wait_for("all slots to be taken", || pool.log().lines().count() >= LIMIT);
    pool.signal(Signal::TERM);
    assert_eq!(pool.ended().code(), Some(1), "items are left");
    assert!(life(&pool.log(), " start", " end").most_at_once <= LIMIT);
    stage.assert_empty();
}

const POOL_OF_TEN: [&str; 10] = [
    "--control",
    "unix:$SOCKET",
    "--semaphore",
    "writers",
    "--workers",
    "10",
    "--items",
    "10",
    "--seconds",
    "0.5",
];

#[test]
fn a_pool_with_more_workers_than_may_wait_does_all_its_items() {
    let stage = Stage::set_with(", max_waits: 2");
    let mut pool = stage.play("worker_pool.py", &POOL_OF_TEN);
    assert!(pool.ended().success(), "{}", pool.errors());
    assert!(pool.errors().contains("429 too_many_waits"), "not all may wait:\n{}", pool.errors());
    let life = life(&pool.log(), " start", " end");
    assert_eq!(life.ended, 10);
    assert!(life.most_at_once <= LIMIT, "{}", pool.log());
    stage.assert_empty();
}

#[test]
fn a_blocked_pool_ends_and_does_not_retry_forever() {
    let stage = Stage::set();
    stage.operator.put(&format!("{PREFIX}/.lock"), "a picture", Put::Plain, 0);
    let mut pool = stage.play("worker_pool.py", &POOL_OF_TEN);
    assert_eq!(pool.ended().code(), Some(1), "{}", pool.errors());
    let errors = pool.errors();
    assert!(errors.lines().all(|line| line.contains("blocked")), "{errors}");
    assert!(errors.lines().count() <= 10, "each worker asks once:\n{errors}");
    assert_eq!(pool.log(), "");
}

#[test]
fn the_shell_runs_a_command_on_a_lease() {
    let stage = Stage::set();
    let script = "echo $SLOTKEEPER_FENCING_TOKEN $SLOTKEEPER_SLOT; exit 7";
    let mut section = stage.play("critical_section.sh", &["writers", "sh", "-c", script]);
    assert_eq!(section.ended().code(), Some(7), "{}", section.errors());
    let said = section.log();
    let mut numbers = said.split_whitespace().map(|number| number.parse::<u64>().unwrap());
    assert!(numbers.next().is_some_and(|token| token > 0));
    assert!(numbers.next().is_some_and(|slot| slot < LIMIT as u64));
    stage.assert_empty();
}

#[test]
fn the_shell_keeps_its_lease_over_several_ttls_and_others_wait() {
    let stage = Stage::set();
    let mut sections: Vec<_> =
        (0..LIMIT).map(|_| stage.play("critical_section.sh", &["writers", "sleep", "25"])).collect();
    wait_for("all slots to be taken", || stage.holders().len() == LIMIT);
    let mut late = stage.play_with("critical_section.sh", &["writers", "true"], "5s", Stdio::null());
    assert_eq!(late.ended().code(), Some(75), "{}", late.errors());
    for section in &mut sections {
        assert_eq!(section.ended().code(), Some(0), "{}", section.errors());
    }
    stage.assert_empty();
}

#[test]
fn the_shell_stops_its_command_where_the_lease_is_lost() {
    let stage = Stage::set();
    let mut section = stage.play("critical_section.sh", &["writers", "sleep", "600"]);
    wait_for("the slot to be taken", || stage.holders().len() == 1);
    stage.operator.destroy(&stage.holders()[0]);
    assert_eq!(section.ended().code(), Some(80), "{}", section.errors());
    // The name of the session that has ended stays in the record until somebody comes, and is in nobody's way.
    let mut next = stage.play("critical_section.sh", &["writers", "true"]);
    assert_eq!(next.ended().code(), Some(0), "{}", next.errors());
    stage.assert_empty();
}

#[test]
fn a_signal_to_the_shell_reaches_the_command() {
    let stage = Stage::set();
    let script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done";
    let mut section = stage.play("critical_section.sh", &["writers", "sh", "-c", script]);
    wait_for("the command", || section.log().contains("ready"));
    section.signal(Signal::TERM);
    assert_eq!(section.ended().code(), Some(3), "{}", section.errors());
    stage.assert_empty();
}

#[test]
fn standard_input_of_the_shell_reaches_the_command() {
    let stage = Stage::set();
    let (input, mut pipe) = std::io::pipe().unwrap();
    pipe.write_all(b"first line\nsecond line\n").unwrap();
    drop(pipe);
    let mut section = stage.play_with("critical_section.sh", &["writers", "cat"], "60s", input.into());
    assert_eq!(section.ended().code(), Some(0), "{}", section.errors());
    assert_eq!(section.log(), "first line\nsecond line\n");
    stage.assert_empty();
}

#[test]
fn a_signal_to_a_waiting_shell_removes_it_from_the_queue() {
    let stage = Stage::set();
    // SIGINT is what a shell lets those in its background ignore.
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut holders: Vec<_> =
            (0..LIMIT).map(|_| stage.play("critical_section.sh", &["writers", "sleep", "600"])).collect();
        wait_for("all slots to be taken", || stage.holders().len() == LIMIT);
        let contenders = stage.operator.keys(PREFIX).len();
        let mut late = stage.play_with("critical_section.sh", &["writers", "true"], "600s", Stdio::null());
        wait_for("one to stand in line", || stage.operator.keys(PREFIX).len() == contenders + 1);
        late.signal(signal);
        assert_eq!(late.ended().code(), Some(code), "{}", late.errors());
        wait_for("it to leave the line", || stage.operator.keys(PREFIX).len() == contenders);
        assert_eq!(stage.holders().len(), LIMIT);
        for holder in &mut holders {
            holder.signal(Signal::TERM);
            assert_eq!(holder.ended().code(), Some(143), "{}", holder.errors());
        }
        wait_for("the slots to be given back", || stage.holders().is_empty());
    }
    stage.assert_empty();
}

#[test]
fn a_shell_that_is_killed_leaves_neither_its_slot_nor_its_command() {
    let stage = Stage::set();
    let script = "echo $$; exec sleep 600";
    let mut section = stage.play("critical_section.sh", &["writers", "sh", "-c", script]);
    wait_for("the command", || section.log().contains('\n'));
    let command = section.log().trim().to_owned();
    // It is not reaped before the end: one that nobody reaps is gone too.
    section.signal(Signal::KILL);
    wait_for("the command to be stopped", || !is_running(&command));
    wait_for("the slot to be given back", || stage.holders().is_empty());
    assert_eq!(section.ended().signal(), Some(Signal::KILL.as_raw()));
    stage.assert_empty();
}
