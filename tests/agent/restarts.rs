//! A cluster at Consul's defaults, whose client agent is restarted, and whose servers are replaced.

use rustix::process::Signal;

use crate::operator::Operator;
use crate::process::Lodger;
use crate::run::job::Job;
use crate::support::http::{self, Body};
use crate::support::life::MEEK;
use crate::support::shipped::{CLIENT, Stage};
use crate::wait_for;

/// A command under `run` and an agent, both at their defaults, at these addresses.
struct Held {
    job: Job,
    agent: Lodger,
    token: serde_json::Value,
}

impl Held {
    fn at(address: &str, name: &str) -> Self {
        let (semaphore, run) = (format!("p/{name}/agent"), format!("p/{name}/run"));
        let job = Job::live(address, &[&run, "-n", "1"], MEEK);
        let agent = Lodger::start(
            address,
            &format!("semaphores: [{{name: s, prefix: {semaphore}, limit: 1, on_lost: exit}}]"),
        );
        agent.await_ready();
        job.await_life();
        let token = agent.semaphore()["fencing_token"].clone();
        Self { job, agent, token }
    }

    /// Both have what they had, and go on renewing it.
    fn assert_goes_on(&mut self, after: &str) {
        let renewals = |agent: &Lodger| agent.metric("slotkeeper_session_renew_duration_seconds_count");
        let (renewed, beats) = (renewals(&self.agent), self.job.life().beats());
        wait_for(&format!("renewals after {after}"), || {
            assert!(
                !self.agent.has_ended() && self.job.is_running(),
                "{after}: {}\n{}",
                self.agent.log(),
                self.job.log()
            );
            renewals(&self.agent) >= renewed + 2.0 && self.job.life().beats() > beats
        });
        assert!(self.agent.is_ready(), "{after}: {}", self.agent.log());
        assert_eq!(self.agent.semaphore()["fencing_token"], self.token, "{after}: {}", self.agent.log());
    }

    fn end(mut self) {
        self.job.signal(Signal::TERM);
        assert_eq!(self.job.code(), Some(143), "{}", self.job.log());
        assert_eq!(self.agent.terminate(), Some(0));
    }
}

#[test]
fn a_restart_of_the_client_agent_and_new_servers_cost_no_slot() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut stage = runtime.block_on(Stage::start());
    let at = |nodes: &[usize]| {
        nodes.iter().map(|node| stage.addr(*node).to_string()).collect::<Vec<_>>().join(",")
    };
    let mut held = [Held::at(&at(&[CLIENT]), "client"), Held::at(&at(&[0, 1, 2]), "servers")];
    // A session on the client agent's own node ends with it, whatever its TTL.
    let created = http::put(stage.addr(CLIENT), "/v1/session/create", r#"{"NodeChecks":[],"TTL":"1h"}"#);
    let other = runtime.block_on(created).json()["ID"].as_str().unwrap().to_owned();
    runtime.block_on(stage.stop(CLIENT, Signal::TERM));
    let info = format!("/v1/session/info/{other}");
    wait_for("the end of the other session", || {
        let info = http::try_request(stage.addr(1), "GET", &info, &[], Body::None);
        runtime.block_on(info).is_ok_and(|info| info.status == 200 && info.text().trim() == "[]")
    });
    runtime.block_on(stage.restart(CLIENT));
    held.iter_mut().for_each(|one| one.assert_goes_on("the client agent's restart"));
    // The first of them is the server that one of them uses.
    for server in 0..CLIENT {
        runtime.block_on(stage.replace(server));
        held.iter_mut().for_each(|one| one.assert_goes_on(&format!("the replacement of server {server}")));
    }
    let operator = stage.addr(CLIENT).to_string();
    held.into_iter().for_each(Held::end);
    for prefix in ["p/client/agent", "p/client/run", "p/servers/agent", "p/servers/run"] {
        Operator::at(&operator).assert_nothing_left(prefix);
    }
}
