//! The workload beside us: the commands it has run on changes.

pub mod hooks;
