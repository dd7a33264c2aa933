//! The text of `/v1/status`, made once for all who ask at about the same time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::clock;
use crate::status::{Id, Snapshot};
use slotkeeper_semaphore::Moment;

/// Time for which a text serves where nothing changes: so old are the times in it at most.
const FRESH: Duration = Duration::from_millis(100);

/// The last text that was made. What all readers together cost is so bounded by what happens, and not by how many they are
/// or how often they ask; and many who do not read keep one text, and not one each.
#[derive(Debug, Default)]
pub(super) struct Picture(Mutex<Option<Made>>);

#[derive(Debug)]
struct Made {
    of: Id,
    until: Moment,
    text: Bytes,
}

impl Picture {
    /// The status as JSON.
    pub(super) fn of(&self, snapshot: &Snapshot, now: Moment) -> Bytes {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = last.as_ref().filter(|made| made.of == snapshot.id && now < made.until) {
            return made.text.clone();
        }
        // What is made of text and numbers can be written.
        let text = Bytes::from(serde_json::to_vec(&snapshot.report(now, clock::wall())).unwrap_or_default());
        // Never beyond a lease's end: one that has run out is not to be called fresh.
        let lease = snapshot.session.as_ref().map(|session| session.lease_ends).filter(|ends| now < *ends);
        let until = lease.map_or(now + FRESH, |ends| ends.min(now + FRESH));
        *last = Some(Made { of: snapshot.id, until, text: text.clone() });
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
        let (picture, now) = (Picture::default(), clock::now());
        let mut snapshot = before_start(now);
        let first = picture.of(&snapshot, now);
        let is_first = |text: Bytes| text.as_ptr() == first.as_ptr();
        assert!(is_first(picture.of(&snapshot, now + FRESH / 2)));
        assert!(!is_first(picture.of(&snapshot, now + FRESH)));
        snapshot.id = snapshot.id.next();
        let changed = picture.of(&snapshot, now + FRESH);
        assert!(changed.as_ptr() == picture.of(&snapshot, now + FRESH).as_ptr() && !is_first(changed));
    }

    #[test]
    fn no_text_outlives_the_lease_that_it_calls_fresh() {
        let (picture, now) = (Picture::default(), clock::now());
        let mut snapshot = before_start(now);
        let (id, name, ttl, lease_ends) = ("5e55".into(), "n".into(), FRESH, now + FRESH / 4);
        snapshot.session = Some(Session { id, name, ttl, lease_ends });
        let left = |now| {
            let status: serde_json::Value = serde_json::from_slice(&picture.of(&snapshot, now)).unwrap();
            status["session"]["lease_remaining_seconds"].as_f64().unwrap()
        };
        assert!(left(now) > 0.0);
        assert_eq!(left(lease_ends), 0.0);
    }
}
