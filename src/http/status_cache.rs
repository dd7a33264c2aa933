//! The text of `/v1/status`, rendered once for all requests at about the same time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::json::line;
use crate::clock;
use crate::status::{Id, Snapshot};
use slotkeeper_semaphore::Moment;

/// Time for which a text is served while nothing changes: the greatest age of the times in it.
const FRESH: Duration = Duration::from_millis(100);

/// The text that was rendered last. It bounds the cost of all clients by the rate of changes, whatever their number and their
/// rate of requests. Clients that read slowly share one text in memory.
#[derive(Debug, Default)]
pub(super) struct StatusCache(Mutex<Option<Rendered>>);

#[derive(Debug)]
struct Rendered {
    of: Id,
    until: Moment,
    text: Bytes,
}

impl StatusCache {
    /// The status as JSON.
    pub(super) fn get_or_render(&self, snapshot: &Snapshot, now: Moment) -> Bytes {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rendered) =
            last.as_ref().filter(|rendered| rendered.of == snapshot.id && now < rendered.until)
        {
            return rendered.text.clone();
        }
        let text = Bytes::from(line(&snapshot.report(now, clock::wall())));
        // Never beyond the lease's end: an expired lease must not be shown as fresh.
        let lease =
            snapshot.session.as_ref().and_then(|session| session.lease_ends).filter(|ends| now < *ends);
        let until = lease.map_or(now + FRESH, |ends| ends.min(now + FRESH));
        *last = Some(Rendered { of: snapshot.id, until, text: text.clone() });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::before_start;
    use crate::status::Session;

    #[test]
    fn a_text_serves_until_something_changes_or_it_has_grown_old() {
        let (cache, now) = (StatusCache::default(), clock::now());
        let mut snapshot = before_start(now);
        let first = cache.get_or_render(&snapshot, now);
        let is_first = |text: Bytes| text.as_ptr() == first.as_ptr();
        assert!(is_first(cache.get_or_render(&snapshot, now + FRESH / 2)));
        assert!(!is_first(cache.get_or_render(&snapshot, now + FRESH)));
        snapshot.id = snapshot.id.next();
        let changed = cache.get_or_render(&snapshot, now + FRESH);
        assert!(
            changed.as_ptr() == cache.get_or_render(&snapshot, now + FRESH).as_ptr() && !is_first(changed)
        );
    }

    #[test]
    fn no_text_outlives_the_lease_that_it_calls_fresh() {
        let (cache, now) = (StatusCache::default(), clock::now());
        let mut snapshot = before_start(now);
        let lease_ends = now + FRESH / 4;
        snapshot.session = Some(Session {
            id: "5e55".into(),
            ttl_seconds: FRESH.as_secs_f64(),
            lease_ends: Some(lease_ends),
            ..Session::default()
        });
        let left = |now| {
            let status: serde_json::Value =
                serde_json::from_slice(&cache.get_or_render(&snapshot, now)).unwrap();
            status["session"]["expires_in_seconds"].as_f64().unwrap()
        };
        assert!(left(now) > 0.0);
        assert_eq!(left(lease_ends), 0.0);
    }
}
