//! How long a session is surely alive.

use std::time::Duration;

use super::Moment;

/// Renewals in a TTL.
const RENEWALS_PER_TTL: u32 = 3;

/// What a TTL entails. Consul ends no session before its TTL has passed since the last renewal reached it (in
/// practice it waits twice that), and the renewal was sent before it arrived: so what counts from the sending ends
/// before Consul's own count can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    ttl: Duration,
}

impl Terms {
    /// The terms of a session with this TTL.
    pub const fn new(ttl: Duration) -> Self {
        Self { ttl }
    }

    /// Time by which the lease ends before the TTL: a tenth of it, for clocks that run at different speeds.
    pub fn margin(self) -> Duration {
        self.ttl / 10
    }

    /// Time from one renewal to the next, before jitter: a third of the TTL, so that two may fail.
    pub fn renew_every(self) -> Duration {
        self.ttl / RENEWALS_PER_TTL
    }

    /// Time after which an attempt to renew is given up: well below the interval, so that a black hole leaves time
    /// for another attempt.
    pub fn renew_timeout(self) -> Duration {
        (self.ttl / 6).min(Duration::from_secs(5))
    }
}

/// The belief that the session lives, earned by one answered renewal (or the creation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    ends: Moment,
    ttl: Duration,
}

impl Lease {
    /// The lease earned by a request that was sent at `sent` and answered.
    pub fn earned(sent: Moment, terms: Terms) -> Self {
        Self { ends: sent + terms.ttl.saturating_sub(terms.margin()), ttl: terms.ttl }
    }

    /// The TTL that it goes by: of a session that was taken up again, not the one that is configured now.
    pub fn ttl(self) -> Duration {
        self.ttl
    }

    /// The instant from which nothing may be believed any more.
    pub fn ends(self) -> Moment {
        self.ends
    }

    /// Whether it still counts.
    pub fn is_valid(self, now: Moment) -> bool {
        now < self.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn counts_from_the_sending_and_ends_a_margin_before_the_ttl() {
        let lease = Lease::earned(at(100), Terms::new(Duration::from_secs(30)));
        assert_eq!(lease.ends(), at(127));
        assert!(lease.is_valid(at(126)) && !lease.is_valid(at(127)));
    }

    #[test]
    fn two_renewals_may_fail_by_time_out_before_the_lease_ends() {
        for ttl in [10, 15, 30, 60, 3600, 86_400] {
            let terms = Terms::new(Duration::from_secs(ttl));
            let third_answered = terms.renew_every() + terms.renew_timeout() * 3;
            assert!(third_answered <= Duration::from_secs(ttl) - terms.margin(), "TTL {ttl} s");
        }
    }
}
