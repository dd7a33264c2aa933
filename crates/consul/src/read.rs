//! How to read: consistency, blocking, and the index that an answer carries.

use std::time::Duration;

/// The maximum wait of a blocking query. Consul shortens a longer one to it.
pub const MAX_WAIT: Duration = Duration::from_secs(600);

/// The consistency mode of a read, as Consul defines it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The leader answers by its lease. A deposed leader may return old data for a short time.
    #[default]
    Default,
    /// The leader first confirms with a quorum that it is the leader. A blocking query does so at its start and at each wake-up.
    Consistent,
}

/// A blocking query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// Answer once the index is above this one; 0 answers at once. Pass the index of the previous answer. If an answer's index is
    /// below the previous one (a snapshot was restored), start again from 0.
    pub index: u64,
    /// The maximum wait, from 1 ms to [`MAX_WAIT`]. Consul adds a random time of up to a sixteenth of it. Many clients that wait for
    /// the same key need jitter of their own.
    pub wait: Duration,
}

/// The options of a read. The default is Consul's: not blocking, default consistency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// The consistency mode of a read, as Consul defines it.
    pub consistency: Consistency,
    /// Wait for a change; `None` answers at once.
    pub blocking: Option<Blocking>,
}

/// An answer and its index, for the next blocking query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexed<T> {
    /// `X-Consul-Index`, at least 1.
    pub index: u64,
    /// Whether Consul reported that it left out items that the token may not read. Consul reports it since 1.11. It does not report it
    /// for transactions that write, nor for requests without a token (seen on 1.23).
    pub filtered: bool,
    /// The value.
    pub value: T,
}

impl<T> Indexed<T> {
    /// Converts the value and keeps the index.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Indexed<U> {
        Indexed { index: self.index, filtered: self.filtered, value: make(self.value) }
    }
}

impl Read {
    /// A read with [`Consistency::Consistent`].
    pub const fn consistent() -> Self {
        Self { consistency: Consistency::Consistent, blocking: None }
    }

    /// The same read as a blocking query: it waits for an index above `index`, for at most `wait`.
    #[must_use]
    pub const fn after(mut self, index: u64, wait: Duration) -> Self {
        self.blocking = Some(Blocking { index, wait });
        self
    }

    /// The same read with its wait limited to `wait`.
    pub(super) fn at_most(mut self, wait: Duration) -> Self {
        if let Some(blocking) = &mut self.blocking {
            blocking.wait = blocking.wait.min(wait);
        }
        self
    }

    /// Whether it may wait. An index of 0 answers at once.
    pub(super) fn blocks(self) -> bool {
        self.blocking.is_some_and(|blocking| blocking.index > 0)
    }

    /// The maximum time that Consul waits.
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
        if self.consistency == Consistency::Consistent {
            query.push(("consistent", String::new()));
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

/// At least 1 ms: Consul reads a wait of 0 as its default of 300 s.
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
        assert_eq!(
            text(Read::consistent().after(5, Duration::from_secs(2))),
            "consistent=&index=5&wait=2000ms"
        );
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
