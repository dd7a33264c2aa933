//! `slotkeeper inspect`: what there is at a prefix, and `--watch`.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{BINARY, Lodger};
use crate::sessions::ConsulLock;
use crate::support::kv::Put;
use crate::terminal::Shell;
use crate::wait_for;

const PREFIX: &str = "service/s";
const LOCK_FLAGS: u64 = 3_304_740_253_564_472_344;

/// Runs a command of an operator's: exit code, standard output, standard error.
pub(crate) fn operate(consul: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(BINARY)
        .args(arguments)
        .env_clear()
        .env("CONSUL_HTTP_ADDR", consul)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// What the command shows, in which nothing is wrong.
fn table_of(consul: &Consul, prefix: &str) -> String {
    let (code, said, errors) = operate(&consul.address(), &["inspect", prefix]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    said
}

fn json_of(consul: &Consul, prefix: &str) -> Value {
    let (code, said, errors) = operate(&consul.address(), &["inspect", prefix, "--json"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    serde_json::from_str(&said).unwrap()
}

pub(crate) fn agent(consul: &Consul, pod: &str, semaphore: &str) -> Lodger {
    let rest = format!("session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: {PREFIX}, {semaphore}}}]");
    Lodger::start_with(&consul.address(), &rest, &[("SLOTKEEPER_POD_NAME", pod)])
}

fn field<'a>(rows: &'a Value, name: &str) -> Vec<&'a Value> {
    rows.as_array().unwrap().iter().map(|row| &row[name]).collect()
}

#[test]
fn a_shared_semaphore_with_its_queue_and_its_dead() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let _theirs = ConsulLock::start(&consul, &["-n", "2", PREFIX]);
    wait_for("consul lock to hold", || operator.lock(PREFIX).is_some());
    let holder = agent(&consul, "batch-7", "limit: 2");
    holder.await_ready();
    let large = agent(&consul, "large", "limit: 9, priority: 5, slots: 1, body: nightly");
    large.await_state("waiting");
    let _their_waiter = ConsulLock::start(&consul, &["-n", "2", PREFIX]);
    wait_for("all four to be there", || operator.keys(PREFIX).len() == 5);
    wait_for("the holder to have said who it is", || {
        operator.entry(PREFIX, &holder.session())["who"]["pod"] == "batch-7"
    });

    let seen = json_of(&consul, &format!("{PREFIX}/"));
    assert_eq!(
        (&seen["kind"], &seen["form"], &seen["limit"]),
        (&json!("semaphore"), &json!("map"), &json!(2))
    );
    assert_eq!((&seen["slots_taken"], &seen["slots_free"]), (&json!(2), &json!(0)));
    assert_eq!(seen["modify_index"], operator.lock(PREFIX).unwrap().modify_index);
    let holders = &seen["holders"];
    // In the record's order, which is that of the map's names.
    let sessions: Vec<_> =
        field(holders, "session").into_iter().map(|id| id.as_str().unwrap().to_owned()).collect();
    assert_eq!(sessions, operator.holders(PREFIX));
    let ours = holders.as_array().unwrap().iter().find(|row| row["session"] == holder.session()).unwrap();
    assert_eq!(
        (&ours["state"], &ours["health"], &ours["foreign"]),
        (&json!("held"), &json!("live"), &json!(false))
    );
    assert_eq!((&ours["who"]["pod"], &ours["ttl_seconds"]), (&json!("batch-7"), &json!(10.0)));
    assert!(ours["age_seconds"].as_u64().is_some_and(|seconds| seconds < 600), "{ours}");
    assert_eq!(ours["slot_indexes"].as_array().map(Vec::len), Some(1));
    let theirs = holders.as_array().unwrap().iter().find(|row| row["session"] != holder.session()).unwrap();
    assert_eq!((&theirs["foreign"], &theirs["age_seconds"]), (&json!(true), &Value::Null));
    let queue = &seen["queue"];
    assert_eq!(field(queue, "position"), [&json!(1), &json!(2)]);
    assert_eq!(field(queue, "foreign"), [&json!(false), &json!(true)]);
    assert_eq!((&seen["next"], &queue[0]["body"]), (&json!(large.session()), &json!("nightly")));

    let table = table_of(&consul, PREFIX);
    assert!(table.starts_with("service/s: semaphore (map), 2 of 2 slots taken, ModifyIndex "), "{table}");
    let line = |session: &str| table.lines().find(|line| line.contains(session)).unwrap().to_owned();
    let row = line(&holder.session());
    assert!(row.contains("batch-7") && row.ends_with("  live"), "{table}");
    // It has written nothing; Consul knows its session's name and node.
    let named = format!(
        "foreign client: {} on {}",
        theirs["name"].as_str().unwrap(),
        theirs["node"].as_str().unwrap()
    );
    assert!(
        named.contains("Consul lock for 'sleep 600' at")
            && line(theirs["session"].as_str().unwrap()).contains(&named),
        "{table}"
    );
    let (code, _, said) = operate(&consul.address(), &["destroy", PREFIX, "--yes"]);
    assert_eq!((code, said.contains(&named)), (Some(1), true), "{said}");
    assert!(line(&large.session()).contains("  next"), "{table}");

    // One that is killed is dead once its session ends.
    operator.destroy(&holder.session());
    operator.destroy(&large.session());
}

#[test]
fn the_dead_their_keys_and_evicted_clients() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (alive, out) = (operator.create_session(), operator.create_session());
    let entry = |state: &str| {
        format!(r#"{{"slotkeeper":1,"state":"{state}","slots":1,"who":{{"pod":"p\u001b[1m"}}}}"#)
    };
    operator.put(&format!("{PREFIX}/{out}"), &entry("held"), Put::Acquire(&out), 0);
    operator.put(&format!("{PREFIX}/left"), &entry("held"), Put::Plain, 0);
    let record = format!(r#"{{"Limit":1,"Holders":["left","{alive}","gone\u001b[1m","gone\u001b[1m"]}}"#);
    operator.put(&format!("{PREFIX}/.lock"), &record, Put::Cas(0), 0);
    let seen = json_of(&consul, PREFIX);
    assert_eq!(field(&seen["holders"], "state"), ["dead", "dead", "dead"]);
    // The second one's session lives on, although its contender is gone.
    assert_eq!(field(&seen["holders"], "health"), ["dead", "dead", "dead"]);
    assert_eq!(field(&seen["holders"], "slots"), [&json!(1), &json!(1), &json!(2)]);
    assert_eq!(
        (&seen["slots_taken"], &seen["slots_free"], &seen["leftovers"]),
        (&json!(4), &json!(0), &json!(1))
    );
    assert_eq!(
        (&seen["others"][0]["session"], &seen["others"][0]["state"]),
        (&json!(out), &json!("removed"))
    );
    // Both commands say the same of who is in line, and that is nobody.
    let (_, said, _) = operate(&consul.address(), &["sessions", PREFIX, "--json"]);
    let rows: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(field(&rows["sessions"], "state"), ["removed", "dead", "dead", "dead"]);
    let table = table_of(&consul, PREFIX);
    assert!(!table.contains('\u{1b}') && table.contains(r"gone\u{1b}[1m"), "{table}");
    assert!(table.contains("over the limit by 3 slots"), "{table}");
    assert!(
        table.contains("3 holders are dead, with 4 slots") && table.contains("slotkeeper prune service/s")
    );
    assert!(table.contains("1 contender key is left by ended sessions"), "{table}");
    assert!(table.contains("removed"), "{table}");
}

#[test]
fn locks_other_things_and_nothing() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (code, said, errors) = operate(&consul.address(), &["inspect", PREFIX]);
    assert_eq!((code, errors.as_str()), (Some(1), ""));
    assert!(
        said.starts_with(
            "service/s: no semaphore and no lock, or, if Consul has ACLs, none is readable without a token"
        ),
        "{said}"
    );
    let (code, said, errors) = operate(&consul.address(), &["inspect", PREFIX, "--json"]);
    assert_eq!((code, errors.as_str()), (Some(1), ""));
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["kind"], "nothing");
    for prefix in ["service/a", "service/b/1", "service/b/2"] {
        operator.put(&format!("{prefix}/.lock"), "x", Put::Plain, 0);
    }
    for (prefix, below) in [
        (PREFIX, "Below service/ there are: service/a, service/b/1, service/b/2\n"),
        ("service/b", "Below service/b/ there are: service/b/1, service/b/2\n"),
        ("service", "Below service/ there are: service/a, service/b/1, service/b/2\n"),
        ("elsewhere", "(--token-file, CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_TOKEN). See slotkeeper list\n"),
    ] {
        let said = operate(&consul.address(), &["inspect", prefix]).1;
        assert!(said.ends_with(below), "{said:?} should end with {below:?}");
    }

    operator.put("service/o/.lock", "a note\u{1b}", Put::Plain, 0);
    let seen = json_of(&consul, "service/o");
    assert_eq!((&seen["kind"], &seen["key"]), (&json!("other"), &json!("service/o/.lock")));
    let table = table_of(&consul, "service/o");
    assert!(
        table.contains("neither semaphore nor lock: it is not a JSON object but `a note")
            && !table.contains('\u{1b}')
    );

    let theirs = ConsulLock::start(&consul, &[PREFIX]);
    wait_for("consul lock to hold", || operator.lock(PREFIX).is_some_and(|lock| lock.session.is_some()));
    for prefix in [PREFIX, "service/s/.lock"] {
        let seen = json_of(&consul, prefix);
        assert_eq!((&seen["kind"], &seen["key"]), (&json!("lock"), &json!("service/s/.lock")));
        assert_eq!((&seen["lock_index"], &seen["holders"][0]["foreign"]), (&json!(1), &json!(true)));
        assert_eq!(seen["modify_index"], operator.lock(PREFIX).unwrap().modify_index);
    }
    drop(theirs);
    let leader = operator.create_session();
    operator.put("service/l", "", Put::Acquire(&leader), LOCK_FLAGS);
    assert!(table_of(&consul, "service/l").starts_with("service/l: lock, taken, "));
    operator.put("service/l", "", Put::Release(&leader), LOCK_FLAGS);
    assert!(table_of(&consul, "service/l").starts_with("service/l: lock, free, "));
}

#[test]
fn five_thousand_waiters_are_counted_and_some_are_shown() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    // Dead ones cost no sessions: as many as a record may name.
    let holders: Vec<_> = (0..5000).map(|place| format!("dead-{place:04}")).collect();
    let record = json!({"Limit": 5000, "Holders": holders}).to_string();
    operator.put(&format!("{PREFIX}/.lock"), &record, Put::Cas(0), 0);
    operator.put(&format!("{PREFIX}/{session}"), "", Put::Acquire(&session), 0);
    let table = table_of(&consul, PREFIX);
    assert!(
        table.lines().count() < 60 && table.contains("… and 4960 more; --output json has all"),
        "{table}"
    );
    assert_eq!(json_of(&consul, PREFIX)["holders"].as_array().unwrap().len(), 5000);
}

/// A command that goes on.
struct Watching {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn start(consul: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(BINARY)
            .args(arguments)
            .env_clear()
            .env("CONSUL_HTTP_ADDR", consul)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads on until a line is as it should be.
    fn await_line(&mut self, is_so: impl Fn(&str) -> bool) -> String {
        self.lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| is_so(line))
            .expect("such a line before the end")
    }

    fn await_json(&mut self, is_so: impl Fn(&Value) -> bool) {
        self.await_line(|line| is_so(&serde_json::from_str(line).unwrap()));
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_watch_shows_each_change_of_its_prefix_alone() {
    let mut consul = Consul::start_persistent();
    let operator = Operator::at(&consul.address());
    let mut watching = Watching::start(&consul.address(), &["inspect", PREFIX, "--watch", "--json"]);
    let mut sessions = Watching::start(&consul.address(), &["sessions", "--watch", "--json"]);
    let mut people = Watching::start(&consul.address(), &["inspect", PREFIX, "--watch"]);
    watching.await_json(|seen| seen["kind"] == "nothing");
    sessions.await_json(|seen| seen["sessions"] == json!([]));
    let session = operator.create_session();
    sessions.await_json(|seen| seen["sessions"][0]["session"] == session);
    // Elsewhere nothing is said of it.
    operator.put("service/s-2/.lock", "x", Put::Plain, 0);
    let record = |limit: u32| format!(r#"{{"Limit":{limit},"Holders":["{session}"]}}"#);
    operator.put(&format!("{PREFIX}/{session}"), "", Put::Acquire(&session), 0);
    operator.put(&format!("{PREFIX}/.lock"), &record(1), Put::Plain, 0);
    watching.await_json(|seen| seen["limit"] == 1 && seen["holders"][0]["state"] == "held");
    people.await_line(|line| line.starts_with("service/s: semaphore (list), 1 of 1"));
    // It goes on where Consul was away.
    consul.stop();
    consul.restart();
    let operator = Operator::at(&consul.address());
    wait_for("a leader that writes", || operator.key(&format!("{PREFIX}/.lock")).is_some());
    operator.put(&format!("{PREFIX}/.lock"), &record(2), Put::Plain, 0);
    watching.await_json(|seen| seen["limit"] == 2);
    operator.destroy(&session);
    people.await_line(|line| line.contains("dead"));
    watching.await_json(|seen| seen["holders"][0]["state"] == "dead");
    kill_process(Pid::from_child(&watching.child), Signal::INT).unwrap();
    let status = watching.child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2));
}

/// However much changes, it is looked at a few times a second.
#[test]
fn a_watch_sends_no_more_requests_than_changes() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut watching = Watching::start(&consul.address(), &["inspect", PREFIX, "--watch", "--json"]);
    watching.await_json(|seen| seen["kind"] == "nothing");
    let record = |limit: u32| format!(r#"{{"Limit":{limit},"Holders":[]}}"#);
    const LAST: u32 = 600;
    #[allow(clippy::disallowed_methods, reason = "a test has no lease")]
    let began = std::time::Instant::now();
    for limit in 1..=LAST {
        operator.put(&format!("{PREFIX}/.lock"), &record(limit), Put::Plain, 0);
    }
    let mut pictures = 0;
    loop {
        let seen: Value = serde_json::from_str(&watching.await_line(|_| true)).unwrap();
        pictures += 1;
        if seen["limit"] == LAST {
            break;
        }
    }
    // At least 0.4 s lie between two of them.
    let most = began.elapsed().as_millis() / 400 + 2;
    assert!(pictures <= most, "{pictures} pictures, {most} at most");
}

#[test]
fn on_a_terminal_it_is_redrawn_in_place_and_its_clock_goes_on() {
    let mut consul = Consul::start_persistent();
    let holder = agent(&consul, "batch-7", "limit: 1");
    holder.await_ready();
    let mut shell = Shell::start_on(Some("xterm"));
    shell.resize(30, 200);
    let address = consul.address();
    shell.press(&format!("clear; {BINARY} inspect {PREFIX} --watch --http-addr {address}\n"));
    let seconds = |screen: &str| {
        let line = screen.lines().find(|line| line.contains("batch-7"))?;
        let span = line.split_whitespace().find_map(|word| word.strip_suffix('s')?.parse::<u32>().ok());
        span.filter(|_| screen.contains("semaphore (list), 1 of 1"))
    };
    let screen = shell.await_screen("the holder", |screen| seconds(screen).is_some());
    let first = seconds(&screen).unwrap();
    let screen =
        shell.await_screen("its clock to go on", |screen| seconds(screen).is_some_and(|now| now > first));
    assert_eq!(screen.matches("semaphore (list)").count(), 1, "{screen}");
    assert_eq!(screen.matches("HOLDER").count(), 1, "{screen}");
    let waiter = agent(&consul, "late", "limit: 1");
    waiter.await_state("waiting");
    shell.await_screen("the waiter", |screen| screen.contains("WAITER") && screen.contains("next"));
    // In a window that is too small, it is cut.
    shell.resize(4, 200);
    shell.await_screen("the cut", |screen| screen.contains("more lines"));
    shell.resize(30, 200);
    // What it saw last is shown on, with its age.
    consul.stop();
    shell.await_screen("its age", |screen| screen.starts_with("as of ") && screen.contains("WAITER"));
    shell.press("\x03");
    shell.press("echo \"code\" $?\n");
    shell.expect("code 130");
}

/// With sessions, a token and numbers as they are, what people look for is there, and no figure is another one.
#[test]
fn in_a_usual_window_identity_and_health_are_visible() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let [holder, _other] = ["batch-7", "batch-9"].map(|pod| {
        let holder = agent(&consul, pod, "limit: 2");
        holder.await_ready();
        holder
    });
    let waiter = agent(&consul, "batch-8", "limit: 2");
    waiter.await_state("waiting");
    wait_for("them to have said who they are", || {
        [&holder, &waiter]
            .iter()
            .all(|one| operator.entry(PREFIX, &one.session())["who"]["pod"] != Value::Null)
    });
    assert_eq!(operate(&consul.address(), &["set-limit", PREFIX, "1"]).0, Some(0));
    let mut shell = Shell::start_on(Some("xterm"));
    shell.resize(24, 80);
    shell.press(&format!("clear; {BINARY} inspect {PREFIX} --watch --http-addr {}\n", consul.address()));
    let screen = shell.await_screen("all of it", |screen| {
        let sentence = "over the limit by 1 slot: no slot is granted until fewer than 1 are held";
        screen.contains("  next") && screen.replace('\n', " ").contains(sentence)
    });
    let words = |begin: &str| -> Vec<&str> {
        let row = screen.lines().find(|row| row.starts_with(begin)).unwrap_or_else(|| panic!("{screen}"));
        row.split_whitespace().collect()
    };
    let [holder, waiter] = [&holder, &waiter].map(|one| one.session());
    assert_eq!(words("HOLDER"), ["HOLDER", "WHO", "AGE", "SLOT", "HEALTH"]);
    assert_eq!(words(&holder[..8])[..2], [&holder[..8], "batch-7"], "{screen}");
    assert_eq!(words(&holder[..8])[3..], ["0", "live"], "{screen}");
    assert_eq!(words("POSITION"), ["POSITION", "WAITER", "WHO", "AGE", "HEALTH", "REMARK"]);
    let position = format!("1         {}", &waiter[..8]);
    assert_eq!(words(&position)[..3], ["1", &waiter[..8], "batch-8"], "{screen}");
    assert_eq!(words(&position)[4..], ["live", "next"], "{screen}");
    assert!(screen.lines().all(|row| row.chars().count() <= 80), "{screen}");
    // What is shown so can be said so.
    let (code, said, _) = operate(&consul.address(), &["evict", PREFIX, &waiter[..8], "--yes"]);
    assert_eq!(code, Some(0), "{said}");
}

/// Nothing changes, so that nothing would be written.
#[test]
fn a_watch_ends_when_its_output_is_closed() {
    let consul = Consul::start();
    for arguments in ["inspect service/s", "sessions"] {
        let watch = format!("{BINARY} {arguments} --watch --http-addr {}", consul.address());
        let script = format!("{watch} | head -1; echo ${{PIPESTATUS[0]}}");
        let mut piped = Command::new("bash").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        wait_for("its end", || piped.try_wait().unwrap().is_some());
        let said = std::io::read_to_string(piped.stdout.take().unwrap()).unwrap();
        assert_eq!((said.lines().count(), said.lines().last()), (2, Some("1")), "{said}");
    }
}

#[test]
fn errors_are_reported() {
    let (code, _, said) = operate("127.0.0.1:1", &["inspect", "/service/s"]);
    assert_eq!((code, said.contains("begins with a slash")), (Some(64), true), "{said}");
    for arguments in [
        &["inspect", PREFIX][..],
        &["inspect", PREFIX, "--watch", "--json"],
        &["prune", PREFIX],
        &["destroy", PREFIX],
    ] {
        let (code, out, said) = operate("127.0.0.1:1", arguments);
        assert_eq!((code, out.as_str()), (Some(69), ""), "{arguments:?}: {said}");
        assert!(said.contains("at http://127.0.0.1:1: not reached"), "{said}");
    }
}
