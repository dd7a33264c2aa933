//! That nothing is lost by an outage as long as an election takes, whenever it begins.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use slotkeeper_semaphore::{
    Command, Commit, DEFAULT_TTL, Event, Failure, FailureKind, Identity, Keeper, Moment, Reading, Settings,
    Start, Terms, Wall,
};

use super::Fence;

/// When the keeper begins.
const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));

/// What a command has for stopping unless something else is said.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// What the default TTL is chosen for.
const OUTAGE: Duration = Duration::from_secs(25);
/// The time that a renewal takes otherwise: what the arithmetic of [`Terms`] allows.
const ANSWER: Duration = Duration::from_millis(300);

/// One that has just acquired its slot, by a session that was created so long ago.
fn acquired_after(age: Duration) -> (Keeper, Moment) {
    let settings = Settings { limit: 1, ..Settings::of_prefix("a".into()) };
    let start = Start {
        ttl: DEFAULT_TTL,
        watch_grace: None,
        who: Identity::default(),
        wall: Wall::new(SystemTime::UNIX_EPOCH, NOW),
        seed: 0,
        resume: None,
        semaphores: [("a".into(), settings)].into(),
        together: [].into(),
    };
    let mut keeper = Keeper::new(start, NOW);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    // There is no `.lock` yet: the first transaction acquires.
    keeper.handle(Event::LockRead("a".into(), Ok(Reading { pair: None, index: 1 })), NOW);
    let now = NOW + age;
    keeper.handle(Event::Committed(vec!["a".into()], Ok(Commit::Done { index: 5, listing: None })), now);
    (keeper, now)
}

/// Whether a command that begins `age` after its session was created lives through an outage that begins `later`. In the outage an attempt `hangs` until it is given up, or is refused at once.
fn survives(lasts: Duration, age: Duration, later: Duration, hangs: bool) -> bool {
    let (mut keeper, mut now) = acquired_after(age);
    let mut answers: Vec<(Moment, Moment, Result<Duration, Failure>)> = Vec::new();
    let (mut outage, mut fence) = (None::<(Moment, Moment)>, None::<Fence>);
    let end = now + later + lasts * 2;
    while now < end {
        keeper.tick(now);
        while let Some(command) = keeper.next_command() {
            let Command::RenewSession { sent, .. } = command else { continue };
            let away = outage.is_some_and(|(begins, ends)| begins <= sent && sent < ends);
            let fails = |kind| Err(Failure { kind, text: String::new() });
            answers.push(match (away, hangs) {
                (false, _) => (sent + ANSWER, sent, Ok(DEFAULT_TTL)),
                (true, true) => {
                    (sent + Terms::new(DEFAULT_TTL).renew_timeout(), sent, fails(FailureKind::Unavailable))
                }
                (true, false) => (sent + Duration::from_millis(10), sent, fails(FailureKind::NoLeader)),
            });
        }
        if fence.is_none() && keeper.machine("a").unwrap().holds() {
            fence = keeper.lease().map(|lease| Fence::new(lease.ends(), KILL_AFTER, None));
            outage = Some((now + later, now + later + lasts));
        }
        if let Some((fence, lease)) = fence.as_mut().zip(keeper.lease()) {
            fence.renewed(lease.ends());
        }
        let next = answers.iter().map(|(at, ..)| *at).chain(keeper.deadline()).min().unwrap_or(end).max(now);
        if fence.is_some_and(|fence| fence.deadline() <= next) {
            return false;
        }
        now = if next == now { now + Duration::from_millis(1) } else { next };
        let due: Vec<_> = answers.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, sent, answer) in due {
            keeper.handle(Event::SessionRenewed(sent, answer), now);
        }
    }
    fence.is_some()
}

proptest! {
    #![proptest_config(slotkeeper_test_seed::cases())]

    /// At any phase: right after the grant, whose session may be as old as a waiter's interval, and right before a renewal.
    #[test]
    fn a_command_survives_25_seconds_without_consul(age in 0_u64..15_000, later in 0_u64..20_000, hangs in any::<bool>()) {
        prop_assert!(survives(OUTAGE, Duration::from_millis(age), Duration::from_millis(later), hangs));
    }
}

/// What says so above can say no as well: of these, some begin right before a renewal.
#[test]
fn it_does_not_survive_much_more_at_every_phase() {
    let tolerates = Terms::new(DEFAULT_TTL).tolerates(KILL_AFTER + Duration::from_millis(500));
    let longer = tolerates + Duration::from_secs(2);
    let all = (0..80).map(|tenths| Duration::from_millis(tenths * 100));
    let lost = all.filter(|later| !survives(longer, Duration::ZERO, *later, true)).count();
    assert!((1..80).contains(&lost), "{lost} of 80 were lost");
}
