//! The protocol's times, each with its reason.
//!
//! The times that follow from a session's TTL are in [`crate::lease`].
//!
//! A pair of durations is a back-off: the first wait, and the longest.

use std::time::Duration;

// Waiting for a slot.

/// A semaphore that is tried once times out after this long without any answer.
pub const TRY_ONCE_TIMEOUT: Duration = Duration::from_secs(10);
/// A newcomer leaves free slots for at most this long to the clients that joined at the same time.
pub(crate) const MAX_NEWCOMER_YIELD: Duration = Duration::from_millis(60);
/// The same for one that has lost a race for a slot. Those of a crowd should not all list the keys while Consul is busy with their arrival.
pub(crate) const MAX_CROWD_YIELD: Duration = Duration::from_millis(400);
/// The same, for each write to Consul since the last one to `.lock`: so many clients may have joined before.
pub(crate) const NEWCOMER_YIELD_PER_WRITE: Duration = Duration::from_millis(1);
/// An offer that is not accepted this long after a client has seen it first is taken back by that client. It is a hundred times what
/// a client needs that lives, on most networks.
pub const OFFER_PATIENCE: Duration = Duration::from_secs(2);
/// Waiters that were asked for a sign of life have this long to answer before the slot goes to one of them.
pub(crate) const ROLL_CALL: Duration = Duration::from_millis(400);
/// Free slots are left for this long to a foreign client that stands ahead. Those that watch the semaphore try at once.
pub(crate) const FOREIGN_TURN: Duration = Duration::from_millis(300);
/// Free slots are left for this long to an acquire group that stands ahead, before it is asked for a sign of life.
pub(crate) const GROUP_PATIENCE: Duration = Duration::from_secs(5);
/// Slots may be free for this long although waiters are counted: a client is about to serve them.
pub(crate) const UNSERVED: Duration = Duration::from_secs(1);
/// The pause between the looks of one observer, while the queue moves.
pub(crate) const LOOK_PAUSE: (Duration, Duration) = (Duration::from_millis(1250), Duration::from_secs(10));
/// So many waiters of a queue observe it, by chance.
pub(crate) const MAX_OBSERVERS: u32 = 24;
/// A waiter looks once more within this time before its wait ends, so that it finds by itself what others do not.
pub(crate) const LOOK_WINDOW: Duration = Duration::from_secs(5);
/// The last look comes at most this long before the end of the wait: early enough for a listing and a write after it.
pub(crate) const LAST_LOOK: Duration = Duration::from_secs(2);
/// A wait that ends while such a look is under way, or what follows from it, lasts for at most this much longer.
pub(crate) const LOOK_GRACE: Duration = Duration::from_millis(500);

// Lost check-and-sets, and failed requests.

/// Of holders that one write served, each leaves so much later than the one before, if all leave at the same time.
pub(crate) const RELEASE_STEP: Duration = Duration::from_millis(5);
/// The wait after a lost check-and-set, for each client that may be writing at that time: each of those that were granted
/// their slots by one write, or else the root of the slots that are held. The longest wait is the same, however many clients there are.
pub(crate) const CAS_RETRY_WAIT: (Duration, Duration) = (Duration::from_millis(3), Duration::from_secs(2));
/// More clients than these do not lengthen the wait.
pub(crate) const MAX_CAS_RIVALS: u32 = 100;
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
/// A holder watches `.lock` from this long after the grant, where few clients do: so it can hand off without a read.
pub(crate) const RECORD_WATCH_DELAY: Duration = Duration::from_millis(250);
/// A watch that is answered before this has not waited.
pub(crate) const MIN_WATCH_TIME: Duration = Duration::from_secs(1);
/// The wait after a watch that was answered early with nothing new. Consul promises only that something *may* have changed,
/// and advises clients to limit their rate.
pub(crate) const SPURIOUS_WATCH_WAIT: (Duration, Duration) =
    (Duration::from_millis(5), Duration::from_millis(500));
/// The wait after a watch reported a change that a consistent read denies.
pub(crate) const DENIED_WATCH_WAIT: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_secs(5));

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
