//! `slotkeeper run`: a real command on a real slot.

mod command;
mod fence;
mod fencing;
mod job;
mod life;
mod terminal;
