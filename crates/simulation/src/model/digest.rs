//! The identity of states: a hash of the debug output of their parts, with times rounded and relative to now.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use slotkeeper_semaphore::Moment;

/// The hash of the debug output of a part. No field is listed here, so that none is forgotten.
pub(super) fn digest(part: &impl Debug, now: Moment) -> u64 {
    let mut hasher = DefaultHasher::new();
    let text = format!("{part:?}");
    let mut pieces = text.split("Moment(");
    pieces.next().hash(&mut hasher);
    for piece in pieces {
        let (at, rest) = piece.split_once("s)").expect("some seconds");
        let at: f64 = at.parse().expect("some seconds");
        roughly(at - now.since_boot().as_secs_f64()).hash(&mut hasher);
        rest.hash(&mut hasher);
    }
    hasher.finish()
}

/// A relative time: to the second if it is near, as the core distinguishes seconds, and in coarse steps otherwise.
fn roughly(ahead: f64) -> (bool, i64) {
    let rough = match ahead.round() as i64 {
        near @ ..3 => near.max(-2),
        far => (far / 20).min(4) + 3,
    };
    (ahead > 0.0, rough)
}
