//! The documented intervals within which each participant finds by its own reads what no watch reported.

use std::time::Duration;

/// A holder.
pub(super) const HOLDER: Duration = Duration::from_secs(60);
/// Any other participant.
pub(super) const OTHERS: Duration = Duration::from_secs(600);
