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

    /// The keys and folders that it has waited for.
    fn waited_for(&self) -> BTreeSet<String> {
        let asked = self.proxy.asked().into_iter();
        let waits = |kind| matches!(kind, Kind::KvGetBlocking | Kind::KvKeysBlocking);
        asked.filter(|asked| waits(asked.kind)).filter_map(|asked| asked.key).collect()
    }

    fn key(&self) -> String {
        format!("{PREFIX}/{}", self.lodger.session())
    }
}

#[test]
fn each_client_watches_a_few_keys_and_writes_nothing_at_rest() {
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
    let first = line[0].lodger.session();
    wait_for("`.lock` to name who is next", || operator.next(PREFIX).first() == Some(&first));
    let all: Vec<_> = std::iter::once(holder).chain(line).collect();
    let keys: Vec<_> = all.iter().map(Watched::key).collect();
    // From here on nobody looks at any of them.
    let (folder, record) = (format!("{PREFIX}/"), format!("{PREFIX}/.lock"));
    let expected = |place: usize| -> BTreeSet<_> {
        // A holder hands off by what its watch of `.lock` tells. The waiters of a short queue watch over all: by the names in the folder they
        // see who has died.
        let other = if place == 0 { &record } else { &folder };
        [other, &keys[place]].into_iter().cloned().collect()
    };
    let await_rest = || {
        for (place, one) in all.iter().enumerate() {
            let polls = expected(place).len();
            wait_for("its long polls", || one.proxy.polls() == polls && one.waited_for() == expected(place));
        }
    };
    let renewed = |one: &Watched| one.proxy.counts().of(Kind::SessionRenew).requests;
    let await_renewals = |more: u64| {
        let until: Vec<_> = all.iter().map(|one| renewed(one) + more).collect();
        wait_for("renewals", || all.iter().zip(&until).all(|(one, until)| renewed(one) >= *until));
    };
    // A renewal later all watches have begun, and what was asked of them by who looked at them is done.
    await_renewals(1);
    await_rest();
    let before: Vec<_> = all.iter().map(|one| one.proxy.counts()).collect();
    let index = operator.lock(PREFIX).unwrap().modify_index;
    await_renewals(2);
    await_rest();
    for (place, (one, counts)) in all.iter().zip(&before).enumerate() {
        let whole = one.proxy.counts();
        assert_eq!(whole.of(Kind::KvListBlocking).requests, 0);
        let meanwhile = whole - *counts;
        // A holder confirms once a minute, by a transaction that only reads. A waiter has looked before it watches the folder.
        let reads = u64::from(place == 0);
        assert!(meanwhile.writes() <= reads, "{place} in line: {meanwhile:?}");
        let (lists, renewals) =
            (meanwhile.of(Kind::KvList).requests, meanwhile.of(Kind::SessionRenew).requests);
        let most = match place {
            0 => 0,
            // Once soon after it has come.
            _ => 1,
        };
        assert!(lists <= most, "{place} in line: {lists} lists beside {renewals} renewals");
        // The watches go on as they are.
        let polls = meanwhile.of(Kind::KvGetBlocking).requests + meanwhile.of(Kind::KvKeysBlocking).requests;
        assert_eq!(polls, 0, "{place} in line: {meanwhile:?}");
    }
    assert_eq!(operator.lock(PREFIX).unwrap().modify_index, index);
    for mut one in all.into_iter().rev() {
        assert_eq!(one.lodger.terminate(), Some(0));
        assert_eq!(one.proxy.counts().of(Kind::KvListBlocking).requests, 0);
    }
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn at_rest_each_agent_has_the_connections_of_its_long_polls_alone() {
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
