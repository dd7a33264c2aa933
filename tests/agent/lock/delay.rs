//! Lock-delay. A waiter tries to acquire the lock about once a second until it is over.

use std::time::Instant;

use rustix::process::Signal;
use slotkeeper::internals::log_events;
use slotkeeper_consul::{Code, Operation};

use super::{lock, owner};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::wait_for;

const KEY: &str = "p/lock";

fn home(consul: &Consul, delay: &str, behavior: &str) -> Home {
    let home = Home::new();
    let session = format!("session: {{lock_delay: {delay}, behavior: {behavior}}}");
    home.configure(&consul.address(), &format!("locks: [{{name: l, key: {KEY}}}]\n{session}"));
    home
}

/// The shortest time between two attempts, in seconds.
const RETRY: f64 = 0.8;

/// Transactions that were refused, and such that were done.
fn transactions(agent: &Agent) -> (f64, f64) {
    (agent.requests(Operation::Txn, Code::Conflict), agent.requests(Operation::Txn, Code::Ok))
}

/// One that has the lock, is killed, and has its session destroyed by somebody else.
fn lost(consul: &Consul, operator: &Operator, delay: &str, behavior: &str, before_it_dies: impl FnOnce()) {
    let home = home(consul, delay, behavior);
    let mut first = Agent::start(&home);
    first.await_ready();
    before_it_dies();
    let session = first.session();
    first.signal(Signal::KILL);
    first.ended();
    operator.destroy(&session);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test has no lease")]
fn a_waiter_that_saw_the_release_acquires_after_the_lock_delay() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    for behavior in ["release", "delete"] {
        let home = home(&consul, "8s", behavior);
        let (mut second, mut told) = (None, None);
        lost(&consul, &operator, "8s", behavior, || {
            let agent = Agent::start(&home);
            wait_for("it to wait", || {
                lock(&agent)["state"] == "waiting" && lock(&agent)["leader"].is_object()
            });
            second = Some(agent);
            told = Some(Instant::now());
        });
        let (mut second, told) = (second.unwrap(), told.unwrap());
        // Nobody gets the lock before; that it does not sleep much longer is bounded so that a busy machine keeps it.
        let why = "free, but in the lock-delay of its last holder";
        wait_for("it to be told of the delay", || {
            lock(&second)["reason"].as_str().is_some_and(|reason| reason.contains(why))
        });
        assert!(lock(&second)["leader"].is_null() && !second.is_ready());
        second.await_ready();
        let waited = told.elapsed().as_secs_f64();
        assert!(waited > 7.9 && waited < 40.0, "{waited}");
        let (refused, done) = transactions(&second);
        assert_eq!(done, 1.0, "{}", second.log());
        assert!(refused >= 2.0 && refused <= 1.0 + waited / RETRY, "{refused} in {waited} s");
        assert_eq!(second.log().matches(log_events::LOCK_DELAYED).count(), 1, "{}", second.log());
        assert!(lock(&second)["reason"].is_null(), "{}", lock(&second));
        assert_eq!(second.terminate(), Some(0));
        assert_eq!(owner(&operator, KEY), None);
    }
}

#[test]
fn a_later_waiter_retries_and_acquires_too() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    lost(&consul, &operator, "2s", "release", || {});
    let home = home(&consul, "2s", "release");
    let mut late = Agent::start(&home);
    late.await_ready();
    assert!(transactions(&late).0 <= 1.0 + 2.0 / RETRY, "{}", late.log());
    assert_eq!(late.terminate(), Some(0));
}

#[test]
fn without_a_lock_delay_the_lock_is_acquired_at_once() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul, "0s", "delete");
    let mut second = None;
    lost(&consul, &operator, "0s", "delete", || {
        let agent = Agent::start(&home);
        wait_for("it to wait", || lock(&agent)["state"] == "waiting");
        second = Some(agent);
    });
    let mut second = second.unwrap();
    second.await_ready();
    assert_eq!(transactions(&second), (0.0, 1.0), "{}", second.log());
    assert_eq!(second.terminate(), Some(0));
}
