//! Keepers.
