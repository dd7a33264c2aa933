//! slotkeeper is a sidecar agent that holds slots of Consul semaphores for a workload.
//!
//! The package is a binary, and [`main`] is its only API. ARCHITECTURE.md is the map of the code. Parts with a boundary of their
//! own are crates: `slotkeeper-semaphore` is the protocol without I/O, `slotkeeper-consul` the HTTP client. The module `bridge`
//! translates between the two.

mod about;
mod agent;
mod bridge;
mod cli;
mod clock;
mod config;
mod console;
mod control;
mod duration;
mod escape;
mod exit;
mod files;
mod http;
mod log_events;
mod metrics;
mod operator;
mod reload_report;
mod schema_version;
mod service_manager;
mod session_node;
mod shutdown;
mod status;
mod telemetry;
mod termination;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[path = "../fuzz/untrusted_input/mod.rs"]
pub mod untrusted_input;
mod user;
mod waiting;
mod watchdog;
mod workload;

pub use cli::main;

/// Internals for the tests, benchmarks and fuzz targets of this package. No API: they change without notice.
#[doc(hidden)]
pub mod internals {
    pub mod agent {
        pub use crate::agent::{Files, Fingerprints, Parts, before_start, run};
    }
    pub mod log_events {
        pub use crate::log_events::*;
    }
    pub mod bridge {
        pub use crate::bridge::{read_groups, renew};
    }
    pub mod clock {
        pub use crate::clock::{now, processor_time, wall};
    }
    pub mod config {
        pub use crate::config::{
            CommandRules, Config, Environment, Faults, Loaded, LogFormat, LogLevel, Overrides, Release,
            consul_settings, load, parse, without_file,
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
    pub mod session_node {
        pub use crate::session_node::{AUTO_NODE, NODE_RULE, SESSION_RULE};
    }
    pub mod shutdown {
        pub use crate::shutdown::{REPEATED_SIGNAL, SignalRequest, SignalRequests};
    }
    pub mod status {
        pub use crate::status::{Snapshot, State, Status};
    }
    pub mod telemetry {
        pub use crate::telemetry::start;
    }
    pub mod watchdog {
        pub use crate::watchdog::Watchdog;
    }
    pub mod workload {
        pub use crate::workload::guard::fence::max_kill_after;
    }
}
