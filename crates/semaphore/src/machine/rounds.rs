//! When holders confirm their slots: in rounds that all semaphores and leases of one agent share, so that one read serves all that are
//! due. Different agents have their rounds at different instants.

use crate::timing::{CONFIRM_ROUND, MAX_CONFIRM_INTERVAL};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::{Identity, Moment};

/// The last round of that agent which is not later than [`MAX_CONFIRM_INTERVAL`] from now.
pub(super) fn next(who: &Identity, now: Moment) -> Moment {
    let mut hasher = DefaultHasher::new();
    who.hash(&mut hasher);
    let round = CONFIRM_ROUND.as_nanos();
    let phase = u128::from(hasher.finish()) % round;
    let latest = (now + MAX_CONFIRM_INTERVAL).since_boot().as_nanos();
    let past = (latest - phase) % round;
    Moment::from_boot(Duration::from_nanos(u64::try_from(latest - past).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agent(name: &str) -> Identity {
        Identity { pod: Some(name.into()), ..Identity::default() }
    }

    proptest! {
        #[test]
        fn it_is_in_time_and_not_much_sooner(millis in 0_u64..10_000_000, name in "[a-z]{1,8}") {
            let now = Moment::from_boot(Duration::from_millis(millis));
            let wait = next(&agent(&name), now).since(now);
            prop_assert!(wait <= MAX_CONFIRM_INTERVAL && wait > MAX_CONFIRM_INTERVAL - CONFIRM_ROUND, "{wait:?}");
        }

        #[test]
        fn all_of_an_agent_have_theirs_at_the_same_instants(first in 0_u64..10_000_000, later in 0_u64..600_000) {
            let at = |millis| Moment::from_boot(Duration::from_millis(millis));
            let (one, other) = (next(&agent("a"), at(first)), next(&agent("a"), at(first + later)));
            prop_assert_eq!(other.since(one).as_nanos() % CONFIRM_ROUND.as_nanos(), 0);
        }
    }

    #[test]
    fn agents_have_theirs_at_different_instants() {
        let now = Moment::from_boot(Duration::from_secs(1000));
        let rounds: std::collections::BTreeSet<_> =
            (0..50).map(|number| next(&agent(&number.to_string()), now)).collect();
        assert_eq!(rounds.len(), 50);
    }
}
