//! The documented intervals within which each participant finds by a read of its own what no watch reported.

use std::time::Duration;

use super::consul::TTL;

/// The field of a contender's entry that marks the waiter which looks out.
pub(super) const MARK: &str = "lookout";

/// The first in line of those who know of no such mark: it looks after one of the holders, and finds the others dead by its listings.
pub(super) const EARLIER_CLIENT: Duration = TTL.checked_div(2).expect("not zero");
/// Who holds.
pub(super) const HOLDER: Duration = Duration::from_secs(60);
/// Everybody else.
pub(super) const OTHERS: Duration = Duration::from_secs(600);
