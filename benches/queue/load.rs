//! How busy the machine was meanwhile.

use std::time::Duration;

use slotkeeper::internals::clock;
use slotkeeper_semaphore::Moment;

use crate::support::processes::{machine_time, processor_time};

/// Cores that were busy on average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// By this process, of which the proxy is a part.
    pub(crate) here: f64,
    pub(crate) consul: f64,
    /// By all processes.
    pub(crate) machine: f64,
}

/// A measurement of the load that has begun.
#[derive(Debug)]
pub(crate) struct Meter {
    consul: u32,
    begun: Moment,
    here: Duration,
    of_consul: Duration,
    machine: Duration,
}

impl Meter {
    /// Begins now; `consul` is Consul's process.
    pub(crate) fn start(consul: u32) -> Self {
        let (here, of_consul) = (clock::processor_time(), processor_time(consul));
        Self { consul, begun: clock::now(), here, of_consul, machine: machine_time() }
    }

    /// Time since then.
    pub(crate) fn elapsed(&self) -> Duration {
        clock::now().since(self.begun)
    }

    /// The load since then.
    pub(crate) fn load(&self) -> Load {
        let elapsed = self.elapsed().as_secs_f64();
        let cores = |now: Duration, before: Duration| (now - before).as_secs_f64() / elapsed;
        Load {
            here: cores(clock::processor_time(), self.here),
            consul: cores(processor_time(self.consul), self.of_consul),
            machine: cores(machine_time(), self.machine),
        }
    }
}
