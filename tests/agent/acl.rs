//! A Consul that denies by default, with rules as `config/policy.hcl` has them.

use std::fs;

use slotkeeper::internals::log_events;
use slotkeeper_consul::{Code, Operation, Secret, Settings, TokenSource};

use crate::consul::Consul;
use crate::http::request_with;
use crate::inspect::operate;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::sessions::sessions;
use crate::set_limit::set_limit;
use crate::support::consul::Setup;
use crate::support::kv::Put;
use crate::wait_for;

mod filtered;
mod node;
mod run;

pub(crate) const ROOT: &str = "b00757a9-0000-4000-8000-000000000000";
pub(crate) const WORKER: &str = "0a7e57a9-0000-4000-8000-000000000000";
const READER: &str = "4ead57a9-0000-4000-8000-000000000000";
const KEYS_ONLY: &str = "6e1557a9-0000-4000-8000-000000000000";
const WRITER: &str = "3a1757a9-0000-4000-8000-000000000000";
pub(crate) const STRANGER: &str = "57a9be57-0000-4000-8000-000000000000";

/// A Consul with ACLs, and a token that may do what an agent of `service/s` needs and no more.
pub(crate) fn denying() -> Consul {
    denying_with(Consul::start_with)
}

pub(crate) fn denying_with(start: fn(Setup) -> Consul) -> Consul {
    let tokens = format!("tokens {{ master = \"{ROOT}\", agent = \"{ROOT}\" }}");
    let config = format!("acl {{ enabled = true, default_policy = \"deny\", {tokens} }}");
    let consul = start(Setup { config, token: Some(ROOT.into()), ..Setup::default() });
    let rules =
        r#"key_prefix \"service/s/\" { policy = \"write\" } session_prefix \"\" { policy = \"write\" }"#;
    for (path, body) in [
        ("policy", format!(r#"{{"Name":"worker","Rules":"{rules}"}}"#)),
        ("token", format!(r#"{{"SecretID":"{WORKER}","Policies":[{{"Name":"worker"}}]}}"#)),
        ("policy", format!(r#"{{"Name":"reader","Rules":"{}"}}"#, rules.replacen("write", "read", 1))),
        ("token", format!(r#"{{"SecretID":"{READER}","Policies":[{{"Name":"reader"}}]}}"#)),
        ("token", format!(r#"{{"SecretID":"{STRANGER}"}}"#)),
    ] {
        put_acl(&consul, path, &body);
    }
    consul
}

pub(crate) fn put_acl(consul: &Consul, path: &str, body: &str) {
    let headers = format!("X-Consul-Token: {ROOT}\r\nContent-Length: {}\r\n", body.len());
    let reply = request_with(&consul.address(), &format!("PUT /v1/acl/{path}"), &headers, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
}

#[test]
fn the_documented_policy_is_enough_and_a_token_file_may_change() {
    let consul = denying();
    let home = Home::new();
    home.configure(&consul.address(), crate::hold::ONE);
    let token = home.path("token");
    fs::write(&token, STRANGER).unwrap();
    let flags = ["--token-file", token.to_str().unwrap()];
    let mut agent = Agent::start_with(&home, &flags, &[]);
    wait_for("the refusal", || agent.requests(Operation::SessionCreate, Code::Forbidden) >= 1.0);
    wait_for("its line in the log", || agent.log().contains(log_events::SESSION_REQUEST_FAILED));
    assert!(!agent.is_ready());
    fs::write(&token, format!("{WORKER}\n")).unwrap();
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    for secret in [STRANGER, WORKER] {
        assert!(!agent.log().contains(secret), "{}", agent.log());
    }
}

#[test]
fn denied_writes_are_retried_with_growing_pauses_and_logged_once() {
    let consul = denying();
    let home = Home::new();
    home.configure(&consul.address(), crate::hold::ONE);
    let agent = Agent::start_with(&home, &["--token", READER], &[]);
    // Rolled-back transactions come as 409.
    wait_for("several refusals", || agent.requests(Operation::Txn, Code::Conflict) >= 4.0);
    let log = agent.log();
    assert_eq!(log.matches(log_events::REQUEST_FAILED).count(), 1, "{log}");
    assert!(log.contains(r#"the token needs `key_prefix "service/s/" { policy = "write" }`"#), "{log}");
    assert!(!log.contains(log_events::REQUEST_RECOVERED), "{log}");
    // Four waits of at least half of 0.2 s, 0.4 s, 0.8 s lie between them; a loop would have made hundreds.
    assert!(agent.requests(Operation::Txn, Code::Conflict) < 20.0);
}

/// A token that may read the keys and not the sessions.
fn make_keys_only(consul: &Consul) {
    let rules = r#"{"Name":"keys","Rules":"key_prefix \"service/s/\" { policy = \"read\" }"}"#;
    let token = format!(r#"{{"SecretID":"{KEYS_ONLY}","Policies":[{{"Name":"keys"}}]}}"#);
    put_acl(consul, "policy", rules);
    put_acl(consul, "token", &token);
}

#[test]
fn set_limit_needs_write_permission_on_the_prefix() {
    let consul = denying();
    let home = Home::new();
    home.configure(&consul.address(), crate::hold::ONE);
    let mut agent = Agent::start_with(&home, &["--token", WORKER], &[]);
    agent.await_ready();
    // From 1.11 on Consul says that it hides something.
    let (ended, _, errors) = set_limit(&consul.address(), &["service/s", "2", "--token", STRANGER]);
    let unsaid = errors.contains("check the prefix, and that the token may read there");
    let said = errors.contains(r#"the token needs `key_prefix "service/s/" { policy = "write" }`"#);
    assert!(ended == Some(1) && unsaid || ended == Some(77) && said, "{ended:?} {errors}");
    for (token, code, said) in [
        (READER, 77, r#"the token needs `key_prefix "service/s/" { policy = "write" }`"#),
        (WORKER, 0, "limit changed from 1 to 2"),
    ] {
        let (ended, out, errors) = set_limit(&consul.address(), &["service/s", "2", "--token", token]);
        assert_eq!(ended, Some(code), "{errors}");
        assert!(out.contains(said) || errors.contains(said), "{out}{errors}");
        assert!(!errors.contains(token), "{errors}");
    }
    wait_for("the new limit", || agent.semaphore()["limit"] == 2);
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn sessions_needs_read_permission_on_the_prefix() {
    let consul = denying();
    let home = Home::new();
    home.configure(&consul.address(), crate::hold::ONE);
    let mut agent = Agent::start_with(&home, &["--token", WORKER], &[]);
    agent.await_ready();
    let ask = |token: &str, more: &[&str]| {
        let (code, out, errors) = sessions(&consul.address(), &[&["--token", token], more].concat());
        assert!(!errors.contains(token), "{errors}");
        (code, out, errors)
    };
    // Both may not read the key `service/s` itself.
    for token in [READER, WORKER] {
        let (code, out, errors) = ask(token, &["service/s", "-o", "wide"]);
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        let line = out.lines().find(|line| line.starts_with(&agent.session())).unwrap();
        assert!(line.contains("held") && line.contains("slotkeeper") && line.contains("10s"), "{line}");
    }
    make_keys_only(&consul);
    let (code, out, _) = ask(KEYS_ONLY, &["service/s", "-o", "wide"]);
    assert_eq!(code, Some(0));
    let line = out.lines().find(|line| line.starts_with(&agent.session())).unwrap();
    assert!(line.contains("held") && !line.contains("no session") && !line.contains("10s"), "{line}");
    let (code, _, errors) = ask(KEYS_ONLY, &[]);
    assert_eq!(code, Some(0));
    assert!(errors.contains("no sessions, or none is readable with the token"), "{errors}");
    let (code, _, errors) = ask(STRANGER, &["service/s"]);
    assert_eq!(code, Some(77));
    assert!(errors.contains("Permission denied"), "{errors}");
    assert!(errors.contains(r#"the token needs `key_prefix "service/s/" { policy = "read" }`"#), "{errors}");
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn inspect_and_prune_need_their_permissions() {
    let consul = denying();
    make_keys_only(&consul);
    let home = Home::new();
    home.configure(&consul.address(), crate::hold::ONE);
    let mut agent = Agent::start_with(&home, &["--token", WORKER], &[]);
    agent.await_ready();
    let ask = |token: &str, command: &[&str]| {
        let (code, out, errors) =
            operate(&consul.address(), &[command, &["service/s", "--token", token]].concat());
        assert!(!errors.contains(token), "{errors}");
        (code, out + &errors)
    };
    let needs = r#"the token needs `key_prefix "service/s/" { policy = "write" }`"#;
    for (token, command, code, expected) in [
        (READER, &["inspect"][..], 0, "1 of 1 slots taken"),
        (READER, &["inspect"], 0, " live\n"),
        (KEYS_ONLY, &["inspect"], 0, " unknown\n"),
        (KEYS_ONLY, &["inspect"], 0, r#"it needs `session_prefix "" { policy = "read" }`"#),
        // What may not be read is hidden, or refused where nothing else is there.
        (STRANGER, &["inspect"], 77, "Permission denied"),
        (KEYS_ONLY, &["prune", "--yes"], 0, "nothing to do"),
        (WORKER, &["destroy", "--yes"], 1, "is in use: held by"),
    ] {
        let (ended, said) = ask(token, command);
        assert_eq!(ended, Some(code), "{command:?}: {said}");
        assert!(said.contains(expected), "{command:?}: {said}");
    }
    assert_eq!(agent.terminate(), Some(0));
    let worker = Operator::with(&Settings {
        address: consul.address().parse().unwrap(),
        token: Some(TokenSource::Value(Secret::new(WORKER))),
        ..Settings::default()
    });
    let alive = worker.create_session();
    worker.put("service/s/.lock", &format!(r#"{{"Limit":2,"Holders":["gone","{alive}"]}}"#), Put::Plain, 0);
    let seen = ask(READER, &["inspect"]).1;
    assert_eq!(seen.matches("  dead\n").count(), 2, "{seen}");
    // Also by one that sees no session: whoever has nothing locked is dead to a semaphore. Its session may live.
    let seen = ask(KEYS_ONLY, &["inspect"]).1;
    assert_eq!(seen.matches("  dead\n").count(), 2, "{seen}");
    let (code, said) = ask(KEYS_ONLY, &["prune"]);
    assert_eq!((code, said.matches("its session is not shown").count()), (Some(64), 2), "{said}");
    worker.destroy(&alive);
    let (code, said) = ask(READER, &["prune", "--yes"]);
    assert_eq!((code, said.contains(needs)), (Some(77), true), "{said}");
    // Reading the keys is enough to look, writing them to act: nothing of sessions is needed.
    let rules = r#"{"Name":"writes","Rules":"key_prefix \"service/s/\" { policy = \"write\" }"}"#;
    put_acl(&consul, "policy", rules);
    put_acl(&consul, "token", &format!(r#"{{"SecretID":"{WRITER}","Policies":[{{"Name":"writes"}}]}}"#));
    let (code, said) = ask(WRITER, &["prune", "--yes"]);
    assert_eq!((code, said.contains("2 dead holders pruned")), (Some(0), true), "{said}");
    let (code, said) = ask(READER, &["destroy", "--yes"]);
    assert_eq!((code, said.contains(needs)), (Some(77), true), "{said}");
    let (code, said) = ask(WRITER, &["destroy", "--yes"]);
    assert_eq!((code, said.contains("service/s/.lock was deleted")), (Some(0), true), "{said}");
}

#[test]
fn list_shows_what_the_token_may_see() {
    let tokens = format!("tokens {{ master = \"{ROOT}\", agent = \"{ROOT}\" }}");
    let rest = "default_policy = \"deny\", enable_key_list_policy = true";
    let config = format!("acl {{ enabled = true, {rest}, {tokens} }}");
    let consul = Consul::start_with(Setup { config, token: Some(ROOT.into()), ..Setup::default() });
    let rules = r#"key_prefix \"service/s/\" { policy = \"list\" } key_prefix \"\" { policy = \"read\" }"#;
    put_acl(&consul, "policy", &format!(r#"{{"Name":"lister","Rules":"{rules}"}}"#));
    put_acl(&consul, "token", &format!(r#"{{"SecretID":"{READER}","Policies":[{{"Name":"lister"}}]}}"#));
    let operator = Operator::with(&Settings {
        address: consul.address().parse().unwrap(),
        token: Some(TokenSource::Value(Secret::new(ROOT))),
        ..Settings::default()
    });
    for prefix in ["service/s", "service/s/deep", "service/t"] {
        operator.put(&format!("{prefix}/.lock"), r#"{"Limit":1,"Holders":[]}"#, Put::Plain, 0);
    }
    let ask = |arguments: &[&str]| {
        operate(&consul.address(), &[&["list", "--token", READER, "-o", "name"], arguments].concat())
    };
    let (code, out, errors) = ask(&["service/s"]);
    assert_eq!((code, out.as_str(), errors.as_str()), (Some(0), "service/s\nservice/s/deep\n", ""));
    for (root, rule) in [
        (&[][..], r#"the token needs `key_prefix "" { policy = "list" }`"#),
        (&["service"], r#"the token needs `key_prefix "service/" { policy = "list" }`"#),
    ] {
        let (code, out, errors) = ask(root);
        assert_eq!((code, out.as_str()), (Some(77), ""), "{errors}");
        assert!(errors.contains(rule), "{errors}");
    }
}
