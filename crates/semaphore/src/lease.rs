//! The lease: how long a session is certain to live.

use std::time::Duration;

use super::Moment;

/// Renewals of a waiter in a TTL. Two may fail, and the waiter keeps its position.
const RENEWALS_OF_A_WAITER: u32 = 3;
/// Renewals of a holder in a TTL. The younger the lease is when an outage begins, the longer the outage that it survives.
const RENEWALS_OF_A_HOLDER: u32 = 6;
/// A holder renews no more often than this, so that it stays below 0.15 renewals a second, unless the TTL is so short that
/// a waiter does. In Consul's request limits a renewal counts as a write, although nothing is written.
const SELDOM: Duration = Duration::from_millis(7500);
/// The longest wait from one attempt of a holder to the next while none is answered.
const RETRY: Duration = Duration::from_secs(1);

/// The TTL of a session where none is configured: the smallest, in steps of 5 s, under which a command that has 5 s for
/// stopping survives 25 s without Consul. At Consul's defaults an election takes 9 to 19 s.
pub const DEFAULT_TTL: Duration = Duration::from_secs(45);

/// The times that follow from a session's TTL.
///
/// ```
/// use std::time::Duration;
///
/// use slotkeeper_semaphore::{Lease, Moment, Terms};
///
/// let terms = Terms::new(Duration::from_secs(45));
/// assert_eq!(terms.renew_every(), Duration::from_millis(7500));
/// // The lease counts from the instant at which the renewal was sent, and expires a tenth of the TTL early.
/// let sent = Moment::from_boot(Duration::from_secs(100));
/// assert_eq!(Lease::earned(sent, terms).ends(), sent + Duration::from_millis(40_500));
/// ```
///
/// Consul ends no session before its TTL has passed since the last renewal reached it (in
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

    /// Time from one renewal of a holder to the next, before jitter shortens it.
    pub fn renew_every(self) -> Duration {
        (self.ttl / RENEWALS_OF_A_HOLDER).max(SELDOM).min(self.renew_every_while_waiting())
    }

    /// The same for a client that holds nothing.
    pub fn renew_every_while_waiting(self) -> Duration {
        self.ttl / RENEWALS_OF_A_WAITER
    }

    /// Time from one attempt of a holder to the next while none is answered, before jitter shortens it.
    pub fn retry_every(self) -> Duration {
        (self.ttl / 30).min(RETRY)
    }

    /// The longest outage of Consul that a holder's lease survives at any instant: the last renewal is as old as possible when the outage
    /// begins, and an attempt has just failed when it ends. `besides` is the time for what must be done before the lease expires.
    pub fn tolerates(self, besides: Duration) -> Duration {
        let lease = self.ttl.saturating_sub(self.margin());
        lease.saturating_sub(self.renew_every() + self.retry_every() + ANSWER + besides)
    }

    /// Time after which an attempt to renew is given up: below the interval, so that the lease that it earns is a new one.
    /// The next attempt does not wait for it.
    pub fn renew_timeout(self) -> Duration {
        (self.ttl / 6).min(Duration::from_secs(5))
    }
}

/// In an estimate, the time that a renewal takes.
const ANSWER: Duration = Duration::from_millis(300);

/// The time for which the session is certain to live, earned by an answered renewal or by its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    sent: Moment,
    terms: Terms,
}

impl Lease {
    /// The lease earned by a request that was sent at `sent` and answered.
    pub fn earned(sent: Moment, terms: Terms) -> Self {
        Self { sent, terms }
    }

    /// The TTL of the session. A resumed session keeps its TTL, whatever is configured now.
    pub fn ttl(self) -> Duration {
        self.terms.ttl
    }

    /// The instant at which the lease expires.
    pub fn ends(self) -> Moment {
        self.sent + self.terms.ttl.saturating_sub(self.terms.margin())
    }

    /// The instant until which the lease is as young as a holder's. An older one, of a waiter that renews less often, survives a shorter
    /// outage.
    pub fn fresh_until(self) -> Moment {
        self.sent + self.terms.renew_every()
    }

    /// Whether the lease has not expired.
    pub fn is_valid(self, now: Moment) -> bool {
        now < self.ends()
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

    const ALL: [u64; 8] = [10, 15, 20, 30, 45, 60, 3600, 86_400];

    #[test]
    fn two_renewals_of_a_waiter_may_fail_by_time_out_before_the_lease_ends() {
        for ttl in ALL {
            let terms = Terms::new(Duration::from_secs(ttl));
            let third_answered = terms.renew_every_while_waiting() + terms.renew_timeout() * 3;
            assert!(third_answered <= Duration::from_secs(ttl) - terms.margin(), "TTL {ttl} s");
        }
    }

    #[test]
    fn a_renewal_that_is_answered_in_time_earns_a_lease_that_is_fresh() {
        for ttl in ALL {
            let terms = Terms::new(Duration::from_secs(ttl));
            assert!(terms.renew_timeout() < terms.renew_every(), "TTL {ttl} s");
            assert!(terms.renew_every() <= terms.renew_every_while_waiting(), "TTL {ttl} s");
        }
    }

    #[test]
    fn the_default_survives_an_outage_of_25_seconds_by_few_renewals_and_no_shorter_ttl_does() {
        let outage = Duration::from_secs(25);
        // A command has 5 s for stopping, and half a second is left for the kernel.
        let stopping = Duration::from_millis(5500);
        let tolerates = |ttl: Duration| Terms::new(ttl).tolerates(stopping);
        assert!(tolerates(DEFAULT_TTL) >= outage, "{:?}", tolerates(DEFAULT_TTL));
        let step = Duration::from_secs(5);
        assert!(tolerates(DEFAULT_TTL - step) < outage, "{:?}", tolerates(DEFAULT_TTL - step));
        // Jitter shortens each wait by a twentieth on average.
        let renewals = 1.0 / (Terms::new(DEFAULT_TTL).renew_every().as_secs_f64() * 0.95);
        assert!(renewals <= 0.15, "{renewals} a second");
    }
}
