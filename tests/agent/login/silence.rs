//! Logins that get no answer.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use slotkeeper::internals::log_events;
use slotkeeper_consul::{Code, Operation};
use slotkeeper_consul::{Secret, Settings, TokenSource};

use super::fortress::{POLICY, PREFIX, ROOT, SEMAPHORE};
use crate::consul::Consul;
use crate::http::request_with;
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home};
use crate::support::consul::Setup;
use crate::support::jwt::Issuer;
use crate::support::proxy::Proxy;
use crate::wait_for;

/// A Consul that denies by default, and an agent with a slot that logs in to it through a proxy.
struct Scene {
    consul: Consul,
    proxy: Proxy,
    agent: Agent,
    home: Home,
}

impl Scene {
    fn start() -> Self {
        let tokens = format!("tokens {{ master = \"{ROOT}\", agent = \"{ROOT}\" }}");
        let config = format!("acl {{ enabled = true, default_policy = \"deny\", {tokens} }}");
        let consul = Consul::start_with(Setup { config, token: Some(ROOT.into()), ..Setup::default() });
        let issuer = Issuer::new();
        let bind = json!({"AuthMethod": "pods", "BindType": "role", "BindName": "slotkeeper"});
        for (path, body) in [
            ("policy", json!({"Name": "slotkeeper", "Rules": POLICY})),
            ("role", json!({"Name": "slotkeeper", "Policies": [{"Name": "slotkeeper"}]})),
            ("auth-method", issuer.auth_method("pods")),
            ("binding-rule", bind),
        ] {
            ask(&consul, &format!("PUT /v1/acl/{path}"), &body.to_string());
        }
        let proxy = Proxy::start_apart(consul.address().parse().unwrap());
        let home = Home::new();
        let file = home.path("jwt");
        std::fs::write(&file, issuer.jwt("slotkeeper", 3600)).unwrap();
        // A lease that lasts until the second login is answered, on a busy machine too, and not until the first is given up.
        let config = format!("{}drain: {{timeout: 20s}}\n", SEMAPHORE.replace("ttl: 10s", "ttl: 15s"));
        home.configure(&proxy.addr().to_string(), &config);
        let agent = Agent::start_with(&home, &[], &login(file.to_str().unwrap()));
        agent.await_ready();
        Self { consul, proxy, agent, home }
    }

    /// The names of the tokens that came of logins.
    fn accessors(&self) -> Vec<String> {
        let tokens: Vec<Value> = serde_json::from_str(&ask(&self.consul, "GET /v1/acl/tokens", "")).unwrap();
        let logged_in = tokens.into_iter().filter(|token| token["AuthMethod"] == "pods");
        logged_in.map(|token| token["AccessorID"].as_str().unwrap().to_owned()).collect()
    }

    /// Consul forgets the agent's token, and does not answer its next login.
    fn forget(&self) {
        self.proxy.ignore_next("/v1/acl/login");
        for accessor in self.accessors() {
            ask(&self.consul, &format!("DELETE /v1/acl/token/{accessor}"), "");
        }
    }

    fn operator(&self) -> Operator {
        let settings = Settings {
            address: self.consul.address().parse().unwrap(),
            token: Some(TokenSource::Value(Secret::new(ROOT))),
            ..Settings::default()
        };
        Operator::with(&settings)
    }
}

/// The environment of whoever logs in.
fn login(file: &str) -> [(&str, &str); 2] {
    [("SLOTKEEPER_CONSUL_LOGIN_AUTH_METHOD", "pods"), ("SLOTKEEPER_CONSUL_LOGIN_BEARER_TOKEN_FILE", file)]
}

fn ask(consul: &Consul, line: &str, body: &str) -> String {
    let headers = format!("X-Consul-Token: {ROOT}\r\nContent-Length: {}\r\n", body.len());
    let reply = request_with(&consul.address(), line, &headers, body);
    assert_eq!(reply.status, 200, "{line}: {}", reply.body);
    reply.body
}

#[test]
fn a_silent_login_costs_no_slot() {
    let mut scene = Scene::start();
    scene.forget();
    wait_for("another login", || scene.accessors().len() == 1);
    let before = scene.agent.requests(Operation::SessionRenew, Code::Ok);
    wait_for("a renewal with it", || scene.agent.requests(Operation::SessionRenew, Code::Ok) > before);
    let log = scene.agent.log();
    assert!(scene.agent.is_ready() && !log.contains(log_events::SLOT_LOST), "{log}");
    assert_eq!(scene.agent.terminate(), Some(0));
    assert_eq!(scene.accessors(), [""; 0]);
}

#[test]
fn a_silent_login_leaves_nothing_behind_at_a_drain() {
    let mut scene = Scene::start();
    scene.forget();
    scene.agent.signal(Signal::TERM);
    assert_eq!(scene.agent.ended().code(), Some(0), "{}", scene.agent.log());
    assert_eq!(scene.accessors(), [""; 0]);
    scene.operator().assert_nothing_left(PREFIX);
}

#[test]
fn a_command_that_is_interrupted_logs_out() {
    let mut scene = Scene::start();
    scene.proxy.ignore_next("/v1/session/list");
    let file = scene.home.path("jwt");
    let mut command = Command::new(BINARY);
    command.arg("sessions").stdout(Stdio::null()).envs(login(file.to_str().unwrap()));
    let mut child = command.env("CONSUL_HTTP_ADDR", scene.proxy.addr().to_string()).spawn().unwrap();
    wait_for("its login", || scene.accessors().len() == 2);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
    assert_eq!(scene.accessors().len(), 1, "the agent's");
    assert_eq!(scene.agent.terminate(), Some(0));
}
