//! How long a long poll survives proxies between the agent and Consul. Pure.
//!
//! A proxy, a balancer or Consul itself may end requests at some age. When several cuts agree on an age, polls request a shorter
//! wait. After a while they try a longer one again, since the proxy may have changed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use slotkeeper_semaphore::Moment;

/// Cuts that have to agree on an age.
const AGREEING_CUTS: usize = 3;
/// Percentage of that age to request. Consul adds up to a sixteenth to a wait.
const WAIT_PERCENT: u32 = 80;
/// Minimum wait: each poll costs a request.
const MIN_WAIT: Duration = Duration::from_secs(2);
/// A longer wait is tried again after this long.
const LIMIT_LIFETIME: Duration = Duration::from_secs(600);
/// Cuts within this time count as one: a restarting proxy cuts all polls at once, whatever their age.
const SAME_CUT: Duration = Duration::from_secs(1);

/// The maximum wait that long polls survive, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct WaitLimit {
    /// The address whose polls were cut. Another address may have another proxy.
    address: Option<Arc<str>>,
    /// The ages of the last cuts, the latest last.
    ages: VecDeque<Duration>,
    last_cut: Option<Moment>,
    /// The wait, and when a longer one is tried again.
    learnt: Option<(Duration, Moment)>,
}

impl WaitLimit {
    /// A poll of that address was cut off at that age.
    pub(super) fn cut(&mut self, address: &Arc<str>, age: Duration, now: Moment) {
        if self.address.as_ref() != Some(address) {
            *self = Self { address: Some(Arc::clone(address)), ..Self::default() };
        }
        if self.last_cut.is_some_and(|last| now.since(last) < SAME_CUT) {
            return;
        }
        self.last_cut = Some(now);
        self.ages.push_back(age);
        if self.ages.len() > AGREEING_CUTS {
            self.ages.pop_front();
        }
        let (Some(least), Some(most)) = (self.ages.iter().min(), self.ages.iter().max()) else { return };
        if self.ages.len() == AGREEING_CUTS && *most <= *least + *least / 10 {
            let wait = (*least / 100 * WAIT_PERCENT).max(MIN_WAIT);
            self.learnt = Some((wait, now + LIMIT_LIFETIME));
        }
    }

    /// A poll of that age was answered, so that younger ones were not cut for their age.
    pub(super) fn answered(&mut self, age: Duration) {
        if self.ages.iter().any(|cut| *cut <= age) {
            *self = Self::default();
        }
    }

    /// Maximum wait to request.
    pub(super) fn get(&self, now: Moment) -> Option<Duration> {
        self.learnt.filter(|(_, until)| now < *until).map(|(wait, _)| wait)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_boot(Duration::from_millis(millis))
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn address() -> Arc<str> {
        "http://a".into()
    }

    /// After cuts of these ages, one each ten seconds.
    fn after(ages: &[u64]) -> (WaitLimit, Moment) {
        let (mut limit, mut now) = (WaitLimit::default(), at(0));
        for age in ages {
            now = now + millis(10_000);
            limit.cut(&address(), millis(*age), now);
        }
        (limit, now)
    }

    fn learnt(ages: &[u64]) -> Option<Duration> {
        let (limit, now) = after(ages);
        limit.get(now)
    }

    #[test]
    fn three_cuts_that_agree_tell_the_wait() {
        assert_eq!(learnt(&[30_000, 30_000]), None);
        assert_eq!(learnt(&[30_000, 30_000, 30_000]), Some(millis(24_000)));
        assert_eq!(learnt(&[33_000, 30_000, 31_000]), Some(millis(24_000)));
        assert_eq!(learnt(&[33_001, 30_000, 31_000]), None);
        assert_eq!(learnt(&[5_000, 60_000, 30_000, 31_000, 30_000]), Some(millis(24_000)));
    }

    #[test]
    fn it_is_never_below_two_seconds() {
        assert_eq!(learnt(&[2_500; 3]), Some(millis(2_000)));
        assert_eq!(learnt(&[1_000; 3]), Some(millis(2_000)));
    }

    #[test]
    fn what_is_cut_further_on_is_asked_for_less_and_less() {
        let (mut limit, mut now) = after(&[60_000; 3]);
        for expected in [48_000, 38_400, 30_720, 24_576] {
            let wait = limit.get(now).unwrap();
            assert_eq!(wait, millis(expected));
            for _ in 0..AGREEING_CUTS {
                now = now + wait;
                limit.cut(&address(), wait, now);
            }
        }
    }

    #[test]
    fn a_longer_wait_is_tried_after_ten_minutes_and_one_cut_then_is_enough() {
        let (mut limit, now) = after(&[30_000; 3]);
        assert!(limit.get(now + (LIMIT_LIFETIME - millis(1))).is_some());
        let later = now + LIMIT_LIFETIME;
        assert_eq!(limit.get(later), None);
        limit.cut(&address(), millis(30_500), later + millis(30_500));
        assert_eq!(limit.get(later + millis(30_500)), Some(millis(24_000)));
    }

    #[test]
    fn a_proxy_that_restarts_teaches_nothing() {
        let (mut limit, now) = (WaitLimit::default(), at(50_000));
        for n in 0..64 {
            limit.cut(&address(), millis(40_000 + n), now + millis(n * 3));
        }
        assert_eq!(limit.get(now + millis(200)), None);
    }

    #[test]
    fn an_answer_after_a_longer_wait_takes_it_back() {
        let (mut limit, now) = after(&[6_000; 3]);
        limit.answered(millis(5_900));
        assert!(limit.get(now).is_some());
        limit.answered(millis(6_000));
        assert_eq!(limit.get(now), None);
        limit.cut(&address(), millis(6_000), now + millis(5_000));
        assert_eq!(limit.get(now + millis(5_000)), None, "it counts from the beginning");
    }

    #[test]
    fn another_address_has_other_proxies() {
        let (mut limit, now) = after(&[6_000, 6_000]);
        let other: Arc<str> = "http://b".into();
        for n in 1..=3 {
            limit.cut(&other, millis(6_000), now + millis(n * 10_000));
            assert_eq!(limit.get(now + millis(n * 10_000)).is_some(), n == 3);
        }
    }

    proptest! {
        /// Through whatever cuts at one age, be it exact or a little late, some ten polls later none is cut any more, and
        /// what is asked for is no less than needed.
        #[test]
        fn what_cuts_at_an_age_is_learnt(
            cuts_at in 2_200..60_000_u64,
            late in prop::collection::vec(0..50_u64, 64),
            extra in prop::collection::vec(0.0..0.0625_f64, 64),
            wanted in 5_000..60_000_u64,
        ) {
            let (mut limit, mut now) = (WaitLimit::default(), at(0));
            let mut cuts = Vec::new();
            for (n, (late, extra)) in late.iter().zip(extra).enumerate() {
                let wait = limit.get(now).unwrap_or(Duration::MAX).min(millis(wanted));
                prop_assert!(wait >= MIN_WAIT.min(millis(wanted)));
                prop_assert!(wait >= millis(cuts_at.min(wanted)) / 100 * WAIT_PERCENT, "{wait:?}");
                let until = wait.mul_f64(1.0 + extra);
                if until < millis(cuts_at) {
                    now = now + until;
                    limit.answered(until);
                } else {
                    let age = millis(cuts_at + late);
                    now = now + age;
                    limit.cut(&address(), age, now);
                    if now.since(at(0)) < LIMIT_LIFETIME {
                        cuts.push(n);
                    }
                }
            }
            // A wait that Consul's own jitter brings above the age now and then is cut now and then.
            let sure = millis(wanted).mul_f64(1.0625) < millis(cuts_at) || wanted >= cuts_at;
            if sure {
                prop_assert!(cuts.len() <= AGREEING_CUTS, "{cuts:?}");
            }
        }

        /// Whatever is cut, no wait is below the least.
        #[test]
        fn no_cuts_make_a_wait_too_short(ages in prop::collection::vec(1_000..5_000_u64, 1..50)) {
            let (mut limit, mut now) = (WaitLimit::default(), at(0));
            for age in ages {
                now = now + millis(age);
                limit.cut(&address(), millis(age), now);
                prop_assert!(limit.get(now).is_none_or(|wait| wait >= MIN_WAIT && wait <= millis(4_000)));
            }
        }
    }
}
