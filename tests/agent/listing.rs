//! A semaphore with more holders than a status lists.

use std::process::Command;

use serde_json::{Value, json};

use crate::consul::Newer;
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home};
use crate::support::kv::Put;
use crate::wait_for;

const LISTED: usize = 100;
const OTHERS: usize = 2 * LISTED;

#[test]
fn the_own_slot_and_the_dead_are_listed_first_and_the_rest_are_counted() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    // Whoever has its key is alive, and who has none is not.
    let alive: Vec<_> = (0..OTHERS).map(|_| operator.create_session()).collect();
    for session in &alive {
        operator.put(&format!("service/s/{session}"), "", Put::Acquire(session), 0);
    }
    let holders: Vec<_> = alive.iter().map(String::as_str).chain(["gone-1", "gone-2"]).collect();
    let limit = holders.len() + 1;
    operator.put("service/s/.lock", &json!({"Limit": limit, "Holders": holders}).to_string(), Put::Cas(0), 0);
    let home = Home::new();
    home.configure(
        &consul.address(),
        &format!("semaphores: [{{name: s, prefix: service/s, limit: {limit}, prune_delay: 1h}}]"),
    );
    let mut agent = Agent::start(&home);
    agent.await_ready();
    wait_for("a look at all", || agent.semaphore()["holders"][1]["health"] == "dead");
    let shown = agent.semaphore();
    assert_eq!((&shown["slots_taken"], &shown["holder_count"]), (&json!(limit), &json!(limit)));
    let listed = shown["holders"].as_array().unwrap();
    assert_eq!(listed.len(), LISTED);
    let sessions: Vec<_> = listed.iter().map(|one| one["session"].as_str().unwrap()).collect();
    let own = agent.session();
    let expected = [own.as_str(), "gone-1", "gone-2"].into_iter().chain(alive.iter().map(String::as_str));
    assert_eq!(sessions, expected.take(LISTED).collect::<Vec<_>>());
    let mine: Vec<_> = listed.iter().map(|one| one["mine"] == true).collect();
    assert!(mine[0] && !mine[1..].contains(&true), "{listed:?}");
    let one: Value = serde_json::from_str(&agent.get("/v1/semaphores/s").body).unwrap();
    // Their ages go on from one answer to the next.
    let whom = |of: &Value| {
        of["holders"].as_array().unwrap().iter().map(|one| one["session"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((whom(&one), &one["holder_count"]), (whom(&shown), &shown["holder_count"]));

    let table = Command::new(BINARY).args(["status", "--address", agent.address()]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let (this_agent, others) =
        table.split_once(", session gone-1 (dead), session gone-2 (dead), session").unwrap();
    assert!(this_agent.contains("(this agent) for ") && !others.contains("(dead)"), "{table}");
    assert!(table.contains(&format!(" and {} more", limit - 10)), "{table}");
    assert_eq!(agent.terminate(), Some(0));
}
