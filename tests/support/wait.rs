//! Waiting for conditions.

use std::time::{Duration, Instant};

/// Waits until the condition holds, at most as long as that.
///
/// # Panics
///
/// Where it does not hold by then.
#[allow(clippy::disallowed_methods, reason = "a test has no lease, and blocks nobody")]
pub fn within(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + patience;
    while !condition() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
