//! One program's lives with one number of clients, and what follows from them.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::latencies::Latencies;
use crate::support::proxy::Proxy;
use crate::support::traffic::Counts;

/// Slots of the semaphore.
pub(crate) const LIMIT: usize = 3;

/// Who played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Slotkeeper,
    ConsulLock,
}

impl Program {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Slotkeeper => "slotkeeper",
            Self::ConsulLock => "consul lock -n",
        }
    }
}

/// One program's lives.
pub(crate) struct Play {
    pub(crate) program: Program,
    pub(crate) clients: u32,
    /// How long each slot was to be held.
    pub(crate) hold: Duration,
    /// What passed to Consul meanwhile.
    pub(crate) counts: Counts,
    /// From the first start to the last end.
    pub(crate) makespan: Duration,
    /// Processor time that this process took meanwhile.
    pub(crate) busy: Duration,
    /// What was held; empty where only the program itself knows when.
    pub(crate) holds: Vec<Hold>,
}

/// One slot of one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    /// The client saw in its status that it holds it.
    pub(crate) seen: Instant,
    /// The client was told to stop.
    pub(crate) told: Instant,
}

/// How things stood before a play.
pub(crate) struct Stage<'a> {
    proxy: &'a Proxy,
    counts: Counts,
    busy: Duration,
    begun: Instant,
}

impl<'a> Stage<'a> {
    /// The play begins now.
    pub(crate) fn set(proxy: &'a Proxy) -> Self {
        Self { proxy, counts: proxy.counts(), busy: busy(), begun: Instant::now() }
    }

    /// It ends now.
    pub(crate) fn clear(self, program: Program, clients: u32, hold: Duration, holds: Vec<Hold>) -> Play {
        let makespan = self.begun.elapsed();
        let (counts, busy) = (self.proxy.counts() - self.counts, busy() - self.busy);
        Play { program, clients, hold, counts, makespan, busy, holds }
    }
}

impl Play {
    /// The makespan over the least that `LIMIT` slots without any loss of time would take.
    pub(crate) fn over_ideal(&self) -> f64 {
        self.makespan.as_secs_f64() / ideal(self.clients, self.hold).as_secs_f64()
    }

    /// The cores that this process kept busy on average.
    pub(crate) fn cores(&self) -> f64 {
        self.busy.as_secs_f64() / self.makespan.as_secs_f64()
    }

    /// A count's share of one client.
    pub(crate) fn a_client(&self, count: u64) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "counts are far from where a float would round them")]
        let count = count as f64;
        count / f64::from(self.clients)
    }

    /// The most slots held at one instant.
    pub(crate) fn peak(&self) -> usize {
        // A slot given back at the instant at which another is taken is not held twice.
        let mut changes: Vec<_> =
            self.holds.iter().flat_map(|hold| [(hold.seen, 1), (hold.told, -1)]).collect();
        changes.sort_unstable();
        let held = changes.iter().scan(0_isize, |held, (_, change)| {
            *held += change;
            Some(*held)
        });
        held.max().unwrap_or(0).unsigned_abs()
    }

    /// For how long a slot lay idle, each time that one changed hands: from the k-th instant at which a holder was told
    /// to stop to the (k + `LIMIT`)-th at which a client saw that it holds.
    ///
    /// That grant needs k slots given back before it, and so cannot come before the k-th was told to stop: no time is
    /// negative, whoever took the place of whom. Their sum is the idle time of all slots however they are paired; this
    /// pairing spreads it the least. The first `LIMIT` grants follow no release and do not count. The beginning does,
    /// where a first holder leaves before anybody stands in line.
    pub(crate) fn handoffs(&self) -> Latencies {
        let mut told: Vec<_> = self.holds.iter().map(|hold| hold.told).collect();
        let mut seen: Vec<_> = self.holds.iter().map(|hold| hold.seen).collect();
        told.sort_unstable();
        seen.sort_unstable();
        let pairs = told.into_iter().zip(seen.into_iter().skip(LIMIT));
        pairs.map(|(told, seen)| seen.saturating_duration_since(told)).collect()
    }
}

/// The time from one handoff to the next, where the holds are spread evenly; with the shortest holds, time for a
/// blocking read to reach Consul.
pub(crate) fn pace(hold: Duration) -> Duration {
    (hold / u32::try_from(LIMIT).unwrap()).max(Duration::from_millis(10))
}

/// After which a play hangs.
pub(crate) fn patience(clients: u32, hold: Duration) -> Duration {
    Duration::from_secs(60) + ideal(clients, hold) * 10
}

fn busy() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

fn ideal(clients: u32, hold: Duration) -> Duration {
    let rounds = (clients as usize).div_ceil(LIMIT);
    hold * u32::try_from(rounds).unwrap()
}
