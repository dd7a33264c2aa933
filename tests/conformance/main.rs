//! The embedded server against a real Consul: the same scenarios on both, and both must say the same.
//!
//! A scenario makes requests of a [`Target`](target::Target), which keeps a transcript with what differs by nature
//! (session ids, the node's name, indexes) replaced by names and ranks. Scenarios also assert the facts that matter by
//! themselves, so that two servers that are wrong alike do not pass. Where Consul 1.8 and 1.22 differ, the scenario has
//! both facts ([`Target::fact`](target::Target::fact)).
//!
//! The real Consul is the one that the tests have, 1.8.7, and the embedded server then speaks that dialect. With
//! `CONSUL_BIN` set to a newer one, the same tests compare the dialect of 1.22. That dialect is besides held to the
//! scenarios' own facts in any case, without a Consul ([`newer`]).

#![allow(unreachable_pub, reason = "the modules of one test")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "this fails a test, nothing else")]

#[path = "../support/mod.rs"]
mod support;

mod blocking;
mod errors;
mod kv;
mod newer;
mod session;
mod settings;
mod target;
mod timing;
mod txn;

use std::net::SocketAddr;
use std::pin::Pin;

use rustix::process::Signal;
use slotkeeper_consul_dev::{Dialect, Options};
use support::consul::{self, Consul, Setup};
use support::embedded::Embedded;
use support::http;
use target::{Indexes, Target};

/// What a scenario does with a server.
type Run = for<'a> fn(&'a mut Target) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A scenario under its name.
type Scenario = (&'static str, Run);

/// The listed functions as scenarios.
macro_rules! scenarios {
    ($module:ident: $($name:ident),+ $(,)?) => {
        [$((stringify!($name), (|target| Box::pin($module::$name(target))) as Run)),+] as [Scenario; _]
    };
}

/// The dialect of the real Consul. From 1.22 on it is the newer one; what lies between has a part of each.
fn dialect() -> Dialect {
    if consul::version() < (1, 22) { Dialect::V1_8 } else { Dialect::V1_22 }
}

/// The embedded server, in that dialect.
fn embedded(dialect: Dialect) -> Embedded {
    Embedded::start_with(Options { dialect, ..Options::default() })
}

/// Runs scenarios one after another, each on both servers.
async fn agree(scenarios: impl IntoIterator<Item = Scenario>) {
    let consul = Consul::start().await;
    let embedded = embedded(dialect());
    for (name, scenario) in scenarios {
        compare(name, scenario, Indexes::Ranked, consul.addr(), embedded.addr()).await;
    }
}

/// Runs scenarios that take long all at once. They may not look at what the others have.
async fn agree_at_once(scenarios: impl IntoIterator<Item = Scenario>) {
    let consul = Consul::start().await;
    let embedded = embedded(dialect());
    let runs = scenarios
        .into_iter()
        .map(|(name, scenario)| compare(name, scenario, Indexes::Present, consul.addr(), embedded.addr()));
    futures_util::future::join_all(runs).await;
}

async fn compare(
    name: &'static str,
    scenario: Run,
    indexes: Indexes,
    consul: SocketAddr,
    embedded: SocketAddr,
) {
    let mut real = Target::new(name, indexes, dialect(), consul).await;
    let mut ours = Target::new(name, indexes, dialect(), embedded).await;
    tokio::join!(scenario(&mut real), scenario(&mut ours));
    let (real, ours) = (real.transcript(), ours.transcript());
    for (n, (real, ours)) in real.iter().zip(&ours).enumerate() {
        assert_eq!(ours, real, "{name}, step {}: the embedded server (left) and Consul (right)", n + 1);
    }
    assert_eq!(ours.len(), real.len(), "{name}: both servers take the same steps");
    assert!(!ours.is_empty(), "{name} makes requests");
}

fn keys_scenarios() -> Vec<Scenario> {
    scenarios![kv:
        a_key_is_written_read_and_deleted,
        cas_writes_only_what_stands_at_the_index,
        acquire_and_release,
        a_plain_write_keeps_the_holder,
        flags_are_unsigned,
        an_identical_write_changes_nothing,
        lists_and_separators,
        deletions_move_the_index_of_their_prefix,
        trees_are_deleted,
        keys_are_bytes_of_a_path,
        keys_are_made_clean_or_refused,
        values_have_a_bound,
        larger_answers_are_chunked,
    ]
    .into()
}

fn session_scenarios() -> Vec<Scenario> {
    scenarios![session:
        a_session_is_created_renewed_and_destroyed,
        every_field_is_returned,
        a_chunked_body_is_ignored,
        ttls_have_bounds,
        lock_delays_are_read_as_go_does,
        checks_have_two_names,
        sessions_live_on_registered_nodes,
        lists_show_every_session,
        behavior_release_keeps_keys_and_delete_removes_them,
    ]
    .into()
}

fn txn_scenarios() -> Vec<Scenario> {
    scenarios![txn:
        every_writing_verb_applies,
        every_verb_is_refused_in_its_own_words,
        a_refused_transaction_changes_nothing,
        checks_and_reads,
        lock_and_cas_together,
        operations_are_counted,
        the_body_has_a_bound,
        what_is_no_transaction,
    ]
    .into()
}

fn refusal_scenarios() -> Vec<Scenario> {
    scenarios![errors:
        methods,
        parameters_that_exclude_each_other,
        numbers_and_durations,
        keys_and_ids_that_are_missing_or_wrong,
        sessions_that_do_not_exist,
        places_that_do_not_exist,
    ]
    .into()
}

fn blocking_scenarios() -> Vec<Scenario> {
    scenarios![blocking:
        a_write_to_the_key_wakes,
        a_write_to_another_key_does_not_wake,
        an_identical_write_does_not_wake,
        a_deletion_wakes,
        a_creation_wakes_a_reader_of_a_missing_key,
        what_is_missing_is_woken_by_its_neighbours,
        a_prefix_wakes_for_what_is_below_it,
        a_prefix_wakes_for_a_deletion,
        names_wake_for_values_and_keep_the_index_of_a_deletion,
        the_time_runs_out,
        an_index_above_the_current_one_waits,
        a_destroyed_session_wakes_its_watcher_and_its_keys,
        the_list_of_sessions_wakes_for_any,
    ]
    .into()
}

#[tokio::test]
async fn keys() {
    agree(keys_scenarios()).await;
}

#[tokio::test]
async fn sessions() {
    agree(session_scenarios()).await;
}

#[tokio::test]
async fn transactions() {
    agree(txn_scenarios()).await;
}

#[tokio::test]
async fn refusals() {
    agree(refusal_scenarios()).await;
}

#[tokio::test]
async fn blocking_reads() {
    agree(blocking_scenarios()).await;
}

#[tokio::test]
async fn times() {
    agree_at_once(scenarios![timing:
        a_session_expires_at_twice_its_ttl,
        a_renewed_session_lives_on,
        a_lock_delay_keeps_the_key_free,
        a_lock_delay_of_zero_is_none,
        the_default_lock_delay_is_15_s,
    ])
    .await;
}

/// The other tests rely on this of their Consul.
#[tokio::test]
async fn a_consul_with_access_control_keeps_its_data_over_a_restart() {
    let setup = Setup {
        keeps_data: true,
        config: r#"acl { enabled = true default_policy = "deny" tokens { master = "root" } }"#.to_owned(),
        token: Some("root".to_owned()),
        ..Setup::default()
    };
    let mut consul = Consul::start_with(setup).await;
    let addr = consul.addr();
    assert_eq!(http::put(addr, "/v1/kv/a", "x").await.status, 403);
    assert_eq!(http::put(addr, "/v1/kv/a?token=root", "x").await.json(), true);
    for signal in [Signal::TERM, Signal::KILL] {
        consul.stop(signal).await;
        assert!(http::try_request(addr, "GET", "/v1/kv/a", &[], http::Body::None).await.is_err());
        consul.restart().await;
        assert_eq!(http::get(addr, "/v1/kv/a?raw&token=root").await.body, b"x");
    }
}
