//! The documented intervals within which each participant finds by its own reads what no watch reported.

use std::time::Duration;

use super::consul::TTL;

/// The field of a contender's entry that marks the lookout.
pub(super) const MARK: &str = "lookout";

/// The head of the queue, if it is a client of the previous version, which does not know the mark. It watches one holder, and finds
/// other dead holders by its listings.
pub(super) const EARLIER_CLIENT: Duration = TTL.checked_div(2).expect("not zero");
/// A holder.
pub(super) const HOLDER: Duration = Duration::from_secs(60);
/// Any other participant.
pub(super) const OTHERS: Duration = Duration::from_secs(600);
