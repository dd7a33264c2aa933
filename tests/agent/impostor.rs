//! An agent whose Consul is somebody else's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::process::Lodger;
use crate::wait_for;

/// Bytes of the longest answer that is taken in, and a little less.
const LONG: usize = 16 * 1024 * 1024 - 1000;
/// Resident memory that it may cost at its highest, in KiB. A list of as many keys as fit cost 190 MB when it was measured.
const MEMORY: u64 = 300 * 1024;
const SESSION: &str = "5e550000-0000-4000-8000-000000000000";

/// Answers every read with `list`, makes and renews sessions, and lets no transaction through.
fn impostor(list: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let list = Arc::new(list);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let list = Arc::clone(&list);
            std::thread::spawn(move || serve(stream, &list));
        }
    });
    address
}

fn serve(stream: TcpStream, list: &str) -> Option<()> {
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone().ok()?), stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            match header.to_lowercase().strip_prefix("content-length:") {
                Some(value) => length = value.trim().parse().ok()?,
                None if header == "\r\n" => break,
                None => {}
            }
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        let (status, body) = match line.split(' ').nth(1)? {
            path if path.contains("/session/create") => (200, format!(r#"{{"ID":"{SESSION}"}}"#)),
            path if path.contains("/session/renew") => (
                200,
                format!(
                    r#"[{{"ID":"{SESSION}","Node":"n","Behavior":"delete","CreateIndex":1,"ModifyIndex":1}}]"#
                ),
            ),
            path if path.contains("/txn") => {
                (409, r#"{"Errors":[{"OpIndex":0,"What":"key \"k\" exists"}]}"#.to_owned())
            }
            _ => (200, list.to_owned()),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\nX-Consul-Index: 7\r\nContent-Length: {length}\r\n\r\n");
        writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(body.as_bytes())).ok()?;
    }
}

fn highest_kib(agent: &Lodger) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn pair(key: &str, more: &str) -> String {
    format!(r#"{{"Key":"{key}","Flags":0,"LockIndex":0,"CreateIndex":1,"ModifyIndex":1,{more}}}"#)
}

/// An agent that has looked at what the impostor shows.
fn agent(list: String) -> Lodger {
    let agent = Lodger::start(&impostor(list), "semaphores: [{name: s, prefix: p, limit: 1}]");
    wait_for("the agent to have seen it", || !agent.semaphore()["seen_seconds_ago"].is_null());
    agent
}

#[test]
fn a_record_of_millions_of_holders_is_refused() {
    let holders = r#","a""#.repeat((LONG / 4 * 3 - 1000) / 4);
    let record = BASE64.encode(format!(r#"{{"Limit":1,"Holders":["a"{holders}]}}"#));
    let agent = agent(format!("[{}]", pair("p/.lock", &format!(r#""Value":"{record}""#))));
    agent.await_state("blocked");
    assert!(agent.log().contains("more than any semaphore's record"), "{}", agent.log());
    assert!(highest_kib(&agent) < MEMORY, "{} KiB", highest_kib(&agent));
    assert!(agent.get("/v1/status").body.len() < 10_000);
}

#[test]
fn a_hundred_thousand_contenders_cost_what_their_list_costs() {
    let one = |number: usize| pair(&format!("p/{number}"), &format!(r#""Session":"{number}""#));
    let list: Vec<_> = (0..LONG / (one(LONG).len() + 1)).map(one).collect();
    assert!(list.len() > 100_000);
    let agent = agent(format!("[{}]", list.join(",")));
    assert!(highest_kib(&agent) < MEMORY, "{} KiB", highest_kib(&agent));
    assert_eq!(agent.get("/livez").status, 200);
    assert!(agent.get("/v1/status").body.len() < 10_000);
}
