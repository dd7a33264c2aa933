//! The settings of one semaphore or lock.

use std::time::Duration;

use super::record::Form;

/// What to do where the stored limit differs from the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitPolicy {
    /// The stored one governs.
    Adopt,
    /// Write the configured one, once: on entering and after it changed. Not again and again, or two agents with
    /// different files would overwrite each other for ever, and an operator's `set-limit` would not last.
    Set,
    /// Stay out.
    Refuse,
}

/// What to do when a slot is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// Acquire it again.
    Reacquire,
    /// Do not: the shell drains and exits.
    Exit,
}

/// What it is that is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// Slots of a semaphore: `<prefix>/.lock` and the contender keys beside it.
    Semaphore,
    /// A single-key lock, by Consul's own acquire and release: what `consul lock -n 1` and the Go API's `Lock` take.
    Lock {
        /// Whether its key stays when it is given back, as it does where the session's behaviour is `release`.
        stays: bool,
        /// The lock-delay of our own session.
        delay: Duration,
    },
}

/// One semaphore as configured. Of a lock, all but `limit` and `slots`, which are 1, and what only a queue has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What it is.
    pub primitive: Primitive,
    /// The key prefix, without a slash at its end; a lock's key.
    pub prefix: String,
    /// Slots that may be held at once.
    pub limit: u32,
    /// Slots that this workload takes, 1 to `limit`.
    pub slots: u32,
    /// A higher priority is served first.
    pub priority: i32,
    /// How long to wait for the slot; `None` for ever, zero tries once.
    pub wait: Option<Duration>,
    /// What to do when it is lost.
    pub on_lost: OnLost,
    /// What to do where the limits differ.
    pub limit_policy: LimitPolicy,
    /// How long a dead holder's slot rests before it is granted again.
    pub prune_delay: Duration,
    /// How a new record is written.
    pub form: Form,
    /// Text for operators in the contender entry.
    pub body: Option<String>,
}

impl Settings {
    /// A single-key lock that is waited for as long as it takes.
    pub fn of_lock(key: String, stays: bool, delay: Duration) -> Self {
        Self { primitive: Primitive::Lock { stays, delay }, ..Self::of_prefix(key) }
    }

    /// A semaphore of one slot, with nothing said about it.
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

    /// Whether it is a single-key lock.
    pub fn is_lock(&self) -> bool {
        matches!(self.primitive, Primitive::Lock { .. })
    }

    /// Whether to try once only.
    pub fn try_once(&self) -> bool {
        self.wait.is_some_and(|wait| wait.is_zero())
    }
}
