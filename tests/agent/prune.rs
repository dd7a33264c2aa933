//! `slotkeeper prune` and `slotkeeper destroy`.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::consul::Consul;
use crate::inspect::{agent, operate};
use crate::operator::Operator;
use crate::process::BINARY;
use crate::sessions::ConsulLock;
use crate::support::kv::Put;
use crate::terminal::Shell;
use crate::wait_for;

const PREFIX: &str = "service/s";
const LOCK_FLAGS: u64 = 3_304_740_253_564_472_344;

/// An agent that was killed, whose session has ended since, with a waiter that lets a dead one's slot rest for ten minutes, and that
/// is stopped.
fn one_dead_and_one_waiting(
    consul: &Consul,
    operator: &Operator,
    behavior: &str,
) -> (String, crate::process::Lodger) {
    let rest = |more: &str| {
        format!(
            "session: {{ttl: 10s, behavior: {behavior}}}\nsemaphores: [{{name: s, prefix: {PREFIX}, limit: 1{more}}}]"
        )
    };
    let start = |pod: &str, more: &str| {
        crate::process::Lodger::start_with(&consul.address(), &rest(more), &[("SLOTKEEPER_POD_NAME", pod)])
    };
    let mut holder = start("batch-7", "");
    holder.await_ready();
    wait_for("the holder to have said who it is", || {
        operator.entry(PREFIX, &holder.session())["who"]["pod"] == "batch-7"
    });
    let waiter = start("late", ", prune_delay: 10m");
    waiter.await_state("waiting");
    // Its next write would delete the key that the holder leaves.
    waiter.signal(Signal::STOP);
    let session = holder.session();
    holder.signal(Signal::KILL);
    holder.ended();
    operator.destroy(&session);
    (session, waiter)
}

#[test]
fn the_dead_are_pruned_and_the_next_waiter_granted_in_one_write() {
    for behavior in ["delete", "release"] {
        let consul = Consul::start();
        let operator = Operator::at(&consul.address());
        let (dead, mut waiter) = one_dead_and_one_waiting(&consul, &operator, behavior);
        let address = consul.address();
        // Nobody is there to be asked.
        let (code, out, said) = operate(&address, &["prune", PREFIX]);
        assert_eq!((code, out.as_str()), (Some(64), ""), "{said}");
        assert!(said.contains("1 dead holder, with 1 slot") && said.contains(&dead), "{said}");
        assert!(said.contains("may still run") && said.contains("pass --yes"), "{said}");
        assert_eq!(said.contains("batch-7"), behavior == "release", "{said}");
        assert!(said.contains("its session has ended"), "{said}");
        assert_eq!(operator.holders(PREFIX), [dead.as_str()]);

        let (code, out, _) = operate(&address, &["prune", "service/s/.lock", "--yes", "--json"]);
        waiter.signal(Signal::CONT);
        assert_eq!(code, Some(0));
        let done: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(done["pruned"][0]["session"], dead);
        assert_eq!(
            (&done["new_holders"][0]["session"], &done["new_holders"][0]["slots"]),
            (&json!(waiter.session()), &json!(1))
        );
        assert_eq!(done["new_holders"][0]["who"]["pod"], "late");
        assert_eq!(done["leftovers_removed"], if behavior == "release" { 1 } else { 0 });
        waiter.await_ready();
        let (lock, entry) =
            (operator.lock(PREFIX).unwrap(), operator.contender(PREFIX, &waiter.session()).unwrap());
        assert!(entry.modify_index >= lock.modify_index && operator.holders(PREFIX) == [waiter.session()]);
        assert_eq!(operator.contender(PREFIX, &dead), None);

        let (code, out, said) = operate(&address, &["prune", PREFIX]);
        assert_eq!((code, said.as_str()), (Some(0), ""));
        assert_eq!(out, "service/s: no dead holders; nothing to do\n");
        assert_eq!(waiter.terminate(), Some(0));
        operator.assert_nothing_left(PREFIX);
    }
}

#[test]
fn on_a_terminal_prune_asks_first() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    operator.put(&format!("{PREFIX}/.lock"), r#"{"Limit":3,"Holders":["one"]}"#, Put::Cas(0), 0);
    let mut shell = Shell::start();
    let prune = format!("{BINARY} prune {PREFIX} --http-addr {}\n", consul.address());
    let ask = |shell: &mut Shell| {
        shell.press(&prune);
        shell.expect("prune removes 1 dead holder, with 1 slot, from service/s/.lock:");
        shell.expect("Go on? [y/N] ");
    };
    ask(&mut shell);
    // A shell that was interrupted forgets the rest of its line: the code is asked for by another.
    let code = "echo \"code\" $?\n";
    shell.press("\n");
    shell.expect("nothing was done");
    shell.press(code);
    shell.expect("code 1");
    ask(&mut shell);
    shell.press("\x03");
    shell.expect("> ");
    shell.press(code);
    shell.expect("code 130");
    assert_eq!(operator.holders(PREFIX), ["one"]);
    // Somebody else dies while it is asked.
    ask(&mut shell);
    operator.put(&format!("{PREFIX}/.lock"), r#"{"Limit":3,"Holders":["one","two"]}"#, Put::Plain, 0);
    shell.press("y\n");
    shell.expect("service/s: 1 dead holder pruned; no slot was granted");
    shell.press(code);
    shell.expect("code 0");
    assert_eq!(operator.holders(PREFIX), ["two"]);
}

#[test]
fn used_sessions_are_kept_and_unused_ones_destroyed() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let address = consul.address();
    let destroy = || operate(&address, &["destroy", PREFIX, "--yes"]);
    let refused = |cause: &str| {
        let (code, out, said) = destroy();
        assert_eq!((code, out.as_str()), (Some(1), ""), "{said}");
        assert!(said.contains(cause), "{said:?} should say {cause:?}");
    };
    refused("no semaphore and no lock at service/s");
    let (mut holder, mut waiter) =
        (agent(&consul, "batch-7", "limit: 1"), agent(&consul, "late", "limit: 1"));
    wait_for("one to hold and one to wait", || {
        // There is no status at first.
        let states = [&holder, &waiter].map(|agent| agent.semaphore()["state"].clone());
        states.contains(&"held".into()) && states.contains(&"waiting".into())
    });
    // Who waits writes the handoff list once its own entry is there.
    wait_for("the handoff list to be written", || operator.next(PREFIX).len() == 1);
    let record = operator.record(PREFIX);
    refused("is in use: held by ");
    refused("; waited for by ");
    assert_eq!(operator.record(PREFIX), record);
    assert_eq!((waiter.terminate(), holder.terminate()), (Some(0), Some(0)));
    operator.put(&format!("{PREFIX}/.lock"), r#"{"Limit":1,"Holders":["gone"]}"#, Put::Plain, 0);
    refused("slotkeeper prune service/s");
    assert_eq!(operate(&address, &["prune", PREFIX, "--yes"]).0, Some(0));
    let left = r#"{"slotkeeper":1,"state":"held","slots":1}"#;
    for place in 0..40 {
        operator.put(&format!("{PREFIX}/left-{place}"), left, Put::Plain, 0);
    }
    operator.put(&format!("{PREFIX}-2/.lock"), "another's", Put::Plain, 0);
    operator.put(&format!("{PREFIX}/theirs"), "another client's", Put::Plain, 0);
    let (code, out, said) = destroy();
    assert_eq!((code, out.as_str()), (Some(0), "service/s/.lock was deleted\n"), "{said}");
    assert!(said.contains("a limit of 1 and no holders, and 40 contender keys"), "{said}");
    assert!(said.contains("1 other key below the prefix stays"), "{said}");
    let left: Vec<_> = operator.keys(PREFIX).into_iter().map(|pair| pair.key).collect();
    assert_eq!(left, ["service/s/theirs"]);
    assert!(operator.key("service/s-2/.lock").is_some());
    // Whoever comes next makes it anew.
    let mut holder = agent(&consul, "batch-8", "limit: 3");
    holder.await_ready();
    assert_eq!(operator.record(PREFIX)["Limit"], 3);
    assert_eq!(holder.terminate(), Some(0));
    let (code, out, said) = operate(&address, &["destroy", "service/s/.lock", "--yes", "--json"]);
    let done: Value = serde_json::from_str(&out).unwrap();
    let expected = json!({"schema_version": 1, "prefix": PREFIX, "kind": "semaphore", "key": "service/s/.lock", "limit": 3, "leftovers_removed": 0});
    assert_eq!((code, done), (Some(0), expected), "{said}");
}

#[test]
fn a_client_that_joins_during_the_question_is_unharmed() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    operator.put(&format!("{PREFIX}/.lock"), r#"{"Limit":2,"Holders":[]}"#, Put::Cas(0), 0);
    let mut shell = Shell::start();
    let destroy = format!("{BINARY} destroy {PREFIX} --http-addr {}; echo \"code\" $?\n", consul.address());
    shell.press(&destroy);
    shell.expect("a semaphore with a limit of 2 and no holders");
    shell.expect("Go on? [y/N] ");
    let holder = agent(&consul, "batch-7", "limit: 1");
    holder.await_ready();
    shell.press("y\n");
    shell.expect("is in use: held by");
    shell.expect("code 1");
    assert_eq!(operator.holders(PREFIX), [holder.session()]);
    // One that has come and gone leaves it changed: what was said of it may not be so any more.
    drop(holder);
    operator.put(&format!("{PREFIX}/.lock"), r#"{"Limit":2,"Holders":[]}"#, Put::Plain, 0);
    for pair in operator.keys(PREFIX).into_iter().filter(|pair| !pair.key.ends_with(".lock")) {
        operator.destroy(&pair.session.unwrap());
    }
    shell.press(&destroy);
    shell.expect("Go on? [y/N] ");
    operator.put(&format!("{PREFIX}/.lock"), r#"{"Limit":7,"Holders":[]}"#, Put::Plain, 0);
    shell.press("y\n");
    shell.expect("was changed before the confirmation");
    assert_eq!(operator.record(PREFIX)["Limit"], 7);
}

/// Agents come and go while somebody destroys what nobody uses, again and again.
#[test]
fn agents_that_join_during_a_prune_are_served() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (address, is_over) = (consul.address(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let destroyer = scope.spawn(|| {
            let mut destroyed = 0;
            while !is_over.load(Ordering::SeqCst) {
                let (code, _, _) = operate(&address, &["destroy", PREFIX, "--yes"]);
                destroyed += u32::from(code == Some(0));
            }
            destroyed
        });
        let lives = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..6 {
                let mut comes = agent(&consul, "batch", "limit: 1");
                comes.await_ready();
                assert_eq!(operator.holders(PREFIX), [comes.session()]);
                assert_eq!(
                    comes.metric("slotkeeper_slots_lost_total{reason=\"evicted\",semaphore=\"s\"}"),
                    0.0
                );
                assert_eq!(comes.terminate(), Some(0));
            }
            wait_for("the last one's record to be gone", || operator.keys(PREFIX).is_empty());
        }));
        is_over.store(true, Ordering::SeqCst);
        let destroyed = destroyer.join().unwrap();
        lives.unwrap_or_else(|why| std::panic::resume_unwind(why));
        assert!(destroyed > 0);
    });
}

#[test]
fn a_lock_without_a_holder_is_deleted() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let address = consul.address();
    let theirs = ConsulLock::start(&consul, &[PREFIX]);
    wait_for("consul lock to hold", || operator.lock(PREFIX).is_some_and(|lock| lock.session.is_some()));
    let (code, _, said) = operate(&address, &["destroy", PREFIX, "--yes"]);
    assert_eq!((code, said.contains("the lock service/s/.lock is in use")), (Some(1), true), "{said}");
    let (code, _, said) = operate(&address, &["prune", PREFIX, "--yes"]);
    assert_eq!((code, said.contains("single-key lock")), (Some(1), true), "{said}");
    drop(theirs);
    operator.put("service/l", "", Put::Plain, LOCK_FLAGS);
    operator.put("service/m/.lock", "", Put::Plain, LOCK_FLAGS);
    operator.put("service/n", "a value", Put::Plain, 0);
    for (prefix, key) in [("service/l", "service/l"), ("service/m", "service/m/.lock")] {
        let (code, out, said) = operate(&address, &["destroy", prefix, "--yes"]);
        assert_eq!((code, out), (Some(0), format!("{key} was deleted\n")), "{said}");
        assert_eq!(operator.key(key), None);
    }
    let (code, _, said) = operate(&address, &["destroy", "service/n", "--yes"]);
    assert_eq!((code, said.contains("is not a single-key lock")), (Some(1), true), "{said}");
    assert!(operator.key("service/n").is_some());
}

/// Who would be asked cannot see the question.
#[test]
fn no_question_is_asked_without_a_terminal() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    operator.put(&format!("{PREFIX}/.lock"), r#"{"Limit":1,"Holders":["gone"]}"#, Put::Cas(0), 0);
    let mut shell = Shell::start();
    let command = format!("{BINARY} prune {PREFIX} --http-addr {}", consul.address());
    shell.press(&format!("{command} 2>&1 | grep -o \"pass --yes\"; echo \"code\" ${{PIPESTATUS[0]}}\n"));
    shell.expect("\npass --yes");
    shell.expect("code 64");
    assert_eq!(operator.holders(PREFIX), ["gone"]);
}
