//! `slotkeeper dev` as users run it, and with Consul's own command line as its client.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "this fails a test, nothing else")]

#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use slotkeeper_consul_dev::Options;
use support::embedded::Embedded;
use support::{consul, http};
use tokio::time::Instant;

/// A running `slotkeeper dev`; it ends with this value.
struct Dev {
    child: Child,
    lines: Vec<String>,
}

impl Dev {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(flags: &[&str]) -> Self {
        let mut command = command(&["dev", "--listen", "127.0.0.1:0"]);
        let mut child = command.args(flags).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let lines = out.lines().take(2).map(Result::unwrap).collect();
        Self { child, lines }
    }

    fn url(&self) -> String {
        self.lines[1].strip_prefix("export CONSUL_HTTP_ADDR=").unwrap().to_owned()
    }

    fn addr(&self) -> SocketAddr {
        self.url().strip_prefix("http://").unwrap().parse().unwrap()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slotkeeper"));
    command.args(args);
    command
}

/// Runs `consul` against the server.
fn consul(dev: &Dev, args: &[&str]) -> Output {
    Command::new(consul::binary()).args(args).env("CONSUL_HTTP_ADDR", dev.url()).output().unwrap()
}

#[tokio::test]
async fn it_prints_its_version_and_ends_cleanly_on_either_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut dev = Dev::start();
        assert!(dev.lines[0].contains("development only") && dev.lines[0].contains("in memory"));
        assert!(dev.lines[0].contains(&dev.url()));
        let addr = dev.addr();
        assert_eq!(http::put(addr, "/v1/kv/a", "x").await.json(), true);
        // A long poll that is open does not hold it up.
        let index = http::get(addr, "/v1/kv/a").await.index();
        let path = format!("/v1/kv/a?index={index}&wait=60s");
        let poll = tokio::spawn(async move {
            http::try_request(addr, "GET", &path, &[], http::Body::None).await.is_err()
        });
        http::get(addr, "/v1/kv/a").await;
        kill_process(Pid::from_child(&dev.child), signal).unwrap();
        assert_eq!(dev.child.wait().unwrap().code(), Some(0), "{signal:?}");
        assert!(poll.await.unwrap(), "the poll is cut off");
    }
}

#[test]
fn an_address_that_others_could_reach_is_wrong_usage() {
    for address in ["0.0.0.0:8500", "192.0.2.1:8500", "nonsense"] {
        let output = command(&["dev", "--listen", address]).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{address}");
    }
}

#[tokio::test]
async fn it_behaves_like_the_version_that_is_asked_for() {
    for (flags, version, operations) in [
        (&[][..], "1.22.0", 128),
        (&["--behave-like", "1.8"], "1.8.7", 64),
        (&["--behave-like=1.22"], "1.22.0", 128),
    ] {
        let dev = Dev::start_with(flags);
        let this = http::get(dev.addr(), "/v1/agent/self").await.json();
        assert_eq!(this["Config"]["Version"], version);
        let ops = vec![r#"{"KV":{"Verb":"set","Key":"a"}}"#; operations + 1].join(",");
        let refused = http::put(dev.addr(), "/v1/txn", format!("[{ops}]")).await;
        assert!(
            refused.text().contains(&format!("({} > {operations})", operations + 1)),
            "{}",
            refused.text()
        );
    }
}

#[tokio::test]
async fn operators_settings_can_be_set() {
    let dev = Dev::start_with(&[
        "--session-ttl-min=90s",
        "--kv-max-value-size=10",
        "--read-rate=1",
        "--write-rate=1",
        "--restricted-token=some",
        "--hide-keys=secret/",
        "--hide-sessions",
    ]);
    let addr = dev.addr();
    let create = http::put(addr, "/v1/session/create", r#"{"TTL":"89s"}"#).await;
    assert!(create.text().contains("must be between [1m30s=24h0m0s]"), "{}", create.text());
    assert_eq!(http::put(addr, "/v1/kv/a", "x".repeat(11)).await.status, 413);
    assert_eq!(http::put(addr, "/v1/kv/secret/b", "x").await.json(), true);
    let token = [("Authorization", "Bearer some")];
    let list = http::request(addr, "GET", "/v1/kv/?keys", &token, http::Body::None).await;
    assert_eq!(
        (list.text().as_str(), list.header("x-consul-results-filtered-by-acls")),
        ("[]", Some("true"))
    );
    let refused = http::request(addr, "PUT", "/v1/session/create", &token, http::Body::Sized(b"{}")).await;
    assert_eq!(refused.status, 403);
    let mut codes = Vec::new();
    for _ in 0..40 {
        codes.push(http::get(addr, "/v1/kv/a").await.status);
        codes.push(http::put(addr, "/v1/kv/a", "x").await.status);
    }
    assert!(codes.contains(&429) && codes.contains(&503), "{codes:?}");
}

#[test]
fn connections_of_one_address_can_be_limited() {
    // Nothing else is asked of it: a connection counts until the server has seen its end, which may take a while.
    let dev = Dev::start_with(&["--http-max-conns-per-client=2"]);
    let addr = dev.addr();
    let open = [TcpStream::connect(addr).unwrap(), TcpStream::connect(addr).unwrap()];
    let mut said = String::new();
    TcpStream::connect(addr).unwrap().read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{said}");
    drop(open);
}

#[test]
fn impossible_settings_are_wrong_usage() {
    for flags in [
        &["--behave-like=1.9"][..],
        &["--kv-max-value-size=0"],
        &["--kv-max-value-size=1000000000"],
        &["--session-ttl-min=0s"],
        &["--session-ttl-min=25h"],
        &["--http-write-timeout=2h"],
        &["--read-rate=0"],
        &["--http-max-conns-per-client=0"],
        &["--hide-keys=a"],
        &["--hide-sessions"],
    ] {
        let output = command(&["dev", "--listen", "127.0.0.1:0"]).args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{flags:?}");
    }
}

/// As in Go's HTTP server: the wait goes on, and it is what came of it that is lost.
#[tokio::test]
async fn an_answer_after_the_write_time_out_is_lost_with_its_connection() {
    let dev = Dev::start_with(&["--http-write-timeout=5s"]);
    let addr = dev.addr();
    assert_eq!(http::put(addr, "/v1/kv/a", "x").await.json(), true);
    let index = http::get(addr, "/v1/kv/a").await.index();
    let poll = |index: u64, wait: &str| format!("/v1/kv/a?index={index}&wait={wait}");
    assert_eq!(http::get(addr, &poll(index, "10ms")).await.status, 200);
    // The time of a poll begins when the server has it, which on a busy machine may be seconds later: what is written before
    // that time is over is answered, so each next write comes later.
    let (mut read, mut lost) = (index, None);
    for seconds in [7, 14, 28, 56] {
        let (began, after) = (Instant::now(), Duration::from_secs(seconds));
        let path = poll(read, "80s");
        let polled = async {
            let answer = http::try_request(addr, "GET", &path, &[], http::Body::None).await;
            (answer, began.elapsed())
        };
        let write = async {
            tokio::time::sleep(after).await;
            http::put(addr, "/v1/kv/a", format!("news after {seconds} s")).await
        };
        let ((polled, took), written) = tokio::join!(polled, write);
        assert_eq!(written.json(), true);
        assert!(took >= after, "it ends when it would have been answered");
        match polled {
            Ok(answer) => read = answer.index(),
            Err(error) => {
                lost = Some(error.to_string());
                break;
            }
        }
    }
    let lost = lost.expect("an answer after its time");
    assert!(lost.contains("half an answer: \"\""), "{lost}");
    // The same request again is answered at once.
    assert!(http::get(addr, &poll(read, "60s")).await.index() > read);
}

#[tokio::test]
async fn a_body_has_to_arrive_within_the_read_time_out() {
    // Whatever a whole body takes on a busy machine.
    let dev = Dev::start_with(&["--http-read-timeout=5s"]);
    let addr = dev.addr();
    assert_eq!(http::put(addr, "/v1/kv/a", "x").await.json(), true);
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(b"PUT /v1/kv/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"");
    assert_eq!(http::get(addr, "/v1/kv/a?raw").await.body, b"x");
}

#[test]
fn an_address_in_use_is_an_error() {
    let dev = Dev::start();
    let taken = dev.url();
    let taken = taken.strip_prefix("http://").unwrap();
    let output = command(&["dev", "--listen", taken]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(taken) && said.contains("in use"), "{said}");
}

#[test]
fn consuls_own_command_line_works_with_it() {
    let dev = Dev::start();
    assert!(consul(&dev, &["kv", "put", "a", "one"]).status.success());
    assert_eq!(consul(&dev, &["kv", "get", "a"]).stdout, b"one\n");
    // Four clients of a semaphore of two. Each holds for a moment and counts the other holders.
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let hold = format!(
        "mkdir {place}/held-$$ && ls {place} | grep -c held- >> {place}/counts; sleep 0.2; rmdir {place}/held-$$"
    );
    let lock = || consul(&dev, &["lock", "-child-exit-code", "-n", "2", "sem", &hold]);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(lock)).collect();
        for client in clients {
            let output = client.join().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    });
    let counts = std::fs::read_to_string(folder.path().join("counts")).unwrap();
    assert_eq!(counts.lines().count(), 4);
    assert!(counts.lines().all(|count| count == "1" || count == "2"), "{counts}");
    // `consul lock` leaves nothing behind, not even sessions.
    assert!(consul(&dev, &["kv", "get", "-recurse", "sem"]).stdout.is_empty());
}

#[tokio::test]
async fn a_test_may_ask_for_shorter_times() {
    let options = Options { expiry_factor: 1, min_ttl: Duration::from_millis(100), ..Options::default() };
    let server = Embedded::start_with(options);
    let short = http::put(server.addr(), "/v1/session/create", r#"{"TTL":"99ms"}"#).await;
    assert_eq!(short.text(), "Invalid Session TTL '99000000', must be between [100ms=24h0m0s]");
    // On a busy machine such a session can be over before it is looked at.
    let (info, alive) = loop {
        let created = http::put(server.addr(), "/v1/session/create", r#"{"TTL":"100ms"}"#).await;
        let info = format!("/v1/session/info/{}", created.json()["ID"].as_str().unwrap());
        let seen = http::get(server.addr(), &info).await;
        if seen.text() != "[]" {
            break (info, seen);
        }
    };
    // There is no write here: the reader wakes up because a session expires.
    let began = Instant::now();
    let blocked = format!("{info}?index={}&wait=60s", alive.index());
    assert_eq!(http::get(server.addr(), &blocked).await.text(), "[]");
    assert!(began.elapsed() < Duration::from_secs(30));
}
