//! States made on purpose on real agents, whose alerts have to fire and, once mended, to resolve. The rules are hurried
//! (see `rules::hurried`), since nobody wants to wait for a quarter of an hour; their expressions are the same but for that.

use std::collections::BTreeSet;

use rustix::process::Signal;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home, Lodger};
use crate::prometheus::Prometheus;
use crate::rules;
use crate::support::kv::Put;
use crate::wait_for;

/// A session of another kind of client that has a live contender under the prefix.
fn stranger(operator: &Operator, prefix: &str) -> String {
    let session = operator.create_session();
    operator.put(&format!("{prefix}/{session}"), "", Put::Acquire(&session), 0);
    session
}

fn hold(name: &str) -> String {
    format!("session: {{ttl: 10s}}\nsemaphores: [{{name: {name}, prefix: p/{name}, limit: 1}}]")
}

/// Waits until each of these has fired, besides any others; one may have resolved when the last one fires.
fn fires(prometheus: &Prometheus, alerts: &[&str]) {
    let mut wanted: BTreeSet<_> = alerts.iter().map(|alert| (*alert).to_owned()).collect();
    wait_for(&format!("{alerts:?} to fire"), || {
        prometheus.firing().iter().for_each(|firing| _ = wanted.remove(firing));
        wanted.is_empty()
    });
}

/// Waits until none of these fires.
fn resolves(prometheus: &Prometheus, alerts: &[&str]) {
    wait_for(&format!("{alerts:?} to resolve"), || {
        let firing = prometheus.firing();
        !alerts.iter().any(|alert| firing.iter().any(|one| one == alert))
    });
}

#[test]
fn a_problem_of_a_semaphore_raises_its_alert_and_the_fix_resolves_it() {
    let consul = Consul::start();
    let elsewhere = Consul::start();
    let operator = Operator::at(&consul.address());
    let address = consul.address();

    // Over the limit: somebody has written two holders into a .lock of one.
    let (one, two) = (stranger(&operator, "p/over"), stranger(&operator, "p/over"));
    let overfull = format!(r#"{{"Limit":1,"Holders":["{one}","{two}"]}}"#);
    operator.put("p/over/.lock", &overfull, Put::Plain, 0);
    let over = Lodger::start(&address, &hold("over"));

    // A slot is free, and nobody gets it: it is the turn of one that takes it together with another, which is taken.
    let taken = Lodger::start(&address, &hold("taken"));
    taken.await_ready();
    let both = "acquire: together\nsession: {ttl: 10s}\n\
                semaphores: [{name: idle, prefix: p/idle, limit: 1}, {name: taken, prefix: p/taken, limit: 1}]";
    let both = Lodger::start(&address, both);
    both.await_state("waiting");

    // Two agents hold the only slot, since they ask different Consuls.
    let here = Lodger::start(&address, &hold("split"));
    let mut there = Lodger::start(&elsewhere.address(), &hold("split"));
    here.await_ready();
    there.await_ready();

    // Something else lies where a semaphore should.
    operator.put("p/blocked/.lock", "a note", Put::Plain, 0);
    let blocked = Lodger::start(&address, &hold("blocked"));
    blocked.await_state("blocked");

    // A configuration that is refused.
    let home = Home::new();
    home.configure(&address, &hold("reloaded"));
    let reloaded = Agent::start(&home);
    reloaded.await_ready();
    home.configure(&address, "semaphores: [{name: reloaded, prefix: p/reloaded, limit: none}]");
    reloaded.signal(Signal::HUP);

    // Its Consul is away.
    let mut away = Consul::start();
    away.stop();
    let alone = Lodger::start(&away.address(), &hold("alone"));

    let prometheus = Prometheus::start(&rules::hurried());
    let agents = [&*over, &*taken, &*both, &*here, &*there, &*blocked, &reloaded, &*alone];
    prometheus.scrape(&agents.map(|agent| agent.address().to_owned()));
    let alerts = [
        "SlotkeeperOverLimit",
        "SlotkeeperFreeSlotsNotGranted",
        "SlotkeeperOverlap",
        "SlotkeeperBlocked",
        "SlotkeeperReloadFailed",
        "SlotkeeperReadsFailing",
    ];
    fires(&prometheus, &alerts);
    let of = |alert: &str| {
        let expr = format!(r#"count by (semaphore) (ALERTS{{alertname="{alert}", alertstate="firing"}})"#);
        let firing = prometheus.query(&expr);
        firing.iter().map(|one| one["metric"]["semaphore"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (alert, semaphore) in [
        ("SlotkeeperOverLimit", "over"),
        ("SlotkeeperFreeSlotsNotGranted", "idle"),
        ("SlotkeeperOverlap", "split"),
        ("SlotkeeperBlocked", "blocked"),
        ("SlotkeeperReadsFailing", "alone"),
    ] {
        wait_for(&format!("{alert} to fire for {semaphore} alone"), || of(alert) == [semaphore]);
    }

    // Each is mended as its runbook says.
    operator.destroy(&one);
    operator.destroy(&two);
    drop(taken);
    assert_eq!(there.terminate(), Some(0));
    operator.delete("p/blocked/.lock");
    away.restart();
    home.configure(&address, &hold("reloaded"));
    reloaded.signal(Signal::HUP);
    resolves(&prometheus, &alerts);
}

#[test]
fn a_silent_consul_and_an_eviction_raise_their_alerts() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = Lodger::start(&consul.address(), &hold("s"));
    agent.await_ready();
    let prometheus = Prometheus::start(&rules::hurried());
    prometheus.scrape(&[agent.address().to_owned()]);
    wait_for("a scrape", || !prometheus.query("slotkeeper_ready == 1").is_empty());

    // Somebody takes it out of .lock.
    operator.put("p/s/.lock", r#"{"Limit":1,"Holders":[]}"#, Put::Plain, 0);
    fires(&prometheus, &["SlotkeeperSlotLost"]);
    resolves(&prometheus, &["SlotkeeperSlotLost"]);
    agent.await_ready();

    // Consul accepts connections and never answers.
    consul.signal(Signal::STOP);
    let alerts = ["SlotkeeperLeaseExpiring", "SlotkeeperRenewalsFailing", "SlotkeeperSlotLost"];
    fires(&prometheus, &alerts);
    // What it saw last it goes on showing, with its age.
    let status = agent.status();
    assert_eq!(status["semaphores"][0]["state"], "starting", "{status}");
    assert!(status["semaphores"][0]["seen_seconds_ago"].is_number(), "{status}");
    assert_eq!(status["semaphores"][0]["slots_taken"], 1, "{status}");
    consul.signal(Signal::CONT);
    resolves(&prometheus, &alerts);
    agent.await_ready();
}
