//! A point of the table: how many clients, how many slots, and how long each slot is held.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

/// Hold times differ from the point's own by so much at most.
const SPREAD: f64 = 0.3;

/// Clients in a queue for a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) clients: u32,
    /// Slots of the semaphore.
    pub(crate) limit: u32,
    /// How long a client holds its slot.
    pub(crate) hold: Duration,
}

/// Whether all clients hold for the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    Equal,
    /// Drawn evenly from [`SPREAD`] around the point's hold time.
    Spread,
}

impl Point {
    /// How long each client holds. The same seed gives the same times.
    pub(crate) fn holds(&self, spread: Spread, seed: u64) -> Vec<Duration> {
        let mut rng = Rng::with_seed(seed);
        let factor = || match spread {
            Spread::Equal => 1.0,
            Spread::Spread => 1.0 + SPREAD * (2.0 * rng.f64() - 1.0),
        };
        std::iter::repeat_with(factor)
            .take(self.clients as usize)
            .map(|factor| self.hold.mul_f64(factor))
            .collect()
    }

    /// After which its play hangs.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(60) + self.hold * self.clients.div_ceil(self.limit) * 10
    }
}

impl Spread {
    /// For people, behind a hold time.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "",
            Self::Spread => " ±30%",
        }
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not clients, limit and hold time, such as 120x30x1s");
        let mut parts = text.splitn(3, 'x');
        let mut number = || parts.next()?.parse().ok().filter(|number| *number > 0);
        let (clients, limit) = (number().ok_or_else(wrong)?, number().ok_or_else(wrong)?);
        let hold = humantime::parse_duration(parts.next().ok_or_else(wrong)?).map_err(|_| wrong())?;
        if hold.is_zero() {
            return Err("write a hold time of more than 0s: all else is measured by it".into());
        }
        Ok(Self { clients, limit, hold })
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.clients, self.limit, humantime::format_duration(self.hold))
    }
}
