//! What an agent waits for: single keys, so that one change wakes few.

use std::collections::BTreeSet;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::Lodger;
use crate::support::processes::connections;
use crate::support::proxy::Proxy;
use crate::support::traffic::Kind;
use crate::wait_for;

const PREFIX: &str = "service/s";

/// An agent with a proxy of its own.
struct Watched {
    lodger: Lodger,
    proxy: Proxy,
}

impl Watched {
    fn start(consul: &Consul) -> Self {
        let proxy = Proxy::start_apart(consul.address().parse().unwrap());
        let config = format!("session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: {PREFIX}, limit: 1}}]");
        Self { lodger: Lodger::start(&proxy.addr().to_string(), &config), proxy }
    }

    /// The keys that it has waited for, from its `nth` request on.
    fn waited_for(&self, nth: usize) -> BTreeSet<String> {
        let asked = self.proxy.asked().split_off(nth).into_iter();
        asked.filter(|asked| asked.kind == Kind::KvGetBlocking).filter_map(|asked| asked.key).collect()
    }

    fn key(&self) -> String {
        format!("{PREFIX}/{}", self.lodger.session())
    }
}

#[test]
fn each_waits_for_a_few_single_keys_and_where_nothing_happens_nobody_writes() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let holder = Watched::start(&consul);
    holder.lodger.await_ready();
    let line: Vec<_> = (0..4)
        .map(|_| {
            let one = Watched::start(&consul);
            one.lodger.await_state("waiting");
            one
        })
        .collect();
    let sessions: Vec<_> = line.iter().map(|one| one.lodger.session()).collect();
    wait_for("`.lock` to name who is next", || operator.next(PREFIX) == sessions);
    let all: Vec<_> = std::iter::once(holder).chain(line).collect();
    let renewed = |one: &Watched| one.proxy.counts().of(Kind::SessionRenew).requests;
    let await_renewals = |more: u64| {
        let until: Vec<_> = all.iter().map(|one| renewed(one) + more).collect();
        wait_for("renewals", || all.iter().zip(&until).all(|(one, until)| renewed(one) >= *until));
    };
    // A renewal later all watches have begun, and the holder has signed its entry.
    await_renewals(1);
    let before: Vec<_> = all.iter().map(|one| (one.proxy.counts(), one.proxy.asked().len())).collect();
    let index = operator.lock(PREFIX).unwrap().modify_index;
    await_renewals(2);

    let (lock, keys) = (format!("{PREFIX}/.lock"), all.iter().map(Watched::key).collect::<Vec<_>>());
    let expected = |place: usize| -> BTreeSet<_> {
        let expected = match place {
            0 => vec![&lock, &keys[0]],
            1 => vec![&lock, &keys[1], &keys[0]],
            _ => vec![&keys[place], &keys[place - 1]],
        };
        expected.into_iter().cloned().collect()
    };
    wait_for("those on whom others depend to ask anew, as they do every few seconds", || {
        (0..2).all(|place| all[place].waited_for(before[place].1).len() >= expected(place).len())
    });
    for (place, (one, (counts, asked))) in all.iter().zip(&before).enumerate() {
        let expected = expected(place);
        assert_eq!(one.waited_for(0), expected, "{place} in line");
        if place < 2 {
            assert_eq!(one.waited_for(*asked), expected, "{place} in line");
        }
        let whole = one.proxy.counts();
        assert_eq!(whole.of(Kind::KvListBlocking).requests, 0);
        let meanwhile = whole - *counts;
        assert_eq!(meanwhile.writes(), 0, "{place} in line: {meanwhile:?}");
        let (lists, renewals) =
            (meanwhile.of(Kind::KvList).requests, meanwhile.of(Kind::SessionRenew).requests);
        assert!(lists <= renewals + 1, "{place} in line: {lists} lists beside {renewals} renewals");
    }
    assert_eq!(operator.lock(PREFIX).unwrap().modify_index, index);
    for mut one in all.into_iter().rev() {
        assert_eq!(one.lodger.terminate(), Some(0));
        assert_eq!(one.proxy.counts().of(Kind::KvListBlocking).requests, 0);
    }
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn at_rest_each_has_the_connections_of_its_long_polls_alone() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut holder = Watched::start(&consul);
    holder.lodger.await_ready();
    let mut waiter = Watched::start(&consul);
    waiter.lodger.await_state("waiting");
    for one in [&holder, &waiter] {
        let renewed = || one.proxy.counts().of(Kind::SessionRenew).requests;
        let is_at_rest = || {
            let polls = one.proxy.polls();
            polls > 0 && connections(one.lodger.pid(), one.proxy.addr()) == polls
        };
        // Renewals go on, and none of their connections stays.
        for _ in 0..3 {
            let before = renewed();
            wait_for("a renewal", || renewed() > before);
            wait_for("a connection for each long poll, and none else", is_at_rest);
        }
    }
    assert_eq!(waiter.lodger.terminate(), Some(0));
    assert_eq!(holder.lodger.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}
