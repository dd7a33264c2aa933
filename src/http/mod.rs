//! The read-only endpoints, and the bounded accept loop beneath every HTTP server of ours.

pub mod serve;
