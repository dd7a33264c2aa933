//! What integration tests share: servers to test against, free ports, and a plain HTTP client.
//!
//! A test takes it by `#[path = "../support/mod.rs"] mod support;`.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(unreachable_pub, reason = "a module of each test binary")]

pub mod consul;
pub mod embedded;
pub mod http;
pub mod ports;
