//! What one agent wants of one semaphore.

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
    /// Ask for it again.
    Reacquire,
    /// Do not: the shell drains and exits.
    Exit,
}

/// One semaphore as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The key prefix, without a slash at its end.
    pub prefix: String,
    /// Slots that may be held at once.
    pub limit: u32,
    /// Slots that this workload takes, 1 to `limit`.
    pub slots: u32,
    /// Higher goes first.
    pub priority: i32,
    /// How long to wait for the slot; `None` for ever, zero tries once.
    pub wait: Option<Duration>,
    /// What to do when it is lost.
    pub on_lost: OnLost,
    /// What to do where the limits differ.
    pub limit_policy: LimitPolicy,
    /// How long a dead holder's slot rests before it is given on.
    pub prune_delay: Duration,
    /// How a new record is written.
    pub form: Form,
    /// Text for operators in the contender entry.
    pub body: Option<String>,
}

impl Settings {
    /// Of a semaphore that is only to be left.
    pub(super) fn of_prefix(prefix: String) -> Self {
        Self {
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

    /// Whether to try once only.
    pub fn try_once(&self) -> bool {
        self.wait.is_some_and(|wait| wait.is_zero())
    }
}
