//! Time as a parameter.

use std::ops::Add;
use std::time::Duration;

/// An instant on a clock that never jumps and that counts suspend, as the time since that clock's zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The instant `since` after the clock's zero (on Linux, the machine's boot).
    pub const fn from_boot(since: Duration) -> Self {
        Self(since)
    }

    /// Time since the clock's zero.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// Time from `earlier` to here; zero where `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(after))
    }
}
