//! Sessions whose creation got no answer: they hold no key, and end by their TTL.

use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::hold::ONE;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::proxy::{Fault, Proxy};
use crate::support::traffic::Kind;
use crate::wait_for;

struct Scene {
    _consul: Consul,
    proxy: Proxy,
    operator: Operator,
    home: Home,
}

/// A Consul behind a proxy, which is to lose the answers to so many creations of sessions.
fn scene(lost: usize) -> Scene {
    let consul = Consul::start();
    let proxy = Proxy::start_apart(consul.address().parse().unwrap());
    proxy.fail_next("/v1/session/create", &vec![Fault::LosesAnswer; lost]);
    let (operator, home) = (Operator::at(&consul.address()), Home::new());
    home.configure(&proxy.addr().to_string(), &ONE.replace("10s", "30s"));
    Scene { _consul: consul, proxy, operator, home }
}

#[test]
fn a_creation_without_an_answer_is_repeated_and_leaves_no_key() {
    let Scene { proxy, operator, home, .. } = &scene(3);
    let mut agent = Agent::start(home);
    agent.await_ready();
    assert_eq!(proxy.faults_left(), 0);
    let sessions = operator.sessions();
    assert_eq!(sessions.len(), 4, "{sessions:?}");
    let who = format!("slotkeeper s: {} pid {}", host(), agent.pid());
    assert!(sessions.iter().all(|session| session.name == who), "{sessions:?}");
    let kinds: Vec<_> = proxy.asked().into_iter().map(|asked| asked.kind).collect();
    // `.lock` is read beside the creation, once.
    let (reads, creations): (Vec<_>, Vec<_>) = kinds[..5].iter().partition(|kind| **kind == Kind::KvGet);
    assert_eq!((reads.len(), creations), (1, vec![Kind::SessionCreate; 4]));
    assert_eq!(agent.terminate(), Some(0));
    assert!(
        agent.log().contains(&format!("{}: no slot and no session", log_events::DRAINED)),
        "{}",
        agent.log()
    );
    // What no client knows of has no key, and ends by its TTL.
    assert_eq!(operator.sessions().len(), 3);
    let keys: Vec<_> = operator.keys("service/s").into_iter().map(|pair| pair.key).collect();
    assert_eq!((keys, operator.holders("service/s")), (vec!["service/s/.lock".to_owned()], vec![]));
}

#[test]
fn an_agent_stopped_meanwhile_ends_in_time() {
    let Scene { proxy, home, .. } = &scene(100);
    let agent = Agent::start(home);
    wait_for("a session that nobody was told of", || proxy.faults_left() < 99);
    let mut agent = agent;
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
}

pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
