//! The protocol's times, each with its reason.
//!
//! The times that follow from a session's TTL are in [`crate::lease`]; how long a free slot is left to foreign clients is in
//! [`crate::offered`].
//!
//! A pair of durations is a back-off: the first wait, and the longest.

use std::time::Duration;

// Waiting for a slot.

/// A semaphore that is tried once times out after this long without any answer.
pub const TRY_ONCE_TIMEOUT: Duration = Duration::from_secs(10);
/// A newcomer leaves free slots for at most this long to the clients that joined at the same time.
pub(crate) const MAX_NEWCOMER_YIELD: Duration = Duration::from_millis(60);
/// The same, for each write to Consul since the last one to `.lock`: so many clients may have joined before.
pub(crate) const NEWCOMER_YIELD_PER_WRITE: Duration = Duration::from_millis(1);
/// Writes to Consul from the last one of a client to `.lock` to the first one of the next client, where no other is there: a
/// session ends, and one is created.
pub(crate) const MAX_WRITES_WITHOUT_CROWD: u64 = 4;
/// A waiter leaves free slots for this long to the lookout.
pub(crate) const LOOKOUT_YIELD: Duration = Duration::from_secs(1);
/// A waiter reads within this time after it joined whether the lookout still exists: early enough to be served
/// within 10 s, and late enough that most clients of a queue that moves have left it without this read.
pub(crate) const FIRST_LOOK: Duration = Duration::from_secs(9);
/// It reads once more within this time before its wait ends. A lookout that died before a client joined is then found by that
/// client, however short its wait is.
pub(crate) const LOOK_WINDOW: Duration = Duration::from_secs(5);
/// The last read comes at most this long before the end of the wait: early enough for a listing and a write after it.
pub(crate) const LAST_LOOK: Duration = Duration::from_secs(2);
/// A wait that ends while such a read is under way, or what follows from it, lasts for at most this much longer.
pub(crate) const LOOK_GRACE: Duration = Duration::from_millis(500);
/// A holder whose contender key is missing makes a listing necessary after this long. Mostly it has just left, and the watch
/// of `.lock` reports so in the next instant.
pub(crate) const MISSING_HOLDER_GRACE: Duration = Duration::from_millis(50);

// Lost check-and-sets, and failed requests.

/// The wait after a lost check-and-set, for each client that may be writing at that time: each of those that were granted
/// their slots by one write, or else the root of the slots that are held.
pub(crate) const CAS_RETRY_WAIT: (Duration, Duration) = (Duration::from_millis(3), Duration::from_secs(2));
/// The longest of these waits, however many clients there are.
pub(crate) const MAX_CAS_RETRY_WAIT: Duration = Duration::from_secs(2);
/// More clients than these do not lengthen the wait.
pub(crate) const MAX_CAS_RIVALS: u32 = 100;
/// Attempts of a client that has left to serve the waiters that joined meanwhile.
pub(crate) const MAX_FOLLOW_UPS: u32 = 3;
/// A cleanup that any client can do waits for a random time up to this, so that one client does it.
pub(crate) const MAX_CLEANUP_DELAY: Duration = Duration::from_secs(1);
/// The wait after a failed request.
pub(crate) const FAILURE_RETRY_WAIT: (Duration, Duration) =
    (Duration::from_millis(200), Duration::from_secs(10));
/// The longest wait between attempts to acquire a lock that is free but in lock-delay.
pub(crate) const LOCK_DELAY_RETRY_WAIT: Duration = Duration::from_secs(1);

// Watches: blocking queries on single keys.

/// A blocking query waits for this long. Consul's own limit is ten minutes.
pub(crate) const WATCH_WAIT: Duration = Duration::from_secs(300);
/// Watches that report only rare events begin after this long: a short hold does not pay for them. What happened before is
/// reported at once.
pub(crate) const WATCH_DELAY: Duration = Duration::from_secs(1);
/// A watch that is answered before this has not waited.
pub(crate) const MIN_WATCH_TIME: Duration = Duration::from_secs(1);
/// The wait after a watch that was answered early with nothing new. Consul promises only that something *may* have changed,
/// and advises clients to limit their rate.
pub(crate) const SPURIOUS_WATCH_WAIT: (Duration, Duration) =
    (Duration::from_millis(5), Duration::from_millis(500));
/// The wait after a watch reported a change that a consistent read denies.
pub(crate) const DENIED_WATCH_WAIT: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_secs(5));
/// The wait after a folder has changed. Where much happens, the names in it are read about once a second.
pub(crate) const FOLDER_WATCH_WAIT: Duration = Duration::from_secs(1);

// Reads that do not depend on a watch.

/// A holder reads its contender key and `.lock` at least this often, whatever its watch reports.
pub(crate) const MAX_CONFIRM_INTERVAL: Duration = Duration::from_secs(60);
/// From one common round of an agent's holders to the next. A holder that begins between two rounds waits up to this much less
/// than [`MAX_CONFIRM_INTERVAL`] once.
pub(crate) const CONFIRM_ROUND: Duration = Duration::from_secs(20);
/// A waiter lists all keys at least this often, and at most twice as often.
pub(crate) const MAX_LIST_INTERVAL: Duration = Duration::from_secs(600);
/// A status request makes an agent list a semaphore at most this often, for each participant.
pub(crate) const REFRESH_PER_PARTICIPANT: Duration = Duration::from_millis(500);
/// Limits of half a TTL, after which the head of the queue reads again: other waiters depend on it.
const HALF_TTL: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Half a TTL, at least 5 s and at most 60 s.
pub(crate) fn half(ttl: Duration) -> Duration {
    (ttl / 2).clamp(HALF_TTL.0, HALF_TTL.1)
}

// The session.

/// Share of the renewal interval that is random.
pub(crate) const RENEW_JITTER: f64 = 0.1;
/// Share of the wait between two attempts that is random.
pub(crate) const RETRY_JITTER: f64 = 0.5;
/// A holder whose renewal was refused waits for at most the rest of its lease divided by this: at first no more requests than
/// while nothing fails, and more as the lease nears its end.
pub(crate) const REFUSED_SHARE: u32 = 3;
/// The longest wait between attempts to create a session, or to renew one that holds nothing.
pub(crate) const MAX_SESSION_RETRY_WAIT: Duration = Duration::from_secs(10);
/// Renewals that may be in flight at once. A server that has lost its leader keeps some for seconds.
pub(crate) const MAX_RENEWALS_IN_FLIGHT: usize = 8;
/// Consul may execute a write this long after its answer was given up, so that a second look comes then. Consul's servers
/// hold a request for 7 s while they have no leader.
pub(crate) const LATE_WRITE: Duration = Duration::from_secs(30);
