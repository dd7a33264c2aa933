use super::*;

const S: &str = "5e550000-0000-4000-8000-000000000001";

/// Several addresses, and a clock.
struct Trial {
    selection: Selection,
    now: Instant,
}

impl Trial {
    fn of(addresses: &str) -> Self {
        Self { selection: Selection::new(&addresses.parse().unwrap()), now: Instant::now() }
    }

    fn after(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        self
    }

    fn route(&mut self) -> Route {
        self.selection.route(self.now)
    }

    /// A request at the address in use.
    fn ends(&mut self, outcome: Outcome) -> bool {
        let route = self.route();
        self.selection.record(&route, outcome, self.now)
    }

    fn fails(&mut self) {
        assert!(self.ends(Outcome::Failed("refused".into())));
    }

    fn begin(&mut self) -> Option<Search> {
        self.selection.begin_search(0.5, self.now)
    }

    /// A search in which the addresses answer so, in this order.
    fn search(&mut self, answers: &[(usize, Result<bool, &str>)]) {
        let search = self.begin().expect("a search");
        let asked: Vec<_> = answers.iter().map(|(at, _)| *at).collect();
        assert!(asked.iter().all(|at| search.candidates.contains(at)), "{search:?}");
        let mut others = Vec::new();
        for (at, shows) in answers {
            if self.selection.found(*at, shows.map_err(str::to_owned), self.now) {
                others.push(*at);
            }
        }
        self.selection.end_search(&others, self.now);
    }

    fn has_session(&mut self) {
        assert!(self.ends(Outcome::Answered));
        self.selection.created(S, self.now + Duration::from_secs(30), self.now);
    }
}

#[test]
fn an_address_is_kept_until_it_fails() {
    let none: &[Outcome] = &[];
    for (outcomes, seconds, fails) in [
        (&[Outcome::Answered, Outcome::Refused, Outcome::Other][..], 0, false),
        (&[Outcome::Failed("refused".into())], 0, true),
        (&[Outcome::Failed("refused".into()), Outcome::Refused], 0, false),
        (&[Outcome::Unanswered], 0, true),
        (&[Outcome::Answered, Outcome::Unanswered], 0, false),
        (&[Outcome::Answered, Outcome::Unanswered, Outcome::Answered, Outcome::Unanswered], 0, false),
        (&[Outcome::Answered, Outcome::Unanswered, Outcome::Other, Outcome::Unanswered], 0, true),
        (&[Outcome::NoLeader, Outcome::NoLeader], 19, false),
        (&[Outcome::Answered, Outcome::NoLeader, Outcome::Unanswered, Outcome::NoLeader], 20, true),
        (&[Outcome::NoLeader, Outcome::Answered, Outcome::NoLeader], 20, false),
        (none, 0, false),
    ] {
        let mut trial = Trial::of("a:1,b:1");
        for (nth, outcome) in outcomes.iter().enumerate() {
            if nth + 1 == outcomes.len() {
                trial.after(seconds);
            }
            assert!(trial.ends(outcome.clone()));
        }
        assert_eq!(trial.begin().is_some(), fails, "{outcomes:?}");
    }
    let mut alone = Trial::of("a:1");
    alone.has_session();
    alone.fails();
    assert_eq!(alone.begin(), None, "there is no other one");
    alone.selection.remember(S, alone.now + Duration::from_secs(30), alone.now);
    assert!(!alone.route().is_blocked);
}

#[test]
fn while_a_session_may_live_only_an_address_that_shows_it_is_used() {
    let mut trial = Trial::of("a:1,b:1,c:1");
    trial.has_session();
    trial.fails();
    trial.search(&[(1, Ok(false)), (2, Err("it answers 403"))]);
    assert_eq!((trial.route().at, trial.route().generation), (0, 0));
    assert_eq!(
        trial.selection.failures_of_others(),
        ["http://b:1: it does not show the session", "http://c:1: it answers 403"]
    );
    assert_eq!(trial.begin(), None, "searches have an interval");
    let search = trial.after(2).begin().unwrap();
    assert_eq!((search.sessions.as_slice(), search.needs_session), (&[S.to_owned()][..], true));
    assert_eq!(search.candidates, [1, 2]);
    assert_eq!(trial.begin(), None, "there is one search at a time");
    assert!(!trial.selection.found(2, Ok(true), trial.now));
    trial.selection.end_search(&[], trial.now);
    let route = trial.route();
    assert_eq!((route.at, route.generation, route.is_blocked), (2, 0, false));
    let moved = AddressNews::Moved {
        from: "http://a:1".into(),
        to: "http://c:1".into(),
        why: "refused".into(),
        proved: true,
    };
    assert_eq!(trial.selection.take_news(), [moved]);
    let states: Vec<_> = trial.selection.states().into_iter().map(|(_, state)| state).collect();
    let failed = |why: &str| AddressState::Failed(why.into());
    assert_eq!(states, [failed("refused"), failed("it does not show the session"), AddressState::Used]);
}

#[test]
fn after_the_lease_a_leader_is_enough_and_another_generation_begins() {
    let mut trial = Trial::of("a:1,b:1,c:1");
    trial.has_session();
    let before = trial.route();
    trial.fails();
    trial.after(30).search(&[(2, Ok(false)), (1, Ok(false))]);
    // Of those that have a leader, the first listed one.
    assert_eq!((trial.route().at, trial.route().generation), (1, 1));
    assert!(matches!(trial.selection.take_news()[..], [AddressNews::Moved { proved: false, .. }]));
    assert!(trial.selection.sessions.is_empty(), "the sessions are of the cluster before");
    assert!(
        !trial.selection.record(&before, Outcome::Answered, trial.now),
        "so is an answer that comes late"
    );
    // A session that still lives is a proof, though its lease has expired.
    let mut trial = Trial::of("a:1,b:1,c:1");
    trial.has_session();
    trial.fails();
    trial.after(30).search(&[(1, Ok(false)), (2, Ok(true))]);
    assert_eq!((trial.route().at, trial.route().generation), (2, 0));
}

#[test]
fn without_a_session_the_first_address_with_a_leader_is_used() {
    let mut trial = Trial::of("a:1,b:1,c:1");
    let beside = trial.route();
    trial.fails();
    trial.search(&[(1, Err("it has no leader")), (2, Ok(false))]);
    assert_eq!((trial.route().at, trial.route().generation), (2, 0), "nothing was read before");
    assert!(
        !trial.selection.record(&beside, Outcome::Answered, trial.now),
        "a session of the other address must not be used here"
    );
    let mut trial = Trial::of("a:1,b:1");
    trial.has_session();
    trial.selection.ended(S);
    trial.fails();
    trial.search(&[(1, Ok(false))]);
    assert_eq!((trial.route().at, trial.route().generation), (1, 1));
}

#[test]
fn an_address_that_answers_again_is_kept() {
    let mut trial = Trial::of("a:1,b:1");
    trial.has_session();
    trial.fails();
    assert!(trial.begin().is_some());
    assert!(trial.ends(Outcome::Answered));
    assert!(!trial.selection.found(1, Ok(true), trial.now));
    trial.selection.end_search(&[1], trial.now);
    assert_eq!((trial.route().at, trial.begin()), (0, None));
}

/// A trial after a restart.
fn restarted() -> Trial {
    let mut trial = Trial::of("a:1,b:1,c:1");
    trial.selection.remember(S, trial.now + Duration::from_secs(30), trial.now);
    assert!(trial.route().is_blocked);
    trial
}

#[test]
fn after_a_restart_each_address_has_to_show_the_session() {
    let mut trial = restarted();
    trial.search(&[(0, Ok(false)), (1, Ok(true))]);
    assert_eq!((trial.route().at, trial.route().is_blocked, trial.route().generation), (1, false, 0));
    // One that does not answer may be the right one.
    let mut trial = restarted();
    for news in [0, 1, 0] {
        trial.search(&[(0, Ok(false)), (1, Ok(false)), (2, Err("refused"))]);
        assert!(trial.route().is_blocked);
        assert_eq!(trial.selection.take_news().len(), news);
        trial.after(2);
    }
    assert!(trial.selection.states().iter().all(|(_, state)| *state != AddressState::Used));
    trial.after(30);
    assert_eq!((trial.route().at, trial.route().is_blocked), (0, false), "the lease has expired");
    // Consul keeps a session for longer than its lease lasts: once renewed, it protects its slots again.
    trial.selection.renewed(S, trial.now + Duration::from_secs(30));
    assert!(trial.ends(Outcome::Answered));
    trial.fails();
    trial.search(&[(1, Ok(false)), (2, Ok(false))]);
    assert_eq!((trial.route().at, trial.route().generation), (0, 0));
    // The session has ended if all say so.
    let mut trial = restarted();
    trial.search(&[(2, Ok(false)), (0, Ok(false)), (1, Ok(false))]);
    assert_eq!((trial.route().at, trial.route().is_blocked), (0, false));
}

#[test]
fn after_a_restart_logins_go_to_each_address_in_turn() {
    let mut trial = restarted();
    trial.search(&[(0, Err("refused"))]);
    for (outcome, at) in [(Outcome::Other, 0), (Outcome::Unanswered, 1), (Outcome::Refused, 2)] {
        assert!(trial.ends(outcome));
        assert_eq!((trial.route().at, trial.route().is_blocked), (at, true));
    }
    assert_eq!(trial.begin(), None);
    assert!(trial.ends(Outcome::Answered));
    trial.search(&[(1, Ok(true))]);
    assert_eq!((trial.route().at, trial.route().is_blocked), (1, false));
}

#[test]
fn the_sessions_that_may_live_are_known() {
    let mut trial = Trial::of("a:1,b:1");
    trial.has_session();
    let ends = |seconds| trial.now + Duration::from_secs(seconds);
    let [now, sooner, later, latest] = [0, 20, 40, 50].map(ends);
    trial.selection.renewed(S, sooner);
    assert!(trial.selection.sessions[S] > sooner, "an answer that comes late shortens nothing");
    trial.selection.renewed(S, later);
    assert_eq!(trial.selection.sessions[S], later);
    for other in ["b", "c", "d"] {
        trial.selection.created(other, latest, now);
    }
    trial.fails();
    assert_eq!(trial.begin().unwrap().sessions, ["b", "c", "d"], "those that live longest");
    trial.selection.ended("b");
    trial.selection.renewed("b", latest);
    assert!(!trial.selection.sessions.contains_key("b"), "a late answer does not bring it back");
    trial.selection.created("e", latest + Duration::from_secs(30), latest);
    assert_eq!(trial.selection.sessions.len(), 1, "the leases of the others have expired");
}
