//! Within which time whoever was told nothing finds it by a look of its own, as it is documented, and who is told.

use std::time::Duration;

use super::consul::TTL;

/// The field of a contender's entry that marks the waiter which looks out.
pub(super) const MARK: &str = "lookout";

/// Whoever looks out.
pub(super) const HEAD: Duration = TTL.checked_div(2).expect("not zero");
/// Who holds.
pub(super) const HOLDER: Duration = Duration::from_secs(60);
/// Everybody else.
pub(super) const OTHERS: Duration = Duration::from_secs(600);
