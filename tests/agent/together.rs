//! `acquire: together`: all required slots in one transaction, or none.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::consul::Newer;
use crate::inspect::operate;
use crate::operator::Operator;
use crate::process::{Agent, Home, Lodger};
use crate::support::kv::Put;
use crate::wait_for;

/// A home that wants a slot of each, in this order.
fn home(consul: &Newer, names: &[&str]) -> Home {
    let home = Home::new();
    let semaphores: Vec<_> =
        names.iter().map(|name| format!("{{name: {name}, prefix: p/{name}, limit: 1}}")).collect();
    home.configure(
        &consul.address(),
        &format!("acquire: together\nsession: {{ttl: 10s}}\nsemaphores: [{}]", semaphores.join(", ")),
    );
    home
}

fn states(agent: &Agent) -> Vec<String> {
    let status = agent.status();
    let semaphores = status["semaphores"].as_array().unwrap().iter();
    semaphores.map(|one| one["state"].as_str().unwrap().to_owned()).collect()
}

/// Takes the slot of `p/<name>` as another kind of client.
fn occupy(operator: &Operator, name: &str) -> String {
    let session = operator.create_session();
    operator.put(&format!("p/{name}/{session}"), "", Put::Acquire(&session), 0);
    let taken = format!(r#"{{"Limit":1,"Holders":["{session}"]}}"#);
    operator.put(&format!("p/{name}/.lock"), &taken, Put::Plain, 0);
    session
}

#[test]
fn a_group_acquires_no_single_slot_and_then_both_in_one_transaction() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let other = occupy(&operator, "b");
    let home = home(&consul, &["a", "b"]);
    let mut agent = Agent::start(&home);
    wait_for("both to be waited for", || {
        states(&agent) == ["waiting", "waiting"] && operator.keys("p/a").len() == 2
    });
    let arrivals = ["p/a", "p/b"].map(|prefix| {
        let entry = |keys: Vec<slotkeeper_consul::KvPair>| {
            keys.into_iter().find(|pair| pair.session.as_deref() == Some(&agent.session()))
        };
        entry(operator.keys(prefix)).map(|pair| pair.create_index)
    });
    assert!(arrivals[0].is_some() && arrivals[0] == arrivals[1], "{arrivals:?}");
    assert_eq!(operator.record("p/a")["Limit"], 1);
    assert_eq!(operator.holders("p/a"), [""; 0], "free, and not taken without the other");

    // Both the party and whoever stands behind it are told why a free slot is not taken.
    let mut plain = Lodger::start(&consul.address(), "semaphores: [{name: a, prefix: p/a, limit: 1}]");
    let says =
        |agent: &Agent, what: &str| agent.semaphore()["reason"].as_str().is_some_and(|it| it.contains(what));
    wait_for("the reasons", || {
        says(&agent, "its acquire group waits for b") && says(&plain, "left to a waiter ahead")
    });
    assert!(
        plain
            .get("/readyz?verbose")
            .body
            .contains("2 of 2 in the queue: free slots are left to a waiter ahead")
    );
    assert!(!agent.log().contains("position=0"), "{}", agent.log());
    assert_eq!(plain.terminate(), Some(0));

    operator.destroy(&other);
    agent.await_ready();
    assert_eq!(states(&agent), ["held", "held"]);
    let granted = ["p/a", "p/b"].map(|prefix| operator.lock(prefix).unwrap().modify_index);
    assert_eq!(granted[0], granted[1]);
    assert_eq!(agent.terminate(), Some(0));
    for prefix in ["p/a", "p/b"] {
        operator.assert_nothing_left(prefix);
    }
}

#[test]
fn a_group_that_loses_a_slot_releases_the_other_before_it_waits_again() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul, &["a", "b"]);
    let agent = Agent::start(&home);
    agent.await_ready();
    occupy(&operator, "b");
    wait_for("both to be waited for", || states(&agent) == ["waiting", "waiting"]);
    assert!(operator.holders("p/a").is_empty());
}

#[test]
fn a_group_that_wants_more_than_one_limit_keeps_no_other_client_waiting() {
    let consul = Newer::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let set_limit = |limit: &str| {
        let (code, _, said) = operate(&address, &["set-limit", "p/a", limit]);
        assert_eq!(code, Some(0), "{said}");
    };
    let other = occupy(&operator, "b");
    let home = Home::new();
    let semaphores = "{name: a, prefix: p/a, limit: 2, slots: 2}, {name: b, prefix: p/b, limit: 1}";
    home.configure(
        &address,
        &format!("acquire: together\nsession: {{ttl: 10s}}\nsemaphores: [{semaphores}]"),
    );
    let mut agent = Agent::start(&home);
    wait_for("both to be waited for", || {
        states(&agent) == ["waiting", "waiting"] && operator.keys("p/b").len() == 3
    });
    let plain = || Lodger::start(&address, "semaphores: [{name: b, prefix: p/b, limit: 1}]");
    let mut behind = plain();
    behind.await_state("waiting");
    set_limit("1");
    wait_for("the group to leave both queues", || {
        states(&agent)[0] == "blocked" && operator.keys("p/a").len() == 1 && operator.keys("p/b").len() == 3
    });
    let reason = agent.semaphore()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("slotkeeper set-limit p/a 2"), "{reason}");
    operator.destroy(&other);
    behind.await_ready();
    // A client that comes after the change is served too, at once.
    assert_eq!(behind.terminate(), Some(0));
    let (code, _, said) = operate(&address, &["run", "p/b", "-n", "1", "--try", "--", "true"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!agent.is_ready());
    set_limit("2");
    agent.await_ready();
    set_limit("1");
    wait_for("the limit to be known", || agent.semaphore()["limit"] == 1);
    assert_eq!(states(&agent), ["held", "held"]);
    assert_eq!(agent.terminate(), Some(0));
    for prefix in ["p/a", "p/b"] {
        operator.assert_nothing_left(prefix);
    }
}

#[test]
fn two_groups_in_opposite_order_take_turns() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let (rounds, done) = (4, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let play = |names: [&'static str; 2]| {
            let consul = &consul;
            move || {
                let home = home(consul, &names);
                for _ in 0..rounds {
                    let mut agent = Agent::start(&home);
                    wait_for("both", || {
                        let states = states(&agent);
                        let half = states.contains(&"held".into()) && states.contains(&"waiting".into());
                        assert!(!half, "one is held while the other is waited for");
                        agent.is_ready()
                    });
                    assert_eq!(agent.terminate(), Some(0));
                }
            }
        };
        let players = [scope.spawn(play(["a", "b"])), scope.spawn(play(["b", "a"]))];
        // Whoever wants one of them alone keeps coming, and starves nobody.
        let done = &done;
        let consul = &consul;
        for name in ["a", "b"] {
            scope.spawn(move || {
                let home = home(consul, &[name]);
                while !done.load(Ordering::Relaxed) {
                    let mut agent = Agent::start(&home);
                    agent.await_ready();
                    assert_eq!(agent.terminate(), Some(0));
                }
            });
        }
        let ended = players.map(std::thread::ScopedJoinHandle::join);
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    for prefix in ["p/a", "p/b"] {
        operator.assert_nothing_left(prefix);
    }
}

#[test]
fn when_one_slot_is_lost_the_workload_of_the_others_has_its_time_to_stop() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    home.configure(
        &consul.address(),
        "session: {ttl: 30s}\n\
         hooks: {on_lost: [sh, -c, 'echo $SLOTKEEPER_SEMAPHORE >> $HOME/lost; sleep 3; echo $SLOTKEEPER_SEMAPHORE >> $HOME/stopped']}\n\
         semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]",
    );
    let agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    operator.delete(&format!("p/a/{session}"));
    let lost = "slotkeeper_slots_lost_total{reason=\"group_lost\",semaphore=\"b\"}";
    wait_for("the loss of the other slot", || agent.metric(lost) == 1.0);
    let stopped = |name: &str| {
        let stopped = std::fs::read_to_string(home.path("stopped")).unwrap_or_default();
        stopped.lines().any(|line| line == name)
    };
    wait_for("the release of the other slot", || {
        let holds = operator.holders("p/b").contains(&session);
        assert!(holds || stopped("b"), "released under its workload");
        !holds || stopped("b")
    });
    agent.await_ready();
}

#[test]
fn a_restarted_agent_keeps_the_part_of_its_slots_that_it_had() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let configure = |rest: &str| {
        let settings = "session: {ttl: 30s, state_file: $HOME/session.json}";
        let own = "{name: a, prefix: p/a, limit: 1}";
        home.configure(&consul.address(), &format!("{settings}\nsemaphores: [{own}{rest}]"));
    };
    configure("");
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (session, token) = (agent.session(), agent.semaphore()["fencing_token"].clone());
    wait_for("the token in the state file", || {
        std::fs::read_to_string(home.path("session.json")).is_ok_and(|text| text.contains(&token.to_string()))
    });
    let other = occupy(&operator, "b");
    configure(", {name: b, prefix: p/b, limit: 1}");
    agent.signal(rustix::process::Signal::KILL);
    agent.ended();
    let mut agent = Agent::start(&home);
    wait_for("both states", || states(&agent) == ["held", "waiting"]);
    assert_eq!(agent.status()["semaphores"][0]["fencing_token"], token);
    assert!(agent.log().contains(slotkeeper::internals::log_events::GROUP_HELD_IN_PART), "{}", agent.log());
    operator.destroy(&other);
    agent.await_ready();
    assert_eq!(operator.holders("p/a"), [session]);
    assert_eq!(agent.terminate(), Some(0));
}
