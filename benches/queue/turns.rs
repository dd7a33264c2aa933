//! When slots were held, and what follows from that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use slotkeeper_semaphore::Moment;

use crate::latencies::Latencies;

/// One slot of one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// The client knew that it holds: its status said so, or its command began.
    pub(crate) from: Moment,
    /// The client was told to stop, or its command ended.
    pub(crate) to: Moment,
    /// How long it was to be held.
    pub(crate) planned: Duration,
}

/// The most slots held at one instant.
pub(crate) fn peak(turns: &[Turn]) -> usize {
    // A slot that is released at the instant at which another is acquired is not held twice.
    let mut changes: Vec<_> = turns.iter().flat_map(|turn| [(turn.from, 1), (turn.to, -1)]).collect();
    changes.sort_unstable();
    let held = changes.iter().scan(0_isize, |held, (_, change)| {
        *held += change;
        Some(*held)
    });
    held.max().unwrap_or(0).unsigned_abs()
}

/// For how long a slot lay idle, each time that one changed hands: from the k-th end of a turn to the (k + `limit`)-th
/// beginning.
///
/// That grant needs k slots released before it, and so cannot come before the k-th end: no time is negative, whatever
/// client took the place of another. Their sum is the idle time of all slots however they are paired; this pairing spreads
/// it the least. The first `limit` grants follow no release and do not count. The beginning does, where a first holder
/// leaves before there is a queue.
pub(crate) fn handoffs(turns: &[Turn], limit: u32) -> Latencies {
    let mut ends: Vec<_> = turns.iter().map(|turn| turn.to).collect();
    let mut beginnings: Vec<_> = turns.iter().map(|turn| turn.from).collect();
    ends.sort_unstable();
    beginnings.sort_unstable();
    let pairs = ends.into_iter().zip(beginnings.into_iter().skip(limit as usize));
    pairs.map(|(end, beginning)| beginning.since(end)).collect()
}

/// The least time that `limit` slots without any loss of time would take for these turns, in the order in which they were
/// granted. With spread hold times it is more than the slots' share of all hold times: some slots end before others.
pub(crate) fn ideal(turns: &[Turn], limit: u32) -> Duration {
    let mut turns: Vec<_> = turns.iter().collect();
    turns.sort_unstable_by_key(|turn| turn.from);
    let mut free: BinaryHeap<_> = (0..limit).map(|_| Reverse(Duration::ZERO)).collect();
    let mut end = Duration::ZERO;
    for turn in turns {
        let Some(Reverse(begins)) = free.pop() else { break };
        let ends = begins + turn.planned;
        free.push(Reverse(ends));
        end = end.max(ends);
    }
    end
}
