//! slotkeeper holds slots of Consul semaphores on behalf of the workload beside it.
//!
//! The package is a binary: [`main`] is all that it offers. The map of the code is ARCHITECTURE.md. What has a boundary of
//! its own is a crate: `slotkeeper-semaphore` is the protocol without I/O, `slotkeeper-consul` the HTTP client; the module
//! `bridge` translates between the two.

mod agent;
mod bridge;
mod cli;
mod clock;
mod config;
mod control;
mod duration;
mod escape;
mod exit;
mod files;
mod http;
mod metrics;
mod operator;
mod progress;
mod shutdown;
mod status;
mod stderr;
mod telemetry;
mod termination;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod untrusted_input;
mod vitals;
mod workload;

pub use cli::main;

/// What the tests, the benchmarks and the fuzz targets of this package use of its inside. It is no API: it changes without
/// notice.
#[doc(hidden)]
pub mod internals {
    pub mod agent {
        pub use crate::agent::{
            CHANGE_DEFERRED, CONSUL_ADDRESS_CHANGED, CONSUL_ADDRESS_FOREIGN, FILES_CHANGED, Files,
            Fingerprints, Parts, before_start, run,
        };
    }
    pub mod bridge {
        pub use crate::bridge::{confirm, confirm_all, renew};
    }
    pub mod clock {
        pub use crate::clock::{now, processor_time, wall};
    }
    pub mod config {
        pub use crate::config::{
            Config, Environment, Faults, Loaded, LogFormat, LogLevel, Overrides, Release, consul_settings,
            load, parse, without_file,
        };
    }
    pub mod control {
        pub mod request {
            pub use crate::control::request::{Grant, Kind, NoLease, Refusal, Released, Request, requests};
        }
    }
    pub mod exit {
        pub use crate::exit::Exit;
    }
    pub mod http {
        pub mod servers {
            pub use crate::http::servers::Servers;
        }
    }
    pub mod metrics {
        pub use crate::metrics::Metrics;
    }
    pub mod shutdown {
        pub use crate::shutdown::{Ask, Asks, ECHO};
    }
    pub mod status {
        pub use crate::status::{Report, Snapshot, State};
    }
    pub mod telemetry {
        pub use crate::telemetry::start;
    }
    pub mod vitals {
        pub use crate::vitals::Vitals;
    }
}
