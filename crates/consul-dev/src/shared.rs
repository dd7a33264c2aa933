//! The store behind a lock, and the reads that wait for a change.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::Dialect;
use super::store::{Read, Store};
use crate::clock;
use slotkeeper_semaphore::Moment;

/// The parameters of a blocking read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The read ends when the index is above this one.
    pub(crate) above: u64,
    /// The read ends after this time at the latest.
    pub(crate) at_most: Duration,
}

/// The store that all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    store: Mutex<Store>,
    /// The index of the latest write. A change wakes the waiting reads.
    changes: watch::Sender<u64>,
    dialect: Dialect,
}

impl Shared {
    pub(crate) fn new(store: Store, dialect: Dialect) -> Self {
        let changes = watch::Sender::new(store.index());
        Self { store: Mutex::new(store), changes, dialect }
    }

    /// Runs `act` on the store, after everything that is due has happened.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Store, Moment) -> T) -> T {
        let mut store = self.lock();
        let now = clock::now();
        store.tick(now);
        let result = act(&mut store, now);
        let index = store.index();
        drop(store);
        self.changes.send_if_modified(|seen| std::mem::replace(seen, index) != index);
        result
    }

    /// Reads. A blocking read is repeated until its answer changes or its time is over.
    pub(crate) async fn read<T>(&self, wait: Option<Wait>, read: impl Fn(&Store) -> Read<T>) -> Read<T> {
        let mut changes = self.changes.subscribe();
        let first = self.with(|store, _| read(store));
        let Some(wait) = wait.filter(|wait| first.index <= wait.above) else { return first };
        let changed = async {
            // The sender lives in `self`, so this loop ends by its return alone.
            while changes.changed().await.is_ok() {
                let next = self.with(|store, _| read(store));
                let is_news = self.dialect.neighbours_wake() || next.stamp != first.stamp;
                if next.index > wait.above && is_news {
                    return next;
                }
            }
            std::future::pending().await
        };
        match tokio::time::timeout(wait.at_most, changed).await {
            Ok(read) => read,
            Err(_) => self.with(|store, _| read(store)),
        }
    }

    /// Ends the sessions that are due, so that waiting reads see it. Never returns.
    pub(crate) async fn keep_time(&self) {
        let mut changes = self.changes.subscribe();
        loop {
            let due = self.with(|store, now| store.next_deadline().map(|due| due.since(now)));
            changes.mark_unchanged();
            let nap = async {
                match due {
                    // One tick of the timer later, so that the store is not asked twice.
                    Some(due) => tokio::time::sleep(due + Duration::from_millis(1)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = nap => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// A panic of another thread ends a release build. In a test the store is still consistent.
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
