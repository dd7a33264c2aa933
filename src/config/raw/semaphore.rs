//! The entries of `semaphores` and `locks`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::WrittenDuration;
use crate::config::checked::Wait;
use crate::config::choice::{Format, LimitPolicy, Mode, OnLost};

/// A semaphore to hold slots of.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in crate::config) struct Semaphore {
    /// Unique. The label of its metrics and the last part of its URL.
    #[schemars(required, regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"))]
    pub(in crate::config) name: Option<String>,
    /// Where the semaphore is in Consul's key-value store: `<prefix>/.lock` and `<prefix>/<session>`. No leading slash, no
    /// blank at either end.
    #[schemars(required, length(min = 1, max = 400))]
    pub(in crate::config) prefix: Option<String>,
    /// How many slots there are, for all its users together.
    #[schemars(required, range(min = 1, max = 10000))]
    pub(in crate::config) limit: Option<i64>,
    /// How many of them this workload takes; at most the limit. More than 1 needs the format `list`.
    #[schemars(range(min = 1, max = 10000), extend("default" = 1))]
    pub(in crate::config) slots: Option<i64>,
    /// Higher goes first; equal priority is first come, first served.
    #[schemars(range(min = -2_147_483_648_i64, max = 2_147_483_647), extend("default" = 0))]
    pub(in crate::config) priority: Option<i64>,
    /// Whether readiness waits for it; never with the mode `on_demand`.
    #[schemars(extend("default" = true))]
    pub(in crate::config) required: Option<bool>,
    /// Who takes the slot and when.
    #[schemars(extend("default" = "hold"))]
    pub(in crate::config) mode: Option<Mode>,
    /// How long to wait for the slot: `forever`, or a duration; `0s` tries once. With the mode `on_demand` each request says
    /// it.
    #[schemars(extend("default" = "forever"))]
    pub(in crate::config) wait: Option<Wait>,
    /// What follows a lost slot. With the mode `on_demand` it is lost for whoever took it, and nothing follows.
    #[schemars(extend("default" = "reacquire"))]
    pub(in crate::config) on_lost: Option<OnLost>,
    /// What is done where the limit stored in Consul is another than `limit`.
    #[schemars(extend("default" = "adopt"))]
    pub(in crate::config) limit_policy: Option<LimitPolicy>,
    /// How long a dead holder's slot rests before it is given on; at most 24h.
    #[schemars(extend("default" = "0s"))]
    pub(in crate::config) prune_delay: Option<WrittenDuration>,
    /// How a new `.lock` is written.
    #[schemars(extend("default" = "list"))]
    pub(in crate::config) format: Option<Format>,
    /// Text for operators in the contender entry, at most 1024 bytes.
    #[schemars(length(max = 1024))]
    pub(in crate::config) body: Option<String>,
}

/// A single-key lock to hold.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in crate::config) struct Lock {
    /// Unique among locks and semaphores. The label of its metrics and the last part of its URL.
    #[schemars(required, regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"))]
    pub(in crate::config) name: Option<String>,
    /// The key in Consul's key-value store. No leading slash, no blank at either end.
    #[schemars(required, length(min = 1, max = 400))]
    pub(in crate::config) key: Option<String>,
    /// Whether readiness waits for it; never with the mode `on_demand`.
    #[schemars(extend("default" = true))]
    pub(in crate::config) required: Option<bool>,
    /// Who takes the lock and when.
    #[schemars(extend("default" = "hold"))]
    pub(in crate::config) mode: Option<Mode>,
    /// How long to wait for the lock: `forever`, or a duration; `0s` tries once. With the mode `on_demand` each request says
    /// it.
    #[schemars(extend("default" = "forever"))]
    pub(in crate::config) wait: Option<Wait>,
    /// What follows a lost lock. With the mode `on_demand` it is lost for whoever took it, and nothing follows.
    #[schemars(extend("default" = "reacquire"))]
    pub(in crate::config) on_lost: Option<OnLost>,
    /// Text for operators in the lock's value, at most 1024 bytes.
    #[schemars(length(max = 1024))]
    pub(in crate::config) body: Option<String>,
}
