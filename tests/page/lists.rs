//! Of many slots, holders and waiters the page shows those that somebody looks for.

use serde_json::json;

use crate::browser::Browser;
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::Lodger;
use crate::support::kv::Put;

/// Sessions of others with an entry below the prefix.
fn others(operator: &Operator, prefix: &str, state: &str, count: usize) -> Vec<String> {
    let one = |_| {
        let session = operator.create_session();
        let entry = json!({"slotkeeper": 1, "state": state, "slots": 1});
        operator.put(&format!("{prefix}/{session}"), &entry.to_string(), Put::Acquire(&session), 0);
        session
    };
    (0..count).map(one).collect()
}

#[test]
fn the_own_and_the_dead_are_listed_before_the_others() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let live = others(&operator, "service/many", "held", 13);
    let mut holders: Vec<&str> = live.iter().flat_map(|one| [one.as_str(); 5]).collect();
    holders.extend(["gone-1", "gone-2"]);
    let record = json!({"Limit": 100, "Holders": holders}).to_string();
    operator.put("service/many/.lock", &record, Put::Plain, 0);
    let config = "semaphores: [{name: many, prefix: service/many, limit: 100, slots: 2, prune_delay: 10m}]";
    let agent = Lodger::start(&consul.address(), config);
    agent.await_ready();
    let numbers = agent.semaphore()["slot_indexes"].clone();
    let numbers: Vec<_> = numbers.as_array().unwrap().iter().map(ToString::to_string).collect();
    let mut page = Browser::open(agent.address());
    page.await_texts(&[
        "takes 2 slots",
        "69 of 100 slots taken: 2 mine, 2 dead, 65 of others, 31 free",
        "+ 52 more",
        "gone-1",
        "gone-2",
        "and 20 more slots",
    ]);
    assert_eq!(page.texts(".slots .mine"), numbers);
    assert!(
        page.attribute(".slots", "aria-label").ends_with(&format!("; mine: slots {}", numbers.join(", ")))
    );
    let kinds = ["mine", "dead", "others"].map(|kind| page.count(&format!(".slots .{kind}")));
    assert_eq!(kinds, [2, 2, 44]);
    assert_eq!(page.count(".slots .mine:first-child"), 1);
    assert_eq!(page.count(".rows li:first-child .mine + * + .end"), 1);
    page.assert_quiet(&[]);
}

#[test]
fn a_waiter_far_back_in_the_queue_sees_itself() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    for (prefix, ahead) in [("service/near", 14), ("service/far", 30)] {
        let record = json!({"Limit": 1, "Holders": others(&operator, prefix, "held", 1)}).to_string();
        operator.put(&format!("{prefix}/.lock"), &record, Put::Plain, 0);
        others(&operator, prefix, "waiting", ahead);
    }
    let config = "session: {ttl: 10s}\n\
                  semaphores:\n\
                  - {name: near, prefix: service/near, limit: 1}\n\
                  - {name: far, prefix: service/far, limit: 1}";
    let agent = Lodger::start(&consul.address(), config);
    let mut page = Browser::open(agent.address());
    page.await_texts(&["15th of 15 in the queue, waiting for", "31st of 31 in the queue, waiting for"]);
    for prefix in ["service/near", "service/far"] {
        others(&operator, prefix, "waiting", 5);
    }
    page.await_texts(&[
        "15th of 20 in the queue, waiting for",
        "31st of 36 in the queue, waiting for",
        "and 4 more",
        "and 5 more",
    ]);
    let places =
        |page: &mut Browser, card: usize| page.texts(&format!("article:nth-child({card}) .place")).join(" ");
    assert_eq!(places(&mut page, 1), "1 2 3 4 5 6 7 8 14 15 16");
    assert_eq!(places(&mut page, 2), "1 2 3 4 5 6 7 8 31");
    page.await_texts(&["… 5 more", "… 22 more"]);
    assert_eq!(page.text().matches("this agent").count(), 2);
    page.assert_accessible("line");
    page.assert_quiet(&[]);
}
