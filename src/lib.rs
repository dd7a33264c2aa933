//! slotkeeper holds slots of Consul semaphores on behalf of the workload beside it.
//!
//! The map of the code is ARCHITECTURE.md. In short: [`semaphore`] is the pure core that decides, [`consul`] the client
//! that talks, [`bridge`] takes the words of the one to the other, for the [`agent`] and for the [`operator`]'s commands.

pub mod agent;
pub mod bridge;
pub mod cli;
pub mod clock;
pub mod config;
pub mod consul;
pub mod control;
pub mod embedded;
pub mod files;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod hostile;
pub mod http;
pub mod metrics;
pub mod operator;
pub mod progress;
#[cfg(test)]
#[path = "../tests/support/seed.rs"]
mod seed;
pub mod semaphore;
pub mod shutdown;
#[cfg(test)]
mod simulation;
pub mod status;
pub mod stderr;
pub mod telemetry;
mod termination;
pub mod vitals;
pub mod workload;
