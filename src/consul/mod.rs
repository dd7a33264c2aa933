//! The HTTP client of Consul: one function an endpoint.

mod settings;

pub use settings::{Address, Secret, Settings, Tls, TokenSource};
