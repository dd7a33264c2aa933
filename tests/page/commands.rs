//! The commands that the page offers to copy.

use std::process::Command;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{BINARY, Lodger};
use crate::support::kv::Put;
use crate::wait_for;

/// A prefix with what a shell could misread.
const PREFIX: &str = "service/it's \"$(id)\" `id`\\";
/// Sessions with the same, which are dead holders' since Consul has none of that name.
const SESSIONS: [&str; 4] = ["--force", "$HOME;id&|>x", "a'b\"c`id`$(id)", "*?[a]{b,c}~#!!"];

/// A participant of another agent.
fn participant(operator: &Operator, prefix: &str, state: &str, pod: &str) -> String {
    let session = operator.create_session();
    let who = json!({"pod": pod, "namespace": "batch", "node": "node-3"});
    let entry =
        json!({"slotkeeper": 1, "state": state, "slots": 1, "since": "2026-11-21T17:01:39Z", "who": who});
    operator.put(&format!("{prefix}/{session}"), &entry.to_string(), Put::Acquire(&session), 0);
    session
}

/// The output of a command that was copied, as a shell executes it.
fn execute(consul: &Consul, copied: &str) -> (Option<i32>, String) {
    // The flag of an operator who is sure, who has no terminal here.
    let line = copied.replacen("slotkeeper evict", "slotkeeper evict --yes", 1);
    let line = line.replacen("slotkeeper", BINARY, 1);
    let done = Command::new("sh")
        .args(["-c", &line])
        .env_clear()
        .env("CONSUL_HTTP_ADDR", consul.address())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (done.status.code(), said)
}

/// Presses Tab until the keyboard is on an element with this role and name.
fn tab_to(page: &mut Browser, element: &str) {
    for _ in 0..40 {
        page.press("Tab");
        if page.focused() == element {
            return;
        }
    }
    panic!("Tab does not lead to {element}");
}

#[test]
fn a_copied_command_is_to_a_shell_what_it_is_to_a_reader() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let lock = format!("{PREFIX}/.lock");
    operator.put(&lock, &json!({"Limit": 9, "Holders": SESSIONS}).to_string(), Put::Plain, 0);
    let entry = json!({"name": "s", "prefix": PREFIX, "limit": 9, "prune_delay": "10m"});
    let agent = Lodger::start(&consul.address(), &format!("semaphores: [{entry}]"));
    agent.await_ready();
    let mut page = Browser::open(agent.address());
    page.await_texts(&["5 of 9 slots taken: 1 mine, 4 dead, 4 free"]);
    let copy = |page: &mut Browser, what: &str| {
        page.click(&format!("Copy the command that {what}"));
        page.await_texts(&[&format!("Copied: the command that {what}")]);
        page.clipboard()
    };

    page.click(&format!("Inspect command of {PREFIX}"));
    let copied = copy(&mut page, &format!("shows {PREFIX}"));
    let (code, shown) = execute(&consul, &copied.replacen("inspect", "inspect --json", 1));
    assert_eq!(code, Some(0), "{copied}: {shown}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["prefix"], &shown["limit"]), (&json!(PREFIX), &json!(9)), "{copied}");

    for session in SESSIONS {
        let short = if session.len() > 13 { format!("{}…", &session[..8]) } else { session.to_owned() };
        page.click(&format!("Evict command of session {short}"));
        let copied = copy(&mut page, &format!("evicts session {short}"));
        let (code, said) = execute(&consul, &copied);
        assert_eq!(code, Some(0), "{copied}: {said}");
        assert!(!operator.holders(PREFIX).contains(&session.to_owned()), "{copied}: {said}");
    }
    assert_eq!(operator.holders(PREFIX), [agent.session()]);
    page.await_texts(&["1 of 9 slots taken: 1 mine, 8 free"]);
    page.assert_quiet(&[]);
}

#[test]
fn a_keyboard_reaches_the_session_and_the_command_of_each_other_client() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let holder = participant(&operator, "service/writers", "held", "import-4");
    operator.put(
        "service/writers/.lock",
        &json!({"Limit": 1, "Holders": [holder]}).to_string(),
        Put::Plain,
        0,
    );
    let waiter = participant(&operator, "service/writers", "waiting", "import-5");
    let leader = operator.create_session();
    operator.put("service/leader", "", Put::Acquire(&leader), slotkeeper_semaphore::record::LOCK_FLAGS);
    let config = "semaphores: [{name: writers, prefix: service/writers, limit: 1}]\n\
                  locks: [{name: leader, key: service/leader}]";
    let agent = Lodger::start(&consul.address(), config);
    let mut page = Browser::open(agent.address());
    page.await_texts(&["2nd of 2 in the queue", "leads"]);
    // This agent's own row has no command.
    assert_eq!((page.count(".more"), page.count("textarea")), (6, 5));
    assert_eq!(page.attribute(".rows code", "title"), holder);

    let short = |session: &str| format!("session {}…", &session[..8]);
    for (whom, place, session) in [
        (format!("batch/import-4, {}", short(&holder)), "service/writers", &holder),
        (format!("batch/import-5, {}", short(&waiter)), "service/writers", &waiter),
        (short(&leader), "service/leader", &leader),
    ] {
        tab_to(&mut page, &format!("button \"Evict command of {whom}\""));
        assert!(!page.text().contains(&format!("Session {session}")));
        page.press("Enter");
        page.await_texts(&[&format!("Session {session}")]);
        page.press("Tab");
        assert_eq!(page.focused(), format!("button \"Copy the command that evicts {whom}\""));
        page.press("Enter");
        let said = format!("Copied: the command that evicts {whom}");
        wait_for("a message that is spoken too", || page.texts("#said[role=status]") == [said.as_str()]);
        assert_eq!(page.clipboard(), format!("slotkeeper evict {place} {session}"));
    }
    page.assert_accessible("commands");

    // What changes in Consul neither closes a panel nor takes the keyboard away.
    tab_to(&mut page, &format!("button \"Evict command of batch/import-4, {}\"", short(&holder)));
    page.press("Tab");
    let focused = page.focused();
    assert!(focused.starts_with("button \"Copy the command that evicts batch/import-4, "), "{focused}");
    assert_eq!(page.count(".panel:visible"), 3);
    participant(&operator, "service/writers", "waiting", "import-6");
    operator.destroy(&leader);
    page.await_texts(&["2nd of 3 in the queue", "batch/import-6", "this agent leads"]);
    assert_eq!((page.focused(), page.count(".panel:visible")), (focused.clone(), 2));
    operator.destroy(&waiter);
    page.await_texts(&["1st of 2 in the queue"]);
    assert_eq!((page.focused(), page.count(".panel:visible")), (focused, 1));
    page.press("Enter");
    let copied = format!("slotkeeper evict service/writers {holder}");
    wait_for("the command", || page.clipboard() == copied);
    page.assert_quiet(&[]);
}

#[test]
fn without_a_clipboard_the_command_is_selected() {
    let consul = Consul::start();
    let agent = Lodger::start(&consul.address(), "semaphores: [{name: a, prefix: service/a, limit: 1}]");
    agent.await_ready();
    // Of another machine's page by plain http, a browser makes no secure context.
    let (_, port) = agent.address().rsplit_once(':').unwrap();
    let mut page = Browser::open(&format!("192.0.2.1:{port}"));
    page.await_texts(&["Everything required is held."]);
    page.click("Inspect command of service/a");
    page.click("Copy the command that shows service/a");
    page.await_texts(&["The command is selected. Copy it with Ctrl+C"]);
    assert_eq!(page.selected(), "slotkeeper inspect service/a");
    page.assert_quiet(&[]);
}
