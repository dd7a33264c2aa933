//! `slotkeeper run`: a real command on a real slot.

mod command;
mod fence;
pub(crate) mod job;
