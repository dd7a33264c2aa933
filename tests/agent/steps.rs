//! The commands of docs/step-by-step.md, run as they stand: one shell, from top to bottom.

use crate::consul::Consul;
use crate::operator::Operator;
use crate::page::{Page, Told};
use crate::readme::Dev;

#[test]
fn the_page_runs_from_top_to_bottom() {
    let consul = Consul::start();
    assert_runs(&consul.address());
}

#[test]
fn it_does_so_on_the_development_server() {
    let dev = Dev::start();
    assert_runs(&dev.address);
}

fn assert_runs(consul: &str) {
    let page = Page::read("docs/step-by-step.md");
    assert_eq!(page.not_run(), [""; 0]);
    let Told { went_well, said, .. } = page.run(consul);
    assert!(went_well, "{said}");
    for told in [
        "the dead one is in nobody's way",
        "not to be had now: 75",
        "lost: 80",
        "not locked: 1",
        "not released: 1",
        "the key went with its session",
        "the lock is lost: 80",
        "and yet not to be had: 75",
        "the lock-delay is over",
        r#""code":"timed_out""#,
        r#""code":"lease_expired""#,
        "is not a single-key lock: it holds",
        "blocked: 78",
        "not in 5 s: 75",
        "all three are taken: 75",
        "the second one gets: 75",
        "slot 0",
        r#"{"limit":3,"holders":[],"slotkeeper":{"#,
        "Thread 15 end!",
    ] {
        assert!(
            said.lines().any(|line| line.contains(told) && !line.starts_with('+')),
            "no {told:?} in {said}"
        );
    }
    let operator = Operator::at(consul);
    operator.assert_nobody_left("service/db");
    // `consul lock` ends without waiting for whether its session was destroyed; then that has to run out.
    let mut left = operator.sessions();
    left.retain(|session| !session.name.starts_with("Consul lock"));
    assert_eq!(left, [], "sessions are left");
    assert_eq!(operator.keys("semaphore/mg-init").len(), 1, "no contender is left");
    assert_eq!(operator.record("semaphore/mg-init")["holders"], serde_json::json!([]));
}
