//! Leases of one semaphore watch the same keys, and share the long polls.

use slotkeeper::internals::control::request::Released;
use slotkeeper::internals::exit::Exit;

use super::lender::Lender;
use crate::consul::Consul;
use crate::operator::Operator;
use crate::support::consul::Setup;
use crate::support::processes::connections;
use crate::wait_for;

/// Leases at once, as many as there are by default; half of them wait.
const LEASES: usize = 64;
/// 64 long polls and 8 others; and that of the operator, who is in this process too.
const CONNECTIONS: usize = 72 + 1;

#[test]
fn the_maximum_of_leases_leaves_connections_to_other_agents() {
    let consul = Consul::start_with(Setup { default_limits: true, ..Setup::default() });
    let operator = Operator::at(&consul.address());
    // On a busy machine each part of this takes longer than 10 s.
    let agent = Lender::start(
        &consul,
        "session: {ttl: 30s}\nsemaphores: [{name: s, prefix: service/s, limit: 32, mode: on_demand}]",
    );
    let held: Vec<_> = (0..LEASES / 2).map(|_| agent.acquire(60).unwrap()).collect();
    let renew = || held.iter().for_each(|one| drop(agent.renew(&one.lease).unwrap()));
    renew();
    let waiting: Vec<_> = (0..LEASES / 2).map(|_| agent.waits(600)).collect();
    let mut most = 0;
    let mut count = || {
        most = most.max(connections(std::process::id(), consul.addr()));
    };
    wait_for("all to be in line", || {
        count();
        operator.keys("service/s").len() > LEASES
    });
    renew();
    // Long enough for each to watch all that it ever does, and to be renewed.
    let renewals = || agent.metric("slotkeeper_session_renew_duration_seconds_count");
    let before = renewals();
    wait_for("renewals", || {
        count();
        renewals() >= before + 2.0 * LEASES as f64
    });
    for lease in &held {
        assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
        count();
    }
    for waiting in waiting {
        let lease = waiting.answer().unwrap();
        assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    }
    assert!((1..=CONNECTIONS).contains(&most), "{most} connections");
    assert_eq!(agent.stop(), Exit::Done);
    operator.assert_nothing_left("service/s");
}
