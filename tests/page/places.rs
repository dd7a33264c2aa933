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
const LIVE: &str = "Everything required is held.";

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
    let who = agent.status()["agent"]["who"].clone();
    let title = format!("Ready · {} pid {} · slotkeeper", who["host"].as_str().unwrap(), agent.pid());
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
            let live = titles.iter().position(|one| *one == title);
            let before = titles.iter().filter(|title| title.starts_with("Ready at "));
            live == Some(tab) && before.count() == 7
        });
        page.assert_quiet(&[]);
    }
    assert_eq!(page.requests(), 2, "once when it was opened, once when it came to the front");
}

#[test]
fn an_agent_without_a_free_stream_is_retried_slowly() {
    let consul = Consul::start();
    let agent = Lodger::start(&consul.address(), ONE);
    agent.await_ready();
    let followers = fill(agent.address());
    assert_eq!(followers.len(), PLACES);
    let mut page = Browser::open(agent.address());
    page.await_texts(&["or has reached its limit of followers. Retrying."]);
    page.assert_accessible("full");
    wait_for("three requests", || page.requests() >= 3);
    let refused = page.asked();
    // `Retry-After: 5`
    assert!(refused.windows(2).all(|two| two[1] - two[0] > 5000.0), "{refused:?}");
    assert!(page.requests() <= page.asked().len(), "the browser asked by itself");
    drop(followers);
    page.await_texts(&[LIVE]);
    page.await_gone("limit of followers");
    page.assert_quiet(&["503"]);
}
