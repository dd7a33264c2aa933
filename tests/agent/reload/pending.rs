//! Pending entries: the agent adds them as soon as it can, and until then a required one counts as not held.

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use super::names;
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home, Lodger};
use crate::wait_for;

const TTL: &str = "session: {ttl: 10s}";

/// One agent on a Consul that can be stopped with SIGSTOP.
struct Scene {
    consul: Consul,
    home: Home,
    agent: Agent,
}

impl Scene {
    fn start(rest: &str) -> Self {
        let (consul, home) = (Consul::start(), Home::new());
        home.configure(&consul.address(), &format!("{TTL}\n{rest}"));
        let agent = Agent::start(&home);
        agent.await_ready();
        Self { consul, home, agent }
    }

    fn reload(&self, rest: &str) {
        self.home.configure(&self.consul.address(), &format!("{TTL}\n{rest}"));
        self.agent.signal(Signal::HUP);
    }

    fn log_has(&self, text: &str) {
        wait_for(&format!("{text:?} in the log"), || self.agent.log().contains(text));
    }

    /// Asserts that the entry is pending and the agent is not ready.
    fn assert_pending(&self, check: &str, reason: &str) {
        let agent = &self.agent;
        let verbose = || agent.get("/readyz?verbose");
        wait_for(&format!("{check} to be pending; log:\n{}", agent.log()), || {
            let said = verbose();
            said.status == 503
                && said.body.contains(&format!("[-]{check} failed: pending: "))
                && said.body.contains(reason)
        });
        assert_eq!(agent.metric("slotkeeper_ready"), 0.0);
        assert_eq!(agent.status()["agent"]["ready"], false);
        wait_for("the readiness file to go", || !agent.ready_file().exists());
    }

    fn end(mut self) {
        assert_eq!(self.agent.terminate(), Some(0));
    }
}

#[test]
fn a_changed_prefix_is_pending_until_the_old_one_is_released() {
    let scene = Scene::start("semaphores: [{name: a, prefix: p/1, limit: 1}]");
    let operator = Operator::at(&scene.consul.address());
    scene.consul.signal(Signal::STOP);
    scene.reload("semaphores: [{name: a, prefix: p/2, limit: 1}]");
    scene.log_has(&format!("{} name=a", log_events::ENTRY_PENDING));
    scene.assert_pending("semaphore/a", "a of the previous configuration is still being released");
    assert_eq!(scene.agent.semaphore()["prefix"], "p/2");
    scene.consul.signal(Signal::CONT);
    scene.agent.await_ready();
    assert!(
        scene.agent.log().contains(&format!("{} name=a", log_events::PENDING_ENTRY_ADDED)),
        "{}",
        scene.agent.log()
    );
    assert_eq!(operator.holders("p/2"), [scene.agent.session()]);
    assert!(operator.holders("p/1").is_empty());
    scene.end();
}

#[test]
fn an_entry_that_returns_during_its_removal_is_added_later() {
    let both = "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]";
    let scene = Scene::start(both);
    let mut waiter = Lodger::start(&scene.consul.address(), "semaphores: [{name: w, prefix: p/a, limit: 1}]");
    waiter.await_state("waiting");
    scene.consul.signal(Signal::STOP);
    scene.reload("semaphores: [{name: b, prefix: p/b, limit: 1}]");
    scene.log_has("removed=a");
    scene.reload(both);
    scene.assert_pending("semaphore/a", "still being released");
    scene.consul.signal(Signal::CONT);
    // The removal still releases the slot, so the waiter has it first.
    waiter.await_ready();
    wait_for("a to wait behind it", || names(&scene.agent) == ["a waiting", "b held"]);
    assert!(!scene.agent.is_ready());
    assert_eq!(waiter.terminate(), Some(0));
    scene.agent.await_ready();
    scene.end();
}

#[test]
fn a_later_reload_replaces_a_pending_entry() {
    let scene = Scene::start("semaphores: [{name: a, prefix: p/1, limit: 1}]");
    let operator = Operator::at(&scene.consul.address());
    scene.consul.signal(Signal::STOP);
    scene.reload("semaphores: [{name: a, prefix: p/2, limit: 1}]");
    scene.assert_pending("semaphore/a", "still being released");
    scene.reload("semaphores: [{name: a, prefix: p/3, limit: 1}]");
    wait_for("the later one", || scene.agent.semaphore()["prefix"] == "p/3");
    scene.consul.signal(Signal::CONT);
    scene.agent.await_ready();
    assert_eq!(operator.holders("p/3"), [scene.agent.session()]);
    assert!(operator.keys("p/2").is_empty(), "the agent never requested it");
    scene.end();
}

#[test]
fn a_semaphore_becomes_a_lock_and_a_lock_a_semaphore() {
    let semaphore = "semaphores: [{name: a, prefix: p/s, limit: 1}]";
    let lock = "locks: [{name: a, key: p/l}]";
    let scene = Scene::start(semaphore);
    let operator = Operator::at(&scene.consul.address());
    scene.consul.signal(Signal::STOP);
    scene.reload(lock);
    scene.assert_pending("lock/a", "still being released");
    scene.consul.signal(Signal::CONT);
    scene.agent.await_ready();
    assert_eq!(operator.key("p/l").unwrap().session, Some(scene.agent.session()));
    // A lock has fewer series than a semaphore.
    assert!(!scene.agent.get("/metrics").body.contains("slotkeeper_waiters{semaphore=\"a\"}"));
    scene.reload(semaphore);
    wait_for("the semaphore", || names(&scene.agent) == ["a held"] && scene.agent.is_ready());
    assert_eq!(operator.holders("p/s"), [scene.agent.session()]);
    assert_eq!(scene.agent.metric("slotkeeper_waiters{semaphore=\"a\"}"), 0.0);
    assert!(operator.key("p/l").is_none_or(|pair| pair.session.is_none()));
    scene.end();
}

#[test]
fn an_entry_that_cannot_join_the_group_is_pending() {
    let a = "{name: a, prefix: p/a, limit: 1}";
    let scene = Scene::start(&format!("acquire: together\nsemaphores: [{a}]"));
    scene.reload(&format!("acquire: together\nsemaphores: [{a}, {{name: b, prefix: p/b, limit: 1}}]"));
    scene.assert_pending("semaphore/b", "restart the agent, or make it not required");
    assert_eq!(names(&scene.agent), ["a held", "b pending"]);
    scene.reload(&format!(
        "acquire: together\nsemaphores: [{a}, {{name: b, prefix: p/b, limit: 1, required: false}}]"
    ));
    scene.agent.await_ready();
    wait_for("the optional one", || names(&scene.agent) == ["a held", "b held"]);
    scene.end();
}

#[test]
fn a_group_member_that_returns_as_optional_leaves_the_group() {
    let a = "{name: a, prefix: p/a, limit: 1}";
    let of = |b: &str| format!("acquire: together\nsemaphores: [{a}{b}]");
    let b = |required: bool| of(&format!(", {{name: b, prefix: p/b, limit: 1, required: {required}}}"));
    let scene = Scene::start(&b(true));
    let operator = Operator::at(&scene.consul.address());
    let (agent, session) = (&scene.agent, scene.agent.session());
    let token = agent.semaphore()["fencing_token"].clone();
    scene.reload(&b(false));
    scene.log_has("b: required cannot change under `acquire: together`; restart the agent");
    scene.reload(&of(""));
    wait_for("b to be released", || names(agent) == ["a held"] && operator.holders("p/b").is_empty());
    let mut other = Lodger::start(&scene.consul.address(), "semaphores: [{name: o, prefix: p/b, limit: 1}]");
    other.await_ready();
    scene.reload(&b(false));
    wait_for("b to wait", || names(agent) == ["a held", "b waiting"]);
    wait_for("its contender key", || {
        operator.keys("p/b").iter().any(|pair| pair.session.as_ref() == Some(&session))
    });
    assert_eq!((agent.is_ready(), &agent.semaphore()["fencing_token"]), (true, &token));
    assert_eq!(other.terminate(), Some(0));
    wait_for("b held", || names(agent) == ["a held", "b held"]);
    assert_eq!((operator.holders("p/a"), &agent.semaphore()["fencing_token"]), (vec![session], &token));
    let released = agent.log().matches(&format!("{} name=a", log_events::SLOT_RELEASED)).count();
    assert_eq!((released, agent.metric("slotkeeper_ready")), (0, 1.0));
    scene.end();
}
