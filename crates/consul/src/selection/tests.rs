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

fn shows(shows: bool) -> ProbeResult {
    ProbeResult { shows: Some(shows), ..ProbeResult::default() }
}

fn reports(names: &[&str]) -> ProbeResult {
    ProbeResult { peers: peers(names), ..ProbeResult::default() }
}

fn failed() -> ProbeResult {
    ProbeResult { failed: Some("away".into()), ..ProbeResult::default() }
}

const TTL: Duration = Duration::from_secs(30);

fn refused() -> Outcome {
    Outcome::Failed("refused".into())
}

/// A selection and its clock.
struct Scenario {
    selection: Selection,
    now: Instant,
}

impl Scenario {
    /// A selection of these targets. The first one is chosen and has answered.
    fn begun(names: &[&str], own: &[&str]) -> Self {
        let mut scenario = Self::new(names);
        scenario.round(&[(names[0], reports(own))]);
        scenario.request(names[0], Outcome::Answered);
        assert_eq!(scenario.used(), label(names[0]));
        scenario
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

    /// Ends a request. Returns whether a round of probes is due now.
    fn request(&mut self, name: &str, outcome: Outcome) -> bool {
        self.selection.record_outcome(&target(name), outcome, self.now);
        self.is_round_due()
    }

    fn is_round_due(&self) -> bool {
        self.selection.next_round_after(self.now) == Some(Duration::ZERO)
    }

    /// Plays a round in which these targets answer, in this order. Probes of other targets fail.
    fn round(&mut self, answers: &[(&str, ProbeResult)]) -> Vec<Probe> {
        self.selection.begin_round(Duration::ZERO, 0.5, self.now);
        let probes = self.selection.probes(self.now);
        for (name, result) in answers {
            assert!(probes.iter().any(|probe| probe.target == target(name)), "{name} is not probed");
            self.selection.record_probe(&target(name), result.clone(), self.now);
        }
        for probe in &probes {
            if answers.iter().all(|(name, _)| probe.target != target(name)) {
                self.selection.record_probe(&probe.target, failed(), self.now);
            }
        }
        self.selection.end_round(self.now);
        self.pass(PROBE_INTERVAL);
        probes
    }

    fn used(&self) -> String {
        self.selection.label(self.selection.used().unwrap()).to_string()
    }

    fn state(&self, name: &str) -> AddressState {
        self.selection.states().into_iter().find(|(shown, _)| *shown == label(name)).unwrap().1
    }
}

#[test]
fn a_single_address_is_used_without_a_probe() {
    let mut scenario = Scenario::new(&["a"]);
    assert!(scenario.selection.is_chosen() && !scenario.is_round_due());
    scenario.request("a", refused());
    assert_eq!(scenario.round(&[]), []);
    assert_eq!(scenario.used(), label("a"));
}

#[test]
fn the_first_listed_address_that_answers_is_chosen() {
    let mut scenario = Scenario::new(&["a", "b", "c"]);
    scenario.selection.begin_round(Duration::ZERO, 0.5, scenario.now);
    scenario.selection.probes(scenario.now);
    let found = |scenario: &mut Scenario, name, result| {
        scenario.selection.record_probe(&target(name), result, scenario.now);
        scenario.selection.is_chosen()
    };
    // The first listed address may still answer.
    assert!(!found(&mut scenario, "c", reports(&["1"])) && !found(&mut scenario, "b", reports(&["1"])));
    assert!(found(&mut scenario, "a", failed()));
    scenario.selection.end_round(scenario.now);
    assert_eq!((scenario.used(), scenario.selection.epoch()), (label("b"), 0));
    assert_eq!(scenario.state("c"), AddressState::Standby);
    assert!(matches!(scenario.state("a"), AddressState::Failed(_)));
}

#[test]
fn under_a_lease_only_an_address_that_shows_the_session_is_used() {
    let mut scenario = Scenario::begun(&["a", "b", "c"], &["1"]);
    scenario.lease();
    assert!(scenario.request("a", refused()));
    let asked = scenario.round(&[("b", shows(false)), ("c", failed())]);
    assert!(asked.iter().all(|probe| probe.sessions == ["s"] && !probe.peers), "{asked:?}");
    assert_eq!(scenario.used(), label("a"));
    assert!(matches!(scenario.state("b"), AddressState::Foreign(_)));
    assert!(scenario.request("a", refused()));
    scenario.round(&[("b", shows(false)), ("c", shows(true))]);
    assert_eq!((scenario.used(), scenario.selection.epoch()), (label("c"), 0));
    let news = scenario.selection.take_news();
    let foreign = news.iter().filter(|news| matches!(news, AddressNews::Foreign { .. })).count();
    assert_eq!((foreign, news.len()), (1, 2), "reported once: {news:?}");
}

/// Hidden results, refusals, and answers without a leader are `failed`.
#[test]
fn an_address_without_a_proof_is_not_used() {
    let mut scenario = Scenario::begun(&["a", "b"], &["1"]);
    scenario.lease();
    scenario.request("a", refused());
    scenario.round(&[("b", failed())]);
    assert_eq!(scenario.used(), label("a"));
    // A peer in common is no proof either.
    scenario.request("a", refused());
    scenario.round(&[("b", ProbeResult { peers: peers(&["1"]), ..failed() })]);
    assert_eq!(scenario.used(), label("a"));
}

#[test]
fn after_the_lease_a_peer_in_common_is_enough_and_begins_an_epoch() {
    let mut scenario = Scenario::begun(&["a", "b", "c"], &["1", "2"]);
    scenario.lease();
    scenario.pass(TTL - Duration::from_millis(1));
    scenario.request("a", refused());
    scenario.round(&[("b", ProbeResult { peers: peers(&["2"]), ..shows(false) }), ("c", failed())]);
    assert_eq!(scenario.used(), label("a"), "its lease is valid");
    scenario.request("a", refused());
    scenario
        .round(&[("b", ProbeResult { peers: peers(&["9"]), ..shows(false) }), ("c", reports(&["2", "3"]))]);
    assert_eq!((scenario.used(), scenario.selection.epoch()), (label("c"), 1));
    assert!(scenario.selection.sessions.leases().next().is_none());
}

#[test]
fn a_shown_session_is_a_proof_after_its_lease_too() {
    let mut scenario = Scenario::begun(&["a", "b", "c"], &["1"]);
    scenario.lease();
    scenario.pass(TTL * 2);
    scenario.request("a", refused());
    scenario.round(&[("b", ProbeResult { peers: peers(&["1"]), ..shows(false) }), ("c", shows(true))]);
    assert_eq!((scenario.used(), scenario.selection.epoch()), (label("c"), 0));
}

#[test]
fn of_two_clusters_the_first_listed_is_used() {
    let mut scenario = Scenario::begun(&["a", "b"], &["1"]);
    scenario.request("a", refused());
    scenario.round(&[("b", reports(&["2"]))]);
    assert_eq!(scenario.used(), label("a"));
    assert!(matches!(scenario.state("b"), AddressState::Foreign(_)));
    let mut scenario = Scenario::new(&["a", "b"]);
    scenario.round(&[("b", reports(&["2"]))]);
    scenario.request("b", Outcome::Answered);
    assert_eq!(scenario.used(), label("b"));
    scenario.request("b", refused());
    scenario.round(&[("a", reports(&["1"]))]);
    assert_eq!((scenario.used(), scenario.selection.epoch()), (label("a"), 1));
}

#[test]
fn after_a_restart_requests_wait_for_the_address_that_shows_the_session() {
    let mut scenario = Scenario::new(&["a", "b"]);
    scenario.lease();
    scenario.round(&[("a", shows(false))]);
    assert!(scenario.selection.is_blocked(scenario.now) && !scenario.selection.is_chosen());
    scenario.round(&[("a", shows(false)), ("b", shows(true))]);
    assert_eq!((scenario.used(), scenario.selection.is_blocked(scenario.now)), (label("b"), false));
    // The wait ends when the lease has expired, or when no address shows the session.
    assert!(matches!(
        scenario.selection.take_news()[..],
        [AddressNews::Moved { .. }, AddressNews::Foreign { .. }]
    ));
    let mut scenario = Scenario::new(&["a", "b"]);
    scenario.lease();
    scenario.round(&[("a", shows(false))]);
    scenario.pass(TTL);
    assert!(!scenario.selection.is_blocked(scenario.now));
    let mut scenario = Scenario::new(&["a", "b"]);
    scenario.lease();
    scenario.round(&[("a", shows(false)), ("b", shows(false))]);
    assert!(!scenario.selection.is_blocked(scenario.now));
}

/// An address whose probe failed may belong to the session's cluster; any other address may be foreign.
#[test]
fn after_a_restart_an_address_without_a_proof_gets_only_logins() {
    let mut scenario = Scenario::new(&["a", "b", "c"]);
    scenario.lease();
    scenario.round(&[("b", shows(false))]);
    assert!(scenario.selection.is_blocked(scenario.now), "nothing is known of a and c");
    assert_eq!(scenario.selection.take_news(), [], "the round may have had no token");
    // A login goes to the first reachable address, and chooses none.
    let first = scenario.used();
    scenario.request("a", refused());
    assert_eq!((first, scenario.used()), (label("a"), label("b")));
    assert!(scenario.request("b", Outcome::Answered), "its token may show more");
    assert!(scenario.selection.is_blocked(scenario.now));
    scenario.round(&[("b", shows(false))]);
    let [AddressNews::NoSession { addresses }] = &scenario.selection.take_news()[..] else { panic!() };
    let no = "it does not show the session".to_owned();
    let all = [(label("a"), "away".into()), (label("b"), no.clone()), (label("c"), "away".into())];
    assert_eq!(addresses[..], all);
    assert_eq!(
        scenario.state("b"),
        AddressState::Failed(no),
        "no address is used, and none is reported as foreign"
    );
    scenario.round(&[("b", shows(false))]);
    assert_eq!(scenario.selection.take_news(), [], "reported once");
    // The move is reported as one from the first listed address.
    scenario.round(&[("b", shows(false)), ("c", shows(true))]);
    assert!(!scenario.selection.is_blocked(scenario.now));
    let news = scenario.selection.take_news();
    let [AddressNews::Moved { from, to, .. }, AddressNews::Foreign { address, used, .. }] = &news[..] else {
        panic!("{news:?}")
    };
    assert_eq!([from, to, address, used].map(Clone::clone), [label("a"), label("c"), label("b"), label("c")]);
}

/// The reason of the failure makes no difference.
#[test]
fn a_failed_login_is_sent_to_the_next_address() {
    for outcome in [refused(), Outcome::Unanswered, Outcome::NoLeader, Outcome::Refused] {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.lease();
        scenario.round(&[]);
        for (from, to) in [("a", "b"), ("b", "a")] {
            assert_eq!(scenario.used(), label(from));
            scenario.request(from, outcome.clone());
            assert_eq!(scenario.used(), label(to), "{outcome:?}");
        }
        scenario.request("a", Outcome::Other);
        assert_eq!(scenario.used(), label("a"));
    }
}

/// A move after the session has ended needs the peers.
#[test]
fn the_peers_of_an_address_that_is_chosen_by_proof_are_asked_next() {
    let mut scenario = Scenario::new(&["a", "b"]);
    scenario.lease();
    scenario.round(&[("a", shows(true))]);
    assert!(scenario.is_round_due());
    scenario.round(&[("a", reports(&["1"])), ("b", shows(false))]);
    assert!(!scenario.is_round_due());
    scenario.request("a", Outcome::Answered);
    scenario.pass(TTL);
    scenario.request("a", refused());
    scenario.round(&[("b", ProbeResult { peers: peers(&["1"]), ..shows(false) })]);
    assert_eq!((scenario.used(), scenario.selection.epoch()), (label("b"), 1));
}

/// A foreign server refuses too, and no token is known to be valid there.
#[test]
fn a_refusal_chooses_no_address() {
    let mut scenario = Scenario::new(&["a", "b"]);
    scenario.round(&[]);
    scenario.request("a", Outcome::Refused);
    assert!(!scenario.selection.is_chosen());
    scenario.request("a", Outcome::Answered);
    assert!(scenario.selection.is_chosen());
}

#[test]
fn a_renewal_that_is_answered_late_brings_no_ended_session_back() {
    let mut scenario = Scenario::begun(&["a", "b"], &["1"]);
    scenario.lease();
    scenario.selection.forget("s", scenario.now);
    scenario.lease();
    assert!(!scenario.selection.is_leased(scenario.now));
    scenario.request("a", refused());
    scenario.round(&[("b", reports(&["1"]))]);
    assert_eq!(scenario.used(), label("b"), "there is no lease to wait for");
}

#[test]
fn without_the_peers_of_the_address_in_use_a_move_needs_a_proof() {
    let mut scenario = Scenario::new(&["a", "b"]);
    scenario.request("a", Outcome::Answered);
    scenario.request("a", refused());
    scenario.round(&[("b", reports(&["1"]))]);
    assert_eq!(scenario.used(), label("a"));
}

#[test]
fn an_election_is_no_failure() {
    let mut scenario = Scenario::begun(&["a", "b"], &["1"]);
    scenario.lease();
    scenario.round(&[("b", shows(true))]);
    assert!(!scenario.request("a", Outcome::NoLeader));
    scenario.pass(MAX_ELECTION - Duration::from_millis(1));
    assert!(!scenario.request("a", Outcome::NoLeader));
    scenario.pass(Duration::from_millis(1));
    assert!(scenario.request("a", Outcome::NoLeader));
    scenario.round(&[("b", shows(true))]);
    assert_eq!(scenario.used(), label("b"));
}

#[test]
fn an_answer_ends_a_failure() {
    let mut scenario = Scenario::begun(&["a", "b"], &["1"]);
    scenario.request("a", Outcome::NoLeader);
    scenario.pass(MAX_ELECTION);
    scenario.request("a", Outcome::Answered);
    assert!(!scenario.request("a", Outcome::NoLeader));
    assert!(!scenario.request("a", Outcome::Unanswered));
    scenario.request("a", Outcome::Answered);
    assert!(!scenario.request("a", Outcome::Unanswered), "the first request without an answer");
    assert!(scenario.request("a", Outcome::Unanswered));
    scenario.request("a", Outcome::Answered);
    assert!(!scenario.is_round_due());
    // A round in progress moves nothing either.
    assert!(scenario.request("a", refused()));
    scenario.selection.begin_round(Duration::ZERO, 0.5, scenario.now);
    scenario.selection.probes(scenario.now);
    scenario.request("a", Outcome::Answered);
    scenario.selection.record_probe(&target("b"), reports(&["1"]), scenario.now);
    scenario.selection.end_round(scenario.now);
    assert_eq!(scenario.used(), label("a"));
}

#[test]
fn a_late_answer_of_another_target_has_no_effect() {
    let mut scenario = Scenario::begun(&["a", "b"], &["1"]);
    assert!(!scenario.request("b", refused()));
    assert!(!scenario.is_round_due());
}

#[test]
fn rounds_have_a_minimum_and_a_maximum_interval() {
    let mut scenario = Scenario::begun(&["a", "b"], &["1"]);
    assert!(scenario.request("a", refused()));
    scenario.selection.begin_round(Duration::ZERO, 0.5, scenario.now);
    assert!(!scenario.request("a", refused()), "one at a time");
    scenario.selection.probes(scenario.now);
    scenario.selection.end_round(scenario.now);
    assert!(!scenario.request("a", refused()), "too soon");
    assert_eq!(scenario.selection.next_round_after(scenario.now), Some(PROBE_INTERVAL));
    scenario.pass(PROBE_INTERVAL);
    assert!(scenario.request("a", refused()));
    scenario.request("a", Outcome::Answered);
    assert!(!scenario.is_round_due());
    scenario.pass(CHECK_INTERVAL);
    assert!(scenario.request("a", Outcome::Answered));
}

#[test]
fn a_new_session_causes_a_round() {
    let mut scenario = Scenario::begun(&["a", "b"], &["1"]);
    scenario.lease();
    assert!(scenario.is_round_due());
    let asked = scenario.round(&[("a", reports(&["1"])), ("b", shows(false))]);
    assert_eq!(asked.len(), 2);
    assert!(matches!(scenario.selection.take_news()[..], [AddressNews::Foreign { .. }]));
    scenario.lease();
    assert!(!scenario.is_round_due());
    // Further new sessions cause no round before the minimum interval.
    scenario.selection.remember("another", Some(scenario.now + TTL), scenario.now);
    assert!(!scenario.is_round_due());
    scenario.pass(MIN_CHECK_INTERVAL);
    assert!(scenario.is_round_due());
}

/// A result of the round may be older than the failure.
#[test]
fn a_failure_during_a_round_causes_another_round() {
    let mut scenario = Scenario::begun(&["a", "b"], &["1"]);
    scenario.pass(CHECK_INTERVAL * 2);
    scenario.selection.begin_round(Duration::ZERO, 0.5, scenario.now);
    scenario.selection.probes(scenario.now);
    scenario.selection.record_probe(&target("b"), failed(), scenario.now);
    scenario.request("a", refused());
    assert!(scenario.selection.end_round(scenario.now));
    scenario.selection.begin_round(Duration::ZERO, 0.5, scenario.now);
    scenario.selection.probes(scenario.now);
    scenario.selection.record_probe(&target("b"), reports(&["1"]), scenario.now);
    assert_eq!(scenario.used(), label("b"));
    assert!(!scenario.selection.end_round(scenario.now));
}

#[test]
fn rounds_of_many_agents_spread_over_time() {
    let mut scenario = Scenario::begun(&["a", "b"], &["1"]);
    scenario.request("a", refused());
    let mut after = |spread| {
        scenario.selection.begin_round(Duration::ZERO, spread, scenario.now);
        scenario.selection.probes(scenario.now);
        scenario.selection.end_round(scenario.now);
        scenario.selection.next_round_after(scenario.now).unwrap()
    };
    assert_eq!((after(0.0), after(1.0)), (PROBE_INTERVAL.mul_f64(0.75), PROBE_INTERVAL.mul_f64(1.25)));
}

#[test]
fn a_name_is_replaced_by_its_addresses() {
    let by = |ip: &str| Target { ip: Some(ip.parse().unwrap()), ..target("n") };
    let mut scenario = Scenario::new(&["n"]);
    scenario.selection.set_targets(vec![by("10.0.0.1"), by("10.0.0.2")]);
    assert_eq!(scenario.selection.used(), Some(&by("10.0.0.1")));
    scenario.selection.record_outcome(&by("10.0.0.1"), Outcome::Answered, scenario.now);
    // The address in use stays, although the name does not resolve to it any more.
    scenario.selection.set_targets(vec![by("10.0.0.2"), by("10.0.0.3")]);
    assert_eq!(scenario.used(), "http://n:8500 (10.0.0.1)");
    scenario.selection.remember("s", Some(scenario.now + TTL), scenario.now);
    scenario.selection.record_outcome(&by("10.0.0.1"), refused(), scenario.now);
    scenario.selection.begin_round(Duration::ZERO, 0.5, scenario.now);
    scenario.selection.probes(scenario.now);
    scenario.selection.record_probe(&by("10.0.0.3"), shows(true), scenario.now);
    scenario.selection.end_round(scenario.now);
    assert_eq!(scenario.used(), "http://n:8500 (10.0.0.3)");
}

/// A connection by name may go to any address of the name.
#[test]
fn a_name_that_is_resolved_late_is_replaced_by_one_of_its_addresses() {
    let by = |ip: &str| Target { ip: Some(ip.parse().unwrap()), ..target("n") };
    let mut scenario = Scenario::new(&["n"]);
    scenario.selection.record_outcome(&target("n"), Outcome::Answered, scenario.now);
    scenario.selection.remember("s", Some(scenario.now + TTL), scenario.now);
    scenario.selection.set_targets(vec![by("10.0.0.1"), by("10.0.0.2")]);
    assert!(scenario.is_round_due());
    scenario.selection.begin_round(Duration::ZERO, 0.5, scenario.now);
    scenario.selection.probes(scenario.now);
    scenario.selection.record_probe(&by("10.0.0.2"), shows(true), scenario.now);
    scenario.selection.end_round(scenario.now);
    assert_eq!(scenario.used(), "http://n:8500 (10.0.0.2)");
}

/// A step of a scenario with several clusters.
#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    /// A target stops answering, or answers again.
    Turn(usize),
    /// A target hides sessions, or shows them again.
    Veil(usize),
    Request,
    Create,
    Round,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => (1..40_u64).prop_map(Step::Pass),
        1 => (0..4_usize).prop_map(Step::Turn),
        1 => (0..4_usize).prop_map(Step::Veil),
        3 => Just(Step::Request),
        1 => Just(Step::Create),
        3 => Just(Step::Round),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    /// Clusters are never mixed: not while a lease is valid, and not within an epoch. `alike`: all targets report the same peer, as
    /// development servers do.
    #[test]
    fn two_clusters_are_never_mixed(
        clusters in proptest::collection::vec(0..2_usize, 4),
        alike in any::<bool>(),
        steps in steps(),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut scenario = Scenario::new(&names);
        let cluster_of = |shown: &str| clusters[names.iter().position(|name| label(name) == shown).unwrap()];
        let (mut up, mut veiled) = ([true; 4], [false; 4]);
        // Sessions with their cluster and lease, and the cluster of the latest answer with its epoch.
        let mut sessions: Vec<(String, usize, Instant)> = Vec::new();
        let mut seen: Option<(u64, usize)> = None;
        for step in steps {
            let used = scenario.used();
            let at = names.iter().position(|name| label(name) == used).unwrap();
            match step {
                Step::Pass(seconds) => scenario.pass(Duration::from_secs(seconds)),
                Step::Turn(at) => up[at] = !up[at],
                Step::Veil(at) => veiled[at] = !veiled[at],
                Step::Request if up[at] => {
                    scenario.request(names[at], Outcome::Answered);
                    let now = (scenario.selection.epoch(), clusters[at]);
                    prop_assert!(seen.is_none_or(|seen| seen.0 != now.0 || seen.1 == now.1), "mixed in one epoch");
                    seen = Some(now);
                }
                Step::Request => {
                    scenario.request(names[at], refused());
                }
                Step::Create if up[at] => {
                    scenario.request(names[at], Outcome::Answered);
                    let id = format!("s{}", sessions.len());
                    let ends = scenario.now + TTL;
                    scenario.selection.remember(&id, Some(ends), scenario.now);
                    sessions.push((id, clusters[at], ends));
                    seen = Some((scenario.selection.epoch(), clusters[at]));
                }
                Step::Create => {}
                Step::Round => if scenario.is_round_due() {
                    scenario.selection.begin_round(Duration::ZERO, 0.5, scenario.now);
                    for probe in scenario.selection.probes(scenario.now) {
                        let at = names.iter().position(|name| probe.target == target(name)).unwrap();
                        let has = |id: &String| sessions.iter().any(|(one, cluster, _)| one == id && *cluster == clusters[at]);
                        let own = if alike { "0".to_owned() } else { clusters[at].to_string() };
                        let result = if !up[at] || (veiled[at] && !probe.sessions.is_empty()) {
                            failed()
                        } else {
                            ProbeResult {
                                shows: (!probe.sessions.is_empty()).then(|| probe.sessions.iter().any(has)),
                                peers: probe.peers.then(|| BTreeSet::from([own])),
                                failed: None,
                            }
                        };
                        scenario.selection.record_probe(&probe.target, result, scenario.now);
                    }
                    scenario.selection.end_round(scenario.now);
                },
            }
            let now = cluster_of(&scenario.used());
            let leased = sessions.iter().find(|(_, _, ends)| *ends > scenario.now);
            prop_assert!(leased.is_none_or(|(_, cluster, _)| *cluster == now), "moved under a valid lease");
        }
    }

    /// After a restart the agent sends requests only to its session's cluster while the lease of that session may be valid. Targets
    /// that fail, hide sessions, or refuse make no difference.
    #[test]
    fn a_restart_mixes_no_clusters(
        clusters in proptest::collection::vec(0..2_usize, 3),
        lived in any::<bool>(),
        rounds in proptest::collection::vec((proptest::collection::vec(0..3_u8, 3), any::<bool>(), 0..20_u64), 1..12),
    ) {
        let names = ["a", "b", "c"];
        let mut scenario = Scenario::new(&names);
        scenario.lease();
        let (lease, home) = (scenario.now + TTL, clusters[0]);
        for (conditions, login, seconds) in rounds {
            let shown = |at: usize| lived && clusters[at] == home;
            let answers: Vec<_> = (0..3)
                .filter(|at| conditions[*at] != 0)
                .map(|at| (names[at], if conditions[at] == 1 { shows(shown(at)) } else { failed() }))
                .collect();
            if scenario.is_round_due() {
                scenario.selection.begin_round(Duration::ZERO, 0.5, scenario.now);
                for probe in scenario.selection.probes(scenario.now) {
                    let answer = answers.iter().find(|(name, _)| probe.target == target(name));
                    let result = answer.map_or_else(failed, |(_, result)| result.clone());
                    scenario.selection.record_probe(&probe.target, result, scenario.now);
                }
                scenario.selection.end_round(scenario.now);
            }
            let used = scenario.used();
            let at = names.iter().position(|name| label(name) == used).unwrap();
            if scenario.selection.is_blocked(scenario.now) {
                scenario.request(names[at], if login { Outcome::Answered } else { refused() });
            } else if lived && scenario.now < lease {
                prop_assert_eq!(clusters[at], home, "sent to another cluster under a valid lease");
            }
            scenario.pass(Duration::from_secs(seconds));
        }
    }

    /// If another target of the same cluster answers, one round finds it.
    #[test]
    fn a_target_that_can_be_used_is_found(down in 0..3_usize, leased in any::<bool>(), order in Just(["a", "b", "c"]).prop_shuffle()) {
        let mut scenario = Scenario::begun(&["a", "b", "c"], &["1"]);
        if leased {
            scenario.lease();
        }
        let names = ["a", "b", "c"];
        // A second target may be down.
        scenario.request("a", refused());
        let answer = if leased { shows(true) } else { reports(&["1"]) };
        let answers: Vec<_> =
            order.into_iter().filter(|name| *name != "a" && *name != names[down]).map(|name| (name, answer.clone())).collect();
        scenario.round(&answers);
        prop_assert!(answers.iter().any(|(name, _)| label(name) == scenario.used()));
    }
}
