//! A Consul-compatible server in memory, for development and fast tests.
