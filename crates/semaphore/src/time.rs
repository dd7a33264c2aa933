//! Time as a parameter.

use std::ops::Add;
use std::time::{Duration, SystemTime};

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

    /// The instant that long before.
    #[must_use]
    pub const fn back(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(before))
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

/// What the wall clock shows at the zero of [`Moment`]s: turns instants into dates, for people only.
#[derive(Clone, Copy, Debug)]
pub struct Wall {
    boot: SystemTime,
}

impl Wall {
    /// From one reading of both clocks.
    pub fn new(wall: SystemTime, now: Moment) -> Self {
        Self { boot: wall.checked_sub(now.since_boot()).unwrap_or(SystemTime::UNIX_EPOCH) }
    }

    /// The date and time at an instant.
    pub fn at(self, moment: Moment) -> SystemTime {
        self.boot.checked_add(moment.since_boot()).unwrap_or(self.boot)
    }

    /// The instant of a date that [`Self::text`] gave, where it is one and not before the clock's zero. The middle of
    /// its second: so it is the same second again for one whose wall clock is read a little earlier or later.
    pub fn moment(self, text: &str) -> Option<Moment> {
        let date = humantime::parse_rfc3339(text).ok()?;
        let second = date.duration_since(self.boot).ok()?;
        Some(Moment::from_boot(second + Duration::from_millis(500)))
    }

    /// The date and time at an instant in RFC 3339, to the second.
    pub fn text(self, moment: Moment) -> String {
        humantime::format_rfc3339_seconds(self.at(moment).max(SystemTime::UNIX_EPOCH)).to_string()
    }
}
