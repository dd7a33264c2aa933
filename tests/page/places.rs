//! Browsers have few connections to an address, and an agent few places for those that follow it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::browser::Browser;
use crate::consul::Consul;
use crate::process::Lodger;
use crate::wait_for;

/// Places of an agent.
const PLACES: usize = 32;
const ONE: &str = "semaphores: [{name: writers, prefix: service/writers, limit: 1}]";
const LIVE: &str = "Everything that is required is held.";

/// Takes all places that are left.
fn fill(address: &str) -> Vec<TcpStream> {
    let mut followers = Vec::new();
    loop {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET /v1/events HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        match &status {
            b"HTTP/1.1 200" => followers.push(stream),
            b"HTTP/1.1 503" => return followers,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
}

#[test]
fn of_many_tabs_the_one_in_front_alone_follows_the_agent() {
    let consul = Consul::start();
    let agent = Lodger::start(&consul.address(), ONE);
    agent.await_ready();
    let mut page = Browser::open(agent.address());
    page.await_texts(&[LIVE]);
    for _ in 1..8 {
        page.open_another();
        page.await_texts(&[LIVE]);
    }
    wait_for("the places of those in the background", || fill(agent.address()).len() == PLACES - 1);
    for tab in [0, 4] {
        page.bring_to_front(tab);
        page.await_texts(&[LIVE]);
        wait_for("the others to claim nothing", || {
            let titles = page.titles();
            let live = titles.iter().position(|title| title == "Ready · slotkeeper");
            let before = titles.iter().filter(|title| title.starts_with("Ready at "));
            live == Some(tab) && before.count() == 7
        });
        page.assert_quiet(&[]);
    }
    assert_eq!(page.asked().len(), 2, "once when it was opened, once when it came to the front");
}

#[test]
fn an_agent_without_a_place_is_asked_again_in_peace() {
    let consul = Consul::start();
    let agent = Lodger::start(&consul.address(), ONE);
    agent.await_ready();
    let followers = fill(agent.address());
    assert_eq!(followers.len(), PLACES);
    let mut page = Browser::open(agent.address());
    page.await_texts(&["or is followed by as many as it has places for. Trying again."]);
    page.assert_accessible("full");
    let mut refused = Vec::new();
    wait_for("four requests", || {
        refused = page.asked();
        refused.retain(|at| *at > 0.0);
        refused.len() >= 4
    });
    // `Retry-After: 5`. A busy browser sends one later than the page has asked for it, and so the next one sooner after it.
    let took = refused[refused.len() - 1] - refused[0];
    assert!(took > 4000.0 * (refused.len() - 1) as f64, "{refused:?}");
    drop(followers);
    page.await_texts(&[LIVE]);
    page.await_gone("as many as it has places for");
    page.assert_quiet(&["503"]);
}
