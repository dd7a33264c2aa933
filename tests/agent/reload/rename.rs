//! The prefix or key identifies an entry: a new name changes no slot.

use rustix::process::Signal;
use serde_json::Value;
use slotkeeper::internals::log_events;

use super::{names, reloaded};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home, Lodger};
use crate::wait_for;

const LOST: &str = "slotkeeper_slots_lost_total";

fn tokens(agent: &Agent, list: &str) -> Vec<(String, Value)> {
    let status = agent.status();
    let entries = status[list].as_array().unwrap().iter();
    entries.map(|one| (one["name"].as_str().unwrap().to_owned(), one["fencing_token"].clone())).collect()
}

/// Reloads, and waits until the status shows the new names: the log line comes before the status.
fn reload(agent: &Agent, home: &Home, consul: &Consul, rest: &str) {
    let before = reloaded(agent);
    home.configure(&consul.address(), rest);
    agent.signal(Signal::HUP);
    wait_for("the reload", || reloaded(agent) > before);
    let wanted: Value = serde_yaml::from_str(rest).unwrap();
    let entries = wanted["semaphores"].as_array().unwrap();
    let name_of = |entry: &Value| entry["name"].as_str().unwrap().to_owned();
    let wanted: Vec<_> = entries.iter().map(name_of).collect();
    wait_for("the status", || {
        agent.status()["semaphores"].as_array().unwrap().iter().map(name_of).eq(wanted.clone())
    });
}

#[test]
fn a_renamed_semaphore_keeps_its_slot_under_the_new_name() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let hook =
        "hooks: {on_lost: [sh, -c, 'echo lost $SLOTKEEPER_SEMAPHORE >> $HOME/hooks']}\nsession: {ttl: 10s}";
    home.configure(&consul.address(), &format!("semaphores: [{{name: a, prefix: p, limit: 1}}]\n{hook}"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let waiter = Lodger::start(&consul.address(), "semaphores: [{name: w, prefix: p, limit: 1}]");
    waiter.await_state("waiting");
    // Once listed, the waiter does not write `.lock` again.
    wait_for("the waiter in the handoff list", || operator.next("p").first() == Some(&waiter.session()));
    let (session, token) = (agent.session(), agent.semaphore()["fencing_token"].clone());

    // The limit changes at the same time.
    let renamed =
        format!("semaphores: [{{name: a2, prefix: p, limit: 2, limit_policy: set, body: new}}]\n{hook}");
    reload(&agent, &home, &consul, &renamed);
    assert!(agent.is_ready(), "{}", agent.log());
    assert_eq!(names(&agent), ["a2 held"]);
    assert_eq!((agent.session(), &agent.semaphore()["fencing_token"]), (session.clone(), &token));
    assert!(
        agent.log().contains(r#"renamed="a to a2" changed="a2.limit, a2.limit_policy, a2.body""#),
        "{}",
        agent.log()
    );
    wait_for("the readiness file", || agent.ready_file_says()["semaphores"]["a2"]["fencing_token"] == token);
    assert_eq!(agent.ready_file_says()["semaphores"]["a"], Value::Null);
    assert_eq!((agent.get("/v1/semaphores/a2").status, agent.get("/v1/semaphores/a").status), (200, 404));
    assert!(agent.get("/readyz?verbose").body.contains("[+]semaphore/a2 ok"));
    let metrics = agent.get("/metrics").body;
    assert!(!metrics.contains("semaphore=\"a\""), "{metrics}");
    for (series, value) in [("slot_held", 1.0), ("pruned_holders_total", 0.0)] {
        assert_eq!(agent.metric(&format!("slotkeeper_{series}{{semaphore=\"a2\"}}")), value);
    }
    // Watches go on: the new limit grants the waiter a slot, and the contender key has the new body.
    waiter.await_ready();
    wait_for("the new body", || operator.entry("p", &session)["body"] == "new");
    assert!(operator.holders("p").contains(&session));

    // A loss is reported under the new name.
    operator.destroy(&session);
    let lost = format!("{LOST}{{reason=\"session_gone\",semaphore=\"a2\"}}");
    wait_for("the loss", || agent.metric(&lost) == 1.0);
    let hooks = || std::fs::read_to_string(home.path("hooks")).unwrap_or_default();
    wait_for("the hook", || hooks() == "lost a2\n");
    assert!(agent.log().contains(&format!("{} name=a2", log_events::SLOT_LOST)), "{}", agent.log());
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn swapped_names_swap_no_slots() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    home.configure(
        &consul.address(),
        "semaphores: [{name: a, prefix: p/1, limit: 1}, {name: b, prefix: p/2, limit: 1}]\nlocks: [{name: l, key: k}]",
    );
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (session, before) = (agent.session(), tokens(&agent, "semaphores"));
    let lock = tokens(&agent, "locks");
    let swapped = "semaphores: [{name: b, prefix: p/1, limit: 1}, {name: a, prefix: p/2, limit: 1}]\nlocks: [{name: m, key: k}]";
    reload(&agent, &home, &consul, swapped);
    let after = tokens(&agent, "semaphores");
    assert_eq!((&after[0].0, &after[0].1), (&"b".to_owned(), &before[0].1));
    assert_eq!((&after[1].0, &after[1].1), (&"a".to_owned(), &before[1].1));
    assert_eq!(tokens(&agent, "locks"), [("m".to_owned(), lock[0].1.clone())]);
    for name in ["a", "b", "m"] {
        assert_eq!(agent.metric(&format!("slotkeeper_slot_held{{semaphore=\"{name}\"}}")), 1.0);
    }
    assert_eq!((agent.session(), agent.is_ready()), (session, true));
    assert!(!agent.log().contains(log_events::SLOT_RELEASED), "{}", agent.log());
    assert_eq!(operator.key("k").unwrap().lock_index, 1);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("p/1");
}

#[test]
fn renamed_members_stay_in_their_acquire_group() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let of = |names: [&str; 2]| {
        let [one, two] = names;
        format!(
            "acquire: together\nsession: {{ttl: 10s}}\n\
             semaphores: [{{name: {one}, prefix: p/1, limit: 1}}, {{name: {two}, prefix: p/2, limit: 1}}]"
        )
    };
    home.configure(&consul.address(), &of(["a", "b"]));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let before = tokens(&agent, "semaphores");
    reload(&agent, &home, &consul, &of(["b", "c"]));
    assert_eq!(names(&agent), ["b held", "c held"]);
    let same =
        |after: Vec<(String, Value)>| after.iter().zip(&before).all(|(after, before)| after.1 == before.1);
    assert!(same(tokens(&agent, "semaphores")));
    // After a loss of the session, they are acquired together again.
    operator.destroy(&agent.session());
    wait_for("both to be acquired again", || {
        names(&agent) == ["b held", "c held"] && !same(tokens(&agent, "semaphores"))
    });
    let anew = tokens(&agent, "semaphores");
    assert_eq!(anew[0].1, anew[1].1, "one transaction");
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_waiter_keeps_its_position_under_another_name() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut holder = Lodger::start(&consul.address(), "semaphores: [{name: h, prefix: p, limit: 1}]");
    holder.await_ready();
    let home = Home::new();
    home.configure(&consul.address(), "semaphores: [{name: a, prefix: p, limit: 1}]");
    let mut first = Agent::start(&home);
    first.await_state("waiting");
    let mut second = Lodger::start(&consul.address(), "semaphores: [{name: b, prefix: p, limit: 1}]");
    second.await_state("waiting");
    wait_for("the order", || second.semaphore()["position"] == 2);
    let next = operator.next("p");
    assert_eq!(next[0], first.session());
    reload(&first, &home, &consul, "semaphores: [{name: a2, prefix: p, limit: 1}]");
    wait_for("the position", || first.semaphore()["position"] == 1);
    assert_eq!(names(&first), ["a2 waiting"]);
    assert_eq!(operator.next("p"), next);
    assert_eq!(holder.terminate(), Some(0));
    first.await_ready();
    assert_eq!(second.semaphore()["state"], "waiting");
    assert_eq!(first.terminate(), Some(0));
    second.await_ready();
    assert_eq!(second.terminate(), Some(0));
}
