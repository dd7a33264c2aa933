//! Several addresses of Consul.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use slotkeeper::internals::log_events;
use tokio::runtime::Runtime;

use crate::hold::ONE;
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home, Lodger};
use crate::run::job::{Job, bare};
use crate::support::cluster::Cluster;
use crate::support::http;
use crate::support::life::MEEK;
use crate::support::ports::Ports;
use crate::support::proxy::Proxy;
use crate::support::traffic::Kind;
use crate::wait_for;

/// A cluster of its own, which tells the same peers as every other one of its kind. It is killed with this value.
struct Dev {
    child: Child,
    address: String,
}

impl Dev {
    fn start(ports: &Ports, number: u16) -> Self {
        let address = ports.addr(number).to_string();
        let mut command = Command::new(BINARY);
        bare(command.args(["dev", "--listen", &address]));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for("the development server", || std::net::TcpStream::connect(&address).is_ok());
        Self { child, address }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Its lease is waited for, but survives a machine that stands still for ten seconds.
const SHORT: &str = "session: {ttl: 20s}\nsemaphores: [{name: s, prefix: p/s, limit: 1, format: list}]";

fn addresses(agent: &Lodger) -> Vec<(String, String)> {
    let status = agent.status();
    let all = status["consul"]["addresses"].as_array().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    all.iter().map(|one| (text(&one["address"]), text(&one["state"]))).collect()
}

/// An agent that uses the first of its addresses. On a busy machine that may not have answered in time: then this agent ends and
/// another is started.
fn on_the_first(start: impl Fn() -> Lodger) -> Lodger {
    let mut found = None;
    wait_for("an agent that uses the first address", || {
        let mut agent = start();
        wait_for("the session", || !agent.session().is_empty());
        if addresses(&agent)[0].1 != "used" {
            assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
            return false;
        }
        found = Some(agent);
        true
    });
    found.unwrap()
}

#[test]
fn another_cluster_is_not_written_to_before_the_lease_has_expired() {
    let ports = Ports::reserve();
    let (mut first, second) = (Dev::start(&ports, 0), Dev::start(&ports, 1));
    let proxy = Proxy::start_apart(second.address.parse().unwrap());
    // There, somebody else has the slot.
    let mut other = Lodger::start(&second.address, SHORT);
    other.await_ready();
    let agent = on_the_first(|| Lodger::start(&format!("{},{}", first.address, proxy.addr()), SHORT));
    agent.await_ready();
    let session = agent.session();
    assert_eq!(addresses(&agent)[1], (format!("http://{}", proxy.addr()), "unknown".into()));
    assert_eq!(addresses(&agent)[0], (format!("http://{}", first.address), "used".into()));
    first.kill();
    // Asked is the other one for the session, and for its leader once there is no lease.
    let used = || proxy.asked().iter().any(|asked| asked.kind != Kind::Other);
    wait_for("the lease to expire", || {
        let is_used = used();
        let is_held = agent.is_ready();
        assert!(
            !(is_used && is_held),
            "the other cluster is used while the slot is believed in:\n{}",
            agent.log()
        );
        !is_held
    });
    agent.await_state("waiting");
    assert_eq!(addresses(&agent)[1].1, "used");
    assert_ne!(agent.session(), session);
    let operator = Operator::at(&second.address);
    assert_eq!(operator.holders("p/s"), [other.session()]);
    assert!(operator.session(&session).is_none());
    let log = agent.log();
    assert_eq!(log.matches(log_events::CONSUL_ADDRESS_CHANGED).count(), 1, "{log}");
    // What it is in line for is the other cluster's slot, and is granted there.
    assert_eq!(other.terminate(), Some(0), "{}", other.log());
    agent.await_ready();
    assert_eq!(operator.holders("p/s"), [agent.session()]);
}

/// The first listed one is another cluster's, and was not there before.
#[test]
fn a_restarted_agent_finds_its_session_and_touches_no_other_cluster() {
    let ports = Ports::reserve();
    let own = Dev::start(&ports, 1);
    let (first, list) = (ports.addr(0).to_string(), format!("{},{}", ports.addr(0), own.address));
    let home = Home::new();
    let session = "ttl: 30s, state_file: $HOME/state/session.json";
    home.configure(&own.address, &ONE.replace("ttl: 10s", session));
    let start = || Agent::start_with(&home, &["--http-addr", &list], &[]);
    let mut agent = start();
    agent.await_ready();
    let (session, token) = (agent.session(), agent.semaphore()["fencing_token"].clone());
    wait_for("the token in the state file", || {
        let text = std::fs::read_to_string(home.path("state/session.json")).unwrap_or_default();
        text.contains(&token.to_string()) && text.contains("\"ttl_ms\":30000")
    });
    agent.signal(Signal::KILL);
    agent.ended();
    let _other = Dev::start(&ports, 0);
    let mut agent = start();
    agent.await_ready();
    assert_eq!((agent.session(), &agent.semaphore()["fencing_token"]), (session, &token));
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    let others = Operator::at(&first);
    assert_eq!((others.keys("service/s").len(), others.sessions().len()), (0, 0));
}

#[test]
fn commands_take_several_addresses() {
    let ports = Ports::reserve();
    let dev = Dev::start(&ports, 0);
    let list = format!("{},{}", ports.addr(1), dev.address);
    let mut job = Job::start(&list, &["p/x", "-n", "2"], &["true"]);
    assert_eq!(job.code(), Some(0), "{}", job.log());
    for words in [&["inspect", "p/x"][..], &["sessions"], &["set-limit", "p/x", "3"], &["prune", "p/x"]] {
        wait_for("a look that does not run out of its time", || {
            let mut command = Command::new(BINARY);
            bare(command.args(words));
            let output = command.env("CONSUL_HTTP_ADDR", &list).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let is_slow = said.contains("no answer within 3s");
            assert!(is_slow || output.status.success(), "{words:?}: {said}");
            !is_slow
        });
    }
}

/// Three servers, none of which the sessions depend on.
fn cluster(runtime: &Runtime) -> Cluster {
    let cluster = runtime.block_on(Cluster::start());
    let node = r#"{"Node": "slots", "Address": "127.0.0.1", "NodeMeta": {"external-node": "true"}}"#;
    wait_for("the node to be registered, perhaps after an election", || {
        let register = http::put(cluster.addr(0), "/v1/catalog/register", node);
        runtime.block_on(register).status == 200
    });
    cluster
}

#[test]
fn the_death_of_the_used_server_costs_no_slot() {
    const TRIALS: usize = 3;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut cluster = cluster(&runtime);
    let mut moved = 0;
    for trial in 0..TRIALS {
        let leader = runtime.block_on(cluster.await_leader());
        let used = (leader + 1) % 3;
        let list = [used, leader, (leader + 2) % 3].map(|server| cluster.addr(server).to_string()).join(",");
        let prefix = format!("p/{trial}");
        // Such that both survive an election, which a busy machine may bring.
        let run = ["--node", "slots", "--ttl", "30s", "--kill-after", "1s", "-n", "1"];
        let run: Vec<&str> = [&[prefix.as_str()], &run[..]].concat();
        let mut job = Job::live(&list, &run, MEEK);
        let config = format!(
            "session: {{ttl: 30s, node: slots}}\nsemaphores: [{{name: s, prefix: a/{trial}, limit: 1, on_lost: exit}}]"
        );
        let mut agent = on_the_first(|| Lodger::start(&list, &config));
        agent.await_ready();
        job.await_life();
        let token = agent.semaphore()["fencing_token"].clone();
        runtime.block_on(cluster.stop(used, Signal::KILL));
        let renewed = agent.metric("slotkeeper_session_renew_duration_seconds_count");
        // Longer than the lease.
        wait_for("renewals by another server", || {
            assert!(!agent.has_ended() && job.is_running(), "{}\n{}", agent.log(), job.log());
            agent.metric("slotkeeper_session_renew_duration_seconds_count") >= renewed + 4.0
        });
        assert_eq!(agent.semaphore()["fencing_token"], token, "{}", agent.log());
        assert_eq!(
            agent.metric("slotkeeper_slots_lost_total{reason=\"lease_expired\",semaphore=\"s\"}"),
            0.0
        );
        assert!(agent.log().contains(log_events::CONSUL_ADDRESS_CHANGED), "{}", agent.log());
        // One that was slow at its start has used another one from there on.
        moved += usize::from(job.log().contains(log_events::CONSUL_ADDRESS_CHANGED));
        job.signal(Signal::TERM);
        assert_eq!(job.code(), Some(143), "{}", job.log());
        assert_eq!(agent.terminate(), Some(0));
        runtime.block_on(cluster.restart(used));
        for prefix in [prefix, format!("a/{trial}")] {
            Operator::at(&cluster.addr(used).to_string()).assert_nothing_left(&prefix);
        }
    }
    assert!(moved > 0, "no command has lost its server");
}

/// It answers its clients, and has no leader; the others have one.
#[test]
fn the_agent_leaves_an_isolated_server_and_keeps_its_slot() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cluster = cluster(&runtime);
    let leader = runtime.block_on(cluster.await_leader());
    let cut = (leader + 1) % 3;
    let list = [cut, leader].map(|server| cluster.addr(server).to_string()).join(",");
    let config =
        "session: {ttl: 90s, node: slots}\nsemaphores: [{name: s, prefix: p/cut, limit: 1, on_lost: exit}]";
    let mut agent = on_the_first(|| Lodger::start(&list, config));
    agent.await_ready();
    let token = agent.semaphore()["fencing_token"].clone();
    cluster.cut_off(cut, true);
    wait_for("the other server to be used", || addresses(&agent)[1].1 == "used");
    assert_eq!((agent.is_ready(), &agent.semaphore()["fencing_token"]), (true, &token), "{}", agent.log());
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    Operator::at(&cluster.addr(leader).to_string()).assert_nothing_left("p/cut");
}
