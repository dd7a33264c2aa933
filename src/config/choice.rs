//! The closed choices of the configuration, the same in the file and in the checked values.
//!
//! The comments are the descriptions of the JSON Schema.

use schemars::JsonSchema;
use serde::Deserialize;

/// What Consul does with the session's keys when the session ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Behavior {
    /// Consul deletes them: nothing is left of a dead contender.
    #[default]
    Delete,
    /// Consul leaves them, unlocked.
    Release,
}

/// Who takes the slot and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The agent takes it at its start and holds it until it stops.
    #[default]
    Hold,
    /// The workload takes and returns it through the control endpoints (`control.listen`). Readiness does not wait for it.
    OnDemand,
}

/// What follows a lost slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// The agent gets in line again.
    #[default]
    Reacquire,
    /// The agent drains and exits with 80.
    Exit,
}

/// What is done where the limit stored in Consul is another than the configured one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitPolicy {
    /// The stored one governs; the difference is warned of and exported.
    #[default]
    Adopt,
    /// The configured one is written.
    Set,
    /// No slot is taken.
    Refuse,
}

/// How a new `.lock` is written. One that is there keeps its form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The semaphore guide's form: holders as a list.
    #[default]
    List,
    /// The form of Consul's own Go API and of `consul lock`: holders as a map. It cannot say that one holder has
    /// several slots.
    Map,
}

/// How several slots are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Acquire {
    /// Each as soon as it is to be had.
    #[default]
    Independently,
    /// All required ones in one transaction, or none.
    Together,
}

/// When a stopping agent gives its slots back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// As soon as it is told to stop.
    #[default]
    AtOnce,
    /// When the workload says that it is done (`POST /v1/drain` at `control.listen`), or the timeout ends.
    AfterWorkload,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// What the agent could not do.
    Error,
    /// Also what may need attention.
    Warn,
    /// Also what changed.
    #[default]
    Info,
    /// Also why.
    Debug,
    /// Everything.
    Trace,
}
