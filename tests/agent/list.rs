//! `slotkeeper list`: the semaphores and locks below a root; names of a configuration in place of prefixes.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use slotkeeper_consul::{Client, Settings, TxnOp, Unobserved};
use slotkeeper_consul_dev::Server;

use crate::consul::Consul;
use crate::inspect::{agent, operate};
use crate::operator::Operator;
use crate::process::{BINARY, Home};
use crate::sessions::ConsulLock;
use crate::support::kv::Put;
use crate::terminal::Shell;
use crate::wait_for;

const LOCK_FLAGS: u64 = 3_304_740_253_564_472_344;

/// What the command prints, in which nothing is wrong.
fn list(consul: &str, arguments: &[&str]) -> String {
    let (code, said, errors) = operate(consul, &[&["list"], arguments].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    said
}

fn json_of(consul: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&list(consul, &[arguments, &["-o", "json"]].concat())).unwrap()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn semaphores_and_locks_of_any_client() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let (code, said, errors) = operate(&address, &["list"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(
        errors
            .starts_with("slotkeeper: no semaphores and no locks, or, if Consul has ACLs, none is readable"),
        "{errors}"
    );

    let holder = agent(&consul, "batch-7", "limit: 1");
    holder.await_ready();
    let waiter = agent(&consul, "batch-8", "limit: 1");
    waiter.await_state("waiting");
    let _theirs = ConsulLock::start(&consul, &["service/locked"]);
    wait_for("consul lock to hold", || {
        operator.lock("service/locked").is_some_and(|lock| lock.session.is_some())
    });
    operator.put("service/empty/.lock", r#"{"Limit":7,"Holders":[]}"#, Put::Plain, 0);
    operator.put("service/other/.lock", "a secret", Put::Plain, 0);
    operator.put("service/secret", "a secret", Put::Plain, 0);
    let leader = operator.create_session();
    operator.put("service/deep/leader", "a secret", Put::Acquire(&leader), LOCK_FLAGS);
    wait_for("the holder to have written its time stamp", || {
        operator.entry("service/s", &holder.session())["state"] == "held"
    });

    let table = list(&address, &[]);
    let lines: Vec<_> = table.lines().map(words).collect();
    assert_eq!(lines[0], ["PREFIX", "KIND", "LIMIT", "TAKEN", "WAITING", "OLDEST"]);
    assert_eq!(lines[1], ["service/empty", "semaphore", "7", "0", "0", "-"]);
    assert_eq!(lines[2], ["service/locked", "lock", "1", "1", "-", "-"]);
    assert_eq!(lines[3][..5], ["service/s", "semaphore", "1", "1", "1"]);
    assert!(lines[3][5].ends_with('s') && lines.len() == 4, "{table}");
    // A lock at any other key is found below a root.
    let below = list(&address, &["service/", "--no-headers"]);
    assert_eq!(words(below.lines().next().unwrap()), ["service/deep/leader", "lock", "1", "1", "-", "-"]);
    assert_eq!(below.lines().count(), 4);
    assert!(!(table + &below).contains("secret"), "{below}");
    assert_eq!(list(&address, &["service/deep", "-o", "name"]), "service/deep/leader\n");

    let seen = json_of(&address, &["service/s"]);
    let entry = &seen["entries"][0];
    assert_eq!((&seen["schema_version"], &seen["root"]), (&json!(1), &json!("service/s")));
    assert_eq!((&seen["truncated"], &seen["hidden"]), (&json!(false), &Value::Null));
    assert_eq!((&entry["prefix"], &entry["kind"]), (&json!("service/s"), &json!("semaphore")));
    assert_eq!((&entry["limit"], &entry["taken"], &entry["waiting"]), (&json!(1), &json!(1), &json!(1)));
    assert_eq!(entry["since"], operator.entry("service/s", &holder.session())["since"]);
    assert!(entry["oldest_age_seconds"].is_u64(), "{entry}");
    let yaml = list(&address, &["service/s", "-o", "yaml"]);
    assert!(
        yaml.starts_with("schema_version: 1\nroot: service/s\nentries:\n- prefix: service/s\n"),
        "{yaml}"
    );
}

#[test]
fn a_long_list_is_cut_and_says_so() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (send, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            send.send(server.addr().to_string()).unwrap();
            server.run(std::future::pending()).await.unwrap();
        });
    });
    let address = address.recv().unwrap();
    let settings = Settings { address: address.parse().unwrap(), ..Settings::default() };
    let client = Client::new(&settings, Arc::new(Unobserved)).unwrap();
    // 64 in a transaction.
    let record = br#"{"Limit":1,"Holders":[]}"#;
    let keys: Vec<_> = (0..10_001).map(|nth| format!("service/{nth:05}/.lock")).collect();
    runtime().block_on(async {
        for batch in keys.chunks(64) {
            let put =
                |key: &String| TxnOp::Cas { key: key.clone(), value: record.to_vec(), flags: 0, index: 0 };
            client.txn(&batch.iter().map(put).collect::<Vec<_>>()).await.unwrap();
        }
    });
    let (code, said, errors) = operate(&address, &["list", "-o", "json"]);
    let seen: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &seen["truncated"]), (Some(0), &json!(true)));
    assert_eq!(seen["entries"].as_array().unwrap().len(), 10_000);
    assert!(errors.contains("only the first 10000 of 10001 semaphores and locks were read"), "{errors}");
    assert_eq!(json_of(&address, &["service/10000"])["truncated"], false);
}

#[test]
fn a_watch_shows_what_changes() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut shell = Shell::start_on(Some("xterm"));
    shell.press(&format!("clear; {BINARY} list service --watch --http-addr {}\n", consul.address()));
    shell.await_screen("nothing", |screen| screen.contains("no semaphores and no locks below service/"));
    operator.put("service/a/.lock", r#"{"Limit":2,"Holders":[]}"#, Put::Plain, 0);
    shell.await_screen("one", |screen| screen.contains("service/a  semaphore  2"));
    operator.delete("service/a/.lock");
    shell
        .await_screen("nothing again", |screen| screen.contains("no semaphores and no locks below service/"));
    shell.press("\x03");
}

/// A name stands for its prefix, and the file has the address.
#[test]
fn a_name_of_the_configuration_is_a_prefix() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let rest = "semaphores: [{name: writers, prefix: service/warehouse/writers, limit: 3}]\n\
                locks: [{name: nightly, key: service/nightly/.lock}]";
    home.configure(&consul.address(), rest);
    operator.put("service/warehouse/writers/.lock", r#"{"Limit":3,"Holders":["gone"]}"#, Put::Plain, 0);
    operator.put("service/other/.lock", r#"{"Limit":4,"Holders":[]}"#, Put::Plain, 0);
    let leader = operator.create_session();
    operator.put("service/nightly/.lock", "", Put::Acquire(&leader), LOCK_FLAGS);
    let path = home.path("config.yaml");
    let run = |arguments: &[&str]| {
        let output = Command::new(BINARY)
            .args(arguments)
            .env_clear()
            .env("SLOTKEEPER_CONFIG", &path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for (name, said) in [
        ("writers", "service/warehouse/writers: semaphore (list), 1 of 3 slots taken"),
        ("nightly", "service/nightly/.lock: lock, taken"),
        ("service/other", "service/other: semaphore (list), 0 of 4 slots taken"),
    ] {
        let (code, out, errors) = run(&["inspect", name]);
        assert!(code == Some(0) && out.starts_with(said), "{name}: {out}{errors}");
    }
    assert_eq!(run(&["sessions", "nightly", "-o", "name"]).1, format!("{leader}\n"));
    assert_eq!(run(&["list", "writers", "-o", "name"]).1, "service/warehouse/writers\n");
    let (code, out, _) = run(&["set-limit", "writers", "5", "-o", "yaml"]);
    assert!(code == Some(0) && out.contains("prefix: service/warehouse/writers\n"), "{out}");
    assert_eq!(operator.record("service/warehouse/writers")["Limit"], 5);
    let (code, out, _) = run(&["prune", "writers", "--yes", "-o", "json"]);
    let pruned: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &pruned["prefix"]), (Some(0), &json!("service/warehouse/writers")));
    assert_eq!(run(&["evict", "nightly", &leader[..8], "--yes"]).0, Some(0));
    assert_eq!(run(&["destroy", "writers", "--yes"]).0, Some(0));
    assert!(operator.lock("service/warehouse/writers").is_none());
}

/// On a terminal a table is cut, also without --watch; in a pipe never.
#[test]
fn tables_fit_the_terminal() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let prefix = format!("service/{}", "x".repeat(90));
    operator.put(&format!("{prefix}/.lock"), r#"{"Limit":2,"Holders":["gone"]}"#, Put::Plain, 0);
    let address = consul.address();
    assert!(list(&address, &[]).contains(&prefix));
    let mut shell = Shell::start_on(Some("xterm"));
    shell.resize(24, 80);
    shell.press(&format!("clear; {BINARY} list --http-addr {address}; echo end $?\n"));
    let fits = |screen: &str| {
        let row = screen.lines().find(|line| line.starts_with("service/xxx")).unwrap_or_default();
        row.contains("…  semaphore  2      1      0        -") && row.chars().count() <= 80
    };
    shell.await_screen("a row that was cut", |screen| fits(screen) && screen.contains("end 0"));
    shell.press(&format!("clear; {BINARY} sessions -o wide {prefix} --http-addr {address}; echo end $?\n"));
    let fits = |screen: &str| {
        let row = screen.lines().find(|line| line.starts_with("SESSION")).unwrap_or_default();
        row.ends_with('…') || row.contains("CHECKS")
    };
    shell.await_screen("the wide form", |screen| fits(screen) && screen.contains("end 0"));
}
