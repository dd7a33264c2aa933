//! Tokens from which Consul hides a part, behind a relay that has Consul 1.8 say so as it does since 1.11.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use slotkeeper::internals::log_events;
use slotkeeper_consul::{Code, Operation};
use slotkeeper_consul::{KvPair, Secret, Settings, TokenSource};

use super::{KEYS_ONLY, ROOT, WORKER, denying, make_keys_only, put_acl};
use crate::consul::Consul;
use crate::inspect::operate;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::kv::Put;
use crate::support::proxy::Proxy;
use crate::wait_for;

const PARTIAL: &str = "9a4757a9-0000-4000-8000-000000000000";
const LISTING: &str = "/v1/kv/service/s/";
const READ: &str = r#"the token needs `key_prefix "service/s/" { policy = "read" }`"#;
const WRITE: &str = r#"the token needs `key_prefix "service/s/" { policy = "write" }`"#;

/// A semaphore with one holder, and a token that may do all there but see that holder's key.
struct Hiding {
    consul: Consul,
    proxy: Proxy,
    holder: Agent,
    operator: Operator,
    /// The agent's files go with it.
    _home: Home,
}

impl Hiding {
    fn start() -> Self {
        let consul = denying();
        let proxy = Proxy::start_apart(consul.address().parse().unwrap());
        let home = Home::new();
        home.configure(&consul.address(), &semaphore(2));
        let holder = Agent::start_with(&home, &["--token", WORKER], &[]);
        holder.await_ready();
        let operator = Operator::with(&Settings {
            address: consul.address().parse().unwrap(),
            token: Some(TokenSource::Value(Secret::new(ROOT))),
            ..Settings::default()
        });
        let rules = format!(
            r#"key_prefix \"service/s/\" {{ policy = \"write\" }} session_prefix \"\" {{ policy = \"write\" }}
               key \"service/s/{}\" {{ policy = \"deny\" }}"#,
            holder.session()
        );
        let rules = rules.replace('\n', " ");
        put_acl(&consul, "policy", &format!(r#"{{"Name":"partial","Rules":"{rules}"}}"#));
        let token = format!(r#"{{"SecretID":"{PARTIAL}","Policies":[{{"Name":"partial"}}]}}"#);
        put_acl(&consul, "token", &token);
        proxy.filter(&[LISTING]);
        Self { consul, proxy, holder, operator, _home: home }
    }

    /// An operator's command through the relay, with that token.
    fn ask(&self, token: &str, command: &[&str]) -> (Option<i32>, String, String) {
        let arguments = [command, &["--token", token]].concat();
        operate(&self.proxy.addr().to_string(), &arguments)
    }

    fn lock(&self) -> KvPair {
        self.operator.lock("service/s").unwrap()
    }
}

fn semaphore(limit: u32) -> String {
    format!("session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: service/s, limit: {limit}}}]")
}

#[test]
fn readable_keys_are_shown_and_hidden_ones_are_unknown() {
    let hiding = Hiding::start();
    let session = hiding.holder.session();
    let (code, out, errors) = hiding.ask(PARTIAL, &["inspect", "service/s"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(out.starts_with("service/s: semaphore (list), 1 of 2 slots taken"), "{out}");
    let row = out.lines().find(|line| line.starts_with(&session)).unwrap();
    assert!(row.contains(" unknown ") && row.ends_with(" live"), "{row}");
    assert!(out.contains(READ) && !out.contains("dead"), "{out}");
    let (code, out, _) = hiding.ask(PARTIAL, &["inspect", "service/s", "--json"]);
    let seen: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &seen["holders"][0]["state"]), (Some(0), &json!("unknown")));
    let rule = r#"`key_prefix "service/s/" { policy = "read" }`"#;
    assert_eq!(seen["hidden"], json!({"keys": rule, "sessions": null}));
    let (code, out, errors) = hiding.ask(PARTIAL, &["sessions", "service/s"]);
    let row = out.lines().find(|line| line.starts_with(&session)).unwrap();
    assert!(code == Some(0) && row.contains(" unknown ") && errors.contains(READ), "{row} {errors}");
}

#[test]
fn hidden_sessions_are_unknown() {
    let hiding = Hiding::start();
    make_keys_only(&hiding.consul);
    hiding.proxy.filter(&["/v1/session/list"]);
    let rule = r#"it needs `session_prefix "" { policy = "read" }`"#;
    let (code, out, _) = hiding.ask(KEYS_ONLY, &["inspect", "service/s"]);
    assert_eq!((code, out.contains(rule)), (Some(0), true), "{out}");
    let row = out.lines().find(|line| line.starts_with(&hiding.holder.session())).unwrap();
    assert!(row.ends_with(" unknown"), "{row}");
    for (command, has_unknown) in
        [(&["sessions"][..], false), (&["sessions", "service/s", "--output", "wide"], true)]
    {
        let (code, out, errors) = hiding.ask(KEYS_ONLY, command);
        assert_eq!((code, errors.contains(rule)), (Some(0), true), "{errors}");
        assert_eq!(out.contains(" unknown "), has_unknown, "{out}");
    }
}

#[test]
fn operators_commands_change_nothing_that_is_hidden() {
    let hiding = Hiding::start();
    let session = hiding.holder.session();
    let before = hiding.lock();
    for command in [
        &["prune", "service/s", "--yes"][..],
        &["destroy", "service/s", "--yes"],
        &["set-limit", "service/s", "5"],
        &["evict", "service/s", &session, "--yes"],
        &["evict", "service/s", &session, "--yes", "--force"],
    ] {
        let (code, out, errors) = hiding.ask(PARTIAL, command);
        assert_eq!((code, out.as_str()), (Some(77), ""), "{command:?}: {errors}");
        assert!(errors.contains(WRITE), "{command:?}: {errors}");
    }
    assert_eq!(hiding.lock(), before);
    assert!(hiding.holder.is_ready());
}

#[test]
fn an_agent_from_which_keys_are_hidden_says_so_and_waits() {
    let hiding = Hiding::start();
    let holder = hiding.holder.session();
    // It sees all, and would let it in where it looks just then.
    hiding.holder.signal(Signal::STOP);
    // Where another client has written `.lock`, a newcomer has to list before it takes a free slot.
    let (lock, record) = (hiding.lock(), json!({"Limit": 2, "Holders": [holder]}));
    hiding.operator.put("service/s/.lock", &record.to_string(), Put::Cas(lock.modify_index), 0);
    let before = hiding.operator.record("service/s");
    let home = Home::new();
    home.configure(&hiding.proxy.addr().to_string(), &semaphore(2));
    let token = home.path("token");
    fs::write(&token, PARTIAL).unwrap();
    let mut agent = Agent::start_with(&home, &["--token-file", token.to_str().unwrap()], &[]);
    wait_for("several listings", || agent.requests(Operation::KvList, Code::Ok) >= 3.0);
    // It stands in line, which it may without a look at the others. What it sees of them does not let it take the free slot.
    let own = hiding.operator.contender("service/s", &agent.session()).unwrap();
    let log = agent.log();
    assert!(log.contains(WRITE), "{log}");
    assert_eq!(log.matches(log_events::REQUEST_FAILED).count(), 1, "{log}");
    assert!(!agent.is_ready());
    assert_eq!(hiding.operator.record("service/s"), before);
    assert_eq!(hiding.operator.keys("service/s").len(), 3);
    assert_eq!(hiding.operator.contender("service/s", &agent.session()).unwrap(), own);
    // A listing that is said to hide something has the file read again.
    fs::write(&token, WORKER).unwrap();
    let before = agent.requests(Operation::KvList, Code::Ok);
    wait_for("the other token to be in use", || agent.requests(Operation::KvList, Code::Ok) >= before + 4.0);
    hiding.holder.signal(Signal::CONT);
    hiding.proxy.filter(&[]);
    agent.await_ready();
    let mut holders = [hiding.holder.session(), agent.session()];
    holders.sort();
    let mut listed = hiding.operator.holders("service/s");
    listed.sort();
    assert_eq!(listed, holders);
    assert_eq!(agent.terminate(), Some(0));
}
