//! A free slot whose holder and first waiter have died together is found by clients with short waits.

use crate::consul::Consul;
use crate::process::BINARY;
use crate::support::joint_death::{BOUND, Client, play};

#[test]
fn after_holder_and_first_waiter_died_together_impatient_clients_are_served() {
    let consul = Consul::start();
    let address = consul.address();
    std::thread::scope(|scope| {
        for (prefix, client) in [("service/run", Client::Run), ("service/lease", Client::Lease)] {
            let address = &address;
            scope.spawn(move || {
                let served = play(BINARY, address, prefix, client);
                assert!(served.is_some_and(|served| served <= BOUND), "{client:?}: served after {served:?}");
            });
        }
    });
}
