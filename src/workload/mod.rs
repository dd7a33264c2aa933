//! What the workload beside us sees: the readiness file, and the commands it has run on changes.

pub mod hooks;
pub mod readiness;
