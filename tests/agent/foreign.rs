//! Semaphores that others made, and what is none.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::hold::home;
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home};
use crate::run::job::{Job, run};
use crate::set_limit::set_limit;
use crate::support::kv::Put;
use crate::wait_for;

const MAP_FLAGS: u64 = 16_210_313_421_097_356_768;
const LOCK_FLAGS: u64 = 3_304_740_253_564_472_344;

fn two(consul: &Consul) -> Home {
    let home = Home::new();
    home.configure(&consul.address(), "semaphores: [{name: s, prefix: service/s, limit: 2}]");
    home
}

/// `consul lock -n 2 service/s`, holding until it is ended.
struct ConsulLock(Child);

fn consul_lock(consul: &str, limit: &str, command: &str) -> Command {
    let mut lock = Command::new(crate::support::consul::binary());
    lock.args(["lock", "-n", limit, "-http-addr", consul, "service/s", command]);
    lock.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    lock
}

impl ConsulLock {
    fn start(consul: &Consul) -> Self {
        Self(consul_lock(&consul.address(), "2", "sleep 600").spawn().unwrap())
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn shares_a_semaphore_with_consul_lock_in_its_own_form() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let theirs = ConsulLock::start(&consul);
    let holders = || {
        let pair = operator.lock("service/s")?;
        let record: Value = serde_json::from_slice(&pair.value).ok()?;
        Some((pair.flags, record["Holders"].as_object()?.len()))
    };
    wait_for("consul lock to hold", || holders() == Some((MAP_FLAGS, 1)));
    let home = two(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!(holders(), Some((MAP_FLAGS, 2)));
    let warnings = agent.log().matches(log_events::FORMAT_DIFFERS).count();
    assert_eq!(warnings, 1, "its list would end `consul lock`: {}", agent.log());
    // A second `consul lock` waits for ours.
    let waiting = ConsulLock::start(&consul);
    wait_for("it to stand in line", || agent.semaphore()["queue_length"] == 1);
    assert_eq!(agent.terminate(), Some(0));
    let contenders = || operator.keys("service/s").len() - 1;
    wait_for("it to take our place", || holders() == Some((MAP_FLAGS, 2)) && contenders() == 2);
    waiting.end();
    theirs.end();
}

#[test]
fn a_changed_limit_ends_a_waiting_consul_lock_and_set_limit_says_so() {
    let consul = Consul::start();
    let home = Home::new();
    let map = "semaphores: [{name: s, prefix: service/s, limit: 2, format: map}]";
    home.configure(&consul.address(), map);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let holding = ConsulLock::start(&consul);
    wait_for("consul lock to hold", || agent.semaphore()["slots_taken"] == 2);
    let (code, _, errors) = set_limit(&consul.address(), &["service/s", "2"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let mut waiting = ConsulLock::start(&consul);
    wait_for("it to stand in line", || agent.semaphore()["queue_length"] == 1);
    let (code, _, errors) = set_limit(&consul.address(), &["service/s", "3"]);
    assert_eq!(code, Some(0));
    assert!(errors.contains("warning: 1 foreign client was waiting"), "{errors}");
    assert_eq!(waiting.0.wait().unwrap().code(), Some(1), "it refuses another limit than its own");
    assert_eq!(agent.semaphore()["slots_taken"], 2, "who holds goes on");
    assert!(!agent.log().contains(log_events::FORMAT_DIFFERS), "{}", agent.log());
    holding.end();
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn consul_lock_joins_a_semaphore_that_was_made_in_its_form() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let map = "semaphores: [{name: s, prefix: service/s, limit: 2, format: map}]";
    home.configure(&consul.address(), map);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let theirs = ConsulLock::start(&consul);
    wait_for("consul lock to hold too", || {
        operator.record("service/s")["Holders"].as_object().unwrap().len() == 2
    });
    wait_for("the agent to see it", || agent.semaphore()["slots_taken"] == 2);
    theirs.end();
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn waits_for_a_holder_that_follows_the_guide_by_hand() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    operator.put(&format!("service/s/{session}"), "db-node-1", Put::Acquire(&session), 0);
    let record = format!(r#"{{"Limit": 1, "Holders": ["{session}"], "Owner": "team-a"}}"#);
    operator.put("service/s/.lock", &record, Put::Cas(0), 0);
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_state("waiting");
    // It releases as the guide says.
    let index = operator.lock("service/s").unwrap().modify_index;
    let released = r#"{"Limit": 1, "Holders": [], "Owner": "team-a"}"#;
    operator.put("service/s/.lock", released, Put::Cas(index), 0);
    agent.await_ready();
    assert_eq!(operator.record("service/s")["Owner"], "team-a", "fields that are not ours survive");
    operator.delete(&format!("service/s/{session}"));
    operator.destroy(&session);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
fn garbage_and_single_key_locks_are_refused_named_and_unchanged() {
    for (value, flags, said) in
        [("some note", 0, "some note"), (r#"{"Limit":1}"#, 0, "Holders"), ("", LOCK_FLAGS, "single-key lock")]
    {
        let consul = Consul::start();
        let operator = Operator::at(&consul.address());
        operator.put("service/s/.lock", value, Put::Plain, flags);
        let before = operator.lock("service/s").unwrap();
        let home = home(&consul);
        let mut agent = Agent::start(&home);
        agent.await_state("blocked");
        let reason = agent.semaphore()["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains("service/s/.lock") && reason.contains(said), "{reason}");
        assert!(!agent.is_ready());
        // Nothing is known of slots, and so none is called free.
        let shown = agent.semaphore();
        let unknown = ["limit", "slots_taken", "holder_count"].map(|what| shown[what].clone());
        assert_eq!(
            (unknown, &shown["configured_limit"]),
            ([Value::Null, Value::Null, Value::Null], &1.into())
        );
        assert_eq!(operator.lock("service/s").unwrap(), before);
        // Somebody mends it.
        operator.delete("service/s/.lock");
        agent.await_ready();
        assert_eq!(agent.terminate(), Some(0));
        operator.assert_nothing_left("service/s");
    }
}

#[test]
fn a_record_that_becomes_garbage_is_a_loss() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    operator.put("service/s/.lock", "oops", Put::Plain, 0);
    agent.await_state("blocked");
    assert!(!agent.is_ready());
    assert_eq!(agent.terminate(), Some(0));
    let keys: Vec<_> = operator.keys("service/s").into_iter().map(|pair| pair.key).collect();
    assert_eq!(keys, ["service/s/.lock"]);
    assert_eq!(operator.lock("service/s").unwrap().value, b"oops");
}

#[test]
fn a_sibling_prefix_is_another_semaphore() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    operator.put(&format!("service/s-2/{session}"), "", Put::Acquire(&session), 0);
    let record = format!(r#"{{"Limit":1,"Holders":["{session}"]}}"#);
    operator.put("service/s-2/.lock", &record, Put::Cas(0), 0);
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    // It has acquired without a listing.
    wait_for("a look at the queue", || !agent.semaphore()["queue_length"].is_null());
    assert_eq!(agent.semaphore()["queue_length"], 0);
    assert_eq!(agent.terminate(), Some(0));
}

/// A foreign client that stands in line and never acts.
fn idle(operator: &Operator) -> String {
    let session = operator.create_session();
    operator.put(&format!("service/s/{session}"), "", Put::Acquire(&session), MAP_FLAGS);
    session
}

/// Runs the commands of `make` one after the other in each of `loops` threads while `meanwhile` goes on; how many ended well.
fn in_loops(loops: usize, make: impl Fn() -> Command + Sync, meanwhile: impl FnOnce(&AtomicUsize)) -> usize {
    let (over, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(make().stderr(Stdio::null()).status().unwrap().success());
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Also where it fails, or the loops would go on for ever.
        let end = EndsLoops(&over);
        meanwhile(&turns);
        drop(end);
    });
    turns.into_inner()
}

struct EndsLoops<'a>(&'a AtomicBool);

impl Drop for EndsLoops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_idle_foreign_contender_does_not_block_slots_that_others_take_in_turn() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    idle(&operator);
    let lock = || consul_lock(&address, "2", "sleep 0.4");
    in_loops(3, lock, |turns| {
        wait_for("all slots to be taken", || {
            operator.lock("service/s").is_some() && operator.holders("service/s").len() == 2
        });
        let before = turns.load(Ordering::Relaxed);
        let mut ours = Job::start(&address, &["service/s", "-n", "2", "--timeout", "100s"], &["true"]);
        assert_eq!(ours.code(), Some(0), "{}", ours.log());
        let passed = turns.load(Ordering::Relaxed) - before;
        assert!(passed < 150, "{passed} acquired before it");
    });
}

#[test]
#[allow(clippy::disallowed_methods, reason = "it measures what the turns cost")]
fn an_idle_foreign_contender_costs_loops_of_commands_no_more_than_its_turns() {
    const TURNS: usize = 20;
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    idle(&operator);
    let one = || run(&address, &["service/s", "-n", "1"], &["true"]);
    in_loops(3, one, |turns| {
        wait_for("the first", || turns.load(Ordering::Relaxed) > 0);
        let began = Instant::now();
        wait_for("the others to have their turns", || turns.load(Ordering::Relaxed) > TURNS);
        // A turn is 0.3 s.
        assert!(began.elapsed() < Duration::from_secs(TURNS as u64), "{:?}", began.elapsed());
    });
}

#[allow(clippy::disallowed_methods, reason = "it is how often such a client looks")]
fn a_second() {
    std::thread::sleep(Duration::from_secs(1));
}

#[test]
fn a_foreign_client_that_polls_once_a_second_acquires() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let one = || run(&address, &["service/s", "-n", "1", "--format", "list"], &["true"]);
    in_loops(3, one, |turns| {
        wait_for("somebody to have held", || turns.load(Ordering::Relaxed) > 0);
        let session = idle(&operator);
        let acquires = || {
            let found = operator.lock("service/s").unwrap();
            let record: Value = serde_json::from_slice(&found.value).unwrap();
            if !record["Holders"].as_array().unwrap().is_empty() {
                return false;
            }
            let record = format!(r#"{{"Limit":1,"Holders":["{session}"]}}"#);
            operator.try_put("service/s/.lock", &record, Put::Cas(found.modify_index), 0)
        };
        wait_for("it to acquire", || {
            a_second();
            acquires()
        });
        assert_eq!(operator.holders("service/s"), [session.as_str()]);
        operator.put("service/s/.lock", r#"{"Limit":1,"Holders":[]}"#, Put::Plain, 0);
        operator.delete(&format!("service/s/{session}"));
        operator.destroy(&session);
    });
}

#[test]
fn a_foreign_client_that_has_left_the_record_holds_up_nobody() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = idle(&operator);
    operator.put("service/s/.lock", &format!(r#"{{"Limit":1,"Holders":["{session}"]}}"#), Put::Cas(0), 0);
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_state("waiting");
    wait_for("all to be known", || agent.semaphore()["queue_length"] == 1);
    // As Go does it: it leaves `.lock` first, and deletes its contender later. Here it never does, and is left a turn.
    let index = operator.lock("service/s").unwrap().modify_index;
    operator.put("service/s/.lock", r#"{"Limit":1,"Holders":[]}"#, Put::Cas(index), 0);
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn consul_lock_hands_off_without_a_turn_of_its_own() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let theirs = [ConsulLock::start(&consul), ConsulLock::start(&consul)];
    wait_for("them to hold", || {
        operator.lock("service/s").is_some() && operator.holders("service/s").len() == 2
    });
    let home = two(&consul);
    let mut agent = Agent::start(&home);
    agent.await_state("waiting");
    let [first, second] = theirs;
    first.end();
    agent.await_ready();
    let handoff = agent.metric("slotkeeper_handoff_duration_seconds_sum{semaphore=\"s\"}");
    assert!(handoff < 0.3, "it was left a turn: {handoff} s");
    second.end();
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn an_unheld_key_of_another_kind_is_reported_with_the_command_that_deletes_it() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    // A crashed `consul lock -n 1` leaves its key.
    let theirs = ConsulLock(consul_lock(&consul.address(), "1", "sleep 600").spawn().unwrap());
    wait_for("it to hold", || operator.lock("service/s").is_some_and(|pair| pair.session.is_some()));
    let session = operator.lock("service/s").unwrap().session.unwrap();
    let ours = Job::start(&consul.address(), &["service/s", "-n", "1", "--format", "list"], &["true"]);
    wait_for("the holder to be named", || ours.log().contains(&session));
    theirs.kill();
    operator.destroy(&session);
    let cure = "has no holder: `slotkeeper destroy service/s` deletes it";
    let mut ours = ours;
    assert_eq!(ours.code(), Some(78), "{}", ours.log());
    assert!(ours.log().contains(cure), "{}", ours.log());
    destroy(&consul);
    let run = |flags: &[&str]| Job::start(&consul.address(), &[&["service/s"], flags].concat(), &["true"]);
    let mut ours = run(&["-n", "1"]);
    assert_eq!(ours.code(), Some(0), "{}", ours.log());

    // The other way round: what a semaphore leaves keeps a lock out.
    assert_eq!(operator.holders("service/s"), [""; 0]);
    let mut ours = run(&["--lock"]);
    let cure = "service/s is a semaphore (limit 1, no holder), not a lock. Use --limit 1, or delete it with `slotkeeper destroy \
                service/s`";
    assert_eq!(ours.code(), Some(78), "{}", ours.log());
    assert!(ours.log().contains(cure), "{}", ours.log());
    destroy(&consul);
    let mut ours = run(&["--lock"]);
    assert_eq!(ours.code(), Some(0), "{}", ours.log());
}

fn destroy(consul: &Consul) {
    let mut destroy = Command::new(BINARY);
    destroy.args(["destroy", "service/s", "--yes", "--http-addr", &consul.address()]).stdout(Stdio::null());
    assert!(destroy.status().unwrap().success());
}

#[test]
fn a_waiter_with_an_oversized_contender_stalls_no_other() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let [holder, big] = [operator.create_session(), operator.create_session()];
    operator.put(&format!("service/s/{holder}"), "", Put::Acquire(&holder), 0);
    operator.put("service/s/.lock", &format!(r#"{{"Limit":1,"Holders":["{holder}"]}}"#), Put::Cas(0), 0);
    // With `held` in it, the transaction that grants it its slot would have more than 512 KiB.
    let pod = "x".repeat(390 * 1024);
    let entry = format!(r#"{{"slotkeeper":1,"state":"waiting","slots":1,"who":{{"pod":"{pod}"}}}}"#);
    operator.acquire_with_large(&format!("service/s/{big}"), &entry, &big, 0);
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_state("waiting");
    operator.destroy(&holder);
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn the_maximum_of_slots_can_be_acquired_and_handed_off() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let all = "semaphores: [{name: s, prefix: service/s, limit: 5000, slots: 5000}]";
    let [first, second] = [Home::new(), Home::new()];
    for home in [&first, &second] {
        home.configure(&consul.address(), all);
    }
    let mut agent = Agent::start(&first);
    agent.await_ready();
    assert_eq!(operator.holders("service/s").len(), 5000);
    let mut next = Agent::start(&second);
    next.await_state("waiting");
    assert_eq!(agent.terminate(), Some(0));
    next.await_ready();
    assert_eq!(next.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}
