//! The HTTP client of Consul: one function an endpoint.
