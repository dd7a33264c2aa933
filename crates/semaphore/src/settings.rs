//! The settings of one semaphore or lock.

use std::time::Duration;

use super::record::Form;

/// The maximum limit of a semaphore, and the most slots of one client. A `.lock` with so many holders fits into a transaction, beside the
/// contender keys that are written with it.
pub const MAX_LIMIT: u32 = 5_000;

/// What a client does if the stored limit differs from the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitPolicy {
    /// Follow the stored limit.
    Adopt,
    /// Write the configured limit once when the client joins, and once after the setting has changed. Two agents with different
    /// settings would otherwise overwrite each other for ever, and an operator's `set-limit` would not last.
    Set,
    /// Do not join; the client is blocked.
    Refuse,
}

/// What a client does after it has lost its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// Join the queue again.
    Reacquire,
    /// Leave. The caller is expected to end.
    Exit,
}

/// The kind of the resource: a semaphore or a single-key lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// A semaphore: the key `<prefix>/.lock`, and the contender keys beside it.
    Semaphore,
    /// A single-key lock, by Consul's own acquire and release, as `consul lock -n 1` and the Go API's `Lock` use it.
    Lock {
        /// Whether the key stays after a release. It does if the behaviour of the session is `release`.
        stays: bool,
    },
}

/// The settings of one semaphore or lock. A lock has `limit` and `slots` 1, and ignores what only a queue needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The kind of the resource.
    pub primitive: Primitive,
    /// The key prefix of a semaphore, without a slash at its end; the key of a lock.
    pub prefix: String,
    /// The number of slots of the semaphore.
    pub limit: u32,
    /// The number of slots that this client takes, from 1 to `limit`.
    pub slots: u32,
    /// The priority. A waiter with a higher priority is granted a slot first.
    pub priority: i32,
    /// The time after which the client times out. `None` waits for ever, zero tries once.
    pub wait: Option<Duration>,
    /// What the client does after it has lost its slot.
    pub on_lost: OnLost,
    /// What the client does if the limits differ.
    pub limit_policy: LimitPolicy,
    /// The time for which the slot of a dead holder stays taken before the client prunes it.
    pub prune_delay: Duration,
    /// The format in which the client creates `.lock`.
    pub form: Form,
    /// Text for operators in the contender key.
    pub body: Option<String>,
}

impl Settings {
    /// The settings of a single-key lock for which the client waits for ever.
    pub fn of_lock(key: String, stays: bool) -> Self {
        Self { primitive: Primitive::Lock { stays }, ..Self::of_prefix(key) }
    }

    /// The defaults of a semaphore: one slot, no bound on the wait.
    pub fn of_prefix(prefix: String) -> Self {
        Self {
            primitive: Primitive::Semaphore,
            prefix,
            limit: 1,
            slots: 1,
            priority: 0,
            wait: None,
            on_lost: OnLost::Exit,
            limit_policy: LimitPolicy::Adopt,
            prune_delay: Duration::ZERO,
            form: Form::List,
            body: None,
        }
    }

    /// Whether the resource is a single-key lock.
    pub fn is_lock(&self) -> bool {
        matches!(self.primitive, Primitive::Lock { .. })
    }

    /// Whether the client tries once only.
    pub fn try_once(&self) -> bool {
        self.wait.is_some_and(|wait| wait.is_zero())
    }
}
