//! `slotkeeper sessions`: who has a session, and what it does at a prefix.

use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::consul::Consul;
use crate::http;
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home, Lodger};
use crate::support::kv::Put;
use crate::support::ports::Ports;
use crate::wait_for;

const PREFIX: &str = "service/s";

/// Runs the command: exit code, standard output, standard error.
pub(crate) fn sessions(consul: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(BINARY)
        .arg("sessions")
        .args(arguments)
        .env_clear()
        .env("CONSUL_HTTP_ADDR", consul)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn json_of(consul: &Consul, arguments: &[&str]) -> Vec<Value> {
    let (code, said, errors) = sessions(&consul.address(), &[&["--json"], arguments].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    rows(&said)
}

fn rows(said: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(said).unwrap();
    assert_eq!(report["schema_version"], 1);
    report["sessions"].as_array().unwrap().clone()
}

fn table_of(consul: &Consul, arguments: &[&str]) -> String {
    let (code, said, errors) = sessions(&consul.address(), arguments);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    said
}

fn agent(consul: &Consul, semaphore: &str) -> Lodger {
    let rest = format!("session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: {PREFIX}, {semaphore}}}]");
    let environment = [("SLOTKEEPER_POD_NAME", "batch-7"), ("SLOTKEEPER_NODE_NAME", "n1")];
    Lodger::start_with(&consul.address(), &rest, &environment)
}

/// `consul lock`, holding until the value goes.
pub(crate) struct ConsulLock(Child);

impl ConsulLock {
    pub(crate) fn start(consul: &Consul, arguments: &[&str]) -> Self {
        let child = Command::new(crate::support::consul::binary())
            .args(["lock", "-http-addr", &consul.address()])
            .args(arguments)
            .arg("sleep 600")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for ConsulLock {
    fn drop(&mut self) {
        // It ends its command, which would go on otherwise.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

fn field<'a>(rows: &'a [Value], name: &str) -> Vec<&'a Value> {
    rows.iter().map(|row| &row[name]).collect()
}

#[test]
fn a_semaphore_shared_by_agents_and_consul_lock() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let _theirs = ConsulLock::start(&consul, &["-n", "2", PREFIX]);
    wait_for("consul lock to hold", || operator.lock(PREFIX).is_some());
    let holder = agent(&consul, "limit: 2, priority: 1");
    holder.await_ready();
    let waiter = agent(&consul, "limit: 2, priority: 3, body: nightly");
    waiter.await_state("waiting");
    let _their_waiter = ConsulLock::start(&consul, &["-n", "2", PREFIX]);
    wait_for("all four to be there", || operator.keys(PREFIX).len() == 5);
    // What they say of themselves follows a second or two after they were let in.
    wait_for("the holder to have said who it is", || {
        operator.entry(PREFIX, &holder.session())["who"]["pod"] == "batch-7"
    });

    let rows = json_of(&consul, &[PREFIX]);
    assert_eq!(field(&rows, "state"), ["held", "held", "waiting", "waiting"]);
    assert_eq!(
        field(&rows, "foreign").into_iter().map(Value::as_bool).collect::<Vec<_>>(),
        [true, false, false, true].map(Some)
    );
    assert_eq!(field(&rows, "priority"), [&Value::Null, &json!(1), &json!(3), &Value::Null]);
    assert!(rows.iter().all(|row| row["found"] == true && row["slots"] == 1), "{rows:?}");
    let ours = &rows[1];
    assert_eq!(ours["session"], holder.session());
    assert_eq!(ours["keys"], json!([format!("{PREFIX}/{}", holder.session())]));
    assert_eq!((&ours["ttl_seconds"], &ours["lock_delay_seconds"]), (&json!(10.0), &json!(15.0)));
    assert_eq!(ours["name"].as_str(), Some("slotkeeper s: batch-7"));
    assert_eq!(ours["behavior"], "delete");
    assert_eq!(ours["slot_indexes"].as_array().map(Vec::len), Some(1));
    assert_eq!((&ours["who"]["pod"], &ours["who"]["node"]), (&json!("batch-7"), &json!("n1")));
    assert!(ours["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{ours}");
    assert_eq!((&rows[2]["session"], &rows[2]["body"]), (&json!(waiter.session()), &json!("nightly")));
    assert_eq!((&rows[0]["ttl_seconds"], &rows[0]["lock_delay_seconds"]), (&json!(15.0), &json!(15.0)));

    // A slash at the end is nothing; everything is in the table too.
    let table = table_of(&consul, &[&format!("{PREFIX}/")]);
    let lines: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["SESSION", "STATE", "PRIORITY", "WHO", "AGE", "NODE", "TTL"]);
    assert_eq!(lines[1][1], "held");
    assert!(table.lines().nth(1).unwrap().contains("foreign client"), "{table}");
    assert_eq!((lines[2][0], lines[2][3]), (&*holder.session(), "batch-7"));
    assert_eq!(lines.len(), 5);
    // All of them are among all sessions.
    let all = json_of(&consul, &[]);
    assert_eq!(all.len(), 4);
    for row in &rows {
        assert!(all.iter().any(|one| one["session"] == row["session"] && one["state"].is_null()), "{row}");
    }
}

#[test]
fn single_key_locks_and_sessions_with_checks_or_without_a_ttl() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let _theirs = ConsulLock::start(&consul, &[PREFIX]);
    wait_for("consul lock to hold", || operator.lock(PREFIX).is_some_and(|lock| lock.session.is_some()));
    let create =
        r#"{"Name":"lead\u001b[2Jer","LockDelay":"1500ms","Behavior":"delete","NodeChecks":["serfHealth"]}"#;
    let length = format!("Content-Length: {}\r\n", create.len());
    let made = http::request_with(&consul.address(), "PUT /v1/session/create", &length, create);
    let made: Value = serde_json::from_str(&made.body).unwrap();
    let leader = made["ID"].as_str().unwrap();
    operator.put(PREFIX, "the leader", Put::Acquire(leader), 0);

    let rows = json_of(&consul, &[PREFIX]);
    assert_eq!(field(&rows, "state"), ["locked", "locked"]);
    let keys = ["service/s/.lock", "service/s"].map(|key| json!([key]));
    assert_eq!(field(&rows, "keys"), [&keys[0], &keys[1]]);
    assert_eq!((&rows[1]["session"], &rows[1]["body"]), (&json!(leader), &json!("the leader")));
    assert_eq!((&rows[1]["ttl_seconds"], &rows[1]["lock_delay_seconds"]), (&Value::Null, &json!(1.5)));
    assert_eq!((&rows[1]["node_checks"], &rows[1]["service_checks"]), (&json!(["serfHealth"]), &json!([])));
    assert_eq!(rows[1]["slots"], Value::Null);

    let table = table_of(&consul, &["-o", "wide"]);
    let line = table.lines().find(|line| line.contains(leader)).unwrap();
    assert!(line.split_whitespace().eq([
        leader,
        r"lead\u{1b}[2Jer",
        "test",
        "-",
        "delete",
        "1.5s",
        "serfHealth"
    ]));
}

#[test]
fn a_listed_session_without_a_contender_is_shown_as_dead() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let alive = operator.create_session();
    let record = format!(r#"{{"Limit":3,"Holders":["gone\u001b[1m","{alive}"]}}"#);
    operator.put(&format!("{PREFIX}/.lock"), &record, Put::Cas(0), 0);
    let rows = json_of(&consul, &[PREFIX]);
    assert_eq!(field(&rows, "state"), ["dead", "dead"]);
    let found: Vec<_> = rows.iter().map(|row| (row["session"].as_str().unwrap(), &row["found"])).collect();
    assert!(found.contains(&("gone\u{1b}[1m", &json!(false))), "{found:?}");
    assert!(found.contains(&(&alive, &json!(true))), "one whose contender was deleted: {found:?}");
    let table = table_of(&consul, &[PREFIX, "-o", "wide"]);
    let line = table.lines().find(|line| line.starts_with(r"gone\u{1b}[1m")).unwrap();
    assert!(line.contains("dead") && line.contains("no session"), "{line}");
}

#[test]
fn an_empty_list_is_an_answer() {
    let consul = Consul::start();
    assert_eq!(json_of(&consul, &[]), [] as [Value; 0]);
    let (code, said, errors) = sessions(&consul.address(), &[PREFIX]);
    assert_eq!((code, said.lines().count()), (Some(1), 1), "there is no semaphore");
    assert!(errors.contains("no participants at service/s") && errors.contains("without a token"));
    let operator = Operator::at(&consul.address());
    operator.put("service/s/.lock", r#"{"Limit":1,"Holders":[]}"#, Put::Plain, 0);
    assert_eq!(sessions(&consul.address(), &[PREFIX]).0, Some(0), "nobody takes part");
    let token = ["--token", "11111111-2222-3333-4444-555555555555"];
    let (_, _, errors) = sessions(&consul.address(), &token);
    assert!(errors.contains("no sessions, or none is readable with the token"), "{errors}");
}

#[test]
fn errors_are_reported() {
    for (prefix, cause) in [
        ("/service/s", "begins with a slash; write it without"),
        ("", "is empty"),
        ("a\u{1b}b", "cannot be printed"),
    ] {
        let (code, _, said) = sessions("127.0.0.1:1", &[prefix]);
        assert_eq!(code, Some(64), "{prefix:?}: {said}");
        assert!(said.contains(cause), "{prefix:?}: {said}");
    }
    let (code, _, said) = sessions("ftp://consul", &[]);
    assert_eq!(code, Some(78));
    assert!(said.contains("CONSUL_HTTP_ADDR: consul.address: unknown scheme"), "{said}");
    for arguments in [&[][..], &[PREFIX], &[PREFIX, "--json"]] {
        let (code, out, said) = sessions("127.0.0.1:1", arguments);
        assert_eq!((code, out.as_str()), (Some(69), ""), "{said}");
        assert!(said.contains("at http://127.0.0.1:1: not reached"), "{said}");
    }
}

/// What the embedded server says is read the same.
#[test]
fn the_development_server_has_sessions_too() {
    let (home, ports) = (Home::new(), Ports::reserve());
    let address = ports.addr(0).to_string();
    home.configure(&address, crate::hold::ONE);
    let agent = Agent::start_with(&home, &["--dev"], &[]);
    agent.await_ready();
    let (code, said, errors) = sessions(&address, &["service/s", "--json"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let rows = rows(&said);
    assert_eq!(rows[0]["session"], agent.session());
    assert_eq!((&rows[0]["state"], &rows[0]["ttl_seconds"]), (&json!("held"), &json!(10.0)));
}
