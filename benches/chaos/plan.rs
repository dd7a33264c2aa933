//! The plan of faults, drawn from the seed.

use std::time::Duration;

use fastrand::Rng;

/// What is done to a client, to its process or to its connections; or to what it has in Consul.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    KillAgent,
    KillGuard,
    StopAgent(Duration),
    StopGuard(Duration),
    BlackHole(Duration),
    Reset,
    Delay { answers: Duration, lasts: Duration },
    Edit(Edit),
}

/// What an operator does behind the back of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edit {
    DestroySession,
    DeleteContender,
    TakeOutOfLock,
}

/// What is done to a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ServerFault {
    KillLeader(Duration),
    /// SIGSTOP: it answers nobody.
    Silence {
        leader: bool,
        lasts: Duration,
    },
    /// From the other servers; its clients reach it.
    CutOff {
        leader: bool,
        lasts: Duration,
    },
    Roll,
}

/// One fault of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned<F> {
    /// After the beginning; for servers, after the one before is over.
    pub(crate) after: Duration,
    pub(crate) fault: F,
    /// Whom it meets, and which of them.
    pub(crate) target: Target,
    pub(crate) which: usize,
    /// It meets so many of them at once, one next to the other.
    pub(crate) number: usize,
}

/// Whom a fault meets; anybody where there is no such client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Holder,
    Waiter,
    Anybody,
}

impl Fault {
    /// Whether a session may run out meanwhile.
    pub(crate) fn is_long(self) -> bool {
        matches!(self, Self::BlackHole(lasts) | Self::StopAgent(lasts) if lasts > LEASE)
    }

    /// Whether a waiter that it meets does not answer for a while, or ever.
    fn leaves_a_queue(self) -> bool {
        matches!(self, Self::KillAgent | Self::StopAgent(_) | Self::BlackHole(_))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::KillAgent => "agent killed",
            Self::KillGuard => "guard killed",
            Self::StopAgent(lasts) if lasts < LEASE => "agent stopped for less than its lease",
            Self::StopAgent(_) => "agent stopped for more than its lease",
            Self::StopGuard(_) => "guard stopped for a while",
            Self::BlackHole(_) => "black hole before an agent's server",
            Self::Reset => "connections reset",
            Self::Delay { .. } => "answers delayed",
            Self::Edit(Edit::DestroySession) => "operator: session destroyed",
            Self::Edit(Edit::DeleteContender) => "operator: contender deleted",
            Self::Edit(Edit::TakeOutOfLock) => "operator: taken out of .lock",
        }
    }
}

impl ServerFault {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::KillLeader(_) => "leader killed and restarted",
            Self::Silence { leader: true, .. } => "leader silent (SIGSTOP)",
            Self::Silence { leader: false, .. } => "follower silent (SIGSTOP)",
            Self::CutOff { leader: true, .. } => "leader cut off",
            Self::CutOff { leader: false, .. } => "follower cut off",
            Self::Roll => "rolling restart",
        }
    }
}

/// Under the TTL of all clients.
pub(crate) const LEASE: Duration = Duration::from_secs(9);

pub(crate) fn of_clients(rng: &mut Rng, length: Duration) -> Vec<Planned<Fault>> {
    let mut plan = Vec::new();
    let mut after = Duration::from_secs(3);
    while after < length {
        let fault = match rng.u32(0..30) {
            0..3 => Fault::KillAgent,
            3..6 => Fault::KillGuard,
            6..9 => Fault::StopAgent(seconds(rng, 0.5, 7.0)),
            9..11 => Fault::StopAgent(seconds(rng, 10.0, 32.0)),
            11..13 => Fault::StopGuard(seconds(rng, 0.5, 12.0)),
            13..15 => Fault::BlackHole(seconds(rng, 1.0, 9.0)),
            // Longer than it takes the session to run out, and a successor to begin.
            15..17 => Fault::BlackHole(seconds(rng, 22.0, 30.0)),
            17..20 => Fault::Reset,
            20..24 => Fault::Delay { answers: seconds(rng, 0.2, 4.0), lasts: seconds(rng, 2.0, 15.0) },
            24..26 => Fault::Edit(Edit::DestroySession),
            26..28 => Fault::Edit(Edit::DeleteContender),
            _ => Fault::Edit(Edit::TakeOutOfLock),
        };
        let target = match rng.u32(0..10) {
            0..5 => Target::Holder,
            5..9 => Target::Waiter,
            _ => Target::Anybody,
        };
        // Waiters die together where a node fails or a deploy is cancelled.
        let number = if target == Target::Waiter && fault.leaves_a_queue() { rng.usize(1..5) } else { 1 };
        plan.push(Planned { after, fault, target, which: rng.usize(..), number });
        after += seconds(rng, 0.2, 2.6);
    }
    plan
}

pub(crate) fn of_servers(rng: &mut Rng, length: Duration) -> Vec<Planned<ServerFault>> {
    // More than can be played: each takes as long as it takes the servers to be in order again.
    let most = length.as_secs() / 5 + 1;
    let mut draw = || {
        let leader = rng.bool();
        let lasts = seconds(rng, 1.0, 12.0);
        let fault = match rng.u32(0..8) {
            0..2 => ServerFault::KillLeader(lasts / 2),
            2..4 => ServerFault::Silence { leader, lasts },
            4..7 => ServerFault::CutOff { leader, lasts },
            _ => ServerFault::Roll,
        };
        // Some pauses are long enough for clients to be in order again, and for slots to be idle for too long.
        let after = if rng.u32(0..3) == 0 { seconds(rng, 30.0, 60.0) } else { seconds(rng, 5.0, 20.0) };
        Planned { after, fault, target: Target::Anybody, which: rng.usize(..), number: 1 }
    };
    (0..most).map(|_| draw()).collect()
}

fn seconds(rng: &mut Rng, least: f64, most: f64) -> Duration {
    Duration::from_secs_f64(least + rng.f64() * (most - least))
}
