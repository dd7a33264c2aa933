//! How a session is renewed while Consul has no leader, and what that means for its slots.

use super::*;
use crate::Terms;

/// A keeper that holds the slot of `a`, or waits for it, by a session that was created [`NOW`].
fn keeper(state: WaiterState) -> Keeper {
    let pairs = if state == WaiterState::Held { Vec::new() } else { taken("a") };
    Game::with(start(&["a"]), pairs).keeper
}

/// Lets time pass, step by step, while nothing is answered; when attempts to renew were sent.
fn attempts(keeper: &mut Keeper, from: Moment, to: Moment) -> Vec<Moment> {
    let (mut now, mut sent) = (from, Vec::new());
    while now <= to {
        keeper.tick(now);
        while let Some(command) = keeper.next_command() {
            if let Command::RenewSession { sent: at, .. } = command {
                sent.push(at);
            }
        }
        let Some(next) = keeper.deadline() else { break };
        now = next;
    }
    sent
}

/// When the renewals that are under way were sent, in order.
fn under_way(keeper: &Keeper) -> BTreeSet<Moment> {
    keeper.agent.session.live().unwrap().under_way.clone()
}

fn failed(kind: FailureKind) -> Result<Duration, Failure> {
    Err(Failure { kind, text: String::new() })
}

#[test]
fn a_holder_waits_for_no_answer_before_it_tries_again_and_has_few_attempts_under_way() {
    let mut holder = keeper(WaiterState::Held);
    let sent = attempts(&mut holder, NOW, after(26_000));
    let terms = Terms::new(TTL);
    assert!(sent[0] <= NOW + terms.renew_every() && sent[0] > NOW + terms.renew_every() / 2, "{sent:?}");
    assert!(sent.windows(2).all(|two| two[1].since(two[0]) <= terms.retry_every()), "{sent:?}");
    // None is answered, so that no more are sent.
    assert_eq!((sent.len(), under_way(&holder).len()), (8, 8));
    // Each that ends makes room for another.
    let ended = sent[0] + terms.renew_timeout();
    holder.handle(Event::SessionRenewed(sent[0], failed(FailureKind::NoLeader)), ended);
    assert_eq!(attempts(&mut holder, ended, ended + terms.retry_every()).len(), 1);
}

#[test]
fn a_lease_counts_from_the_sending_of_the_attempt_that_was_answered() {
    let mut holder = keeper(WaiterState::Held);
    let sent = attempts(&mut holder, NOW, after(12_000));
    let now = sent[sent.len() - 1] + Duration::from_millis(10);
    holder.handle(Event::SessionRenewed(sent[1], Ok(TTL)), now);
    assert_eq!(holder.lease(), Some(Lease::earned(sent[1], Terms::new(TTL))));
    holder.handle(Event::SessionRenewed(sent[2], Ok(TTL)), now);
    assert_eq!(holder.lease(), Some(Lease::earned(sent[2], Terms::new(TTL))));
    // An answer to an earlier one says nothing more, nor does one that comes twice.
    for late in [sent[0], sent[2]] {
        holder.handle(Event::SessionRenewed(late, Ok(TTL)), now);
        assert_eq!(holder.lease(), Some(Lease::earned(sent[2], Terms::new(TTL))));
    }
}

#[test]
fn what_fails_of_an_attempt_that_another_has_overtaken_is_no_trouble() {
    let mut holder = keeper(WaiterState::Held);
    let sent = attempts(&mut holder, NOW, after(12_000));
    let now = sent[sent.len() - 1] + Duration::from_millis(10);
    holder.handle(Event::SessionRenewed(sent[0], failed(FailureKind::NoLeader)), now);
    assert!(holder.failure().is_some());
    holder.handle(Event::SessionRenewed(sent[1], Ok(TTL)), now);
    assert_eq!(holder.failure(), None);
    holder.handle(Event::SessionRenewed(sent[2], failed(FailureKind::Unavailable)), now);
    assert_eq!(holder.failure(), None);
    // That the session has ended is true whatever was said before.
    holder.handle(Event::SessionRenewed(sent[3], failed(FailureKind::NotFound)), now);
    assert_eq!(holder.session(), None);
}

#[test]
fn a_waiter_renews_three_times_in_a_ttl_and_waits_for_each_answer() {
    let mut waiter = keeper(WaiterState::Waiting);
    let sent = attempts(&mut waiter, NOW, after(14_000));
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert!(sent[0] > NOW + Terms::new(TTL).renew_every(), "{sent:?}");
}

/// A waiter that has accepted an offer, at an instant.
fn granted(at: Moment) -> Keeper {
    let mut waiter = keeper(WaiterState::Waiting);
    let pairs = |state| vec![lock("a", 1, &["me"], &[]), Pair { modify_index: 200, ..key("a", "me", state) }];
    let offered = Reading { pair: pairs(WaiterState::Offered).pop(), index: 200 };
    waiter.handle(Event::Watched("a".into(), "a/me".into(), Ok(offered)), at);
    let listing = Some(Listing { pairs: pairs(WaiterState::Held), index: 201, filtered: false });
    waiter.handle(Event::Committed(vec!["a".into()], Ok(Commit::Done { index: 201, listing })), at);
    waiter
}

#[test]
fn a_waiter_that_is_granted_a_slot_under_an_old_lease_holds_after_a_renewal() {
    let fresh = granted(after(7000));
    assert!(fresh.machine("a").unwrap().holds());
    let mut old = granted(after(7600));
    assert!(!old.machine("a").unwrap().holds());
    let sent = attempts(&mut old, after(7600), after(7600));
    assert_eq!(sent, [after(7600)], "it renews at once");
    // Consul has just lost its leader: nothing is lost, for nothing was begun.
    old.handle(Event::SessionRenewed(sent[0], failed(FailureKind::NoLeader)), after(7610));
    let later = after(12_000);
    let sent = attempts(&mut old, after(7610), later);
    assert!(!old.machine("a").unwrap().holds() && old.session().is_some());
    old.handle(Event::SessionRenewed(sent[sent.len() - 1], Ok(TTL)), later);
    assert!(old.machine("a").unwrap().holds());
}

/// Answers each attempt a moment after it was sent; when they were sent.
fn answered_each(
    keeper: &mut Keeper,
    answer: &Result<Duration, Failure>,
    from: Moment,
    to: Moment,
) -> Vec<Moment> {
    let (mut now, mut all) = (from, Vec::new());
    while now < to {
        let sent = attempts(keeper, now, now);
        let moment = Duration::from_millis(if sent.is_empty() { 0 } else { 10 });
        for at in &sent {
            keeper.handle(Event::SessionRenewed(*at, answer.clone()), now + moment);
        }
        all.extend(sent);
        now = (now + moment).max(keeper.deadline().unwrap_or(to));
    }
    all
}

#[test]
fn a_holder_that_is_refused_asks_less_often_and_several_times_before_its_lease_ends() {
    for kind in [FailureKind::RateLimited, FailureKind::Denied] {
        let mut holder = keeper(WaiterState::Held);
        let ends = holder.lease().unwrap().ends();
        let sent = answered_each(&mut holder, &failed(kind), NOW, ends);
        let few = sent.iter().filter(|at| **at <= sent[0] + Duration::from_secs(10)).count();
        assert!(few <= 4, "{kind:?}: {sent:?}");
        assert!((6..=16).contains(&sent.len()), "{kind:?}: {sent:?}");
        // What was refused for a while and is let through again costs nothing.
        let mut holder = keeper(WaiterState::Held);
        answered_each(&mut holder, &failed(kind), NOW, ends.back(Duration::from_secs(5)));
        answered_each(&mut holder, &Ok(TTL), ends.back(Duration::from_secs(5)), ends);
        assert!(holder.machine("a").unwrap().holds() && holder.lease().unwrap().ends() > ends);
    }
}

#[test]
fn a_look_at_the_session_is_not_left_to_an_attempt_that_was_overtaken() {
    let mut game = Game::with(start(&["a"]), Vec::new());
    // What it reads soon after the grant is answered.
    game.passes(after(1000));
    let mut holder = game.keeper;
    let sent = attempts(&mut holder, after(1000), after(9000));
    let now = sent[sent.len() - 1] + Duration::from_millis(10);
    for at in &sent[1..] {
        holder.handle(Event::SessionRenewed(*at, Ok(TTL)), now);
    }
    // Its contender is gone, of which an ended session is the likely cause.
    let gone = Reading { pair: None, index: 20 };
    holder.handle(Event::Watched("a".into(), "a/me".into(), Ok(gone)), now);
    while holder.next_command().is_some() {}
    let listing = Listing { pairs: vec![lock("a", 1, &["me"], &[])], index: 200, filtered: false };
    holder.handle(Event::Listed("a".into(), Ok(listing)), now);
    let asked = attempts(&mut holder, now, now);
    assert_eq!((under_way(&holder).first(), asked.as_slice()), (Some(&sent[0]), [now].as_slice()));
    // That one fails, and another one has told already.
    holder.handle(Event::SessionRenewed(now, Ok(TTL)), now + Duration::from_millis(10));
    holder.handle(
        Event::SessionRenewed(sent[0], failed(FailureKind::NoLeader)),
        now + Duration::from_millis(20),
    );
    holder.tick(now + Duration::from_millis(20));
    let mut lists = std::iter::from_fn(|| holder.next_command());
    assert!(lists.any(|command| matches!(command, Command::List { .. })));
}
