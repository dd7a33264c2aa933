//! `slotkeeper run`: a real command on a real slot.

mod command;
mod early;
mod fence;
mod fencing;
mod handoff;
#[path = "../../support/agent/job.rs"]
pub(crate) mod job;
mod killed;
mod metrics_file;
mod namespace;
pub(crate) mod permanent;
mod ports;
mod result_file;
mod stop_after;
mod terminal;
mod variables;
mod voice;
mod waiting;
