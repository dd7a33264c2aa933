//! Many at once, of one kind and of several, on one semaphore.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::consul::Consul;
use crate::guide::Guide;
use crate::operator::Operator;
use crate::process::{Agent, Home, Lodger};
use crate::wait_for;

const PREFIX: &str = "service/s";
/// Of each kind.
const MEMBERS: usize = 6;
const LIMIT: usize = 2;

/// When somebody held, from the first instant to the last at which it surely did, in nanoseconds of the wall clock.
#[derive(Clone, Copy, Debug)]
struct Turn {
    kind: &'static str,
    from: u128,
    to: u128,
}

/// How many held at once at most.
fn most_at_once(turns: &[Turn]) -> usize {
    let at = |instant: u128| turns.iter().filter(|turn| turn.from <= instant && instant < turn.to).count();
    turns.iter().map(|turn| at(turn.from)).max().unwrap_or(0)
}

#[allow(
    clippy::disallowed_methods,
    reason = "it is compared with what `date` says in a child of another program"
)]
fn wall() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

#[allow(clippy::disallowed_methods, reason = "the workload's work is to take time")]
fn work() {
    std::thread::sleep(Duration::from_millis(fastrand::u64(50..250)));
}

/// An agent's life: as soon as it is ready it works for a while.
fn one_of_ours(consul: &str, format: &str) -> Turn {
    let home = Home::new();
    let semaphore = format!("{{name: s, prefix: {PREFIX}, limit: {LIMIT}, format: {format}}}");
    home.configure(consul, &format!("semaphores: [{semaphore}]"));
    let mut agent = Agent::spawn(&home, &[], &[]);
    wait_for("its turn", || {
        assert!(!agent.has_ended(), "it ended:\n{}", agent.log());
        agent.ready_file().exists()
    });
    let from = wall();
    work();
    let to = wall();
    assert_eq!(agent.terminate(), Some(0));
    Turn { kind: "slotkeeper", from, to }
}

fn one_by_the_guide(consul: &str) -> Turn {
    let guide = Guide::enter(consul, PREFIX, LIMIT);
    guide.acquire();
    let from = wall();
    work();
    let to = wall();
    guide.release();
    Turn { kind: "guide", from, to }
}

/// `consul lock`, with a child that notes when it begins and ends. It is killed with the value.
struct ConsulLock {
    child: Child,
    notes: PathBuf,
}

impl ConsulLock {
    fn start(consul: &str, notes: PathBuf) -> Self {
        std::fs::create_dir(&notes).unwrap();
        let works = format!(
            "date +%s%N > {0}/from; sleep 0.{1}; date +%s%N > {0}/to",
            notes.display(),
            fastrand::u32(10..25)
        );
        let child = Command::new(crate::support::consul::binary())
            .args(["lock", "-n", &LIMIT.to_string(), "-http-addr", consul, PREFIX, &works])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(notes.join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { child, notes }
    }

    fn turn(mut self) -> Turn {
        let mut status = None;
        wait_for("consul lock to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let log = std::fs::read_to_string(self.notes.join("log")).unwrap_or_default();
        assert!(status.is_some_and(|status| status.success()), "consul lock: {status:?}\n{log}");
        let noted = |name: &str| {
            let text =
                std::fs::read_to_string(self.notes.join(name)).unwrap_or_else(|_| panic!("no turn:\n{log}"));
            text.trim().parse().unwrap()
        };
        Turn { kind: "consul lock", from: noted("from"), to: noted("to") }
    }
}

impl Drop for ConsulLock {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How one of a kind takes its turn.
type Life<'a> = &'a (dyn Fn() -> Turn + Sync);

/// Has all of both kinds, ours and theirs, take their turns, one of ours or of theirs before all others, and checks
/// them.
fn mix(operator: &Operator, kinds: [Life<'_>; 2], ours_first: bool, form: fn(&Value) -> bool) {
    let turns = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for n in 0..2 * MEMBERS {
            let (life, turns) = (kinds[(n + usize::from(!ours_first)) % 2], &turns);
            scope.spawn(move || {
                let turn = life();
                turns.lock().unwrap().push(turn);
            });
            if n == 0 {
                wait_for("the first", || operator.lock(PREFIX).is_some());
            }
        }
        // What Consul shows meanwhile is never more than the limit either, and always in the form that both know.
        wait_for("everybody's turn", || {
            if let Some(pair) = operator.lock(PREFIX) {
                let record: Value = serde_json::from_slice(&pair.value).unwrap();
                let holders = &record["Holders"];
                let held = holders.as_array().map(Vec::len).or(holders.as_object().map(serde_json::Map::len));
                assert!(form(holders) && held.is_some_and(|held| held <= LIMIT), "{record}");
            }
            turns.lock().unwrap().len() == 2 * MEMBERS
        });
    });
    let turns = turns.into_inner().unwrap();
    let mut by_kind = BTreeMap::<_, usize>::new();
    for turn in &turns {
        *by_kind.entry(turn.kind).or_default() += 1;
    }
    assert!(by_kind.len() == 2 && by_kind.values().all(|many| *many == MEMBERS), "{by_kind:?}");
    assert!(most_at_once(&turns) <= LIMIT, "{turns:?}");
    operator.assert_nobody_left(PREFIX);
}

fn with_consul_lock(ours_first: bool) {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let (notes, noted) = (TempDir::new().unwrap(), AtomicU32::new(0));
    let folder = || notes.path().join(noted.fetch_add(1, Ordering::Relaxed).to_string());
    let ours = || one_of_ours(&address, "map");
    let theirs = || ConsulLock::start(&address, folder()).turn();
    mix(&operator, [&ours, &theirs], ours_first, Value::is_object);
}

fn with_the_guide(ours_first: bool) {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let ours = || one_of_ours(&address, "list");
    let theirs = || one_by_the_guide(&address);
    mix(&operator, [&ours, &theirs], ours_first, Value::is_array);
}

#[test]
fn shares_with_a_crowd_of_consul_lock_that_comes_to_a_semaphore_of_ours() {
    with_consul_lock(true);
}

#[test]
fn shares_with_a_crowd_of_consul_lock_that_was_there_before() {
    with_consul_lock(false);
}

#[test]
fn shares_with_a_crowd_of_the_guides_clients_that_comes_to_a_semaphore_of_ours() {
    with_the_guide(true);
}

#[test]
fn shares_with_a_crowd_of_the_guides_clients_that_was_there_before() {
    with_the_guide(false);
}

#[test]
fn no_two_holders_have_the_same_slot_index() {
    const HOLDERS: u64 = 3;
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let config = format!("semaphores: [{{name: s, prefix: {PREFIX}, limit: {HOLDERS}}}]");
    let mut seen = BTreeMap::<u64, usize>::new();
    let all_seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churning: Vec<_> = (0..MEMBERS)
            .map(|_| {
                scope.spawn(|| {
                    let operator = Operator::at(&address);
                    for _ in 0..4 {
                        let mut agent = Lodger::start(&address, &config);
                        agent.await_ready();
                        agrees_on_its_number(&agent, &operator);
                        // As many hold at once as there are slots, however slowly they come.
                        wait_for("all numbers to be in use", || all_seen.load(Ordering::Relaxed));
                        work();
                        assert_eq!(agent.terminate(), Some(0));
                    }
                })
            })
            .collect();
        wait_for("everybody to have gone", || {
            for number in numbers(&operator) {
                assert!(number < HOLDERS, "number {number} of {HOLDERS}");
                *seen.entry(number).or_default() += 1;
            }
            all_seen.store(seen.len() as u64 == HOLDERS, Ordering::Relaxed);
            churning.iter().all(std::thread::ScopedJoinHandle::is_finished)
        });
    });
    operator.assert_nothing_left(PREFIX);
}

/// The slot numbers of all holders, as their entries have them in one listing; no two are the same.
fn numbers(operator: &Operator) -> Vec<u64> {
    let pairs = operator.keys(PREFIX);
    let Some(lock) = pairs.iter().find(|pair| pair.key.ends_with("/.lock")) else { return Vec::new() };
    let record: Value = serde_json::from_slice(&lock.value).unwrap();
    let mut numbers = Vec::new();
    for holder in record["Holders"].as_array().unwrap() {
        let key = format!("{PREFIX}/{}", holder.as_str().unwrap());
        let pair = pairs.iter().find(|pair| pair.key == key).expect("a holder's contender");
        let entry: Value = serde_json::from_slice(&pair.value).unwrap();
        assert!(entry["state"] == "held" || entry["state"] == "offered", "{entry}");
        assert_eq!(entry["indexes"].as_array().map(Vec::len), Some(1), "{entry}");
        numbers.push(entry["indexes"][0].as_u64().unwrap());
    }
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), numbers.len(), "a number twice: {numbers:?}");
    numbers
}

/// Status, file and Consul say the same of a holder.
fn agrees_on_its_number(agent: &Lodger, operator: &Operator) {
    let status = agent.semaphore();
    let file = &agent.ready_file_says()["semaphores"]["s"];
    let pair = operator.contender(PREFIX, &agent.session()).unwrap();
    let entry: Value = serde_json::from_slice(&pair.value).unwrap();
    assert!(status["slot_indexes"][0].is_u64(), "{status}");
    for said in [&status["slot_indexes"], &file["slot_indexes"], &entry["indexes"]] {
        assert_eq!(*said, serde_json::json!([status["slot_indexes"][0]]));
    }
    assert_eq!(file["slot"], status["slot_indexes"][0]);
}

#[test]
fn thirty_clients_all_acquire_under_a_limit_of_three() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let homes: Vec<_> = (0..30).map(|_| Home::new()).collect();
    let mut agents: Vec<_> = homes
        .iter()
        .map(|home| {
            home.configure(
                &consul.address(),
                &format!("semaphores: [{{name: s, prefix: {PREFIX}, limit: 3}}]"),
            );
            Agent::spawn(home, &[], &[])
        })
        .collect();
    // Whoever holds goes at once.
    let mut told = vec![false; agents.len()];
    let mut most = 0;
    wait_for("everybody's turn", || {
        let ready = |agent: &Agent| agent.ready_file().exists();
        let holding: Vec<_> = (0..agents.len()).filter(|n| !told[*n] && ready(&agents[*n])).collect();
        // None of these was told to go yet.
        most = most.max(holding.len());
        for n in holding {
            agents[n].signal(Signal::TERM);
            told[n] = true;
        }
        assert!(holders(&operator) <= 3);
        told.iter().all(|told| *told)
    });
    for agent in &mut agents {
        assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
    }
    assert!((1..=3).contains(&most), "{most} held at once");
    operator.assert_nothing_left(PREFIX);
}

fn holders(operator: &Operator) -> usize {
    let Some(pair) = operator.lock(PREFIX) else { return 0 };
    let record: Value = serde_json::from_slice(&pair.value).unwrap();
    record["Holders"].as_array().unwrap().len()
}
