//! What tells states apart: a hash of all that a part of them shows of itself, with times only roughly and as seen from
//! the present.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use slotkeeper_semaphore::Moment;

/// The hash of what a part shows of itself. Nothing is named here, so that no field is forgotten.
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

/// A time ahead, or ago, to the second where the core looks at seconds. Longer ones are there to be over at some time.
fn roughly(ahead: f64) -> (bool, i64) {
    let rough = match ahead.round() as i64 {
        near @ ..3 => near.max(-2),
        far => (far / 20).min(4) + 3,
    };
    (ahead > 0.0, rough)
}
