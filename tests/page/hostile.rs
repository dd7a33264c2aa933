//! Names and texts of others that would rather be something else.

use serde_json::json;

use crate::browser::Browser;
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::Lodger;
use crate::support::kv::Put;
use crate::wait_for;

const SCRIPT: &str = "<img src=x onerror=alert(1)><script>alert(2)</script>";
const OVERRIDE: &str = "\u{202e}\u{2066}daer\u{1b}[31m\u{7}\u{200b}";
/// What the agent makes of that and of the above, in the identity of one that holds or waits.
const IDENTITY: &str = "\\u{202e}\\u{2066}daer\\u{1b}[31m\\u{7}\\u{200b}/<img src=x";

#[test]
fn text_of_other_clients_is_shown_as_text_and_does_nothing() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (session, waiting) = (operator.create_session(), operator.create_session());
    let who = json!({"pod": SCRIPT, "namespace": OVERRIDE, "node": "n".repeat(5000), "host": SCRIPT});
    for (session, state) in [(&session, "held"), (&waiting, "waiting")] {
        let entry = json!({
            "slotkeeper": 1, "state": state, "slots": 1, "body": SCRIPT, "since": SCRIPT, "who": who,
        });
        operator.put(&format!("service/s/{session}"), &entry.to_string(), Put::Acquire(session), 0);
    }
    let holders = [session.as_str(), SCRIPT, OVERRIDE, "\"'`${alert(3)}"];
    let record = json!({"Limit": 2, "Holders": holders});
    operator.put("service/s/.lock", &record.to_string(), Put::Plain, 0);
    operator.put("service/t/.lock", SCRIPT, Put::Plain, 0);
    let config = "semaphores:\n\
                  - {name: s, prefix: service/s, limit: 2, prune_delay: 10m}\n\
                  - {name: t, prefix: 'service/t', limit: 1}";
    let agent = Lodger::start(&consul.address(), config);
    let mut page = Browser::open(agent.address());
    page.await_texts(&["Blocked: ", "4 of 2 slots taken: 3 dead, 1 of others, 0 free; 2 over the limit"]);
    // Session ids come so too, and are cut.
    page.await_texts(&["<img src…", "\\u{202e}…"]);
    wait_for("both lists", || page.text().matches(IDENTITY).count() == 2);
    let text = page.text();
    assert!(!text.contains(['\u{202e}', '\u{2066}', '\u{1b}', '\u{200b}']), "{text:?}");
    assert!(!text.contains(&"n".repeat(1000)), "what is too long is cut");
    assert_eq!((page.count("img"), page.count("script"), page.count("a:not(footer a)")), (0, 1, 0));
    // No command has a session that is not shown as it is.
    page.click("Details of session \\u{202e}…");
    page.await_texts(&["There is no command to copy"]);
    assert_eq!(page.count("textarea:visible"), 0);
    page.click("Evict command of session <img src…");
    page.click("Copy the command that evicts session <img src…");
    page.await_texts(&["Copied: "]);
    assert_eq!(page.clipboard(), format!("slotkeeper evict service/s '{SCRIPT}'"));
    page.assert_accessible("hostile");
    page.assert_quiet(&[]);
}
