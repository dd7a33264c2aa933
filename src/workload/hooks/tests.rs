use std::fs;
use std::io::Write;
use std::path::Path;

use futures_util::future::join_all;
use rustix::fs::{CWD, Mode, mkfifoat};
use tokio::time::Instant;

use super::*;

/// No test takes as long.
const FOREVER: Duration = Duration::from_secs(3600);

/// Has them run until `over` is.
async fn until<T>(hooks: &mut Hooks, over: impl Future<Output = T>) -> T {
    tokio::pin!(over);
    loop {
        tokio::select! {
            over = &mut over => return over,
            () = hooks.ended() => {}
        }
    }
}

/// Has them run until the condition holds.
async fn until_so(hooks: &mut Hooks, condition: impl Fn() -> bool) {
    let so = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), until(hooks, so)).await.unwrap();
}

fn call(slot: &str, event: Event, command: &[&str]) -> Call {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    Call { slot: slot.into(), subject: None, event, command, environment: vec![] }
}

fn shell(slot: &str, event: Event, script: &str, folder: &Path) -> Call {
    let environment = vec![("FOLDER", folder.display().to_string()), ("SLOT", slot.to_owned())];
    Call { environment, ..call(slot, event, &["/bin/sh", "-c", script]) }
}

/// One that does not end by itself.
fn hang(slot: &str, event: Event) -> Call {
    call(slot, event, &["/bin/sleep", "600"])
}

fn lines(folder: &Path) -> Vec<String> {
    let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

/// Whether the process in that file is there, and not only waits to be reaped.
fn lives(file: &Path) -> bool {
    let pid = fs::read_to_string(file).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim()));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

#[tokio::test]
async fn only_one_that_ends_with_0_has_succeeded() {
    let mut hooks = Hooks::default();
    let commands: [&[&str]; 4] = [&["/bin/true"], &["/bin/false"], &["/nonexistent/hook"], &[]];
    let called: Vec<_> = commands
        .iter()
        .zip(["a", "b", "c", "d"])
        .map(|(command, slot)| hooks.call(call(slot, Event::Acquired, command)))
        .collect();
    let ended = until(&mut hooks, join_all(called)).await;
    assert_eq!(ended.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false, false]);
}

#[tokio::test]
async fn they_run_in_order_with_their_environment_and_a_failing_one_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let line = |number: u32| {
        let script = "sleep 0.0$NUMBER; echo $NUMBER $TEXT >> $FOLDER/log; exit 3";
        let mut call = shell(&format!("s{number}"), Event::Acquired, script, folder.path());
        call.environment.extend([("NUMBER", number.to_string()), ("TEXT", "a b;c".into())]);
        call
    };
    let mut hooks = Hooks::default();
    let first = hooks.call(line(9));
    drop(hooks.call(call("none", Event::Acquired, &["/nonexistent/hook"])));
    drop(hooks.call(line(1)));
    until(&mut hooks, first).await.unwrap_err();
    assert_eq!(lines(folder.path()), ["9 a b;c"]);
    hooks.finish(Duration::from_secs(60)).await;
    assert_eq!(lines(folder.path()), ["9 a b;c", "1 a b;c"]);
}

#[tokio::test]
async fn on_lost_waits_for_no_hook_that_hangs_however_many_wait_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut hooks = Hooks::default();
    hooks.max_runtime = FOREVER;
    drop(hooks.call(hang("leader", Event::LeaderChanged)));
    for n in 0..100 {
        drop(hooks.call(hang("leader", Event::LeaderChanged)));
        drop(hooks.call(call(&format!("s{n}"), Event::Acquired, &["/bin/true"])));
    }
    // Each takes a line of those that come once all of them are there: they run beside each other.
    let lines = folder.path().join("lines");
    mkfifoat(CWD, &lines, Mode::RWXU).unwrap();
    let mut lines = fs::File::options().read(true).write(true).open(lines).unwrap();
    let script = ": > $FOLDER/$SLOT; read -r _ < $FOLDER/lines";
    let slots: Vec<_> = (0..100).map(|n| format!("s{n}")).collect();
    let lost: Vec<_> =
        slots.iter().map(|slot| hooks.call(shell(slot, Event::Lost, script, folder.path()))).collect();
    until_so(&mut hooks, || slots.iter().all(|slot| folder.path().join(slot).exists())).await;
    lines.write_all(&[b'\n'; 100]).unwrap();
    assert!(until(&mut hooks, join_all(lost)).await.iter().all(Result::is_ok));
    assert_eq!(hooks.running.len(), 1, "the one that hangs goes on");
}

#[tokio::test]
async fn a_loss_kills_what_says_that_the_slot_was_acquired_with_all_of_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let mut hooks = Hooks::default();
    let script = "trap '' TERM; sleep 600 & echo $! > $FOLDER/child; echo $$ > $FOLDER/own; wait";
    let acquired = hooks.call(shell("s", Event::Acquired, script, folder.path()));
    let other = hooks.call(call("other", Event::Acquired, &["/bin/true"]));
    let (child, own) = (folder.path().join("child"), folder.path().join("own"));
    until_so(&mut hooks, || own.exists() && lives(&own)).await;
    let lost = hooks.call(shell("s", Event::Lost, "echo lost >> $FOLDER/log", folder.path()));
    assert!(acquired.await.is_err(), "no task waits to reap it");
    until(&mut hooks, lost).await.unwrap();
    until(&mut hooks, other).await.unwrap();
    until_so(&mut hooks, || !lives(&child) && !lives(&own)).await;
}

#[tokio::test]
async fn what_was_acquired_is_told_after_the_loss_before_it_and_other_slots_do_not_wait_for_that() {
    let folder = tempfile::tempdir().unwrap();
    let mut hooks = Hooks::default();
    let script = "until [ -e $FOLDER/go ]; do sleep 0.01; done; echo lost >> $FOLDER/log";
    drop(hooks.call(shell("s", Event::Lost, script, folder.path())));
    let again = hooks.call(shell("s", Event::Acquired, "echo acquired >> $FOLDER/log", folder.path()));
    let other = hooks.call(shell("other", Event::Acquired, "echo other >> $FOLDER/log", folder.path()));
    until(&mut hooks, other).await.unwrap();
    fs::write(folder.path().join("go"), "").unwrap();
    until(&mut hooks, again).await.unwrap();
    assert_eq!(lines(folder.path()), ["other", "lost", "acquired"]);
}

#[tokio::test]
async fn of_a_slot_that_was_lost_nothing_says_any_more_that_it_was_acquired() {
    let folder = tempfile::tempdir().unwrap();
    let mut hooks = Hooks::default();
    let script = "until [ -e $FOLDER/go ]; do sleep 0.01; done";
    let busy = hooks.call(shell("leader", Event::LeaderChanged, script, folder.path()));
    let acquired = hooks.call(shell("s", Event::Acquired, "echo acquired >> $FOLDER/log", folder.path()));
    let lost = hooks.call(shell("s", Event::Lost, "echo lost >> $FOLDER/log", folder.path()));
    assert!(acquired.await.is_err());
    until(&mut hooks, lost).await.unwrap();
    fs::write(folder.path().join("go"), "").unwrap();
    until(&mut hooks, busy).await.unwrap();
    hooks.finish(Duration::from_secs(60)).await;
    assert_eq!(lines(folder.path()), ["lost"]);
}

#[tokio::test]
async fn of_one_locks_leaders_only_the_newest_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut hooks = Hooks::default();
    let leader = |slot: &str, number: u32| {
        let script = "until [ -e $FOLDER/go ]; do sleep 0.01; done; echo $SLOT $NUMBER >> $FOLDER/log";
        let mut call = shell(slot, Event::LeaderChanged, script, folder.path());
        call.environment.push(("NUMBER", number.to_string()));
        call
    };
    for number in 1..=50 {
        drop(hooks.call(leader("a", number)));
        drop(hooks.call(leader("b", number)));
    }
    assert_eq!((hooks.running.len(), hooks.waiting.len()), (1, 2));
    fs::write(folder.path().join("go"), "").unwrap();
    hooks.finish(Duration::from_secs(60)).await;
    assert_eq!(lines(folder.path()), ["a 1", "a 50", "b 50"]);
}

#[tokio::test]
async fn one_that_takes_too_long_is_killed_with_all_of_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let mut hooks = Hooks::default();
    hooks.max_runtime = FOREVER;
    let script = "sleep 600 & echo $! > $FOLDER/child; echo $$ > $FOLDER/own; wait";
    let late = hooks.call(shell("s", Event::LeaderChanged, script, folder.path()));
    let next = hooks.call(call("s", Event::Acquired, &["/bin/true"]));
    let (child, own) = (folder.path().join("child"), folder.path().join("own"));
    until_so(&mut hooks, || own.exists() && lives(&own)).await;
    // Its time is over now.
    hooks.running[0].time.as_mut().reset(Instant::now());
    assert!(until(&mut hooks, late).await.is_err());
    until(&mut hooks, next).await.unwrap();
    until_so(&mut hooks, || !lives(&child) && !lives(&own)).await;
}

#[tokio::test]
async fn a_slot_that_is_lost_again_and_again_has_a_bounded_number_of_hooks() {
    let mut hooks = Hooks::default();
    let first = hooks.call(hang("s", Event::Lost));
    for _ in 0..MAX_LOST_HOOKS * 2 {
        drop(hooks.call(hang("s", Event::Lost)));
    }
    assert!(first.await.is_err(), "the oldest makes room");
    let running = hooks.running.iter().filter(|hook| !hook.was_killed()).count();
    assert_eq!(running, MAX_LOST_HOOKS);
}

#[tokio::test]
async fn what_a_hook_leaves_running_is_known_as_a_hooks_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut hooks = Hooks::default();
    let script = "sleep 600 & echo $! > $FOLDER/child";
    let over = hooks.call(shell("s", Event::Acquired, script, folder.path()));
    until(&mut hooks, over).await.unwrap();
    let child = fs::read_to_string(folder.path().join("child")).unwrap();
    let child = Pid::from_raw(child.trim().parse().unwrap()).unwrap();
    let group = rustix::process::getpgid(Some(child)).unwrap();
    assert!(hooks.groups().contains(group));
    kill_process_group(group, Signal::KILL).unwrap();
    until_so(&mut hooks, || test_kill_process_group(group).is_err()).await;
    drop(hooks.call(call("s", Event::Acquired, &["/bin/true"])));
    assert!(!hooks.groups().contains(group));
}
