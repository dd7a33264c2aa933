//! `slotkeeper run` on a lock, alone and beside `consul lock`.

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use super::{ConsulLock, FLAGS, owner};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::run::job::Job;
use crate::support::freezer::Freezer;
use crate::support::kv::Put;
use crate::support::life::{Life, MEEK, STUBBORN};
use crate::support::lives::{Lived, faults};
use crate::wait_for;

const KEY: &str = "p/one/.lock";

#[test]
fn the_command_runs_while_the_lock_is_held() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    for arguments in [&["p/one"][..], &["--lock", "p/one/"], &["p/one/.lock", "-n", "1", "--lock"]] {
        let script = "env | grep -E '^(SLOTKEEPER|CONSUL)_' | sort; exit 7";
        let mut job = Job::start(&consul.address(), arguments, &["sh", "-c", script]);
        assert_eq!(job.code(), Some(7), "{}", job.log());
        for line in [
            "CONSUL_LOCK_HELD=true",
            "SLOTKEEPER_SLOT=0",
            "SLOTKEEPER_SLOT_ONE=0",
            "SLOTKEEPER_LOCK_INDEX=1",
            "SLOTKEEPER_SESSION=",
        ] {
            assert!(job.out().contains(line), "{line} in {}", job.out());
        }
        assert_eq!((operator.key(KEY), operator.sessions()), (None, Vec::new()));
    }
}

#[test]
fn one_at_a_time_and_each_token_is_higher() {
    let consul = Consul::start();
    let mut first = Job::live(&consul.address(), &["p/one"], MEEK);
    first.await_life();
    let mut tried = Job::start(&consul.address(), &["p/one", "--try"], &["true"]);
    assert_eq!(tried.code(), Some(75), "{}", tried.log());
    let mut waited = Job::start(&consul.address(), &["p/one", "--timeout", "5s"], &["true"]);
    assert_eq!(waited.code(), Some(75), "{}", waited.log());
    let mut second = Job::live(&consul.address(), &["p/one"], MEEK);
    wait_for("it to wait", || second.log().contains(log_events::LOCK_HELD_BY_OTHER));
    first.signal(Signal::TERM);
    first.life().assert_before(&second.await_life());
    assert_eq!(first.code(), Some(143));
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143));
}

#[test]
fn a_command_whose_lock_is_lost_is_stopped() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let arguments = ["p/one", "--kill-after", "500ms", "--ttl", "10s"];
    for deleted in [true, false] {
        let mut job = Job::live(&consul.address(), &arguments, STUBBORN);
        job.await_life();
        let session = owner(&operator, KEY).unwrap();
        if deleted {
            operator.delete(KEY);
        } else {
            operator.put(KEY, "", Put::Release(&session), FLAGS);
        }
        assert_eq!(job.code(), Some(80), "{}", job.log());
    }
    assert_eq!(owner(&operator, KEY), None);
}

#[test]
fn consul_lock_waits_for_ours_and_ours_for_it() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut ours = Job::live(&consul.address(), &["p/one"], MEEK);
    ours.await_life();
    // Theirs gives up on ours.
    let mut theirs = ConsulLock::start(&consul.address(), &["-timeout", "5s"], "true");
    assert_eq!(theirs.ended(), Some(1));
    // Theirs follows ours.
    let theirs = ConsulLock::start(&consul.address(), &["-n", "1"], "sleep 600");
    let session = owner(&operator, KEY);
    ours.signal(Signal::TERM);
    assert_eq!(ours.code(), Some(143));
    wait_for("consul lock to have it", || owner(&operator, KEY).is_some_and(|now| Some(now) != session));
    // Ours gives up on theirs, and follows it.
    let mut tried = Job::start(&consul.address(), &["p/one", "--try"], &["true"]);
    assert_eq!(tried.code(), Some(75), "{}", tried.log());
    let mut ours = Job::live(&consul.address(), &["p/one"], MEEK);
    wait_for("ours to wait", || ours.log().contains(log_events::LOCK_HELD_BY_OTHER));
    theirs.end();
    ours.await_life();
    ours.signal(Signal::TERM);
    assert_eq!(ours.code(), Some(143));
}

#[test]
fn a_crowd_of_both_kinds_never_overlaps() {
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    let short = |place: usize| {
        let file = folder.path().join(place.to_string());
        let script = format!(
            "for i in 1 2 3 4 5; do read -r now _ < /proc/uptime; echo $now ${{SLOTKEEPER_FENCING_TOKEN:-0}} >> {}; \
             sleep 0.03; done",
            file.display()
        );
        (Life::at(file), script)
    };
    let (mut ours, mut theirs, mut lives) = (Vec::new(), Vec::new(), Vec::new());
    for place in 0..10 {
        let (life, script) = short(place);
        lives.push(life);
        if place % 2 == 0 {
            ours.push(Job::start(&consul.address(), &["p/one"], &["sh", "-c", &script]));
        } else {
            theirs.push(ConsulLock::start(&consul.address(), &[], &script));
        }
    }
    for job in &mut ours {
        assert_eq!(job.code(), Some(0), "{}", job.log());
    }
    for lock in &mut theirs {
        assert_eq!(lock.ended(), Some(0));
    }
    let lived = |(place, life): (usize, &Life)| Lived {
        name: place.to_string(),
        first: life.first(),
        last: life.last(),
        taken_away: None,
        slots: 1,
        slot: None,
        token: life.token(),
    };
    let lived: Vec<_> = lives.iter().enumerate().map(lived).collect();
    assert_eq!(faults(&lived, 1), [""; 0]);
    // Ours, in order, have growing tokens.
    let mut ours: Vec<_> = lived.iter().filter(|one| one.token > 0).collect();
    ours.sort_by(|a, b| a.first.total_cmp(&b.first));
    assert!(ours.len() == 5 && ours.windows(2).all(|pair| pair[0].token < pair[1].token), "{ours:?}");
}

#[test]
fn without_packets_the_command_ends_before_its_successor_starts_even_without_a_lock_delay() {
    let consul = Consul::start();
    let hole = Freezer::start_apart(consul.address().parse().unwrap());
    let arguments = ["p/one", "--ttl", "10s", "--kill-after", "1s", "--lock-delay", "0s"];
    let mut first = Job::live(&hole.addr().to_string(), &arguments, STUBBORN);
    first.await_life();
    let mut second = Job::live(&consul.address(), &arguments, MEEK);
    wait_for("it to wait", || second.log().contains(log_events::LOCK_HELD_BY_OTHER));
    hole.block(true);
    first.life().assert_before(&second.await_life());
    assert_eq!(first.code(), Some(80), "{}", first.log());
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143), "{}", second.log());
}
