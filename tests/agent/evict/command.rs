//! A command on a slot has ended before the next one begins.

use super::{Said, ask, evict, evicted};
use rustix::process::Signal;
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::run::job::{Job, bare};
use crate::wait_for;

/// Needs a second for stopping, and writes down that it lived until then.
const SLOW: &str = r#"
    beat() { read -r now _ < /proc/uptime; echo "$now ${SLOTKEEPER_FENCING_TOKEN:-0}" >> "$0"; }
    trap 'beat; sleep 1; beat; echo stopped; exit 0' TERM
    while :; do beat; sleep 0.04; done"#;

fn session(operator: &Operator, prefix: &str) -> String {
    operator.holders(prefix)[0].clone()
}

#[test]
fn the_next_command_begins_when_the_evicted_one_has_ended() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut first = Job::live(&consul.address(), &["p/one", "-n", "1", "--format", "list"], SLOW);
    first.await_life();
    let mut second = Job::live(&consul.address(), &["p/one", "-n", "1"], SLOW);
    wait_for("it to wait", || second.log().contains(log_events::WAITING));
    let holder = session(&operator, "p/one");
    let next =
        operator.keys("p/one").into_iter().filter_map(|pair| pair.session).find(|id| *id != holder).unwrap();

    let Said(code, said, errors) = evict(&consul, &["p/one", &holder[..8], "--yes"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(said.starts_with(&format!("p/one: {holder} is out; new holders: {next} (")), "{said}");
    assert!(errors.starts_with(&format!("evicting session {holder} (")), "{errors}");
    assert!(errors.contains("which holds a slot of p/one since 2"), "{errors}");

    assert_eq!(first.code(), Some(80), "{}", first.log());
    assert_eq!(first.out(), "stopped\n");
    assert!(
        first.log().contains(log_events::HOLDER_EVICTED) && first.log().contains("by=ops@"),
        "{}",
        first.log()
    );
    first.life().assert_before(&second.await_life());
    assert!(second.is_running());
    let said = evicted(&consul, &["p/one", &next]);
    assert_eq!(
        (&said["evicted"], &said["state"], &said["new_holders"]),
        (&true.into(), &"held".into(), &serde_json::json!([]))
    );
    assert_eq!(second.code(), Some(80));
    operator.assert_nothing_left("p/one");
}

#[test]
fn the_same_for_a_lock() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut first = Job::live(&consul.address(), &["p/one"], SLOW);
    first.await_life();
    let mut second = Job::live(&consul.address(), &["p/one"], SLOW);
    wait_for("it to wait", || second.log().contains(log_events::LOCK_HELD_BY_OTHER));
    // One that stands still cannot answer, so that what it was asked can be looked at.
    let before = operator.key("p/one/.lock").unwrap();
    let holder = before.session.clone().unwrap();
    first.signal(Signal::STOP);
    ask(&consul, "p/one", &holder);
    let asked = operator.key("p/one/.lock").unwrap();
    assert_eq!((&asked.session, asked.lock_index), (&before.session, before.lock_index));
    assert!(asked.modify_index > before.modify_index);
    first.signal(Signal::CONT);
    let Said(code, said, errors) = evict(&consul, &["p/one", &holder, "--yes"]);
    assert_eq!(code, Some(0), "{errors}");
    let out = format!("p/one/.lock: {holder} is out");
    // Who waits for it may have it by then.
    assert!(said == format!("{out}\n") || said.starts_with(&format!("{out}; new holders: ")), "{said}");
    assert_eq!(first.code(), Some(80), "{}", first.log());
    first.life().assert_before(&second.await_life());
    let holder = operator.key("p/one/.lock").unwrap().session.unwrap();
    assert_eq!(evicted(&consul, &["p/one/.lock", &holder])["state"], "locked");
    assert_eq!(second.code(), Some(80));
    assert_eq!((operator.key("p/one/.lock"), operator.sessions()), (None, Vec::new()));
}

#[test]
fn a_command_evicted_while_waiting_ends_with_75_and_says_why() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut holder = Job::live(&consul.address(), &["p/one", "-n", "1", "--format", "list"], SLOW);
    holder.await_life();
    let mut waiter = Job::live(&consul.address(), &["p/one", "-n", "1"], SLOW);
    wait_for("it to wait", || {
        operator.keys("p/one").len() == 3 && waiter.log().contains(log_events::WAITING)
    });
    let has = session(&operator, "p/one");
    let waits =
        operator.keys("p/one").into_iter().filter_map(|pair| pair.session).find(|id| *id != has).unwrap();
    wait_for("it to be named", || operator.next("p/one") == [waits.as_str()]);
    let Said(code, said, errors) = evict(&consul, &["p/one", &waits, "--yes"]);
    assert_eq!(
        (code, said.as_str()),
        (Some(0), &*format!("p/one: {waits} is out of the queue\n")),
        "{errors}"
    );
    assert!(errors.contains("It leaves the queue"), "{errors}");
    assert_eq!(waiter.code(), Some(75), "{}", waiter.log());
    assert!(
        waiter.log().contains(log_events::WAITER_EVICTED) && waiter.log().contains("ops@"),
        "{}",
        waiter.log()
    );
    assert!(!waiter.life().has_begun());
    assert!(holder.is_running());
    assert_eq!(operator.keys("p/one").len(), 2);
    evicted(&consul, &["p/one", &has]);
    assert_eq!(holder.code(), Some(80));
    operator.assert_nothing_left("p/one");
}

#[test]
fn an_optional_slot_is_released_at_the_commands_end_at_the_latest() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    // No lease would end by itself while this test lasts.
    let config = "consul: {address: '$CONSUL'}\nhttp: {listen: off}\nsession: {ttl: 10m}\nsemaphores:\n\
                  - {name: needed, prefix: p/needed, limit: 1}\n\
                  - {name: other, prefix: p/other, limit: 1, required: false}\n";
    std::fs::write(&file, config.replace("$CONSUL", &consul.address())).unwrap();
    let mut command = std::process::Command::new(crate::process::BINARY);
    bare(&mut command);
    let until = format!("until [ -e {}/end ]; do sleep 0.05; done", folder.path().display());
    command.args(["run", "--verbose", "--config"]).arg(&file).args(["--", "sh", "-c", &until]);
    let end = folder.path().join("end");
    let mut job = Job::spawn(command, folder);
    let holders = |prefix| operator.lock(prefix).map(|_| operator.holders(prefix)).unwrap_or_default();
    wait_for("both slots", || {
        holders("p/other").len() == 1 && job.log().contains(log_events::COMMAND_STARTED)
    });
    ask(&consul, "p/other", &holders("p/other")[0]);
    wait_for("it to know", || job.log().contains(log_events::HOLDER_EVICTED));
    assert_eq!((holders("p/other").len(), job.is_running()), (1, true));
    std::fs::write(end, "").unwrap();
    assert_eq!(job.code(), Some(0), "{}", job.log());
    operator.assert_nothing_left("p/other");
}
