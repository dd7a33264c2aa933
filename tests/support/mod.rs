//! What integration tests share: servers on ports of their own, which end with the test.

pub(crate) mod consul;
