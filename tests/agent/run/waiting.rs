//! What people see of a wait: one line in place on a terminal that is gone when the command begins, lines elsewhere.

use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::Signal;
use serde_json::json;

use super::job::{Job, bare, run};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::BINARY;
use crate::stub::Stub;
use crate::support::life::{Life, MEEK};
use crate::terminal::{Shell, pseudo_terminal};
use crate::wait_for;

const ONE: [&str; 3] = ["p/one", "-n", "1"];
const FOR_EVER: [&str; 2] = ["sleep", "600"];
/// Shows what the line is not to stand in.
const STARTED: &str = r#"sh -c 'echo "up and" "running"'"#;

/// A holder of `p/one`, and so many in line behind it.
fn crowd(consul: &Consul, in_line: usize) -> Vec<Job> {
    let operator = Operator::at(&consul.address());
    (0..=in_line)
        .map(|n| {
            let job = Job::start(&consul.address(), &ONE, &FOR_EVER);
            // `.lock`, the holder's entry, and those of the others.
            wait_for("the next one to stand in line", || operator.keys("p/one").len() == n + 2);
            job
        })
        .collect()
}

/// Ends one, which gives back what it has.
fn leave(mut job: Job) {
    job.signal(Signal::TERM);
    job.ended();
}

fn command(consul: &Consul, flags: &str, command: &str) -> String {
    format!("{BINARY} run p/one -n 1 {flags} --http-addr {} -- {command}", consul.address())
}

/// The row of the screen that tells of the wait. An agent names the semaphore, and `run` its prefix.
fn row(screen: &str) -> Option<&str> {
    let starts = ["slotkeeper: p/one: waiting: ", "slotkeeper: waiting for one: "];
    screen.lines().find(|row| starts.iter().any(|start| row.starts_with(start)))
}

#[test]
fn a_line_follows_the_wait_and_is_gone_when_the_command_begins() {
    let consul = Consul::start();
    let mut ahead = crowd(&consul, 1);
    let mut shell = Shell::start_on(Some("xterm"));
    shell.press(&format!("clear; stty -g; {}; echo \"code\" $?; stty -g\n", command(&consul, "", STARTED)));
    let holder = ahead[0].pid().as_raw_nonzero();
    let held_by = format!("held by sleep on {} pid {holder}", host());
    shell.await_screen("the second place, and who holds", |screen| {
        row(screen).is_some_and(|row| row.contains("2nd of 2 in the queue") && row.contains(&held_by))
    });
    leave(ahead.pop().unwrap());
    shell.await_screen("the first place", |screen| {
        row(screen).is_some_and(|row| row.contains("1st of 1 in the queue"))
    });
    leave(ahead.pop().unwrap());
    let screen = shell.await_screen("the end", |screen| screen.contains("code 0\n"));
    let rows: Vec<_> = screen.lines().collect();
    assert_eq!((rows[1], rows[2]), ("up and running", "code 0"), "{screen}");
    assert_eq!(rows[0], rows[3], "the terminal's settings: {screen}");
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

#[test]
fn whatever_ends_the_wait_leaves_the_terminal_as_it_was() {
    let consul = Consul::start();
    let _ahead = crowd(&consul, 0);
    for (flags, keys, end, said) in [
        (
            "",
            "\x03",
            "code 130\n",
            "slotkeeper: p/one: ended by SIGINT while it waited: 1st of 1 in the queue, held by ",
        ),
        (
            "",
            "\x1c",
            "code 131\n",
            "slotkeeper: p/one: ended by SIGQUIT while it waited: 1st of 1 in the queue, ",
        ),
        (
            "--timeout 10s",
            "",
            "code 75\n",
            "slotkeeper: p/one: timed out after 10s waiting: 1st of 1 in the queue, ",
        ),
    ] {
        let mut shell = Shell::start_on(Some("xterm"));
        shell.press(&format!("clear; {}; echo \"code\" $?; stty sane\n", command(&consul, flags, STARTED)));
        shell.await_screen("the line", |screen| row(screen).is_some());
        shell.press(keys);
        let screen = shell.await_screen(end, |screen| screen.contains(end));
        assert_eq!(row(&screen), None, "{screen}");
        // The terminal wraps the last line.
        let others = screen.lines().filter(|row| !row.starts_with("code") && !row.starts_with('>'));
        let others = others.collect::<String>();
        let (_, last) = others.split_once(said).unwrap_or_else(|| panic!("{screen}"));
        assert!(last.contains("; the command did not start; exit "), "{screen}");
    }
}

#[test]
fn log_lines_and_untrusted_names_garble_nothing() {
    let consul = Consul::start();
    let mut holder = run(&consul.address(), &ONE, &FOR_EVER);
    holder.env("SLOTKEEPER_POD_NAME", "batch\x1b[2J\x07-7");
    let holder = Job::spawn(holder, tempfile::tempdir().unwrap());
    let operator = Operator::at(&consul.address());
    wait_for("the holder", || operator.keys("p/one").len() == 2);
    let mut shell = Shell::start_on(Some("xterm"));
    shell.press(&format!("clear; {}\n", command(&consul, "-v", STARTED)));
    let name = "batch\\u{1b}[2J\\u{7}-7";
    let screen = shell.await_screen("the line", |screen| row(screen).is_some_and(|row| row.contains(name)));
    let logged = screen.lines().filter(|row| row.starts_with("slotkeeper: p/one: INFO ")).count();
    assert!(logged >= 2 && screen.lines().last() == row(&screen), "{screen}");
    holder.signal(Signal::TERM);
    let screen = shell.await_screen("the command", |screen| screen.contains("up and running"));
    assert_eq!(row(&screen), None, "{screen}");
}

/// Where an older row is wider, what becomes of it at a resize is the terminal's affair: the window is narrow from the beginning.
#[test]
fn in_a_narrow_window_the_line_is_cut_and_leaves_room_at_its_end() {
    let consul = Consul::start();
    let _ahead = crowd(&consul, 0);
    let mut shell = Shell::start_on(Some("xterm"));
    shell.resize(24, 40);
    shell.press(&format!("clear; {}\n", command(&consul, "", STARTED)));
    let screen = shell.await_screen("the line", |screen| row(screen).is_some());
    let columns = row(&screen).unwrap().chars().count();
    assert_eq!((columns, screen.lines().last()), (36, row(&screen)), "{screen}");
}

#[test]
fn in_the_background_it_is_silent_and_suspended_it_leaves_the_terminal_to_the_shell() {
    let consul = Consul::start();
    let ahead = crowd(&consul, 0);
    let operator = Operator::at(&consul.address());
    let mut shell = Shell::start_on(Some("xterm"));
    shell.press("stty tostop; clear\n");
    shell.press(&format!("{} &\n", command(&consul, "", STARTED)));
    wait_for("it to stand in line", || operator.keys("p/one").len() == 3);
    shell.press("sleep 1; jobs | grep -c Running\n");
    // Drawing would have stopped it.
    let screen = shell.await_screen("the shell", |screen| screen.lines().any(|row| row == "1"));
    assert_eq!(row(&screen), None, "{screen}");
    shell.press("clear; fg\n");
    shell.await_screen("the line", |screen| row(screen).is_some());
    shell.press("\x1a");
    let screen = shell.await_screen("the shell", |screen| screen.contains("Stopped"));
    assert_eq!(row(&screen), None, "{screen}");
    shell.press("fg\n");
    shell.await_screen("the line again", |screen| row(screen).is_some());
    ahead[0].signal(Signal::TERM);
    let screen = shell.await_screen("the command", |screen| screen.contains("up and running"));
    assert_eq!(row(&screen), None, "{screen}");
}

/// The shell's terminal stands still, by Ctrl-S, from before the slot is free.
#[test]
fn a_stopped_terminal_delays_nothing() {
    let consul = Consul::start();
    let ahead = crowd(&consul, 0);
    let operator = Operator::at(&consul.address());
    let folder = tempfile::tempdir().unwrap();
    let (script, life) = (folder.path().join("script"), Life::at(folder.path().join("life")));
    std::fs::write(&script, MEEK).unwrap();
    let mut shell = Shell::start_on(Some("xterm"));
    let lives = format!("sh -c \"$(cat {})\" {}", script.display(), folder.path().join("life").display());
    shell.press(&format!("clear; {}\n", command(&consul, "--ttl 10s --kill-after 1s", &lives)));
    shell.await_screen("the line", |screen| row(screen).is_some());
    shell.press("\x13");
    ahead[0].signal(Signal::TERM);
    // The guard ends a command whose lease is not renewed before nine seconds are over.
    wait_for("the command to outlive a lease", || life.has_begun() && life.last() - life.first() > 12.0);
    shell.press("\x11\x03");
    wait_for("the slot to be given back", || operator.holders("p/one").is_empty());
}

/// Nobody reads the terminal, and the line itself fills it up.
#[test]
fn an_unread_terminal_delays_nothing() {
    let consul = Consul::start();
    let mut ahead = crowd(&consul, 0);
    let operator = Operator::at(&consul.address());
    let (master, end) = pseudo_terminal();
    let terminal = end();
    ioctl_fionbio(&terminal, true).unwrap();
    while rustix::io::write(&terminal, b"x").is_ok() {}
    ioctl_fionbio(&terminal, false).unwrap();
    let has_room = || {
        let mut wanted = [PollFd::new(&terminal, PollFlags::OUT)];
        poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    };
    while !has_room() {
        rustix::io::read(&master, &mut [0; 10]).unwrap();
    }
    let mut run = run(&consul.address(), &ONE, &["true"]);
    run.env("TERM", "xterm").env("SLOTKEEPER_LOG_LEVEL", "warn").stdout(Stdio::null()).stderr(end());
    let mut waiter = run.spawn().unwrap();
    wait_for("it to stand in line", || operator.keys("p/one").len() == 3);
    wait_for("the terminal to be full", || !has_room());
    leave(ahead.pop().unwrap());
    let mut status = None;
    wait_for("the command to have run", || {
        status = waiter.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(0));
}

#[test]
fn without_a_terminal_a_line_reports_the_wait_and_each_new_position() {
    let consul = Consul::start();
    let mut ahead = crowd(&consul, 1);
    let waiter = |level: &str| {
        let mut run = std::process::Command::new(BINARY);
        bare(&mut run);
        run.args(["run", "--http-addr", &consul.address()]).args(ONE).args(["--", "sh", "-c", "echo done"]);
        run.env("SLOTKEEPER_LOG_LEVEL", level).stdin(Stdio::null());
        Job::spawn(run, tempfile::tempdir().unwrap())
    };
    let mut told = waiter("warn");
    let holder = ahead[0].pid().as_raw_nonzero();
    let first = format!(
        "slotkeeper: p/one: waiting: 2nd of 2 in the queue, held by sleep on {} pid {holder} for ",
        host()
    );
    // On a busy machine it is told before that it waits, when it does not know where yet.
    wait_for("the first line", || told.log().lines().last().is_some_and(|line| line.starts_with(&first)));
    let mut silent = waiter("error");
    leave(ahead.pop().unwrap());
    let second = "slotkeeper: p/one: waiting: 1st of ";
    wait_for("the second line", || told.log().contains(second));
    leave(ahead.pop().unwrap());
    assert_eq!((told.code(), silent.code()), (Some(0), Some(0)), "{}{}", told.log(), silent.log());
    let places = told.log().lines().filter(|line| line.contains(" in the queue")).count();
    assert_eq!((places, silent.log().as_str()), (2, ""), "{}", told.log());
    // Nothing is said of a wait that is none, where the machine lets it be none.
    wait_for("a wait that nothing is said of", || {
        let mut at_once = waiter("warn");
        assert_eq!(at_once.code(), Some(0), "{}", at_once.log());
        at_once.log().is_empty()
    });
}

/// A log that tells of the wait is enough, and one for programs is for them alone.
#[test]
fn no_line_is_printed_beside_a_log_that_reports_the_wait_or_is_json() {
    let consul = Consul::start();
    let ahead = crowd(&consul, 0);
    let waiter = |settings: &[(&str, &str)]| {
        let mut run = std::process::Command::new(BINARY);
        bare(&mut run);
        run.args(["run", "--http-addr", &consul.address()]).args(ONE).args(["--", "true"]);
        run.envs(settings.iter().copied()).stdin(Stdio::null());
        Job::spawn(run, tempfile::tempdir().unwrap())
    };
    let (level, json) = ("SLOTKEEPER_LOG_LEVEL", ("SLOTKEEPER_LOG_FORMAT", "json"));
    let mut silent = [&[(level, "info")][..], &[(level, "warn"), json], &[(level, "info"), json]].map(waiter);
    let in_line = || Operator::at(&consul.address()).keys("p/one").len() - 2;
    wait_for("them to stand in line", || in_line() == silent.len());
    // One that comes later and has said where it stands: those before have had the time for it.
    let mut told = waiter(&[(level, "warn")]);
    wait_for("the line of the last", || told.log().contains("slotkeeper: p/one: waiting: "));
    ahead.into_iter().for_each(leave);
    assert_eq!(told.code(), Some(0));
    for job in &mut silent {
        assert_eq!(job.code(), Some(0));
        assert!(!job.log().contains("p/one: waiting: "), "{}", job.log());
    }
    assert!(silent[0].log().contains(" INFO ") && silent[2].log().starts_with('{'));
}

/// A terminal that cannot move its cursor is none to draw on.
#[test]
fn on_a_dumb_terminal_lines_are_printed() {
    let consul = Consul::start();
    let _ahead = crowd(&consul, 0);
    let mut shell = Shell::start_on(Some("dumb"));
    shell.press(&format!("{}\n", command(&consul, "", STARTED)));
    shell.expect("slotkeeper: p/one: waiting: 1st of 1 in the queue");
}

#[test]
fn the_line_names_the_holder_of_a_lock() {
    let consul = Consul::start();
    let holder = Job::start(&consul.address(), &["p/two"], &FOR_EVER);
    let operator = Operator::at(&consul.address());
    wait_for("the holder", || operator.keys("p/two").len() == 1);
    let mut shell = Shell::start_on(Some("xterm"));
    shell.press(&format!("clear; {BINARY} run p/two --http-addr {} -- {STARTED}\n", consul.address()));
    let expected = format!(
        "slotkeeper: p/two: waiting: held by sleep on {} pid {}",
        host(),
        holder.pid().as_raw_nonzero()
    );
    shell.await_screen(&expected, |screen| screen.contains(&expected));
    holder.signal(Signal::TERM);
    let screen = shell.await_screen("the command", |screen| screen.contains("up and running"));
    assert!(!screen.contains("held by"), "{screen}");
}

#[test]
fn wait_shows_the_agents_wait_in_the_same_way() {
    let consul = Consul::start();
    let ahead = crowd(&consul, 1);
    let ports = crate::support::ports::Ports::reserve();
    let address = ports.addr(0).to_string();
    let mut shell = Shell::start_on(Some("xterm"));
    shell.press(&format!("clear; {BINARY} wait --address {address}; echo \"code\" $?\n"));
    let missing = format!("slotkeeper: waiting for the agent: no agent at {address} yet");
    shell.await_screen("what is missing", |screen| screen.contains(&missing));
    let home = crate::process::Home::new();
    let one = "semaphores: [{name: one, prefix: p/one, limit: 1, format: map}]\n";
    home.configure(&consul.address(), one);
    let _agent = crate::process::Agent::start_with(&home, &[], &[("SLOTKEEPER_HTTP_LISTEN", &address)]);
    shell.await_screen("the line", |screen| {
        row(screen).is_some_and(|row| row.contains("2nd of 2 in the queue, held by "))
    });
    ahead.into_iter().rev().for_each(leave);
    let screen = shell.await_screen("the end", |screen| screen.contains("code 0\n"));
    assert!(row(&screen).is_none() && !screen.contains("no agent"), "{screen}");
}

/// Clears the screen, turns the text around, and is a line of its own.
const HOSTILE: &str = "evil\u{1b}[2J\u{202e}\nx";

/// Whoever listens at the agent's address says what it likes, with and without a reason.
fn impostor() -> Stub {
    let semaphore = |name: &str, reason: Option<&str>| {
        json!({
            "name": name, "state": "waiting", "reason": reason, "required": true, "slot_indexes": [], "holders": [],
            "mode": "hold", "leases": [],
        })
    };
    let status = json!({
        "agent": {"version": HOSTILE, "state": HOSTILE, "ready": false}, "session": null,
        "semaphores": [semaphore(HOSTILE, Some(HOSTILE))],
    });
    Stub::start(move |_, path| match path {
        "/readyz" => Some((503, format!("[-] {HOSTILE}\n"))),
        _ => Some((200, status.to_string())),
    })
}

#[test]
fn an_impostors_text_about_the_wait_is_only_shown() {
    let stub = impostor();
    let shown = "evil\\u{1b}[2J\\u{202e}\\nx: evil\\u001b[2J\\u202e x";
    let mut shell = Shell::start_on(Some("xterm"));
    shell.press(&format!("clear; echo \"stays\" \"here\"; {BINARY} wait --address {}\n", stub.address()));
    let screen = shell.await_screen("the line", |screen| screen.contains(shown));
    assert!(screen.starts_with("stays here\n") && !screen.contains('\u{202e}'), "{screen}");
    // Elsewhere it is said by lines.
    let mut wait = std::process::Command::new(BINARY);
    bare(&mut wait);
    wait.args(["wait", "--address", stub.address()]);
    let job = Job::spawn(wait, tempfile::tempdir().unwrap());
    wait_for("the line", || job.log().ends_with('\n'));
    assert_eq!(job.log(), format!("slotkeeper: waiting for {shown}\n"));
}
