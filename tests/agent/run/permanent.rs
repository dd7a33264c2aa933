//! What waiting cannot cure ends `run` with one line; what may pass is waited for.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;

use super::job::{Job, bare};
use crate::consul::Consul;
use crate::inspect::operate;
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home};
use crate::stub::Stub;
use crate::support::authority::Authority;
use crate::support::consul::Setup;
use crate::support::kv::Put;
use crate::wait_for;
use slotkeeper_consul::{Code, Operation};
use slotkeeper_semaphore::LOCK_FLAGS;

const ONE: [&str; 3] = ["p/one", "-n", "1"];

/// A `run` that logs only warnings, as at a prompt or in cron.
pub(crate) fn quiet(consul: &str, arguments: &[&str]) -> Job {
    let mut command = Command::new(BINARY);
    command.arg("run").args(["--http-addr", consul]).args(arguments).args(["--", "true"]);
    bare(&mut command);
    Job::spawn(command, tempfile::tempdir().unwrap())
}

/// Checks that it ends with that code and one line that contains the part.
pub(crate) fn assert_ends(mut job: Job, code: i32, part: &str) {
    assert_eq!(job.code(), Some(code), "{}", job.log());
    let said = job.log();
    assert!(said.starts_with("slotkeeper: ") && said.contains(part), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn names_that_consul_does_not_know_end_the_wait() {
    let consul = Consul::start();
    let at = |arguments: &[&str]| quiet(&consul.address(), &[&ONE, arguments].concat());
    let jobs = [
        (
            at(&["--datacenter", "nope"]),
            "Consul knows no such datacenter; correct consul.datacenter (--datacenter)",
        ),
        (at(&["--node", "nope"]), "Consul does not know the session's node"),
        (at(&["--token-file", "/no/such"]), "the token file /no/such cannot be read"),
        // The bound comes before the third answer.
        (
            at(&["--datacenter", "nope", "--timeout", "1s"]),
            "Consul knows no such datacenter; correct consul.datacenter (--datacenter)",
        ),
    ];
    for (job, said) in jobs {
        assert_ends(job, 78, said);
    }
    let operator = Operator::at(&consul.address());
    assert!(operator.keys("p/one").is_empty() && operator.sessions().is_empty());
}

#[test]
fn a_key_of_another_kind_without_a_holder_ends_the_wait() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut first = Job::start(&consul.address(), &ONE, &["true"]);
    assert_eq!(first.code(), Some(0), "{}", first.log());
    operator.put("p/lock/.lock", "", Put::Plain, LOCK_FLAGS);
    operator.put("p/text/.lock", "hello world", Put::Plain, 0);
    let is_semaphore = "p/one is a semaphore (limit 1, no holder), not a lock. Use --limit 1, or delete it with \
                        `slotkeeper destroy p/one`";
    let jobs = [
        (&["p/one"][..], is_semaphore),
        (&["p/one", "--try"], is_semaphore),
        (&["p/lock", "-n", "1"], "or run without --limit to acquire the lock"),
        (&["p/text", "-n", "1"], "the key p/text/.lock is not a semaphore"),
        (&["p/text"], "the key p/text/.lock is not a single-key lock"),
    ]
    .map(|(arguments, said)| (quiet(&consul.address(), arguments), said));
    for (job, said) in jobs {
        assert_ends(job, 78, said);
    }
    assert_eq!(operator.key("p/text/.lock").unwrap().value, b"hello world");
}

#[test]
fn a_server_that_is_not_consul_ends_the_wait() {
    let consul = Consul::start();
    let stub = Stub::start(|_, _| Some((404, "<html>nothing here</html>".into())));
    let plain = format!("https://{}", consul.address());
    // It answers each request, but not by HTTP. The drain must not look for a session there.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let greeter = other.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for connection in other.incoming() {
            // Closed without a read, the connection would be reset, which is waited for.
            let _ = connection.and_then(|mut connection| {
                let _ = connection.read(&mut [0; 4096])?;
                connection.write_all(b"SSH-2.0-x\r\n")
            });
        }
    });
    let jobs = [
        (quiet(&greeter, &ONE), "the server there does not speak HTTP"),
        (quiet(&plain, &ONE), "the server there does not speak TLS; write http://"),
        (
            quiet(stub.address(), &ONE),
            "unexpected answer 404: a page of HTML; is this the address of Consul's HTTP API?",
        ),
    ];
    for (job, said) in jobs {
        assert_ends(job, 69, said);
    }
}

#[test]
fn a_tls_server_ends_the_wait_of_whoever_cannot_talk_to_it() {
    let authority = Authority::new();
    let config = authority.server();
    let consul = Consul::start_with(Setup { config, https: true, ..Setup::default() });
    let https = consul.https_addr();
    let (with_tls, without) = (format!("https://{https}"), https.to_string());
    let file = authority.file("consul-agent-ca.pem").display().to_string();
    let wrong_name = [&ONE[..], &["--ca-file", &file, "--tls-server-name", "wrong.name"]].concat();
    let missing_file = [&ONE[..], &["--ca-file", "/no/such"]].concat();
    let jobs = [
        (quiet(&without, &ONE), 69, "the server there speaks only TLS; write https:// in the address"),
        (quiet(&with_tls, &ONE), 69, "set consul.tls.ca_file, --ca-file or CONSUL_CACERT"),
        (quiet(&with_tls, &wrong_name), 69, "--tls-server-name or CONSUL_TLS_SERVER_NAME"),
    ];
    for (job, code, said) in jobs {
        assert_ends(job, code, said);
    }
    let mut job = quiet(&with_tls, &missing_file);
    assert_eq!(job.code(), Some(78), "{}", job.log());
    assert_eq!(job.log().matches("No such file").count(), 1, "{}", job.log());
    let mut job = Job::start(&with_tls, &[&ONE[..], &["--ca-file", &file]].concat(), &["true"]);
    assert_eq!(job.code(), Some(0), "{}", job.log());
}

#[test]
fn a_lock_that_a_live_session_holds_is_waited_for() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    operator.put("p/one/.lock", "", Put::Acquire(&session), LOCK_FLAGS);
    let mut job = Job::start(&consul.address(), &ONE, &["true"]);
    wait_for("it to be blocked", || job.log().contains(&session));
    // The same wait with a bound ends as any other that was too short.
    let mut bounded = quiet(&consul.address(), &[&ONE[..], &["--timeout", "5s"]].concat());
    assert_eq!(bounded.code(), Some(75), "{}", bounded.log());
    assert!(job.is_running(), "{}", job.log());
    operator.delete("p/one/.lock");
    assert_eq!(job.code(), Some(0), "{}", job.log());
}

#[test]
fn a_silent_port_is_waited_for_until_the_bound() {
    let mut job = quiet("127.0.0.1:1", &[&ONE[..], &["--timeout", "6s"]].concat());
    assert_eq!(job.code(), Some(69), "{}", job.log());
    let said = job.log();
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains("Connection refused")), "{said}");
    let end = "slotkeeper: p/one: timed out after 6s waiting for Consul at http://127.0.0.1:1, without a slot of p/one; \
               the last failure was: ";
    assert!(
        lines[1].starts_with(end) && lines[1].ends_with("; the command did not start; exit 69"),
        "{said}"
    );
}

#[test]
fn a_configuration_file_does_not_change_this_and_only_required_entries_count() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    operator.put("p/text/.lock", "hello world", Put::Plain, 0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let with = |text: &str, code| {
        let config = format!(
            "consul: {{address: '{}'}}\nhttp: {{listen: off}}\nsemaphores:\n- {{name: one, prefix: p/one, limit: 1}}\n\
             - {{name: text, prefix: p/text, limit: 1{text}}}\n",
            consul.address()
        );
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(BINARY);
        bare(&mut command);
        command.args(["run", "--config"]).arg(&file).args(["--", "true"]);
        let mut job = Job::spawn(command, tempfile::tempdir().unwrap());
        assert_eq!(job.code(), Some(code), "{}", job.log());
    };
    with("", 78);
    with(", required: false", 0);
}

#[test]
fn an_agent_stays_blocked_until_the_key_is_gone() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    operator.put("service/s/.lock", "hello world", Put::Plain, 0);
    let home = Home::new();
    home.configure(&consul.address(), crate::hold::ONE);
    let mut agent = Agent::start(&home);
    agent.await_state("blocked");
    // `run` ends in that time.
    assert_ends(quiet(&consul.address(), &["service/s", "-n", "1"]), 78, "is not a semaphore");
    agent.await_state("blocked");
    operator.delete("service/s/.lock");
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    // So does one whose requests are refused, however often.
    let stub = Stub::start(|_, _| Some((404, "<html>".into())));
    home.configure(stub.address(), crate::hold::ONE);
    let mut agent = Agent::start(&home);
    wait_for("more refusals than end `run`", || {
        agent.requests(Operation::SessionCreate, Code::NotFound) >= 7.0
    });
    assert!(!agent.is_ready());
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn operators_commands_end_with_the_same_codes() {
    let consul = Consul::start();
    let stub = Stub::start(|_, _| Some((404, "<html>".into())));
    let (address, https) = (consul.address(), format!("https://{}", consul.address()));
    for command in [
        &["inspect", "p/one"][..],
        &["sessions", "p/one"],
        &["set-limit", "p/one", "2"],
        &["prune", "p/one", "--yes"],
        &["destroy", "p/one", "--yes"],
        &["evict", "p/one", "abcd", "--yes"],
    ] {
        for (at, flags, expected, part) in [
            (stub.address(), &[][..], 69, "unexpected answer 404"),
            (&https, &[], 69, "does not speak TLS"),
            (&address, &["--datacenter", "nope"], 78, "no such datacenter"),
            (&address, &["--token-file", "/no/such"], 78, "the token file /no/such cannot be read"),
        ] {
            let (code, _, said) = operate(at, &[command, flags].concat());
            assert_eq!((code, said.contains(part)), (Some(expected), true), "{command:?}: {said}");
        }
    }
    let mut probe = Command::new(BINARY);
    bare(&mut probe);
    let said = probe.args(["probe", "--address", stub.address()]).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.code() == Some(1) && text.contains("is not a slotkeeper agent"), "{text}");
}

#[test]
fn a_late_waiter_of_a_lock_is_told_of_a_lock_delay_of_unknown_length() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let delay = ["p/lock", "--lock-delay", "20s"];
    let first = Job::live(&consul.address(), &delay, crate::support::life::MEEK);
    first.await_life();
    let session = operator.lock("p/lock").unwrap().session.unwrap();
    operator.destroy(&session);
    let late = quiet(&consul.address(), &["p/lock", "--timeout", "4s"]);
    assert_ends_after_lines(late, 75, "free, but in the lock-delay of its last holder, at most 60s");
}

fn assert_ends_after_lines(mut job: Job, code: i32, part: &str) {
    assert_eq!(job.code(), Some(code), "{}", job.log());
    assert!(job.log().lines().all(|line| line.contains(part)), "{}", job.log());
}

#[test]
fn try_names_the_holder() {
    let consul = Consul::start();
    let holds = |arguments: &[&str]| Job::live(&consul.address(), arguments, crate::support::life::MEEK);
    let (semaphore, lock) = (holds(&ONE), holds(&["p/lock"]));
    semaphore.await_life();
    lock.await_life();
    let job = quiet(&consul.address(), &[&ONE[..], &["--try"]].concat());
    assert_ends(job, 75, "p/one: no free slot (1 of 1 taken by ");
    assert_ends(quiet(&consul.address(), &["p/lock", "--try"]), 75, "p/lock: the lock is held by ");
}
