//! Agents that have `locks:`, one of which leads.

use rustix::process::Signal;

use super::{FLAGS, lock, owner};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::kv::Put;
use crate::wait_for;

const KEY: &str = "service/nightly/leader";
const LEADER: &str = "locks: [{name: leader, key: service/nightly/leader}]";

fn at_home(consul: &Consul, rest: &str) -> Home {
    let home = Home::new();
    home.configure(&consul.address(), rest);
    home
}

#[test]
fn a_lock_with_consuls_flags_is_reported_everywhere_and_nothing_is_left() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = at_home(&consul, LEADER);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let pair = operator.key(KEY).unwrap();
    assert_eq!((pair.flags, pair.session.as_deref()), (FLAGS, Some(agent.session().as_str())));
    let said = lock(&agent);
    assert_eq!((&said["state"], &said["key"]), (&"held".into(), &KEY.into()));
    assert_eq!((&said["lock_index"], &said["leader"]["mine"]), (&1.into(), &true.into()));
    assert_eq!(said["fencing_token"], pair.modify_index);
    assert!(said["leader"]["who"]["pid"].is_u64() && said["expires_in_seconds"].is_f64(), "{said}");
    let file = agent.ready_file_says();
    assert_eq!(file["locks"]["leader"]["fencing_token"], pair.modify_index);
    for (series, value) in
        [("slot_held", 1.0), ("holders", 1.0), ("limit", 1.0), ("leader_changes_total", 1.0)]
    {
        assert_eq!(agent.metric(&format!("slotkeeper_{series}{{semaphore=\"leader\"}}")), value, "{series}");
    }
    assert!(agent.get("/readyz?verbose").body.contains("[+]lock/leader ok: held"));
    let one = agent.get("/v1/locks/leader");
    assert_eq!(one.status, 200);
    assert!(one.body.contains("\"state\":\"held\""), "{}", one.body);
    assert_eq!(agent.get("/v1/locks/other").status, 404);
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!((operator.key(KEY), operator.sessions()), (None, Vec::new()));
}

#[test]
fn a_lock_of_behavior_release_stays_and_counts_its_owners() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let stays = format!("{LEADER}\nsession: {{behavior: release}}");
    let mut before = 0;
    for times in 1..=3 {
        let home = at_home(&consul, &stays);
        let mut agent = Agent::start(&home);
        agent.await_ready();
        let said = lock(&agent);
        assert_eq!(said["lock_index"], times);
        let token = said["fencing_token"].as_u64().unwrap();
        assert!(before < token, "{before} and {token}");
        before = token;
        assert_eq!(agent.terminate(), Some(0));
        let pair = operator.key(KEY).unwrap();
        assert_eq!((pair.flags, pair.session, pair.lock_index), (FLAGS, None, times));
    }
    assert_eq!(operator.sessions(), []);
}

#[test]
fn a_follower_sees_the_leader_and_takes_over() {
    let consul = Consul::start();
    let hook = "hooks: {on_leader_changed: [sh, -c, 'echo $SLOTKEEPER_SEMAPHORE ${SLOTKEEPER_LEADER_POD:-nobody} \
                $SLOTKEEPER_LEADER_MINE $SLOTKEEPER_KIND $SLOTKEEPER_KEY >> $HOME/told']}";
    let config = format!("locks: [{{name: leader, key: {KEY}, required: false}}]\n{hook}");
    let (home_a, home_b) = (at_home(&consul, &config), at_home(&consul, &config));
    let mut first = Agent::start_with(&home_a, &[], &[("SLOTKEEPER_POD_NAME", "first")]);
    wait_for("the first to lead", || lock(&first)["state"] == "held");
    let mut second = Agent::start_with(&home_b, &[], &[("SLOTKEEPER_POD_NAME", "second")]);
    wait_for("the second to follow", || lock(&second)["leader"]["who"]["pod"] == "first");
    assert_eq!(
        (&lock(&second)["state"], &lock(&second)["leader"]["mine"]),
        (&"waiting".into(), &false.into())
    );
    // A follower is ready: this lock is not required.
    assert!(second.is_ready());
    assert_eq!(second.metric("slotkeeper_slot_held{semaphore=\"leader\"}"), 0.0);
    assert_eq!(second.metric("slotkeeper_holders{semaphore=\"leader\"}"), 1.0);
    assert_eq!(first.terminate(), Some(0));
    wait_for("the second to lead", || lock(&second)["state"] == "held");
    assert_eq!(second.metric("slotkeeper_leader_changes_total{semaphore=\"leader\"}"), 2.0);
    let told = || std::fs::read_to_string(home_b.path("told")).unwrap_or_default();
    // A watch that comes late on a busy machine shows the lock when it is taken again already.
    let leaders = || told().replace(&format!(" lock {KEY}"), "").replace("leader nobody false\n", "");
    wait_for("the hooks", || leaders() == "leader first false\nleader second true\n");
    assert_eq!(second.terminate(), Some(0));
}

#[test]
fn a_key_that_is_no_lock_is_unchanged_and_described() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    operator.put(KEY, "10", Put::Plain, 0);
    let home = at_home(&consul, LEADER);
    let mut agent = Agent::start(&home);
    wait_for("it to be kept out", || lock(&agent)["state"] == "blocked");
    let why = lock(&agent)["reason"].as_str().unwrap().to_owned();
    assert!(why.contains("it holds `10`") && why.contains(KEY), "{why}");
    let pair = operator.key(KEY).unwrap();
    assert_eq!((pair.value.as_slice(), pair.session, pair.flags), (&b"10"[..], None, 0));
    operator.delete(KEY);
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));

    // Nor is a semaphore's record taken for one.
    let record = r#"{"Limit":2,"Holders":[]}"#;
    operator.put(KEY, record, Put::Plain, 0);
    let mut agent = Agent::start(&home);
    wait_for("it to be kept out", || lock(&agent)["state"] == "blocked");
    let why = lock(&agent)["reason"].as_str().unwrap().to_owned();
    assert!(why.contains("is a semaphore (limit 2, no holder), not a lock"), "{why}");
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(operator.key(KEY).unwrap().value, record.as_bytes());
}

#[test]
fn a_lost_lock_is_reported_with_its_reason_and_acquired_again() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = at_home(&consul, &format!("{LEADER}\nsession: {{lock_delay: 0s}}"));
    let mut agent = Agent::start(&home);
    let lost = |agent: &Agent, reason: &str| {
        agent.metric(&format!("slotkeeper_slots_lost_total{{reason=\"{reason}\",semaphore=\"leader\"}}"))
    };
    let token = |agent: &Agent| lock(agent)["fencing_token"].as_u64();
    agent.await_ready();
    // Deleted by an operator.
    let before = token(&agent);
    operator.delete(KEY);
    wait_for("it to notice", || lost(&agent, "contender_gone") == 1.0 && token(&agent) > before);
    // Unlocked by another program, in our session's name.
    let before = token(&agent);
    operator.put(KEY, "", Put::Release(&agent.session()), FLAGS);
    wait_for("it to notice", || lost(&agent, "evicted") == 1.0 && token(&agent) > before);
    // Its session is destroyed.
    let (before, session) = (token(&agent), agent.session());
    operator.destroy(&session);
    wait_for("it to notice", || lost(&agent, "session_gone") == 1.0 && token(&agent) > before);
    assert_ne!(agent.session(), session);
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(owner(&operator, KEY), None);
}

#[test]
fn a_restarted_agent_resumes_its_lock() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let state = "session: {state_file: $HOME/session.json}";
    let home = at_home(&consul, &format!("{LEADER}\n{state}"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (session, said) = (agent.session(), lock(&agent));
    let saved = || std::fs::read_to_string(home.path("session.json")).unwrap_or_default();
    wait_for("the state file", || saved().contains(&format!("\"{KEY}\":{}", said["fencing_token"])));
    agent.signal(Signal::KILL);
    agent.ended();
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!((agent.session(), &lock(&agent)["fencing_token"]), (session, &said["fencing_token"]));
    assert_eq!(lock(&agent)["lock_index"], 1);
    agent.signal(Signal::KILL);
    agent.ended();
    // One that is not told to hold it any more gives it back.
    let home = {
        let rest = format!("semaphores: [{{name: s, prefix: p/s, limit: 1}}]\n{state}");
        home.configure(&consul.address(), &rest);
        home
    };
    let mut agent = Agent::start(&home);
    agent.await_ready();
    wait_for("the lock to be given back", || owner(&operator, KEY).is_none());
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_renamed_lock_keeps_its_owner() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = at_home(&consul, LEADER);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (session, token) = (agent.session(), lock(&agent)["fencing_token"].clone());
    home.configure(&consul.address(), &LEADER.replace("name: leader", "name: chief"));
    agent.signal(Signal::HUP);
    wait_for("the new name", || lock(&agent)["name"] == "chief");
    assert!(agent.is_ready());
    assert_eq!((&lock(&agent)["fencing_token"], &lock(&agent)["lock_index"]), (&token, &1.into()));
    assert_eq!(owner(&operator, KEY), Some(session));
    assert_eq!(agent.get("/v1/locks/leader").status, 404);
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(owner(&operator, KEY), None);
}
