//! The command as without us: its exit code, streams, signals, and all that it starts.

use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use slotkeeper::internals::log_events;

use super::job::{Job, bare, run};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::BINARY;
use crate::support::life::{Life, MEEK, STUBBORN};
use crate::support::processes;
use crate::wait_for;

const ONE: [&str; 3] = ["p/one", "-n", "1"];

#[test]
fn run_exits_with_the_commands_code_and_leaves_nothing() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        let mut job = Job::start(&consul.address(), &ONE, &["sh", "-c", script]);
        assert_eq!(job.code(), Some(code), "{script}: {}", job.log());
        operator.assert_nothing_left("p/one");
    }
    let mut job = Job::start(&consul.address(), &ONE, &["/nonexistent/command"]);
    assert_eq!(job.code(), Some(127));
    assert!(job.log().contains("cannot run /nonexistent/command: No such file"), "{}", job.log());
    let mut job = Job::start(&consul.address(), &ONE, &["/etc/passwd"]);
    assert_eq!(job.code(), Some(126));
    operator.assert_nothing_left("p/one");
}

#[test]
fn the_command_gets_its_slot_in_its_environment() {
    let consul = Consul::start();
    let config = "consul: {address: '$CONSUL'}\nhttp: {listen: off}\nsemaphores:\n\
                  - {name: a-b, prefix: p/a, limit: 2}\n- {name: c.d, prefix: p/c, limit: 2, slots: 2}\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, config.replace("$CONSUL", &consul.address())).unwrap();
    let mut command = Command::new(BINARY);
    bare(&mut command);
    command.args(["run", "--config"]).arg(&file).args([
        "--",
        "sh",
        "-c",
        "env | grep -E '^(SLOTKEEPER|CONSUL)_' | sort",
    ]);
    let mut job = Job::spawn(command, folder);
    assert_eq!(job.code(), Some(0), "{}", job.log());
    let out = job.out();
    let names: Vec<_> = out.lines().map(|line| line.split_once('=').unwrap().0).collect();
    let expected = [
        "CONSUL_LOCK_HELD",
        "SLOTKEEPER_FENCING_TOKEN",
        "SLOTKEEPER_FENCING_TOKEN_A_B",
        "SLOTKEEPER_FENCING_TOKEN_C_D",
        "SLOTKEEPER_HELD",
        "SLOTKEEPER_SESSION",
        "SLOTKEEPER_SLOT",
        "SLOTKEEPER_SLOT_A_B",
        "SLOTKEEPER_SLOT_C_D",
    ];
    assert_eq!(names, expected);
    let value =
        |name: &str| out.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).unwrap().to_owned();
    assert_eq!(value("CONSUL_LOCK_HELD"), "true");
    assert_eq!(value("SLOTKEEPER_FENCING_TOKEN"), value("SLOTKEEPER_FENCING_TOKEN_A_B"));
    assert_eq!((value("SLOTKEEPER_SLOT"), value("SLOTKEEPER_HELD")), ("0".into(), "p/a p/c".into()));
}

#[test]
fn the_command_inherits_the_streams() {
    let consul = Consul::start();
    let mut child = run(&consul.address(), &ONE, &["sh", "-c", "tr a-z A-Z; echo oh >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"HELLO\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("oh\n"));
}

#[test]
fn a_shell_gets_the_words_as_one_line() {
    let consul = Consul::start();
    let mut job =
        Job::start(&consul.address(), &["p/one", "-n", "1", "--shell"], &["echo", "$((1+1))", "|", "cat"]);
    assert_eq!((job.code(), job.out().as_str()), (Some(0), "2\n"));
}

#[test]
fn signals_are_passed_on() {
    let consul = Consul::start();
    let script = "for s in TERM INT HUP QUIT USR1 USR2 WINCH; do trap \"echo $s\" $s; done\n\
                  echo ready; while [ ! -e $0/done ]; do sleep 0.02; done; exit 3";
    let mut job = Job::start(&consul.address(), &ONE, &["sh", "-c", script, "$HOME"]);
    wait_for("the command", || job.out().contains("ready"));
    let signals = [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ];
    for (signal, name) in signals {
        job.signal(signal);
        wait_for(name, || job.out().lines().any(|line| line == name));
    }
    std::fs::write(job.path("done"), "").unwrap();
    assert_eq!(job.code(), Some(3), "the signals meant the command, not us: {}", job.log());
}

#[test]
fn ignored_signals_stay_ignored() {
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    let mut nohup = Command::new("sh");
    bare(&mut nohup);
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh", BINARY, "run", "--http-addr"]);
    nohup.arg(consul.address()).args(ONE).args(["--", "sh", "-c", "echo ready; read -r _; echo done"]);
    let mut job = Job::spawn(
        {
            nohup.stdin(Stdio::piped());
            nohup
        },
        folder,
    );
    wait_for("the command", || job.out().contains("ready"));
    job.signal(Signal::HUP);
    job.close_stdin();
    assert_eq!(job.code(), Some(0), "{}", job.log());
    assert!(job.out().contains("done"));
}

#[test]
fn all_descendants_end_before_the_slot_is_released() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    // One in its group and one in a session of its own, both deaf to SIGTERM.
    let both_live = "until [ -s $0 ] && [ -s $1 ]; do sleep 0.05; done";
    let script =
        format!("sh -c '{0}' $0 & setsid sh -c '{0}' $1 & {both_live}; exit 5", STUBBORN.replace('\'', "\""));
    let arguments = ["p/one", "-n", "1", "--kill-after", "1s"];
    let mut first =
        Job::start(&consul.address(), &arguments, &["sh", "-c", &script, "$HOME/life", "$HOME/apart"]);
    let apart = Life::at(first.path("apart"));
    let life = first.await_life();
    wait_for("the one apart", || apart.has_begun());
    let mut second = Job::live(&consul.address(), &ONE, MEEK);
    let next = second.await_life();
    life.assert_before(&next);
    apart.assert_before(&next);
    assert_eq!(first.code(), Some(5), "{}", first.log());
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143));
    operator.assert_nothing_left("p/one");
}

#[test]
fn a_signal_ends_the_waiting_and_nothing_is_left() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut first = Job::live(&consul.address(), &ONE, MEEK);
    first.await_life();
    let mut second = Job::live(&consul.address(), &ONE, MEEK);
    wait_for("one in line", || operator.keys("p/one").len() == 3);
    second.signal(Signal::INT);
    assert_eq!(second.code(), Some(130), "{}", second.log());
    assert!(!second.life().has_begun());
    first.signal(Signal::TERM);
    assert_eq!(first.code(), Some(143));
    operator.assert_nothing_left("p/one");
}

#[test]
fn a_single_try_without_a_free_slot_says_so() {
    let consul = Consul::start();
    let mut first = Job::live(&consul.address(), &ONE, MEEK);
    first.await_life();
    for bound in [vec!["--try"], vec!["--timeout", "5s"]] {
        let mut second = Job::live(&consul.address(), &[&ONE[..], &bound].concat(), MEEK);
        assert_eq!(second.code(), Some(75), "{}", second.log());
        assert!(!second.life().has_begun());
    }
    let nobody = "127.0.0.1:1";
    let mut third = Job::live(nobody, &["p/one", "-n", "1", "--timeout", "300ms"], MEEK);
    assert_eq!(third.code(), Some(69), "{}", third.log());
    assert!(first.is_running());
}

#[test]
fn a_file_in_the_environment_counts_only_where_no_prefix_is_given() {
    let consul = Consul::start();
    let mut command = run(&consul.address(), &ONE, &["true"]);
    command.env("SLOTKEEPER_CONFIG", "/nonexistent");
    let mut job = Job::spawn(command, tempfile::tempdir().unwrap());
    assert_eq!(job.code(), Some(0), "{}", job.log());
    let mut job = Job::start(&consul.address(), &[], &["true"]);
    assert_eq!(job.code(), Some(64), "{}", job.log());
    assert!(job.log().contains("PREFIX"), "{}", job.log());
}

#[test]
fn variables_of_an_outer_run_are_not_passed_on() {
    let consul = Consul::start();
    let mut command =
        run(&consul.address(), &ONE, &["sh", "-c", "echo ${SLOTKEEPER_FENCING_TOKEN_OTHER:-none}"]);
    command.env("SLOTKEEPER_FENCING_TOKEN_OTHER", "7");
    let mut job = Job::spawn(command, tempfile::tempdir().unwrap());
    assert_eq!((job.code(), job.out().as_str()), (Some(0), "none\n"));
}

#[test]
fn timings_that_cannot_be_safe_are_refused() {
    let mut job = Job::live("127.0.0.1:1", &["p/one", "-n", "1", "--ttl", "10s", "--kill-after", "5s"], MEEK);
    assert_eq!(job.code(), Some(64));
    let log = job.log();
    assert!(log.contains("--kill-after") && log.contains("a TTL of at least 16s"), "{log}");
}

#[test]
fn without_a_flag_the_time_to_stop_fits_the_ttl() {
    let consul = Consul::start();
    let mut job = Job::start(&consul.address(), &["p/one", "-n", "1", "--ttl", "10s"], &["true"]);
    assert_eq!(job.code(), Some(0), "{}", job.log());
}

#[test]
fn a_command_line_of_consul_lock_is_a_usage_error() {
    for (line, told) in [
        (&["-n", "2", "service/a", "ls"][..], "slotkeeper run [OPTIONS] PREFIX [-n N] -- CMD..."),
        (&["-try=1s", "service/a", "--", "ls"], "unexpected argument"),
        (&["service/a", "-n", "1", "--", "echo hi"], "no program is called `echo hi`; pass --shell"),
    ] {
        let output = Command::new(BINARY).arg("run").args(line).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{line:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(told), "{said}");
    }
}

#[test]
fn a_wrong_value_of_a_flag_is_a_usage_error() {
    for (flags, said) in [
        (&["service/a", "-n", "0"][..], "write a whole number from 1 to 5000"),
        (&["service/a", "-n", "five"], "write a whole number from 1 to 5000"),
        (&["/service/a", "-n", "1"], "PREFIX: begins with a slash"),
        (&["service/a", "--ttl", "5s"], "--ttl: 5s is out of bounds"),
        (&["service/a", "-n", "1", "--format", "json"], "[possible values: map, list]"),
    ] {
        let output = Command::new(BINARY).arg("run").args(flags).args(["--", "true"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{flags:?}: {error}");
        assert!(error.contains(said), "{flags:?}: {error}");
    }
}

/// Process 1 of a process namespace inherits what a hook has left behind; the command itself looks whether it stays.
#[test]
fn as_the_first_process_of_a_container_it_reaps_orphans() {
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    let config = "consul: {address: '$CONSUL'}\nhttp: {listen: off}\n\
                  semaphores: [{name: a, prefix: p/a, limit: 1}]\n\
                  hooks: {on_acquired: [sh, -c, '(sleep 0.1; : > $HOME/orphan-ends) & :']}\n";
    let config = config.replace("$CONSUL", &consul.address());
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, config.replace("$HOME", &folder.path().display().to_string())).unwrap();
    let script = "echo $$ below $PPID; while [ ! -e $0/orphan-ends ]; do sleep 0.02; done\n\
                  tries=0; while grep -l 'State:.Z' /proc/[0-9]*/status; do\n\
                  tries=$((tries + 1)); [ $tries -lt 1500 ] || exit 1; sleep 0.02; done; exit 4";
    let mut unshare = Command::new("unshare");
    bare(&mut unshare);
    unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", BINARY, "run"]);
    unshare.arg("--config").arg(&file).args(["--", "sh", "-c", script]).arg(folder.path());
    let mut job = Job::spawn(unshare, folder);
    assert_eq!(job.code(), Some(4), "{}\n{}", job.out(), job.log());
}

#[test]
fn the_command_and_its_guard_may_open_as_many_files_as_before() {
    let consul = Consul::start();
    let script = "ulimit -Sn 300; ulimit -Hn 600; exec \"$@\"";
    let told = "ulimit -Sn; sed -n 's/Max open files *//p' /proc/$PPID/limits";
    let mut command = Command::new("sh");
    bare(&mut command);
    command.args(["-c", script, "sh", BINARY, "run", "--http-addr"]).arg(consul.address());
    command.args(ONE).args(["--", "sh", "-c", told]);
    let mut job = Job::spawn(command, tempfile::tempdir().unwrap());
    assert_eq!(job.code(), Some(0), "{}", job.log());
    let words: Vec<_> = job.out().split_ascii_whitespace().map(str::to_owned).collect();
    assert_eq!(words[..3], ["300", "300", "600"], "{}", job.out());
}

/// One whose guard stands still before it has connected, as on a machine that is busy.
fn with_a_slow_guard(consul: &Consul) -> (Job, Pid) {
    loop {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "consul: {{address: '{}'}}\nhttp: {{listen: off}}\nlog: {{level: debug}}\nsession: {{ttl: 10s}}\n\
             semaphores: [{{name: a, prefix: p/one, limit: 1}}]\n",
            consul.address()
        );
        let file = folder.path().join("config.yaml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(BINARY);
        bare(&mut command);
        command.args(["run", "--kill-after", "1s", "--config"]).arg(&file);
        command.args(["--", "sh", "-c", "exit 4"]);
        let mut job = Job::spawn(command, folder);
        if let Some(guard) = stop_guard(&mut job) {
            return (job, guard);
        }
        assert_eq!(job.code(), Some(4), "{}", job.log());
    }
}

/// `__SO_ACCEPTCON`, as `/proc/net/unix` writes it.
const LISTENING: &str = "00010000";

/// Stops the guard, once it is one: until then it is the agent's own thread that would stand still. None where it has
/// connected before, and goes on.
fn stop_guard(job: &mut Job) -> Option<Pid> {
    let pid = job.pid().as_raw_nonzero();
    let children = format!("/proc/{pid}/task/{pid}/children");
    let (guard, socket) = loop {
        let child = std::fs::read_to_string(&children).unwrap_or_default();
        let child =
            child.split_ascii_whitespace().next().and_then(|child| Pid::from_raw(child.parse().ok()?));
        let line = child.map(processes::command_line).unwrap_or_default();
        if let Some((guard, (_, words))) = child.zip(line.split_once("guard --socket ")) {
            break (guard, words.split(' ').next().unwrap().to_owned());
        }
        if !job.is_running() {
            return None;
        }
        std::thread::yield_now();
    };
    kill_process(guard, Signal::STOP).ok()?;
    let state = || std::fs::read_to_string(format!("/proc/{guard}/stat")).unwrap_or_default();
    wait_for("the guard to stand still", || !job.is_running() || state().contains(") T "));
    // The one that listens, until a guard is there, and one for each that has connected.
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let flags = sockets
        .lines()
        .filter(|line| line.ends_with(&socket))
        .map(|line| line.split_ascii_whitespace().nth(3));
    if flags.eq([Some(LISTENING)]) {
        return Some(guard);
    }
    let _ = kill_process(guard, Signal::CONT);
    None
}

#[test]
fn a_slow_start_of_the_guard_costs_neither_lease_nor_command() {
    let consul = Consul::start();
    let (mut job, guard) = with_a_slow_guard(&consul);
    let renewed = |log: String| log.matches(log_events::SESSION_RENEWED).count();
    let before = renewed(job.log());
    wait_for("the lease to be renewed twice", || {
        assert!(job.is_running(), "{}", job.log());
        renewed(job.log()) >= before + 2
    });
    kill_process(guard, Signal::CONT).unwrap();
    assert_eq!(job.code(), Some(4), "{}", job.log());
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}

#[test]
fn a_signal_ends_a_wait_for_the_guard_and_nothing_is_left() {
    let consul = Consul::start();
    let (mut job, guard) = with_a_slow_guard(&consul);
    job.signal(Signal::TERM);
    // The guard stands still all the time.
    assert_eq!(job.code(), Some(143), "{}", job.log());
    assert!(rustix::process::test_kill_process(guard).is_err(), "the guard is left");
    assert!(!job.log().contains(log_events::GUARD_NOT_CONNECTED), "{}", job.log());
    Operator::at(&consul.address()).assert_nothing_left("p/one");
}
