//! When the connection to the agent is gone, and when it is back.

use rustix::process::Signal;

use crate::browser::Browser;
use crate::consul::Consul;
use crate::process::{Agent, Home};
use crate::support::ports::Ports;

/// What a browser says by itself of a connection that ends.
const EXPECTED: &[&str] =
    &["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET"];

const ONE: &str = "session: {ttl: 60s, state_file: '$HOME/session.json'}\n\
                   semaphores: [{name: writers, prefix: service/writers, limit: 2}]";

#[test]
fn the_page_says_that_the_agent_is_gone_and_back() {
    let consul = Consul::start();
    let (home, ports) = (Home::new(), Ports::reserve());
    home.configure(&consul.address(), ONE);
    let address = ports.addr(0).to_string();
    let start = || Agent::start_with(&home, &[], &[("SLOTKEEPER_HTTP_LISTEN", &address)]);
    let mut agent = start();
    agent.await_ready();
    let mut page = Browser::open(&address);
    page.await_texts(&["Everything required is held.", "acquired"]);
    assert_eq!(page.count("#gone:visible"), 0);

    agent.signal(Signal::KILL);
    agent.ended();
    page.await_texts(&["The connection to the agent is gone since", "Ready when last seen", "Held for"]);
    page.assert_accessible("gone");

    // Its successor takes the session up again.
    let mut agent = start();
    page.await_gone("The connection to the agent is gone");
    page.await_texts(&["Everything required is held.", "resumed", "acquired"]);

    // One that stands still closes nothing: the silence is what tells.
    agent.signal(Signal::STOP);
    page.await_texts(&["The connection to the agent is gone since"]);
    agent.signal(Signal::CONT);
    page.await_gone("The connection to the agent is gone");

    assert_eq!(agent.terminate(), Some(0));
    page.await_texts(&["The agent has ended: it was draining.", "Released", "draining"]);
    page.assert_quiet(EXPECTED);
}
