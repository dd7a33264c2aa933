//! The dashboard's and the rules' expressions, asked of a real Prometheus that scrapes a small fleet: six agents on two
//! slots and a lock, clients that take a third thing on demand, agents that come, go and are killed.

use std::collections::BTreeSet;
use std::time::SystemTime;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::consul::Consul;
use crate::http::request_with;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::prometheus::Prometheus;
use crate::{dashboard, rules, wait_for};

const CONFIG: &str = "session: {ttl: 15s, lock_delay: 0s}\n\
                      semaphores: [{name: warehouse, prefix: service/warehouse, limit: 2},\n\
                      \x20 {name: licences, prefix: service/licences, limit: 1, mode: on_demand}]\n\
                      locks: [{name: leader, key: service/leader, required: false}]\n\
                      control: {listen: '127.0.0.1:0', token_file: '$HOME/control.token'}\n";

/// An agent that can be replaced by its successor.
struct Member {
    agent: Agent,
    home: Home,
}

impl Member {
    fn start(consul: &Consul) -> Self {
        let home = Home::new();
        home.configure(&consul.address(), CONFIG);
        Self { agent: Agent::start(&home), home }
    }

    fn start_again(&mut self) {
        self.agent = Agent::start(&self.home);
    }

    /// Asks the control endpoints.
    fn ask(&self, line: &str, body: &str) -> (u16, Value) {
        let token = std::fs::read_to_string(self.home.path("control.token")).unwrap();
        let headers = format!("Authorization: Bearer {}\r\nContent-Length: {}\r\n", token.trim(), body.len());
        let reply = request_with(&self.agent.control_address(), line, &headers, body);
        (reply.status, serde_json::from_str(&reply.body).unwrap_or_default())
    }

    fn acquire(&self) -> String {
        let body = json!({"wait": "60s"}).to_string();
        let (status, lease) = self.ask("POST /v1/semaphores/licences/acquire", &body);
        assert_eq!(status, 200, "{lease}");
        lease["lease"].as_str().unwrap().to_owned()
    }
}

struct Fleet {
    members: Vec<Member>,
    prometheus: Prometheus,
}

impl Fleet {
    fn start(consul: &Consul, rules: &str) -> Self {
        let members = (0..6).map(|_| Member::start(consul)).collect();
        let fleet = Self { members, prometheus: Prometheus::start(rules) };
        fleet.is_scraped();
        fleet
    }

    /// Waits until all that run, and only these, are scraped. Prometheus asks for OpenMetrics, which so is seen to be right.
    fn is_scraped(&self) {
        let running: BTreeSet<_> = self.members.iter().map(|one| one.agent.address().to_owned()).collect();
        self.prometheus.scrape(&running.iter().cloned().collect::<Vec<_>>());
        wait_for("all agents to be scraped", || {
            let targets = self.prometheus.targets();
            let up = targets.iter().filter(|target| target["health"] == "up");
            let up: BTreeSet<_> =
                up.map(|one| one["labels"]["instance"].as_str().unwrap().to_owned()).collect();
            up == running && targets.len() == running.len()
        });
    }

    fn holder(&self) -> usize {
        let mut found = None;
        wait_for("somebody to hold", || {
            found = self.members.iter().position(|one| one.agent.is_ready());
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until Prometheus has seen it.
    fn is_seen(&self, expr: &str) {
        wait_for(expr, || !self.prometheus.query(expr).is_empty());
    }

    /// Slots and the lock change hands, by agents that go and come again.
    fn take_turns(&mut self) {
        for _ in 0..3 {
            let leaver = self.holder();
            assert_eq!(self.members[leaver].agent.terminate(), Some(0));
            self.members[leaver].start_again();
            self.is_scraped();
        }
        let leads = |one: &Member| one.agent.status()["locks"][0]["state"] == "held";
        wait_for("somebody to lead", || self.members.iter().any(leads));
        let leader = self.members.iter().position(leads).unwrap();
        assert_eq!(self.members[leader].agent.terminate(), Some(0));
        self.members[leader].start_again();
        self.is_scraped();
    }

    /// One client holds a lease and gives it back; another one waits for it, and forgets to renew it.
    fn lend(&self) {
        let (first, second) = (&self.members[0], &self.members[1]);
        let lease = first.acquire();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| second.acquire());
            self.is_seen("sum(slotkeeper_lease_waiters) == 1");
            assert_eq!(first.ask(&format!("DELETE /v1/leases/{lease}"), "").0, 204);
            waiting.join().unwrap();
        });
        self.is_seen("sum(slotkeeper_leases) == 1");
    }

    /// A slot is lost, and another one's holder is killed.
    fn suffer(&mut self, operator: &Operator) {
        let loser = &self.members[self.holder()].agent;
        operator.destroy(&loser.session());
        self.is_seen(r#"sum(slotkeeper_slots_lost_total{reason="session_gone"}) > 0"#);
        // The victim may be the one whose lease is not renewed.
        self.is_seen("sum(slotkeeper_leases_expired_total) > 0");
        let victim = self.holder();
        self.members[victim].agent.signal(Signal::KILL);
        self.members[victim].agent.ended();
        self.members[victim].start_again();
        self.is_scraped();
        self.is_seen("sum(slotkeeper_pruned_holders_total) > 0");
    }
}

/// All values of a series that are numbers.
fn values(series: &Value) -> impl Iterator<Item = f64> {
    let pairs = series["values"].as_array().unwrap().iter();
    pairs.map(|pair| pair[1].as_str().unwrap().parse::<f64>().unwrap()).filter(|value| !value.is_nan())
}

/// The panel has shown something, what it has shown can be true, and it has a line for no pod.
fn assert_shown(prometheus: &Prometheus, target: &dashboard::Target, since: SystemTime) {
    let name = &target.name;
    let mut shown = Vec::new();
    wait_for(&format!("something to be shown in {name}: {}", target.expr), || {
        shown = prometheus.range(&target.expr, since);
        shown.iter().any(|series| values(series).any(f64::is_finite))
    });
    let most = if target.unit == "percentunit" { 1.0 } else { f64::INFINITY };
    for series in &shown {
        for value in values(series) {
            assert!((0.0..=most).contains(&value), "{name} shows {value}: {series}");
        }
        let labels = series["metric"].as_object().unwrap();
        let of_pod = ["instance", "pod"].iter().any(|label| labels.contains_key(*label));
        assert_eq!(of_pod, target.names_pods, "{name} shows {series}");
    }
}

#[test]
fn every_expression_gives_what_its_panel_or_rule_is_for() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    #[allow(clippy::disallowed_methods, reason = "the dates of Prometheus' samples")]
    let since = SystemTime::now();
    let mut fleet = Fleet::start(&consul, &rules::text());
    fleet.take_turns();
    fleet.lend();
    fleet.suffer(&operator);

    for target in dashboard::targets() {
        assert_shown(&fleet.prometheus, &target, since);
    }
    for rule in fleet.prometheus.rules() {
        assert_eq!(rule["health"], "ok", "{rule}");
        let expr = rule["query"].as_str().unwrap();
        let given = fleet.prometheus.range(expr, since);
        if rule["type"] == "recording" {
            let of: BTreeSet<_> =
                given.iter().map(|one| one["metric"]["semaphore"].as_str().unwrap()).collect();
            assert_eq!(of, BTreeSet::from(["leader", "licences", "warehouse"]), "{expr}");
        }
        let pods = |series: &Value| series["metric"].as_object().unwrap().contains_key("instance");
        assert!(!given.iter().any(pods), "an alert for each pod: {expr}");
    }
    let over = "semaphore:slotkeeper_holders:newest > semaphore:slotkeeper_limit:newest";
    assert_eq!(fleet.prometheus.range(over, since), [] as [Value; 0]);
    let firing = fleet.prometheus.firing();
    let fires = |alert: &str| firing.iter().any(|one| one == alert);
    assert!(fires("SlotkeeperSlotLost") && !fires("SlotkeeperStuckQueue"), "{firing:?}");
    for member in &mut fleet.members {
        assert_eq!(member.agent.terminate(), Some(0));
    }
}
