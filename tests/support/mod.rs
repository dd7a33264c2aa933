//! What integration tests share: servers to test against, free ports, and a plain HTTP client.
//!
//! A test takes it by `#[path = "../support/mod.rs"] mod support;`.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "this fails a test, nothing else")]
#![allow(clippy::print_stdout, reason = "libtest shows it where a test fails")]
#![allow(unreachable_pub, reason = "a module of each test binary")]

pub mod authority;
pub mod cluster;
pub mod consul;
pub mod crossed;
pub mod embedded;
pub mod freezer;
pub mod http;
pub mod https;
pub mod joint_death;
pub mod jwt;
pub mod kubernetes;
pub mod kv;
pub mod life;
pub mod lives;
pub mod network;
pub mod ports;
pub mod processes;
pub mod proxy;
pub mod relay;
pub mod shipped;
pub mod sources;
pub mod traffic;
pub mod wait;
