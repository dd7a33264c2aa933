//! `slotkeeper doctor`: what a job needs, each fault by itself, and nothing left behind.

#![allow(clippy::disallowed_methods, reason = "a test has no lease")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::acl::{ROOT, STRANGER, WORKER, denying_with, put_acl};
use crate::consul::Consul;
use crate::http::{request, request_with};
use crate::inspect::operate;
use crate::operator::Operator;
use crate::process::{BINARY, Home, Lodger};
use crate::sessions::ConsulLock;
use crate::stub::Stub;
use crate::support::authority::Authority;
use crate::support::consul::Setup;
use crate::support::kv::Put;
use crate::support::relay::{End, Relay};
use crate::wait_for;

/// The longest that it takes, whatever the port does.
const BOUND: Duration = Duration::from_secs(15);

/// Its lines, each with single blanks, and its exit code.
fn doctor(consul: &str, arguments: &[&str]) -> (Option<i32>, Vec<String>) {
    let began = Instant::now();
    let (code, said, errors) = operate(consul, &[&["doctor"], arguments].concat());
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    assert_eq!(errors, "");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    (code, said.lines().map(words).collect())
}

/// Asserts the exit code, and that exactly one line begins so and contains the words.
fn assert_line((code, lines): &(Option<i32>, Vec<String>), expected: i32, begin: &str, words: &[&str]) {
    let is_it = |line: &&String| line.starts_with(begin) && words.iter().all(|word| line.contains(word));
    assert_eq!(lines.iter().filter(is_it).count(), 1, "{begin} {words:?} in {lines:#?}");
    assert_eq!(*code, Some(expected), "{lines:#?}");
}

/// All that Consul stores: sessions, keys, the node of slotkeeper.
fn state(consul: &Consul, token: &str) -> [String; 3] {
    let header = format!("X-Consul-Token: {token}\r\n");
    ["session/list", "kv/?recurse", "catalog/node/slotkeeper"]
        .map(|path| request(&consul.address(), &format!("GET /v1/{path}"), &header).body)
}

const FULL: &str = "session: {state_file: '$HOME/run/session.json'}\n\
                    semaphores: [{name: writers, prefix: service/writers, limit: 2, slots: 2}]\n\
                    locks: [{name: leader, key: service/leader, required: false}]\n\
                    control: {listen: 'unix:$HOME/control.sock'}\n\
                    hooks: {on_acquired: [/bin/true], on_lost: [/bin/false, x]}\n";

#[test]
fn all_that_a_job_needs_is_there_and_nothing_is_left_behind() {
    let consul = Consul::start_unused(Setup::default());
    let home = Home::new();
    home.configure(&consul.address(), FULL);
    let file = home.path("config.yaml");
    let file = file.to_str().unwrap();
    let before = state(&consul, "");
    let found = doctor(&consul.address(), &["--config", file]);
    let verdicts: Vec<_> = found.1.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!((found.0, verdicts), (Some(0), vec!["OK"; found.1.len()]), "{:#?}", found.1);
    for (begin, words) in [
        ("OK address http://127.0.0.1:", &["leader 127.0.0.1:", " ms"][..]),
        ("OK token none is sent", &[]),
        ("OK agent test, Consul ", &["server, leave_on_terminate false, http_max_conns_per_client 4096"]),
        ("OK session the first one registers the node slotkeeper", &[]),
        ("OK semaphore writers the token may write it", &[]),
        ("OK semaphore writers nothing is stored", &[]),
        ("OK lock leader the token may write it", &[]),
        ("OK lock leader nothing is stored", &[]),
        ("OK session.state_file", &["run/session.json"]),
        ("OK readiness.file", &[]),
        ("OK hooks.on_acquired /bin/true", &[]),
        ("OK hooks.on_lost /bin/false", &[]),
        ("OK http.listen 127.0.0.1:0", &[]),
        ("OK control.listen", &["control.sock"]),
    ] {
        assert_line(&found, 0, begin, words);
    }
    let (code, _, errors) = operate(&consul.address(), &["doctor", file]);
    assert!(code == Some(64) && errors.contains("did you mean --config FILE?"), "{code:?} {errors}");
    let (code, said, errors) = operate(&consul.address(), &["check", "--connect", file]);
    assert_eq!((code, said.lines().count(), errors.as_str()), (Some(0), found.1.len(), ""), "{said}");
    let (code, said, _) = operate(&consul.address(), &["doctor", "service/any", "-o", "json"]);
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &json["schema_version"], &json["exit_code"]), (Some(0), &json!(1), &json!(0)));
    let last = json["checks"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["verdict"], &last["name"]), (&json!("ok"), &json!("prefix")), "{last}");
    assert_line(&doctor(&consul.address(), &[]), 0, "OK session", &[]);
    assert_eq!(state(&consul, ""), before);
    let left: Vec<_> = fs::read_dir(home.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["config.yaml"]);
}

#[test]
fn what_is_killed_at_any_instant_leaves_nothing() {
    let consul = Consul::start();
    let before = state(&consul, "");
    for nth in 0..60 {
        let mut command = Command::new(BINARY);
        command.args(["doctor", "service/s"]).env_clear().env("CONSUL_HTTP_ADDR", consul.address());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(nth));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(state(&consul, ""), before, "after {nth} ms");
    }
}

#[test]
fn no_consul_another_server_and_one_that_never_answers() {
    assert_line(
        &doctor("127.0.0.1:1", &["service/s"]),
        69,
        "FAIL address http://127.0.0.1:1",
        &["not reached"],
    );
    let page = Stub::start(|_, _| Some((404, "<html>".into())));
    assert_line(&doctor(page.address(), &["service/s"]), 69, "FAIL address", &["404"]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    assert_line(&doctor(&address, &["service/s"]), 69, "FAIL address", &["no answer within 4s"]);
    // It answers the first two, and then nothing more.
    let stuck = Stub::start(|nth, path| {
        let body = if path.contains("peers") { r#"["a:1"]"# } else { r#""a:1""# };
        if nth >= 2 {
            std::thread::sleep(Duration::from_secs(60));
        }
        Some((200, body.to_owned()))
    });
    assert_eq!(doctor(stuck.address(), &["service/s"]).0, Some(69));
}

#[test]
fn one_address_of_several_is_away_or_of_another_cluster() {
    let (consul, other) = (Consul::start(), Consul::start());
    let with = |other: &str| doctor(&format!("{},{other}", consul.address()), &["service/s"]);
    assert_line(&with("127.0.0.1:1"), 0, "WARN address http://127.0.0.1:1", &["not reached"]);
    let begin = format!("FAIL address http://{}", other.address());
    assert_line(&with(&other.address()), 78, &begin, &["another cluster"]);
}

#[test]
fn each_missing_right_is_named_by_its_rule() {
    let consul = denying_with(Consul::start_unused);
    let address = consul.address();
    let before = state(&consul, ROOT);
    let by = |token: &str, prefix: &str| doctor(&address, &[prefix, "--token", token]);
    let unknown = by("deadbeef-0000-4000-8000-000000000000", "service/s");
    assert_line(&unknown, 77, "FAIL token", &["does not know this token"]);

    let enough = by(WORKER, "service/s");
    assert_line(&enough, 0, "OK prefix the token may write it", &[]);
    let node_rule = r#"`node "slotkeeper" { policy = "write" }`"#;
    assert_line(&enough, 0, "WARN session can be created on the addressed agent's node", &[node_rule]);
    assert_line(&enough, 0, "WARN agent", &["unknown", r#"`agent_prefix "" { policy = "read" }`"#]);
    assert_line(&by(ROOT, "service/s"), 0, "OK agent test", &[]);
    assert_line(&by(ROOT, "service/s"), 0, "OK session the first one registers the node slotkeeper", &[]);
    let on_agent = "0a6e57a9-0000-4000-8000-000000000000";
    let rules = r#"key_prefix \"service/s/\" { policy = \"write\" } session \"test\" { policy = \"write\" }"#;
    put_acl(&consul, "policy", &format!(r#"{{"Name":"on-agent","Rules":"{rules}"}}"#));
    put_acl(&consul, "token", &format!(r#"{{"SecretID":"{on_agent}","Policies":[{{"Name":"on-agent"}}]}}"#));
    let session_rule = r#"`session "slotkeeper" { policy = "write" }`"#;
    assert_line(&by(on_agent, "service/s"), 0, "WARN session", &[session_rule]);

    let elsewhere = by(WORKER, "service/other");
    assert_line(&elsewhere, 77, "FAIL prefix", &[r#"key "service/other/.lock" { policy = "write" }"#]);
    let stranger = by(STRANGER, "service/s");
    assert_line(&stranger, 77, "FAIL session", &[session_rule]);
    let lines = |begin: &str, words: &str| {
        stranger.1.iter().filter(|line| line.starts_with(begin) && line.contains(words)).count()
    };
    assert_eq!((lines("OK prefix", ""), lines("WARN prefix", "unknown: the token may not read it")), (0, 1));
    assert_line(&doctor(&address, &["service/s"]), 77, "FAIL session", &["no token was sent"]);

    let only_lock = "10c457a9-0000-4000-8000-000000000000";
    let rules =
        r#"key \"service/s/.lock\" { policy = \"write\" } session_prefix \"\" { policy = \"write\" }"#;
    put_acl(&consul, "policy", &format!(r#"{{"Name":"lock","Rules":"{rules}"}}"#));
    put_acl(&consul, "token", &format!(r#"{{"SecretID":"{only_lock}","Policies":[{{"Name":"lock"}}]}}"#));
    let found = by(only_lock, "service/s");
    assert_line(
        &found,
        0,
        "WARN prefix",
        &["for a lock alone", r#"key_prefix "service/s/" { policy = "write" }"#],
    );

    let put = |method: &str, body: &str| {
        // Whatever is sent beyond that length has the server reset the connection.
        let headers = format!("X-Consul-Token: {ROOT}\r\nContent-Length: {}\r\n", body.len());
        request_with(&address, &format!("{method} /v1/kv/service/s/.lock"), &headers, body)
    };
    put("PUT", r#"{"Limit":3,"Holders":[]}"#);
    let found = by(only_lock, "service/s");
    assert_line(&found, 77, "FAIL prefix", &[r#"key_prefix "service/s/" { policy = "write" }"#]);
    assert_line(&found, 77, "OK prefix a semaphore", &["; `run` needs --limit 3 there"]);
    put("DELETE", "");

    let home = Home::new();
    home.configure(
        &address,
        "semaphores: [{name: a, prefix: service/s, limit: 1}, {name: b, prefix: x, limit: 1}]",
    );
    let file = home.path("config.yaml");
    let found = doctor(&address, &["--config", file.to_str().unwrap(), "--token", WORKER]);
    assert_line(&found, 77, "OK semaphore a the token may write", &[]);
    assert_line(&found, 77, "FAIL semaphore b Consul denied", &[r#"`key_prefix "x/" { policy = "write" }`"#]);
    assert_eq!(state(&consul, ROOT), before);
}

#[test]
fn settings_of_consul_that_do_not_fit() {
    let config = "session_ttl_min = \"60s\"\nleave_on_terminate = true";
    let setup = Setup { config: config.into(), ..Setup::default() };
    let consul = Consul::start_with(setup);
    let found = doctor(&consul.address(), &["service/s"]);
    assert_line(&found, 78, "FAIL session", &["must be between [1m0s=24h0m0s]"]);
    let config = "limits { http_max_conns_per_client = 50 }";
    let setup = Setup { config: config.into(), default_limits: true, ..Setup::default() };
    let few = Consul::start_with(setup);
    let found = doctor(&few.address(), &["service/s"]);
    assert_line(&found, 0, "WARN agent", &["http_max_conns_per_client 50: an agent may need 72"]);
    let (code, said, _) =
        slotkeeper(&consul.address(), &["SLOTKEEPER_SESSION_TTL=90s", "SLOTKEEPER_SESSION_NODE=gone"]);
    assert!(code == Some(78) && said.contains("Missing node registration"), "{said}");
    let (code, said, _) =
        slotkeeper(&consul.address(), &["SLOTKEEPER_SESSION_TTL=90s", "SLOTKEEPER_SESSION_NODE=agent"]);
    let warns = said.contains("leave_on_terminate true") && said.contains("set session.node (--node)");
    assert!(code == Some(0) && warns, "{said}");
}

/// With variables.
fn slotkeeper(consul: &str, variables: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(BINARY);
    command.args(["doctor", "service/s"]).env_clear().env("CONSUL_HTTP_ADDR", consul);
    command.envs(variables.iter().map(|one| one.split_once('=').unwrap()));
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn what_is_stored_differs_from_what_is_configured() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let put = |key: &str, value: &str| operator.put(key, value, Put::Plain, 0);
    let _theirs = ConsulLock::start(&consul, &["-n", "2", "a"]);
    wait_for("consul lock to hold", || operator.lock("a").is_some());
    put("a/notes.txt", "mine");
    put("b/.lock", "a secret");
    put("c/.lock", r#"{"Limit":3,"Holders":[]}"#);
    put("d/.lock", r#"{"Limit":3,"Holders":[]}"#);
    let newer = operator.create_session();
    let entry = r#"{"slotkeeper":9999,"state":"waiting","slots":1}"#;
    operator.put(&format!("c/{newer}"), entry, Put::Acquire(&newer), 0);
    let home = Home::new();
    home.configure(
        &consul.address(),
        "semaphores:\n\
         - {name: a, prefix: a, limit: 3}\n\
         - {name: b, prefix: b, limit: 3}\n\
         - {name: c, prefix: c, limit: 2, limit_policy: refuse}\n\
         - {name: e, prefix: e, limit: 4, slots: 4}\n\
         locks: [{name: d, key: d/.lock}]",
    );
    put("e/.lock", r#"{"Limit":3,"Holders":[]}"#);
    let file = home.path("config.yaml");
    let found = doctor(&consul.address(), &["--config", file.to_str().unwrap()]);
    for (begin, words) in [
        (
            "WARN semaphore a a semaphore with limit 2, format map",
            &["the configured limit is 3, and the stored one governs"][..],
        ),
        ("WARN semaphore a 1 foreign clients", &[]),
        ("WARN semaphore a 1 keys below the prefix", &[]),
        ("FAIL semaphore b b/.lock: it is not a JSON object", &[]),
        ("FAIL semaphore c", &["limit 3,", "the configured limit is 2, and limit_policy is `refuse`"]),
        ("WARN semaphore c 1 clients of a later version of slotkeeper", &[]),
        ("FAIL semaphore e", &["limit 3,", "4 slots are wanted"]),
        ("FAIL lock d", &["d is a semaphore (limit 3, no holder), not a lock"]),
    ] {
        assert_line(&found, 78, begin, words);
    }
    let any = doctor(&consul.address(), &["c"]);
    assert_line(&any, 0, "OK prefix a semaphore with limit 3, format list, 0 taken", &[]);
}

#[test]
fn files_folders_hooks_and_ports() {
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mode = |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    fs::create_dir(at("closed")).unwrap();
    fs::write(at("script"), "#!/bin/sh\n").unwrap();
    let shown = folder.path().display();
    let text = format!(
        "consul: {{address: '{}', token_file: '{shown}/token'}}\n\
         semaphores: [{{name: s, prefix: s, limit: 1}}]\n\
         http: {{listen: '127.0.0.1:{port}'}}\n\
         readiness: {{file: '{shown}/closed/deeper/ready'}}\n\
         session: {{state_file: '{shown}/script/state'}}\n\
         control: {{listen: 'unix:{shown}/script'}}\n\
         hooks: {{on_acquired: ['{shown}/gone'], on_lost: ['{shown}/script']}}\n",
        consul.address()
    );
    fs::write(at("agent.yaml"), text).unwrap();
    mode("", 0o755);
    mode("script", 0o644);
    mode("closed", 0o555);
    // Root may write everywhere.
    let mut command = Command::new(BINARY);
    command.args(["doctor", "--config"]).arg(at("agent.yaml")).env_clear();
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let lines = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let found = (output.status.code(), lines);
    for (begin, words) in [
        ("FAIL token", &["token cannot be read"][..]),
        ("FAIL readiness.file", &["closed: Permission denied", "writable for this user"]),
        ("FAIL session.state_file", &["/script: "]),
        ("FAIL http.listen", &["another process listens there"]),
        ("FAIL control.listen", &["is not a socket"]),
        ("FAIL hooks.on_acquired", &["gone: No such file"]),
        ("FAIL hooks.on_lost", &["Permission denied", "make it executable"]),
    ] {
        assert_line(&found, 78, begin, words);
    }
    let free = |text: &str| fs::write(at("agent.yaml"), text).unwrap();
    let file = at("agent.yaml");
    let of_file = || doctor(&consul.address(), &["--config", file.to_str().unwrap()]);
    free(&format!("semaphores: [{{name: s, prefix: s, limit: 1}}]\nhttp: {{listen: '127.0.0.1:{port}'}}"));
    assert_line(&of_file(), 1, "FAIL http.listen", &["in use"]);
    let as_run = doctor(&consul.address(), &["--for", "run", "--config", file.to_str().unwrap()]);
    assert_line(&as_run, 1, "FAIL http.listen", &["in use"]);
    free("semaphores: [{name: s, prefix: s, limit: none}]\nnonsense: 1");
    let found = of_file();
    assert_line(&found, 78, "FAIL configuration", &["agent.yaml:1:", "limit"]);
    assert_line(&found, 78, "FAIL configuration", &["nonsense"]);
}

#[test]
fn the_files_of_an_agent_that_runs() {
    let consul = Consul::start();
    let agent = Lodger::start(&consul.address(), "semaphores: [{name: s, prefix: service/s, limit: 1}]");
    agent.await_ready();
    let ready = agent.ready_file().to_str().unwrap().to_owned();
    let home = Home::new();
    home.configure(&consul.address(), "semaphores: [{name: s, prefix: service/s, limit: 1}]");
    let file = home.path("config.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let own = home.path("ready").to_str().unwrap().to_owned();
    assert!(text.contains(&own), "{text}");
    fs::write(&file, text.replace(&own, &ready)).unwrap();
    let found = doctor(&consul.address(), &["--config", file.to_str().unwrap()]);
    assert_line(&found, 1, "FAIL readiness.file", &["in use by another agent", &format!("{}", agent.pid())]);
    assert_line(&found, 1, "OK semaphore s a semaphore with limit 1, format list, 1 taken, 0 waiting", &[]);
    assert!(agent.is_ready());
}

#[test]
fn a_clock_that_differs() {
    let consul = Consul::start();
    let address = with_date(consul.addr(), "Sun, 06 Nov 1994 08:49:37 GMT").to_string();
    assert_line(&doctor(&address, &[]), 0, "WARN address", &["its clock is -", "NTP"]);
    let address = with_date(consul.addr(), "Thu, 06 Nov 2194 08:49:37 GMT").to_string();
    assert_line(&doctor(&address, &[]), 0, "WARN address", &["its clock is ", " s ahead of this one", "NTP"]);
}

/// A relay that replaces the header `Date` of each answer.
fn with_date(consul: SocketAddr, date: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pass = move |mut client: TcpStream| -> std::io::Result<()> {
        let mut server = TcpStream::connect(consul)?;
        let (mut asked, mut asks) = (client.try_clone()?, server.try_clone()?);
        std::thread::spawn(move || std::io::copy(&mut asked, &mut asks));
        let mut bytes = [0; 64 * 1024];
        loop {
            let read = server.read(&mut bytes)?;
            if read == 0 {
                return Ok(());
            }
            let mark = b"\r\nDate: ";
            if let Some(at) = bytes[..read].windows(mark.len()).position(|window| window == mark) {
                bytes[at + mark.len()..][..date.len()].copy_from_slice(date.as_bytes());
            }
            client.write_all(&bytes[..read])?;
        }
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || pass(client));
        }
    });
    address
}

#[test]
fn a_proxy_that_ends_long_polls() {
    let consul = Consul::start();
    let relay = Relay::start(consul.addr(), Duration::from_secs(2), End::Close);
    let poll = ["service/s", "--long-poll", "4s"];
    let cut = doctor(&relay.address(), &poll);
    assert_line(&cut, 0, "WARN long poll", &["cut off after 2", "set consul.max_wait below its time-out"]);
    assert_line(&doctor(&consul.address(), &poll), 0, "OK long poll one of 4s was answered", &[]);
    let without = doctor(&relay.address(), &["service/s"]);
    assert!(without.0 == Some(0) && !without.1.concat().contains("long poll"), "{without:?}");
}

#[test]
fn the_chain_and_the_name_of_the_certificate() {
    let authority = Authority::new();
    let setup = Setup { config: authority.server(), https: true, ..Setup::default() };
    let consul = Consul::start_with(setup);
    let address = format!("https://{}", consul.https_addr());
    let ca = authority.file("consul-agent-ca.pem");
    let ca = ["--ca-file", ca.to_str().unwrap()];
    assert_line(&doctor(&address, &ca), 0, "OK address https://", &["certificate accepted"]);
    let named = [&ca[..], &["--tls-server-name", "consul.example.com"]].concat();
    assert_line(
        &doctor(&address, &named),
        69,
        "FAIL address",
        &["not valid for name", "consul.tls.server_name"],
    );
    let other = Authority::new();
    let other = other.file("consul-agent-ca.pem");
    let unknown = doctor(&address, &["--ca-file", other.to_str().unwrap()]);
    assert_line(&unknown, 69, "FAIL address", &["UnknownIssuer", "consul.tls.ca_file"]);
    let missing = doctor(&address, &["--ca-file", "/nonexistent/ca.pem"]);
    assert_line(&missing, 78, "FAIL consul", &["/nonexistent/ca.pem"]);
}
