//! Leases: semaphores that clients take and give back, one session each.
//!
//! The agent runs in a thread of this process, and is asked as the control endpoints ask it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use slotkeeper::internals::clock;
use slotkeeper::internals::control::request::{Kind, NoLease, Refusal, Released, Request};
use slotkeeper::internals::exit::Exit;
use slotkeeper::internals::shutdown::SignalRequest;
use slotkeeper::internals::status::State;

#[path = "../../support/agent/lender.rs"]
mod lender;
mod polls;
mod stopped;

use lender::{Lender, text};

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::kv::Put;
use crate::wait_for;

#[allow(clippy::disallowed_methods, reason = "a test has no lease, and blocks nobody")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn sessions(operator: &Operator) -> Vec<String> {
    operator.sessions().into_iter().map(|session| session.id).collect()
}

#[test]
fn each_lease_has_a_session_and_a_slot_of_its_own_and_leaves_nothing() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, 2);
    assert_eq!((agent.state(), sessions(&operator)), (State::Idle, vec![]));
    assert!(agent.snapshot().is_ready(clock::now()), "readiness waits for nothing");
    assert_eq!(agent.metric("slotkeeper_leases{semaphore=\"s\"}"), 0.0);

    let first = agent.acquire(0).unwrap();
    assert_eq!((first.kind, first.name.as_str()), (Kind::Semaphore, "s"));
    assert_eq!(Some(first.fencing_token), operator.lock("service/s").map(|pair| pair.modify_index));
    assert!(Duration::from_secs(5) < first.expires_in && first.expires_in <= Duration::from_secs(9));
    let second = agent.acquire(0).unwrap();
    assert_eq!((&*first.slot_indexes, &*second.slot_indexes), (&[0][..], &[1][..]));
    assert!(second.fencing_token > first.fencing_token && first.lease != second.lease);
    assert_eq!(operator.holders("service/s"), [&*first.session, &*second.session]);
    assert_eq!(sessions(&operator).len(), 2);

    wait_for("the status", || agent.report()["leases"][1]["state"] == "held");
    let report = agent.report();
    assert_eq!((&report["mode"], &report["state"]), (&"on_demand".into(), &"held".into()));
    assert_eq!(report["leases"][0]["session"], first.session);
    assert_eq!(report["leases"][0]["fencing_token"], first.fencing_token);
    assert!(!report.to_string().contains(&first.lease), "whoever knows the id can give the lease back");
    wait_for("the holders", || {
        let report = agent.looked_at();
        let holders = report["holders"].as_array().unwrap();
        holders.len() == 2 && holders.iter().all(|holder| holder["mine"] == true)
    });
    assert_eq!(agent.metric("slotkeeper_slot_held{semaphore=\"s\"}"), 2.0);
    assert_eq!(agent.metric("slotkeeper_leases{semaphore=\"s\"}"), 2.0);

    assert_eq!(agent.acquire(0), Err(Refusal::Timeout));
    assert_eq!(agent.release(&first.lease), Ok(Released::Done));
    assert_eq!(operator.holders("service/s"), [&*second.session]);
    assert_eq!(sessions(&operator), [&*second.session]);
    assert_eq!(agent.release(&first.lease), Ok(Released::Done), "again it changes nothing");
    assert_eq!(agent.renew(&first.lease), Err(NoLease::Released));
    assert_eq!(agent.release("never"), Err(NoLease::Unknown));
    assert_eq!(agent.show("never"), Err(NoLease::Unknown));
    assert_eq!(agent.show(&second.lease).unwrap().slot_indexes, [1]);
    assert_eq!(agent.release(&second.lease), Ok(Released::Done));
    operator.assert_nothing_left("service/s");
    assert_eq!(agent.metric("slotkeeper_hold_duration_seconds_count{semaphore=\"s\"}"), 2.0);
    assert_eq!(agent.stop(), Exit::Done);
}

#[test]
fn a_waiter_gets_a_released_lease_or_times_out() {
    let consul = Consul::start();
    let agent = Lender::of(&consul, 1);
    let first = agent.acquire(60).unwrap();
    let second = agent.waits(60);
    wait_for("the wait", || agent.metric("slotkeeper_lease_waiters{semaphore=\"s\"}") == 1.0);
    assert!(agent.renew(&first.lease).is_ok());
    #[allow(clippy::disallowed_methods, reason = "a test has no lease")]
    let began = Instant::now();
    // Long enough for Consul's answer, without which it would not be known whether there is a slot.
    assert_eq!(agent.acquire(3), Err(Refusal::Timeout));
    assert!((Duration::from_millis(2900)..Duration::from_secs(30)).contains(&began.elapsed()));
    assert_eq!(agent.release(&first.lease), Ok(Released::Done));
    let second = second.answer().unwrap();
    assert!(second.fencing_token > first.fencing_token);
    assert_eq!(agent.stop(), Exit::Done);
    Operator::at(&consul.address()).assert_nothing_left("service/s");
}

#[test]
fn a_client_that_disconnects_leaves_nothing() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, 1);
    let first = agent.acquire(60).unwrap();
    let second = agent.waits(600);
    wait_for("two in line", || operator.keys("service/s").len() == 3);
    second.goes_away();
    wait_for("one to leave", || operator.keys("service/s").len() == 2 && sessions(&operator).len() == 1);
    assert_eq!(sessions(&operator), [&*first.session]);
    // Gone at whatever instant, also that of its grant.
    assert_eq!(agent.release(&first.lease), Ok(Released::Done));
    for millis in 0..20 {
        let waiting = agent.waits(600);
        pause(Duration::from_millis(millis));
        waiting.goes_away();
    }
    // Also one that was granted, and whose client has gone before it could be told.
    let untold = agent.waits(600);
    let granted = untold.answer.blocking_recv();
    wait_for("all but that one to be gone", || sessions(&operator).len() == 1);
    drop((granted, untold.present));
    wait_for("all to be gone", || sessions(&operator).is_empty());
    operator.assert_nothing_left("service/s");
    assert_eq!(agent.stop(), Exit::Done);
}

#[test]
fn a_lease_lasts_while_it_is_renewed_and_is_then_released() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, 2);
    let (kept, dropped) = (agent.acquire(60).unwrap(), agent.acquire(60).unwrap());
    wait_for("the end of the one", || {
        let renewed = agent.renew(&kept.lease).unwrap();
        assert_eq!((renewed.fencing_token, &renewed.session), (kept.fencing_token, &kept.session));
        assert!(renewed.expires_in > Duration::ZERO);
        operator.holders("service/s") == [&*kept.session]
    });
    assert_eq!(agent.renew(&dropped.lease), Err(NoLease::Expired));
    assert_eq!(agent.metric("slotkeeper_leases_expired_total{semaphore=\"s\"}"), 1.0);
    assert_eq!(agent.metric("slotkeeper_slots_lost_total{reason=\"evicted\",semaphore=\"s\"}"), 0.0);
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_lost_lease_is_reported_and_not_acquired_again() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, 3);
    let (first, second) = (agent.acquire(60).unwrap(), agent.acquire(60).unwrap());
    operator.destroy(&first.session);
    let mut fate = None;
    wait_for("the loss", || {
        fate = agent.show(&first.lease).err();
        fate.is_some()
    });
    let Some(NoLease::Lost(reason)) = fate else { panic!("{fate:?}") };
    assert!(["session_gone", "contender_gone"].contains(&reason), "{reason}");
    assert_eq!(
        agent.metric(&format!("slotkeeper_slots_lost_total{{reason=\"{reason}\",semaphore=\"s\"}}")),
        1.0
    );
    assert_eq!(agent.renew(&first.lease), Err(NoLease::Lost(reason)));
    assert_eq!(agent.release(&first.lease), Ok(Released::Done));
    assert_eq!(sessions(&operator), [&*second.session]);
    // Its slot is there for whoever comes: of three the second one has one.
    let others = [agent.acquire(60).unwrap(), agent.acquire(60).unwrap()];
    for other in &others {
        assert_eq!(agent.release(&other.lease), Ok(Released::Done));
    }
    assert!(agent.renew(&second.lease).is_ok(), "one loss is not the others'");
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

#[test]
fn the_status_lists_current_participants() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, 2);
    let leases = [agent.acquire(60).unwrap(), agent.acquire(60).unwrap()];
    // Of one who comes into the line a lease that is held hears nothing.
    let other = operator.create_session();
    let key = format!("service/s/{other}");
    operator.put(&key, "", Put::Acquire(&other), 0);
    wait_for("it to be seen", || agent.looked_at()["queue_length"] == 1);
    operator.delete(&key);
    wait_for("its end to be seen", || agent.looked_at()["queue_length"] == 0);
    assert_eq!(agent.report()["slots_taken"], 2);
    operator.destroy(&other);
    for lease in &leases {
        assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    }
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

#[test]
fn the_limits_hold_and_an_impossible_lease_is_refused_at_once() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::start(
        &consul,
        "session: {ttl: 10s}\nsemaphores:\n- {name: s, prefix: service/s, limit: 1, mode: on_demand}\n\
         - {name: own, prefix: service/own, limit: 1}\n\
         - {name: odd, prefix: service/odd, limit: 2, mode: on_demand, limit_policy: refuse}\n\
         - {name: none, prefix: service/none, limit: 2, mode: on_demand}",
    );
    let minute = Duration::from_secs(60);
    let refused = |kind, name| agent.asks_for(kind, name, minute).answer().unwrap_err();
    let known = vec!["s".into(), "own".into(), "odd".into(), "none".into()];
    assert_eq!(refused(Kind::Semaphore, "other"), Refusal::UnknownName { known });
    assert!(matches!(refused(Kind::Lock, "s"), Refusal::UnknownName { .. }));
    assert_eq!(refused(Kind::Semaphore, "own"), Refusal::NotOnDemand);
    operator.put("service/odd/.lock", r#"{"Limit":5,"Holders":[]}"#, Put::Plain, 0);
    operator.put("service/none/.lock", "something else", Put::Plain, 0);
    for name in ["odd", "none"] {
        let refusal = refused(Kind::Semaphore, name);
        assert!(matches!(refusal, Refusal::Blocked(_)), "{refusal:?}");
    }
    let first = agent.acquire(60).unwrap();
    let waits: Vec<_> = (0..32).map(|_| agent.waits(60)).collect();
    assert_eq!(agent.acquire(60), Err(Refusal::TooManyWaits(32)));
    for waiting in waits {
        waiting.goes_away();
    }
    wait_for("all waits to end", || operator.keys("service/s").len() == 2);
    assert!(agent.renew(&first.lease).is_ok());
    wait_for("room again", || agent.acquire(0) == Err(Refusal::Timeout));
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
    operator.assert_nothing_left("service/own");
}

#[test]
fn the_configured_limit_is_written_once_and_not_by_every_lease() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    operator.put("service/s/.lock", r#"{"Limit":5,"Holders":[]}"#, Put::Plain, 0);
    let agent = Lender::start(
        &consul,
        "session: {ttl: 10s}\n\
         semaphores: [{name: s, prefix: service/s, limit: 2, mode: on_demand, limit_policy: set}]",
    );
    let lease = agent.acquire(60).unwrap();
    assert_eq!(operator.record("service/s")["Limit"], 2);
    assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    operator.put("service/s/.lock", r#"{"Limit":7,"Holders":[]}"#, Put::Plain, 0);
    let lease = agent.acquire(60).unwrap();
    assert_eq!(operator.record("service/s")["Limit"], 7, "an operator's limit lasts");
    assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_drain_ends_waits_and_leaves_leases_to_their_clients() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, 2);
    let leases = [agent.acquire(60).unwrap(), agent.acquire(60).unwrap()];
    let third = agent.waits(600);
    wait_for("one in line", || operator.keys("service/s").len() == 4);
    agent.ask(Request::Drain);
    assert_eq!(third.answer(), Err(Refusal::Draining));
    for lease in leases {
        assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    }
    assert_eq!(agent.ended(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

/// The real binary, with nothing of its own.
#[test]
fn an_agent_with_leases_alone_has_no_session_of_its_own() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    home.configure(
        &consul.address(),
        "semaphores: [{name: s, prefix: service/s, limit: 3, mode: on_demand}]\n\
         control: {listen: 'unix:$HOME/run/control.sock'}",
    );
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!(agent.status()["session"], serde_json::Value::Null);
    let semaphore = agent.semaphore();
    let said = |field: &str| semaphore[field].clone();
    assert_eq!((said("state"), said("mode"), said("leases")), ("idle".into(), "on_demand".into(), json!([])));
    assert_eq!((said("required"), said("limit")), (json!(false), json!(null)));
    for series in ["leases", "lease_waiters", "leases_expired_total", "slot_held"] {
        assert_eq!(agent.metric(&format!("slotkeeper_{series}{{semaphore=\"s\"}}")), 0.0);
    }
    assert!(sessions(&operator).is_empty());
    assert_eq!(agent.terminate(), Some(0));
    assert!(agent.log().contains("no slot and no session of this agent is left"), "{}", agent.log());
}

#[test]
fn with_after_workload_leases_are_held_until_the_workload_is_done() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::start(
        &consul,
        "session: {ttl: 10s}\nsemaphores: [{name: s, prefix: service/s, limit: 1, mode: on_demand}]\n\
         drain: {timeout: 60s, release: after_workload}",
    );
    let lease = agent.acquire(60).unwrap();
    agent.signals.send(SignalRequest::Stop).unwrap();
    pause(Duration::from_millis(300));
    assert!(agent.renew(&lease.lease).unwrap().draining.is_some() && !agent.has_ended());
    agent.ask(Request::Drain);
    assert!(agent.renew(&lease.lease).is_ok() && !agent.has_ended(), "done or not, a lease is its client's");
    assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    assert_eq!(agent.ended(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_reload_is_for_the_next_lease() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, 1);
    let lease = agent.acquire(60).unwrap();
    let other = "session: {ttl: 10s}\nsemaphores: [{name: t, prefix: service/t, limit: 1, mode: on_demand}]";
    std::fs::write(&agent.file, text(&consul.address(), other)).unwrap();
    agent.signals.send(SignalRequest::Reload).unwrap();
    wait_for("the new one", || agent.snapshot().semaphores.iter().any(|one| one.entry.name == "t"));
    let next = agent.asks_for(Kind::Semaphore, "t", Duration::from_secs(5)).answer().unwrap();
    assert_eq!(agent.acquire(60), Err(Refusal::UnknownName { known: vec!["t".into()] }));
    assert!(agent.renew(&lease.lease).is_ok(), "it is held on the terms of before");
    assert_eq!(agent.metric("slotkeeper_leases{semaphore=\"s\"}"), 1.0);
    assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    wait_for("its series to end", || !agent.has_series("semaphore=\"s\""));
    assert_eq!(operator.holders("service/t"), [next.session]);
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/t");
}

#[test]
fn a_lease_of_what_is_renamed_goes_on_under_the_new_name() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, 2);
    let lease = agent.acquire(60).unwrap();
    let renamed =
        "session: {ttl: 10s}\nsemaphores: [{name: t, prefix: service/s, limit: 2, mode: on_demand}]";
    std::fs::write(&agent.file, text(&consul.address(), renamed)).unwrap();
    agent.signals.send(SignalRequest::Reload).unwrap();
    wait_for("the new name", || agent.snapshot().semaphores[0].entry.name == "t");
    assert_eq!(
        (agent.snapshot().semaphores.len(), agent.snapshot().semaphores[0].entry.leases.len()),
        (1, 1)
    );
    assert_eq!(agent.metric("slotkeeper_leases{semaphore=\"t\"}"), 1.0);
    assert!(!agent.has_series("semaphore=\"s\""));
    let renewed = agent.renew(&lease.lease).unwrap();
    assert_eq!((renewed.name.as_str(), &renewed.session), ("t", &lease.session));
    let other = agent.asks_for(Kind::Semaphore, "t", Duration::from_secs(5)).answer().unwrap();
    assert_ne!(other.slot_indexes, lease.slot_indexes);
    assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_name_moved_to_another_prefix_leaves_the_leases_in_place() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let of = |entries: &[(&str, &str)]| {
        let entry = |(name, prefix): &(&str, &str)| {
            format!("{{name: {name}, prefix: service/{prefix}, limit: 1, mode: on_demand}}")
        };
        let entries: Vec<_> = entries.iter().map(entry).collect();
        format!("session: {{ttl: 10s}}\nsemaphores: [{}]", entries.join(", "))
    };
    let agent = Lender::start(&consul, &of(&[("s", "s"), ("t", "t")]));
    let lease = agent.acquire(60).unwrap();
    // `s` is removed, and `t` is called so from here on.
    std::fs::write(&agent.file, text(&consul.address(), &of(&[("s", "t")]))).unwrap();
    agent.signals.send(SignalRequest::Reload).unwrap();
    let shown = || {
        let all = agent.snapshot();
        let each = all.semaphores.iter();
        each.map(|one| (one.entry.name.clone(), one.prefix.clone(), one.entry.leases.len()))
            .collect::<Vec<_>>()
    };
    let is_shown = |prefix: &str, leases: usize| ("s".to_owned(), format!("service/{prefix}"), leases);
    wait_for("the reload", || shown() == [is_shown("t", 0), is_shown("s", 1)]);
    assert_eq!(agent.state(), State::Idle);
    assert_eq!(agent.metric("slotkeeper_leases{semaphore=\"s\"}"), 1.0);
    let next = agent.acquire(60).unwrap();
    assert_eq!(operator.holders("service/t"), [next.session]);
    wait_for("both", || shown() == [is_shown("t", 1), is_shown("s", 1)]);
    assert_eq!(agent.metric("slotkeeper_leases{semaphore=\"s\"}"), 2.0);
    // A later name is that of the later one alone.
    std::fs::write(&agent.file, text(&consul.address(), &of(&[("u", "t")]))).unwrap();
    agent.signals.send(SignalRequest::Reload).unwrap();
    wait_for("the other name", || agent.snapshot().semaphores[0].entry.name == "u");
    assert_eq!(agent.renew(&lease.lease).unwrap().name, "s");
    for name in ["s", "u"] {
        assert_eq!(agent.metric(&format!("slotkeeper_leases{{semaphore=\"{name}\"}}")), 1.0);
    }
    assert_eq!(agent.renew(&next.lease).unwrap().name, "u");
    assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    wait_for("the first to be gone", || agent.snapshot().semaphores.len() == 1);
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_lease_blocks_a_new_prefix_above_it() {
    let consul = Consul::start();
    let of = |name: &str, prefix: &str, mode: &str| {
        format!(
            "session: {{ttl: 10s}}\nsemaphores: [{{name: {name}, prefix: {prefix}, limit: 1, mode: {mode}}}]"
        )
    };
    let agent = Lender::start(&consul, &of("s", "service/s/below", "on_demand"));
    let lease = agent.acquire(60).unwrap();
    std::fs::write(&agent.file, text(&consul.address(), &of("t", "service/s", "hold"))).unwrap();
    agent.signals.send(SignalRequest::Reload).unwrap();
    wait_for("it to be pending", || agent.state() == State::Pending);
    let reason = agent.snapshot().semaphores[0].entry.reason.clone();
    assert_eq!(reason.as_deref(), Some("1 lease of it has not ended yet"));
    assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    wait_for("the agent to hold it", || agent.state() == State::Held);
    assert_eq!(agent.stop(), Exit::Done);
}

/// The agent holds what clients could take once they have given it back, and the other way round.
#[test]
fn a_mode_changes_once_the_leases_have_ended() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, 1);
    let lease = agent.acquire(60).unwrap();
    let of = |mode: &str| {
        format!("session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: service/s, limit: 1, mode: {mode}}}]")
    };
    std::fs::write(&agent.file, text(&consul.address(), &of("hold"))).unwrap();
    agent.signals.send(SignalRequest::Reload).unwrap();
    wait_for("it to be pending", || agent.state() == State::Pending);
    let semaphore = agent.snapshot().semaphores[0].clone();
    assert_eq!(semaphore.entry.reason.as_deref(), Some("1 lease of it has not ended yet"));
    assert_eq!((semaphore.entry.required, semaphore.entry.leases.len()), (true, 1));
    assert!(!agent.snapshot().is_ready(clock::now()));
    assert!(matches!(agent.acquire(0), Err(Refusal::Pending(_))));
    assert!(agent.renew(&lease.lease).is_ok());
    assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    wait_for("the agent to hold it", || agent.state() == State::Held);
    assert!(agent.snapshot().is_ready(clock::now()));

    consul.signal(Signal::STOP);
    std::fs::write(&agent.file, text(&consul.address(), &of("on_demand"))).unwrap();
    agent.signals.send(SignalRequest::Reload).unwrap();
    wait_for("it to be pending", || agent.state() == State::Pending);
    assert!(matches!(agent.acquire(0), Err(Refusal::Pending(_))));
    consul.signal(Signal::CONT);
    wait_for("it to be lent again", || agent.state() == State::Idle);
    let lease = agent.acquire(60).unwrap();
    assert_eq!(operator.holders("service/s"), [lease.session]);
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_lease_keeps_the_number_of_slots_that_it_acquired() {
    let consul = Consul::start();
    let of = |slots: u32| {
        format!(
            "session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: service/s, limit: 4, slots: {slots}, mode: on_demand}}]"
        )
    };
    let agent = Lender::start(&consul, &of(1));
    let slots = || agent.metric("slotkeeper_slots{semaphore=\"s\"}");
    let first = agent.acquire(60).unwrap();
    std::fs::write(&agent.file, text(&consul.address(), &of(3))).unwrap();
    agent.signals.send(SignalRequest::Reload).unwrap();
    wait_for("the reload", || agent.snapshot().semaphores[0].slots == 3);
    assert_eq!(slots(), 1.0);
    let second = agent.acquire(60).unwrap();
    assert_eq!((slots(), second.slot_indexes.len()), (1.0, 3), "by the one that was first");
    assert_eq!(agent.release(&first.lease), Ok(Released::Done));
    wait_for("the other one", || slots() == 3.0);
    assert_eq!(agent.release(&second.lease), Ok(Released::Done));
    assert_eq!(agent.stop(), Exit::Done);
}

#[test]
fn while_consul_is_away_a_wait_ends_in_time_and_a_lease_is_lost_at_its_end() {
    let mut consul = Consul::start_persistent();
    let operator = Operator::at(&consul.address());
    // Two TTLs after the loss it would be left as it is: Consul has that long to come back.
    let agent = Lender::start(
        &consul,
        "session: {ttl: 20s}\nsemaphores: [{name: s, prefix: service/s, limit: 1, mode: on_demand}]",
    );
    let lease = agent.acquire(60).unwrap();
    consul.stop();
    let refusal = agent.acquire(2).unwrap_err();
    assert!(matches!(refusal, Refusal::Unavailable(_)), "{refusal:?}");
    // Not what it was when it was lent: it may have been renewed until Consul was gone.
    let mut last = None;
    wait_for("the loss", || match agent.renew(&lease.lease) {
        Ok(renewed) => {
            assert!(last.is_none_or(|last| renewed.expires_in <= last), "nothing was renewed at Consul");
            last = Some(renewed.expires_in);
            false
        }
        Err(fate) => {
            assert_eq!(fate, NoLease::Lost("lease_expired"));
            true
        }
    });
    assert_eq!(agent.release(&lease.lease), Ok(Released::UnderWay));
    consul.restart();
    wait_for("all to be gone", || sessions(&operator).is_empty());
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_wait_ends_in_time_while_consul_is_stopped() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, 1);
    let lease = agent.acquire(60).unwrap();
    consul.signal(Signal::STOP);
    #[allow(clippy::disallowed_methods, reason = "a test has no lease")]
    let began = Instant::now();
    let refusal = agent.acquire(1).unwrap_err();
    let took = began.elapsed();
    consul.signal(Signal::CONT);
    assert!(matches!(refusal, Refusal::Unavailable(_)), "{refusal:?}");
    assert!((Duration::from_millis(900)..Duration::from_secs(9)).contains(&took), "{took:?}");
    wait_for("what it began to be undone", || sessions(&operator) == [&*lease.session]);
    assert!(agent.renew(&lease.lease).is_ok());
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}

#[test]
fn many_clients_never_hold_more_slots_than_the_limit() {
    const LIMIT: u32 = 3;
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lender::of(&consul, LIMIT);
    let (held, most) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..15 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let lease = agent.acquire(60).unwrap();
                    let now = held.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    assert!(now <= LIMIT, "{now} hold at once");
                    wait_for("all slots to be held", || most.load(Ordering::SeqCst) == LIMIT);
                    pause(Duration::from_millis(40));
                    held.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
                }
            });
        }
    });
    assert_eq!(agent.metric("slotkeeper_acquire_duration_seconds_count{semaphore=\"s\"}"), 60.0);
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}
