//! Those who cannot be asked: other clients, the dead, and one that does not answer.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::{PREFIX, Said, evict, evicted, lost, start};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::support::kv::Put;
use crate::wait_for;

/// `consul lock`, whose command writes into a file that it runs, and that it was told to stop.
struct ConsulLock {
    child: Child,
    file: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl ConsulLock {
    fn start(consul: &Consul, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("life");
        let script = format!(
            "trap 'echo stopped >> {0}; exit 0' TERM; echo runs >> {0}; while :; do sleep 0.05; done",
            file.display()
        );
        let child = Command::new(crate::support::consul::binary())
            .args(["lock", "-http-addr", &consul.address()])
            .args(arguments)
            .args([PREFIX, &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, file, _folder: folder }
    }

    fn says(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }

    fn await_end(&mut self) {
        wait_for("consul lock to end", || self.child.try_wait().unwrap().is_some());
    }
}

impl Drop for ConsulLock {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), Signal::TERM);
        wait_for("consul lock to end", || self.child.try_wait().unwrap().is_some());
    }
}

#[test]
fn an_evicted_consul_lock_stops_and_a_waiting_one_at_its_turn() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let sessions = || operator.keys(PREFIX).into_iter().filter_map(|pair| pair.session).collect::<Vec<_>>();
    let mut holder = ConsulLock::start(&consul, &["-n", "2"]);
    wait_for("it to run", || holder.says() == "runs\n");
    let first = sessions()[0].clone();
    let other = ConsulLock::start(&consul, &["-n", "2"]);
    wait_for("it to run", || other.says() == "runs\n");
    let second = operator.holders(PREFIX).into_iter().find(|id| *id != first).unwrap();
    let mut waiter = ConsulLock::start(&consul, &["-n", "2"]);
    wait_for("it to wait", || sessions().len() == 3);
    let third = sessions().into_iter().find(|id| *id != first && *id != second).unwrap();
    let last = ConsulLock::start(&consul, &["-n", "2"]);
    wait_for("it to wait", || sessions().len() == 4);

    let Said(code, said, errors) = evict(&consul, &[PREFIX, &third, "--yes"]);
    assert_eq!(
        (code, said.as_str()),
        (Some(0), &*format!("{PREFIX}: {third} is out of the queue\n")),
        "{errors}"
    );
    assert!(errors.contains("when its turn comes"), "{errors}");
    assert!(!sessions().contains(&third));

    let Said(code, said, errors) = evict(&consul, &[PREFIX, &first, "--yes"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(said.starts_with(&format!("{PREFIX}: {first} is out; ")), "{said}");
    assert!(errors.contains("so its slots are free at once"), "{errors}");
    holder.await_end();
    assert_eq!(holder.says(), "runs\nstopped\n");
    // Its turn has come, or comes when the last one has it already and goes.
    wait_for("the last one to run", || last.says() == "runs\n");
    drop((other, last));
    waiter.await_end();
    assert_ne!(waiter.says(), "runs\n", "what may have begun was stopped");
}

#[test]
fn the_write_that_evicts_a_foreign_client_grants_the_slot() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut theirs = ConsulLock::start(&consul, &["-n", "2"]);
    wait_for("it to run", || theirs.says() == "runs\n");
    let record = operator.lock(PREFIX).unwrap();
    let one = String::from_utf8(record.value).unwrap().replace("\"Limit\":2", "\"Limit\":1");
    operator.put(&format!("{PREFIX}/.lock"), &one, Put::Cas(record.modify_index), record.flags);
    let (_home, mut agent) = start(&consul, "", "");
    agent.await_state("waiting");
    let session = operator.holders(PREFIX)[0].clone();
    let said = evicted(&consul, &[PREFIX, &session]);
    assert_eq!((&said["foreign"], &said["forced"]), (&true.into(), &true.into()));
    assert_eq!(said["new_holders"][0]["session"], agent.session());
    agent.await_ready();
    theirs.await_end();
    assert_eq!(theirs.says(), "runs\nstopped\n");
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn the_same_for_a_lock() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut theirs = ConsulLock::start(&consul, &[]);
    wait_for("it to run", || theirs.says() == "runs\n");
    let session = operator.lock(PREFIX).unwrap().session.unwrap();
    let said = evicted(&consul, &[PREFIX, &session]);
    assert_eq!((&said["state"], &said["evicted"]), (&"locked".into(), &true.into()));
    theirs.await_end();
    assert_eq!(theirs.says(), "runs\nstopped\n");
}

#[test]
fn the_dead_are_pruned_at_once_and_their_slot_is_granted() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    operator.put(&format!("{PREFIX}/.lock"), r#"{"Limit":1,"Holders":["dead-1"]}"#, Put::Cas(0), 0);
    // It lets the dead rest.
    let (_home, mut agent) = start(&consul, ", prune_delay: 10m", "");
    agent.await_state("waiting");
    let said = evicted(&consul, &[PREFIX, "dead-1"]);
    assert_eq!(
        (&said["state"], &said["new_holders"][0]["session"]),
        (&"dead".into(), &agent.session().into())
    );
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn an_unresponsive_client_is_evicted_by_force_and_learns_it_later() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (_home, mut agent) = start(&consul, "", "");
    agent.await_ready();
    let session = agent.session();
    let (_next_home, mut next) = start(&consul, "", "");
    next.await_state("waiting");
    agent.signal(Signal::STOP);
    let Said(code, _, errors) = evict(&consul, &[PREFIX, &session, "--yes", "--wait", "300ms"]);
    assert_eq!(code, Some(75), "{errors}");
    assert_eq!(operator.holders(PREFIX), [session.as_str()]);
    let Said(code, said, errors) = evict(&consul, &[PREFIX, &session, "--yes", "--force"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("evicts it already") && errors.contains("may run beside it"), "{errors}");
    assert!(said.contains(&format!("new holders: {}", next.session())), "{said}");
    next.await_ready();
    agent.signal(Signal::CONT);
    wait_for("it to learn", || lost(&agent) == 1.0);
    agent.await_state("waiting");
    assert_eq!(next.terminate(), Some(0));
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_waiter_evicted_by_force_returns_at_the_end_of_the_queue() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (_home, mut holder) = start(&consul, "", "");
    holder.await_ready();
    let (_home_a, mut a) = start(&consul, "", "");
    wait_for("its place", || a.semaphore()["position"] == 1);
    let (_home_b, mut b) = start(&consul, "", "");
    wait_for("its place", || b.semaphore()["position"] == 2);
    assert_eq!(evicted(&consul, &[PREFIX, &a.session(), "--force"])["forced"], true);
    wait_for("its place", || b.semaphore()["position"] == 1);
    wait_for("its place", || a.semaphore()["position"] == 2);
    for agent in [&mut holder, &mut b, &mut a] {
        assert_eq!(agent.terminate(), Some(0));
    }
    operator.assert_nothing_left(PREFIX);
}
