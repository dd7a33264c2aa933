use proptest::prelude::*;

use super::*;

fn target(name: &str) -> Target {
    Target { address: format!("http://{name}:8500").parse().unwrap(), ip: None }
}

fn label(name: &str) -> String {
    format!("http://{name}:8500")
}

fn peers(names: &[&str]) -> Option<BTreeSet<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

fn shows(shows: bool) -> Finding {
    Finding { shows: Some(shows), ..Finding::default() }
}

fn tells(names: &[&str]) -> Finding {
    Finding { peers: peers(names), ..Finding::default() }
}

fn failed() -> Finding {
    Finding { failed: Some("away".into()), ..Finding::default() }
}

const TTL: Duration = Duration::from_secs(30);

fn refused() -> Outcome {
    Outcome::Failed("refused".into())
}

/// A selection, its time, and what its targets answer.
struct Play {
    selection: Selection,
    now: Instant,
}

impl Play {
    /// Of these, the first of which has been chosen and has answered.
    fn begun(names: &[&str], own: &[&str]) -> Self {
        let mut play = Self::new(names);
        play.look(&[(names[0], tells(own))]);
        play.request(names[0], Outcome::Answered);
        assert_eq!(play.used(), label(names[0]));
        play
    }

    fn new(names: &[&str]) -> Self {
        let selection = Selection::new(names.iter().map(|name| target(name)).collect());
        Self { selection, now: Instant::now() }
    }

    fn lease(&mut self) {
        self.selection.remember("s", Some(self.now + TTL), self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Whether the others are to be looked at now.
    fn request(&mut self, name: &str, outcome: Outcome) -> bool {
        self.selection.ended(&target(name), outcome, self.now);
        self.wants_look()
    }

    fn wants_look(&self) -> bool {
        self.selection.wants_look(self.now) == Some(Duration::ZERO)
    }

    /// A look in which these answer, in this order, and the others of whom it asks do not.
    fn look(&mut self, answers: &[(&str, Finding)]) -> Vec<Question> {
        self.selection.begin_look(Duration::ZERO, 0.5, self.now);
        let questions = self.selection.questions(self.now);
        for (name, finding) in answers {
            assert!(questions.iter().any(|question| question.target == target(name)), "{name} is not asked");
            self.selection.found(&target(name), finding.clone(), self.now);
        }
        for question in &questions {
            if answers.iter().all(|(name, _)| question.target != target(name)) {
                self.selection.found(&question.target, failed(), self.now);
            }
        }
        self.selection.end_look(self.now);
        self.pass(PAUSE);
        questions
    }

    fn used(&self) -> String {
        self.selection.label(self.selection.used().unwrap()).to_string()
    }

    fn state(&self, name: &str) -> AddressState {
        self.selection.states().into_iter().find(|(shown, _)| *shown == label(name)).unwrap().1
    }
}

#[test]
fn a_single_address_is_used_without_a_question() {
    let mut play = Play::new(&["a"]);
    assert!(play.selection.is_chosen() && !play.wants_look());
    play.request("a", refused());
    assert_eq!(play.look(&[]), []);
    assert_eq!(play.used(), label("a"));
}

#[test]
fn the_first_that_answers_is_chosen() {
    let mut play = Play::new(&["a", "b", "c"]);
    play.selection.begin_look(Duration::ZERO, 0.5, play.now);
    play.selection.questions(play.now);
    let found = |play: &mut Play, name, finding| {
        play.selection.found(&target(name), finding, play.now);
        play.selection.is_chosen()
    };
    // The first listed may still answer.
    assert!(!found(&mut play, "c", tells(&["1"])) && !found(&mut play, "b", tells(&["1"])));
    assert!(found(&mut play, "a", failed()));
    play.selection.end_look(play.now);
    assert_eq!((play.used(), play.selection.epoch()), (label("b"), 0));
    assert_eq!(play.state("c"), AddressState::Standby);
    assert!(matches!(play.state("a"), AddressState::Failed(_)));
}

#[test]
fn with_a_lease_only_what_shows_the_session_is_used() {
    let mut play = Play::begun(&["a", "b", "c"], &["1"]);
    play.lease();
    assert!(play.request("a", refused()));
    let asked = play.look(&[("b", shows(false)), ("c", failed())]);
    assert!(asked.iter().all(|question| question.sessions == ["s"] && !question.peers), "{asked:?}");
    assert_eq!(play.used(), label("a"));
    assert!(matches!(play.state("b"), AddressState::Foreign(_)));
    assert!(play.request("a", refused()));
    play.look(&[("b", shows(false)), ("c", shows(true))]);
    assert_eq!((play.used(), play.selection.epoch()), (label("c"), 0));
    let news = play.selection.take_news();
    let foreign = news.iter().filter(|news| matches!(news, AddressNews::Foreign { .. })).count();
    assert_eq!((foreign, news.len()), (1, 2), "told once: {news:?}");
}

/// Hidden results, refusals, and answers without a leader are `failed`.
#[test]
fn what_confirms_nothing_is_not_used() {
    let mut play = Play::begun(&["a", "b"], &["1"]);
    play.lease();
    play.request("a", refused());
    play.look(&[("b", failed())]);
    assert_eq!(play.used(), label("a"));
    // Nor if it reports a common peer.
    play.request("a", refused());
    play.look(&[("b", Finding { peers: peers(&["1"]), ..failed() })]);
    assert_eq!(play.used(), label("a"));
}

#[test]
fn once_the_lease_has_expired_a_peer_in_common_is_enough_and_everything_begins_anew() {
    let mut play = Play::begun(&["a", "b", "c"], &["1", "2"]);
    play.lease();
    play.pass(TTL - Duration::from_millis(1));
    play.request("a", refused());
    play.look(&[("b", Finding { peers: peers(&["2"]), ..shows(false) }), ("c", failed())]);
    assert_eq!(play.used(), label("a"), "its lease is valid");
    play.request("a", refused());
    play.look(&[("b", Finding { peers: peers(&["9"]), ..shows(false) }), ("c", tells(&["2", "3"]))]);
    assert_eq!((play.used(), play.selection.epoch()), (label("c"), 1));
    assert!(play.selection.sessions.leases().next().is_none());
}

#[test]
fn a_session_that_is_shown_is_proof_after_its_lease_too() {
    let mut play = Play::begun(&["a", "b", "c"], &["1"]);
    play.lease();
    play.pass(TTL * 2);
    play.request("a", refused());
    play.look(&[("b", Finding { peers: peers(&["1"]), ..shows(false) }), ("c", shows(true))]);
    assert_eq!((play.used(), play.selection.epoch()), (label("c"), 0));
}

#[test]
fn of_two_that_disagree_the_first_listed_is_used() {
    let mut play = Play::begun(&["a", "b"], &["1"]);
    play.request("a", refused());
    play.look(&[("b", tells(&["2"]))]);
    assert_eq!(play.used(), label("a"));
    assert!(matches!(play.state("b"), AddressState::Foreign(_)));
    let mut play = Play::new(&["a", "b"]);
    play.look(&[("b", tells(&["2"]))]);
    play.request("b", Outcome::Answered);
    assert_eq!(play.used(), label("b"));
    play.request("b", refused());
    play.look(&[("a", tells(&["1"]))]);
    assert_eq!((play.used(), play.selection.epoch()), (label("a"), 1));
}

#[test]
fn after_a_restart_the_address_that_shows_the_session_is_waited_for() {
    let mut play = Play::new(&["a", "b"]);
    play.lease();
    play.look(&[("a", shows(false))]);
    assert!(play.selection.is_blocked(play.now) && !play.selection.is_chosen());
    play.look(&[("a", shows(false)), ("b", shows(true))]);
    assert_eq!((play.used(), play.selection.is_blocked(play.now)), (label("b"), false));
    // Until the lease has expired, and no longer than until it is nowhere.
    assert!(matches!(
        play.selection.take_news()[..],
        [AddressNews::Moved { .. }, AddressNews::Foreign { .. }]
    ));
    let mut play = Play::new(&["a", "b"]);
    play.lease();
    play.look(&[("a", shows(false))]);
    play.pass(TTL);
    assert!(!play.selection.is_blocked(play.now));
    let mut play = Play::new(&["a", "b"]);
    play.lease();
    play.look(&[("a", shows(false)), ("b", shows(false))]);
    assert!(!play.selection.is_blocked(play.now));
}

/// An address that could not be asked may be the session's own cluster, and any other may be a stranger.
#[test]
fn after_a_restart_what_proves_nothing_gets_no_request_but_logins() {
    let mut play = Play::new(&["a", "b", "c"]);
    play.lease();
    play.look(&[("b", shows(false))]);
    assert!(play.selection.is_blocked(play.now), "nothing is known of a and c");
    assert_eq!(play.selection.take_news(), [], "the look may have had no token");
    // A login goes to the first one that can be reached, and chooses none.
    let first = play.used();
    play.request("a", refused());
    assert_eq!((first, play.used()), (label("a"), label("b")));
    assert!(play.request("b", Outcome::Answered), "its token may show more");
    assert!(play.selection.is_blocked(play.now));
    play.look(&[("b", shows(false))]);
    let [AddressNews::NoSession { addresses }] = &play.selection.take_news()[..] else { panic!() };
    let no = "it does not show the session".to_owned();
    let all = [(label("a"), "away".into()), (label("b"), no.clone()), (label("c"), "away".into())];
    assert_eq!(addresses[..], all);
    assert_eq!(play.state("b"), AddressState::Failed(no), "none is used, and none is said to be a stranger");
    play.look(&[("b", shows(false))]);
    assert_eq!(play.selection.take_news(), [], "told once");
    // The first listed is the one that another one is preferred to.
    play.look(&[("b", shows(false)), ("c", shows(true))]);
    assert!(!play.selection.is_blocked(play.now));
    let news = play.selection.take_news();
    let [AddressNews::Moved { from, to, .. }, AddressNews::Foreign { address, used, .. }] = &news[..] else {
        panic!("{news:?}")
    };
    assert_eq!([from, to, address, used].map(Clone::clone), [label("a"), label("c"), label("b"), label("c")]);
}

/// Whatever keeps it from giving a token.
#[test]
fn a_login_that_fails_goes_to_the_next_address() {
    for outcome in [refused(), Outcome::Silent, Outcome::NoLeader, Outcome::TurnedAway] {
        let mut play = Play::new(&["a", "b"]);
        play.lease();
        play.look(&[]);
        for (from, to) in [("a", "b"), ("b", "a")] {
            assert_eq!(play.used(), label(from));
            play.request(from, outcome.clone());
            assert_eq!(play.used(), label(to), "{outcome:?}");
        }
        play.request("a", Outcome::Other);
        assert_eq!(play.used(), label("a"));
    }
}

/// Without them no other could follow once the session has ended.
#[test]
fn the_peers_of_an_address_that_is_chosen_by_proof_are_asked_next() {
    let mut play = Play::new(&["a", "b"]);
    play.lease();
    play.look(&[("a", shows(true))]);
    assert!(play.wants_look());
    play.look(&[("a", tells(&["1"])), ("b", shows(false))]);
    assert!(!play.wants_look());
    play.request("a", Outcome::Answered);
    play.pass(TTL);
    play.request("a", refused());
    play.look(&[("b", Finding { peers: peers(&["1"]), ..shows(false) })]);
    assert_eq!((play.used(), play.selection.epoch()), (label("b"), 1));
}

/// A stranger would say so too, before any token is known to be good there.
#[test]
fn a_refusal_chooses_no_address() {
    let mut play = Play::new(&["a", "b"]);
    play.look(&[]);
    play.request("a", Outcome::TurnedAway);
    assert!(!play.selection.is_chosen());
    play.request("a", Outcome::Answered);
    assert!(play.selection.is_chosen());
}

#[test]
fn a_renewal_that_is_answered_late_brings_no_ended_session_back() {
    let mut play = Play::begun(&["a", "b"], &["1"]);
    play.lease();
    play.selection.forget("s", play.now);
    play.lease();
    assert!(!play.selection.is_leased(play.now));
    play.request("a", refused());
    play.look(&[("b", tells(&["1"]))]);
    assert_eq!(play.used(), label("b"), "there is no lease to wait for");
}

#[test]
fn where_the_peers_of_the_used_one_are_not_known_none_follows_it_without_proof() {
    let mut play = Play::new(&["a", "b"]);
    play.request("a", Outcome::Answered);
    play.request("a", refused());
    play.look(&[("b", tells(&["1"]))]);
    assert_eq!(play.used(), label("a"));
}

#[test]
fn an_election_is_waited_for() {
    let mut play = Play::begun(&["a", "b"], &["1"]);
    play.lease();
    play.look(&[("b", shows(true))]);
    assert!(!play.request("a", Outcome::NoLeader));
    play.pass(ELECTION - Duration::from_millis(1));
    assert!(!play.request("a", Outcome::NoLeader));
    play.pass(Duration::from_millis(1));
    assert!(play.request("a", Outcome::NoLeader));
    play.look(&[("b", shows(true))]);
    assert_eq!(play.used(), label("b"));
}

#[test]
fn an_answer_ends_what_was_wrong() {
    let mut play = Play::begun(&["a", "b"], &["1"]);
    play.request("a", Outcome::NoLeader);
    play.pass(ELECTION);
    play.request("a", Outcome::Answered);
    assert!(!play.request("a", Outcome::NoLeader));
    assert!(!play.request("a", Outcome::Silent));
    play.request("a", Outcome::Answered);
    assert!(!play.request("a", Outcome::Silent), "one in a row");
    assert!(play.request("a", Outcome::Silent));
    play.request("a", Outcome::Answered);
    assert!(!play.wants_look());
    // A look that is under way moves nothing either.
    assert!(play.request("a", refused()));
    play.selection.begin_look(Duration::ZERO, 0.5, play.now);
    play.selection.questions(play.now);
    play.request("a", Outcome::Answered);
    play.selection.found(&target("b"), tells(&["1"]), play.now);
    play.selection.end_look(play.now);
    assert_eq!(play.used(), label("a"));
}

#[test]
fn what_another_target_answers_late_says_nothing() {
    let mut play = Play::begun(&["a", "b"], &["1"]);
    assert!(!play.request("b", refused()));
    assert!(!play.wants_look());
}

#[test]
fn looks_have_a_pause_between_them_and_come_now_and_then() {
    let mut play = Play::begun(&["a", "b"], &["1"]);
    assert!(play.request("a", refused()));
    play.selection.begin_look(Duration::ZERO, 0.5, play.now);
    assert!(!play.request("a", refused()), "one at a time");
    play.selection.questions(play.now);
    play.selection.end_look(play.now);
    assert!(!play.request("a", refused()), "too soon");
    assert_eq!(play.selection.wants_look(play.now), Some(PAUSE));
    play.pass(PAUSE);
    assert!(play.request("a", refused()));
    play.request("a", Outcome::Answered);
    assert!(!play.wants_look());
    play.pass(CHECK_EVERY);
    assert!(play.request("a", Outcome::Answered));
}

#[test]
fn the_others_are_asked_for_a_new_session() {
    let mut play = Play::begun(&["a", "b"], &["1"]);
    play.lease();
    assert!(play.wants_look());
    let asked = play.look(&[("a", tells(&["1"])), ("b", shows(false))]);
    assert_eq!(asked.len(), 2);
    assert!(matches!(play.selection.take_news()[..], [AddressNews::Foreign { .. }]));
    play.lease();
    assert!(!play.wants_look());
    // However many there are, as of leases that come and go.
    play.selection.remember("another", Some(play.now + TTL), play.now);
    assert!(!play.wants_look());
    play.pass(CHECK_PAUSE);
    assert!(play.wants_look());
}

/// What the others said before may be older than the failure.
#[test]
fn what_fails_during_a_look_has_a_look_of_its_own() {
    let mut play = Play::begun(&["a", "b"], &["1"]);
    play.pass(CHECK_EVERY * 2);
    play.selection.begin_look(Duration::ZERO, 0.5, play.now);
    play.selection.questions(play.now);
    play.selection.found(&target("b"), failed(), play.now);
    play.request("a", refused());
    assert!(play.selection.end_look(play.now));
    play.selection.begin_look(Duration::ZERO, 0.5, play.now);
    play.selection.questions(play.now);
    play.selection.found(&target("b"), tells(&["1"]), play.now);
    assert_eq!(play.used(), label("b"));
    assert!(!play.selection.end_look(play.now));
}

#[test]
fn looks_of_many_spread_over_time() {
    let mut play = Play::begun(&["a", "b"], &["1"]);
    play.request("a", refused());
    let mut after = |spread| {
        play.selection.begin_look(Duration::ZERO, spread, play.now);
        play.selection.questions(play.now);
        play.selection.end_look(play.now);
        play.selection.wants_look(play.now).unwrap()
    };
    assert_eq!((after(0.0), after(1.0)), (PAUSE.mul_f64(0.75), PAUSE.mul_f64(1.25)));
}

#[test]
fn a_name_stands_for_its_addresses() {
    let by = |ip: &str| Target { ip: Some(ip.parse().unwrap()), ..target("n") };
    let mut play = Play::new(&["n"]);
    play.selection.set_targets(vec![by("10.0.0.1"), by("10.0.0.2")]);
    assert_eq!(play.selection.used(), Some(&by("10.0.0.1")));
    play.selection.ended(&by("10.0.0.1"), Outcome::Answered, play.now);
    // What is used stays, although the name does not stand for it any more.
    play.selection.set_targets(vec![by("10.0.0.2"), by("10.0.0.3")]);
    assert_eq!(play.used(), "http://n:8500 (10.0.0.1)");
    play.selection.remember("s", Some(play.now + TTL), play.now);
    play.selection.ended(&by("10.0.0.1"), refused(), play.now);
    play.selection.begin_look(Duration::ZERO, 0.5, play.now);
    play.selection.questions(play.now);
    play.selection.found(&by("10.0.0.3"), shows(true), play.now);
    play.selection.end_look(play.now);
    assert_eq!(play.used(), "http://n:8500 (10.0.0.3)");
}

/// If the connection was by name alone, it is unknown which address answers next.
#[test]
fn a_name_whose_addresses_are_known_late_is_left_for_one_of_them() {
    let by = |ip: &str| Target { ip: Some(ip.parse().unwrap()), ..target("n") };
    let mut play = Play::new(&["n"]);
    play.selection.ended(&target("n"), Outcome::Answered, play.now);
    play.selection.remember("s", Some(play.now + TTL), play.now);
    play.selection.set_targets(vec![by("10.0.0.1"), by("10.0.0.2")]);
    assert!(play.wants_look());
    play.selection.begin_look(Duration::ZERO, 0.5, play.now);
    play.selection.questions(play.now);
    play.selection.found(&by("10.0.0.2"), shows(true), play.now);
    play.selection.end_look(play.now);
    assert_eq!(play.used(), "http://n:8500 (10.0.0.2)");
}

/// What happens in a game with several clusters.
#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    /// A target stops to answer, or answers again.
    Turn(usize),
    /// A target hides sessions, or shows them again.
    Veil(usize),
    Request,
    Create,
    Look,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => (1..40_u64).prop_map(Step::Pass),
        1 => (0..4_usize).prop_map(Step::Turn),
        1 => (0..4_usize).prop_map(Step::Veil),
        3 => Just(Step::Request),
        1 => Just(Step::Create),
        3 => Just(Step::Look),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    /// Clusters are never mixed: not while a lease is valid, and not within an epoch. `alike`: all tell the same peer, as
    /// development servers do.
    #[test]
    fn two_clusters_are_never_taken_for_one(
        clusters in proptest::collection::vec(0..2_usize, 4),
        alike in any::<bool>(),
        steps in steps(),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut play = Play::new(&names);
        let cluster_of = |shown: &str| clusters[names.iter().position(|name| label(name) == shown).unwrap()];
        let (mut up, mut veiled) = ([true; 4], [false; 4]);
        // Sessions with their cluster and lease, and the cluster from which something was answered in this epoch.
        let mut sessions: Vec<(String, usize, Instant)> = Vec::new();
        let mut seen: Option<(u64, usize)> = None;
        for step in steps {
            let used = play.used();
            let at = names.iter().position(|name| label(name) == used).unwrap();
            match step {
                Step::Pass(seconds) => play.pass(Duration::from_secs(seconds)),
                Step::Turn(at) => up[at] = !up[at],
                Step::Veil(at) => veiled[at] = !veiled[at],
                Step::Request if up[at] => {
                    play.request(names[at], Outcome::Answered);
                    let now = (play.selection.epoch(), clusters[at]);
                    prop_assert!(seen.is_none_or(|seen| seen.0 != now.0 || seen.1 == now.1), "mixed in one epoch");
                    seen = Some(now);
                }
                Step::Request => {
                    play.request(names[at], refused());
                }
                Step::Create if up[at] => {
                    play.request(names[at], Outcome::Answered);
                    let id = format!("s{}", sessions.len());
                    let ends = play.now + TTL;
                    play.selection.remember(&id, Some(ends), play.now);
                    sessions.push((id, clusters[at], ends));
                    seen = Some((play.selection.epoch(), clusters[at]));
                }
                Step::Create => {}
                Step::Look => if play.wants_look() {
                    play.selection.begin_look(Duration::ZERO, 0.5, play.now);
                    for question in play.selection.questions(play.now) {
                        let at = names.iter().position(|name| question.target == target(name)).unwrap();
                        let has = |id: &String| sessions.iter().any(|(one, cluster, _)| one == id && *cluster == clusters[at]);
                        let own = if alike { "0".to_owned() } else { clusters[at].to_string() };
                        let finding = if !up[at] || (veiled[at] && !question.sessions.is_empty()) {
                            failed()
                        } else {
                            Finding {
                                shows: (!question.sessions.is_empty()).then(|| question.sessions.iter().any(has)),
                                peers: question.peers.then(|| BTreeSet::from([own])),
                                failed: None,
                            }
                        };
                        play.selection.found(&question.target, finding, play.now);
                    }
                    play.selection.end_look(play.now);
                },
            }
            let now = cluster_of(&play.used());
            let leased = sessions.iter().find(|(_, _, ends)| *ends > play.now);
            prop_assert!(leased.is_none_or(|(_, cluster, _)| *cluster == now), "moved under a valid lease");
        }
    }

    /// A process that starts again sends nothing but to its session's cluster while that session's lease may be valid, whatever
    /// cannot be asked, hides, or turns it away.
    #[test]
    fn a_restart_mixes_no_clusters(
        clusters in proptest::collection::vec(0..2_usize, 3),
        lived in any::<bool>(),
        looks in proptest::collection::vec((proptest::collection::vec(0..3_u8, 3), any::<bool>(), 0..20_u64), 1..12),
    ) {
        let names = ["a", "b", "c"];
        let mut play = Play::new(&names);
        play.lease();
        let (lease, home) = (play.now + TTL, clusters[0]);
        for (conditions, login, seconds) in looks {
            let shown = |at: usize| lived && clusters[at] == home;
            let answers: Vec<_> = (0..3)
                .filter(|at| conditions[*at] != 0)
                .map(|at| (names[at], if conditions[at] == 1 { shows(shown(at)) } else { failed() }))
                .collect();
            if play.wants_look() {
                play.selection.begin_look(Duration::ZERO, 0.5, play.now);
                for question in play.selection.questions(play.now) {
                    let answer = answers.iter().find(|(name, _)| question.target == target(name));
                    let finding = answer.map_or_else(failed, |(_, finding)| finding.clone());
                    play.selection.found(&question.target, finding, play.now);
                }
                play.selection.end_look(play.now);
            }
            let used = play.used();
            let at = names.iter().position(|name| label(name) == used).unwrap();
            if play.selection.is_blocked(play.now) {
                play.request(names[at], if login { Outcome::Answered } else { refused() });
            } else if lived && play.now < lease {
                prop_assert_eq!(clusters[at], home, "sent to another cluster under a valid lease");
            }
            play.pass(Duration::from_secs(seconds));
        }
    }

    /// Where another target of the same cluster answers, one look is enough.
    #[test]
    fn a_target_that_can_be_used_is_found(down in 0..3_usize, leased in any::<bool>(), order in Just(["a", "b", "c"]).prop_shuffle()) {
        let mut play = Play::begun(&["a", "b", "c"], &["1"]);
        if leased {
            play.lease();
        }
        let names = ["a", "b", "c"];
        // One more than the first may be down.
        play.request("a", refused());
        let answer = if leased { shows(true) } else { tells(&["1"]) };
        let answers: Vec<_> =
            order.into_iter().filter(|name| *name != "a" && *name != names[down]).map(|name| (name, answer.clone())).collect();
        play.look(&answers);
        prop_assert!(answers.iter().any(|(name, _)| label(name) == play.used()));
    }
}
