//! Slots that are lost, and dead holders.

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::hold::{ONE, home};
use crate::http::request;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::kv::Put;
use crate::wait_for;

fn lost(agent: &Agent, reason: &str) -> f64 {
    agent.metric(&format!("slotkeeper_slots_lost_total{{reason=\"{reason}\",semaphore=\"s\"}}"))
}

#[test]
fn a_killed_holders_slot_is_granted_after_its_ttl() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (home_a, home_b) = (home(&consul), home(&consul));
    let mut first = Agent::start(&home_a);
    first.await_ready();
    let dead = first.session();
    let mut second = Agent::start(&home_b);
    second.await_state("waiting");
    first.signal(Signal::KILL);
    first.ended();
    // While the session lives the slot is its own, although it is not renewed.
    wait_for("the end of the session", || {
        // The state is read first: a slot that is held after the session has ended is as it should be.
        let state = second.semaphore()["state"].clone();
        let lives = operator.sessions().iter().any(|session| session.id == dead);
        assert!(!lives || state != "held", "held beside a live session");
        !lives
    });
    second.await_ready();
    assert_eq!(second.metric("slotkeeper_pruned_holders_total{semaphore=\"s\"}"), 1.0);
    assert_eq!(second.metric("slotkeeper_prune_duration_seconds_count{semaphore=\"s\"}"), 1.0);
    assert_eq!(second.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_session_destroyed_by_an_operator_is_a_loss_and_the_slot_is_acquired_again() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let hooks = "hooks:\n  on_acquired: [/bin/sh, -c, 'echo $SLOTKEEPER_EVENT $SLOTKEEPER_SEMAPHORE $SLOTKEEPER_KIND $SLOTKEEPER_PREFIX \
                 $SLOTKEEPER_SLOT_INDEXES >> $HOME/hooks']\n  \
                 on_lost: [/bin/sh, -c, 'echo $SLOTKEEPER_EVENT $SLOTKEEPER_REASON $SLOTKEEPER_SLOT $SLOTKEEPER_SESSION >> $HOME/hooks']";
    home.configure(&consul.address(), &format!("{ONE}\n{hooks}"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (before, token) = (agent.session(), agent.semaphore()["fencing_token"].as_u64().unwrap());
    // A loss kills what still tells of the slot.
    wait_for("the first hook", || agent.log().contains(log_events::HOOK_SUCCEEDED));
    operator.destroy(&before);
    wait_for("the loss", || lost(&agent, "session_gone") == 1.0);
    wait_for("a new session", || agent.session() != before);
    wait_for("a new grant", || agent.semaphore()["fencing_token"].as_u64() > Some(token));
    agent.await_ready();
    let acquired = "acquired s semaphore service/s 0\n";
    wait_for("the hooks", || {
        let ran = std::fs::read_to_string(home.path("hooks")).unwrap_or_default();
        ran == format!("{acquired}lost session_gone 0 {before}\n{acquired}")
    });
    let done = format!("{} name=s hook=/bin/sh hook_event=lost", log_events::HOOK_SUCCEEDED);
    wait_for("the hook's line in the log", || agent.log().contains(&done));
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
fn with_on_lost_exit_a_loss_ends_the_agent_with_80() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    home.configure(&consul.address(), &ONE.replace("limit: 1", "limit: 1, on_lost: exit"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    operator.put("service/s/.lock", r#"{"Limit":1,"Holders":[]}"#, Put::Plain, 0);
    // It looks there once a minute, and where somebody looks at it.
    agent.semaphore();
    assert_eq!(agent.ended().code(), Some(80));
    assert!(agent.log().contains("reason=evicted"), "{}", agent.log());
    assert!(!agent.ready_file().exists());
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_holder_removed_from_the_record_has_lost_its_slot() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let foreigner = operator.create_session();
    operator.put(&format!("service/s/{foreigner}"), "", Put::Acquire(&foreigner), 0);
    let edited = format!(r#"{{"Limit":1,"Holders":["{foreigner}"]}}"#);
    operator.put("service/s/.lock", &edited, Put::Plain, 0);
    agent.await_state("waiting");
    assert_eq!(lost(&agent, "evicted"), 1.0);
    assert!(!agent.is_ready());
    wait_for("the file to go", || !agent.ready_file().exists());
    assert_eq!(operator.holders("service/s"), [foreigner.as_str()]);
    // The foreigner dies: its slot is given on, and the record is pruned.
    operator.destroy(&foreigner);
    agent.await_ready();
    assert_eq!(operator.holders("service/s"), [agent.session()]);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

/// By an operator of the key-value store, and not by `slotkeeper evict`.
#[test]
fn a_holder_whose_prefix_is_deleted_was_not_evicted() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let before = agent.semaphore()["fencing_token"].as_u64();
    let delete = request(&consul.address(), "DELETE /v1/kv/service/s?recurse", "");
    assert_eq!(delete.status, 200);
    wait_for("the loss", || lost(&agent, "contender_gone") == 1.0);
    // The metric may be ahead of the state and of readiness.
    wait_for("a new grant", || agent.semaphore()["fencing_token"].as_u64() > before);
    agent.await_ready();
    assert_eq!(lost(&agent, "evicted"), 0.0);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_holder_whose_contender_is_deleted_has_lost_its_slot() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (token, index) =
        (agent.semaphore()["fencing_token"].as_u64(), operator.lock("service/s").unwrap().modify_index);
    operator.delete(&format!("service/s/{}", agent.session()));
    wait_for("the loss", || lost(&agent, "contender_gone") == 1.0);
    wait_for("a new grant", || agent.semaphore()["fencing_token"].as_u64() > token);
    agent.await_ready();
    // The new grant is told from the old one by anybody who planned from the old record.
    let now = operator.lock("service/s").unwrap().modify_index;
    assert!(now > index);
    assert_eq!((token, agent.semaphore()["fencing_token"].as_u64()), (Some(index), Some(now)));
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_holder_prunes_the_dead_without_a_waiter() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    home.configure(&consul.address(), &ONE.replace("limit: 1", "limit: 2"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let with_a_dead_one = format!(r#"{{"Limit":2,"Holders":["dead","{}"]}}"#, agent.session());
    operator.put("service/s/.lock", &with_a_dead_one, Put::Plain, 0);
    wait_for("the prune", || operator.holders("service/s") == [agent.session()]);
    wait_for("its count", || agent.metric("slotkeeper_pruned_holders_total{semaphore=\"s\"}") == 1.0);
    assert!(agent.is_ready());
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn with_behavior_release_the_contenders_of_the_dead_are_deleted() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let release = ONE.replace("ttl: 10s", "ttl: 10s, behavior: release");
    let home = Home::new();
    home.configure(&consul.address(), &release);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let before = agent.session();
    operator.destroy(&before);
    wait_for("a new session", || !agent.session().is_empty() && agent.session() != before);
    agent.await_ready();
    wait_for("the old entry to go", || operator.keys("service/s").len() == 2);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "it measures the rest, of which too little would be the failure"
)]
fn a_dead_holders_slot_is_kept_for_the_prune_delay() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let dead = operator.create_session();
    operator.put(&format!("service/s/{dead}"), "", Put::Acquire(&dead), 0);
    operator.put("service/s/.lock", &format!(r#"{{"Limit":1,"Holders":["{dead}"]}}"#), Put::Cas(0), 0);
    let home = Home::new();
    home.configure(&consul.address(), &ONE.replace("limit: 1", "limit: 1, prune_delay: 2s"));
    let mut agent = Agent::start(&home);
    agent.await_state("waiting");
    let died = std::time::Instant::now();
    operator.destroy(&dead);
    agent.await_ready();
    assert!(died.elapsed() >= std::time::Duration::from_secs(2));
    assert_eq!(agent.terminate(), Some(0));
}
