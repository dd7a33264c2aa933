//! How to read: consistency, blocking, and the index that an answer carries.

use std::time::Duration;

/// The longest wait of a blocking read; Consul cuts longer ones down to it.
pub const MAX_WAIT: Duration = Duration::from_secs(600);

/// How fresh the answer must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// From the leader by its lease: a deposed leader may answer with old data for a short time.
    #[default]
    Default,
    /// From a leader that has asked a quorum whether it still is one. A blocking read asks at its start and at each
    /// wake-up only.
    Consistent,
    /// From any server, however far behind.
    Stale,
}

/// A read that waits for news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// Answer once the index is above this one; 0 answers at once. By the rules of Consul's documentation the next
    /// read goes on from the answer's index, and begins again from 0 where that has gone back (tombstones were
    /// reaped, a snapshot was restored).
    pub index: u64,
    /// Answer by then in any case, from 1 ms to [`MAX_WAIT`]. Consul adds up to a sixteenth of it at random; many
    /// clients that wait for the same should add jitter of their own.
    pub wait: Duration,
}

/// How to read. The default is Consul's: not blocking, default consistency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// How fresh the answer must be.
    pub consistency: Consistency,
    /// Wait for news.
    pub blocking: Option<Blocking>,
}

/// An answer and the index to block on for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexed<T> {
    /// `X-Consul-Index`, at least 1.
    pub index: u64,
    /// Whether Consul said that it left something out which the token may not read. It says so since 1.11. In the answers to
    /// transactions that write, and to requests without a token, it still hides in silence (tried with 1.23).
    pub filtered: bool,
    /// What was read.
    pub value: T,
}

impl<T> Indexed<T> {
    /// The same index over something made of the value.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Indexed<U> {
        Indexed { index: self.index, filtered: self.filtered, value: make(self.value) }
    }
}

impl Read {
    /// A read that a quorum stands behind.
    pub const fn consistent() -> Self {
        Self { consistency: Consistency::Consistent, blocking: None }
    }

    /// A read of any server.
    pub const fn stale() -> Self {
        Self { consistency: Consistency::Stale, blocking: None }
    }

    /// The same read, waiting for an index above `index` for at most `wait`.
    #[must_use]
    pub const fn after(mut self, index: u64, wait: Duration) -> Self {
        self.blocking = Some(Blocking { index, wait });
        self
    }

    /// The same read, waiting for at most `wait` where it waits at all.
    pub(super) fn at_most(mut self, wait: Duration) -> Self {
        if let Some(blocking) = &mut self.blocking {
            blocking.wait = blocking.wait.min(wait);
        }
        self
    }

    /// True where it may wait: an index of 0 answers at once.
    pub(super) fn blocks(self) -> bool {
        self.blocking.is_some_and(|blocking| blocking.index > 0)
    }

    /// The time that Consul may spend on waiting.
    pub(super) fn waits(self) -> Duration {
        match self.blocking {
            Some(blocking) if blocking.index > 0 => {
                let wait = bounded(blocking.wait);
                wait + wait / 16
            }
            Some(_) | None => Duration::ZERO,
        }
    }

    /// The query parameters.
    pub(super) fn query(self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        match self.consistency {
            Consistency::Default => {}
            Consistency::Consistent => query.push(("consistent", String::new())),
            Consistency::Stale => query.push(("stale", String::new())),
        }
        if let Some(blocking) = self.blocking
            && blocking.index > 0
        {
            query.push(("index", blocking.index.to_string()));
            query.push(("wait", format!("{}ms", bounded(blocking.wait).as_millis())));
        }
        query
    }
}

/// Consul takes a wait of 0 for its default of 300 s.
fn bounded(wait: Duration) -> Duration {
    wait.clamp(Duration::from_millis(1), MAX_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_of_a_read() {
        let text = |read: Read| {
            read.query()
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
                .join("&")
        };
        assert_eq!(text(Read::default()), "");
        assert_eq!(text(Read::consistent()), "consistent=");
        assert_eq!(text(Read::stale().after(5, Duration::from_secs(2))), "stale=&index=5&wait=2000ms");
        assert_eq!(text(Read::default().after(0, Duration::from_secs(2))), "");
        assert_eq!(text(Read::default().after(5, Duration::ZERO)), "index=5&wait=1ms");
        assert_eq!(text(Read::default().after(5, Duration::MAX)), "index=5&wait=600000ms");
    }

    #[test]
    fn what_consul_may_wait() {
        assert_eq!(Read::default().waits(), Duration::ZERO);
        assert_eq!(Read::default().after(0, Duration::from_secs(16)).waits(), Duration::ZERO);
        assert_eq!(Read::default().after(1, Duration::from_secs(16)).waits(), Duration::from_secs(17));
        assert_eq!(Read::default().after(1, Duration::MAX).waits(), Duration::from_millis(637_500));
    }
}
