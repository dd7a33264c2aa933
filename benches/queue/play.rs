//! One program's lives at one point, and what follows from them.

use std::time::Duration;

use crate::latencies::Latencies;
use crate::load::{Load, Meter};
use crate::point::{Point, Spread};
use crate::server::Server;
use crate::support::traffic::Counts;
use crate::turns::{self, Turn};

/// Who played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Slotkeeper,
    ConsulLock,
}

/// As what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// A process for each client, which starts a command once it holds.
    Processes,
    /// Agents in this process.
    InProcess,
}

/// What is to be played.
pub(crate) struct Scene<'a> {
    pub(crate) server: &'a Server,
    pub(crate) point: Point,
    pub(crate) spread: Spread,
    /// How long each client holds.
    pub(crate) holds: Vec<Duration>,
}

/// One program's lives.
pub(crate) struct Play {
    pub(crate) program: Program,
    pub(crate) manner: Manner,
    pub(crate) point: Point,
    pub(crate) spread: Spread,
    /// What passed to Consul meanwhile.
    pub(crate) counts: Counts,
    /// From the first start to the last end.
    pub(crate) makespan: Duration,
    pub(crate) load: Load,
    pub(crate) turns: Vec<Turn>,
    /// What was wrong with clients.
    faults: Vec<String>,
}

/// What came of one client.
pub(crate) struct Life {
    pub(crate) turn: Option<Turn>,
    /// What was wrong with it.
    pub(crate) fault: Option<String>,
}

/// A play that has begun.
pub(crate) struct Running<'a> {
    scene: &'a Scene<'a>,
    counts: Counts,
    meter: Meter,
}

impl Program {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Slotkeeper => "slotkeeper",
            Self::ConsulLock => "consul lock -n",
        }
    }
}

impl Manner {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::InProcess => "one process",
        }
    }
}

impl Scene<'_> {
    /// The semaphore. Each program has its own: `consul lock` does not read the form that a new semaphore of an agent has by
    /// default.
    pub(crate) fn prefix(&self, program: Program) -> String {
        let name = match program {
            Program::Slotkeeper => "ours",
            Program::ConsulLock => "theirs",
        };
        format!("bench/{name}/{}-{:?}", self.point, self.spread).to_lowercase().replace(' ', "")
    }

    /// The play begins now.
    pub(crate) fn begin(&self) -> Running<'_> {
        Running { scene: self, counts: self.server.proxy().counts(), meter: self.server.meter() }
    }
}

impl Life {
    pub(crate) fn of(turn: Turn) -> Self {
        Self { turn: Some(turn), fault: None }
    }
}

impl Running<'_> {
    /// It ends now.
    pub(crate) fn end(self, program: Program, manner: Manner, lives: Vec<Life>) -> Play {
        let Scene { server, point, spread, .. } = *self.scene;
        let (makespan, load) = (self.meter.elapsed(), self.meter.load());
        let counts = server.proxy().counts() - self.counts;
        let (turns, faults): (Vec<_>, Vec<_>) = lives.into_iter().map(|life| (life.turn, life.fault)).unzip();
        let (turns, faults) = (turns.into_iter().flatten().collect(), faults.into_iter().flatten().collect());
        Play { program, manner, point, spread, counts, makespan, load, turns, faults }
    }
}

impl Play {
    /// The makespan over the least that the slots would take without any loss of time.
    pub(crate) fn over_ideal(&self) -> f64 {
        let ideal = turns::ideal(&self.turns, self.point.limit);
        self.makespan.as_secs_f64() / ideal.as_secs_f64()
    }

    /// A count's share of one client.
    pub(crate) fn a_client(&self, count: u64) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "counts are far from where a float would round them")]
        let count = count as f64;
        count / f64::from(self.point.clients)
    }

    pub(crate) fn handoffs(&self) -> Latencies {
        turns::handoffs(&self.turns, self.point.limit)
    }

    /// What was wrong with it: more slots held at once than there are, or clients that failed.
    pub(crate) fn faults(&self) -> Vec<String> {
        let (peak, failed) = (turns::peak(&self.turns), self.faults.len());
        let too_many = (peak > self.point.limit as usize).then(|| format!("{peak} slots were held at once"));
        let failed = self.faults.first().map(|first| format!("{failed} clients failed, the first: {first}"));
        too_many.into_iter().chain(failed).collect()
    }
}
