//! Several addresses: which one is used, and what is never sent to the others.

use std::sync::Arc;
use std::time::Duration;

use slotkeeper::consul::{
    Address, AddressState, Client, Error, Put, Read, Secret, Settings, TokenSource, Unobserved,
};

use crate::stub::{Act, Stub};
use crate::support::proxy::{Fault, Proxy};
use crate::{acl, spec};

/// The session that every cluster of these tests creates.
const ID: &str = "0f5c1de4-0000-4000-8000-000000000001";

fn session() -> String {
    format!(r#"[{{"ID":"{ID}","Node":"n","Behavior":"delete","TTL":"30s","CreateIndex":1,"ModifyIndex":1}}]"#)
}

/// What a server of a cluster with the one peer answers.
fn serve(request: &str, peer: &str) -> Act {
    if request.contains("/v1/status/leader") {
        Act::json(200, &format!("\"{peer}\""))
    } else if request.contains("/v1/status/peers") {
        Act::json(200, &format!("[\"{peer}\"]"))
    } else if request.contains("session/create") {
        Act::json(200, &format!(r#"{{"ID":"{ID}"}}"#))
    } else if request.contains("session/renew") || request.contains("session/info") {
        Act::json(200, &session())
    } else if request.starts_with("PUT") {
        Act::json(200, "true")
    } else {
        Act::json(200, "[]")
    }
}

/// A server of that cluster which answers 502 from the request on that asks for the key `fail`.
async fn failing(peer: &'static str) -> Stub {
    let failed = std::sync::atomic::AtomicBool::new(false);
    Stub::choosing(move |_, request| {
        use std::sync::atomic::Ordering;
        if request.contains("/kv/hangs") {
            return Act::Silence;
        }
        let fails =
            failed.fetch_or(request.contains("/kv/fail"), Ordering::Relaxed) || request.contains("/kv/fail");
        if fails { Act::json(502, "Bad Gateway") } else { serve(request, peer) }
    })
    .await
}

async fn server(peer: &'static str) -> Stub {
    Stub::choosing(move |_, request| serve(request, peer)).await
}

fn of(addresses: &str) -> Client {
    let settings = Settings { address: addresses.parse().unwrap(), ..Settings::default() };
    Client::new(&settings, Arc::new(Unobserved)).unwrap()
}

fn both(one: &Stub, other: &Stub) -> Client {
    of(&format!("{},{}", one.addr(), other.addr()))
}

/// An address where nobody listens.
fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

async fn put(client: &Client, key: &str) -> Result<bool, Error> {
    client.kv_put(key, b"x", Put::Plain, 0).await
}

/// What was written there.
fn writes(stub: &Stub) -> Vec<String> {
    let line = |request: String| request.lines().next().unwrap_or_default().to_owned();
    stub.seen().into_iter().filter(|request| request.starts_with("PUT")).map(line).collect()
}

fn state(client: &Client, stub: &Stub) -> AddressState {
    let shown = stub.addr().to_string();
    client.addresses().into_iter().find(|(address, _)| *address == shown).unwrap().1
}

#[tokio::test]
async fn the_next_address_is_used_where_nobody_listens() {
    let stub = server("1").await;
    let client = of(&format!("{},{}", nobody(), stub.addr()));
    assert!(put(&client, "k").await.unwrap(), "the first request succeeds already");
    assert_eq!(state(&client, &stub), AddressState::Used);
    // Where none answers, the error has what was tried.
    let (one, other) = (nobody(), nobody());
    let error = put(&of(&format!("{one},{other}")), "k").await.unwrap_err().to_string();
    assert!(error.contains(&one) && error.contains(&other), "{error}");
}

#[tokio::test]
async fn the_next_address_is_used_where_tls_fails() {
    let (plain, stub) = (server("1").await, server("1").await);
    let https = plain.addr().with_tls();
    let settings = Settings {
        address: format!("{https},{}", stub.addr()).parse().unwrap(),
        tls: slotkeeper::consul::Tls { insecure_skip_verify: true, ..Default::default() },
        ..Settings::default()
    };
    let client = Client::new(&settings, Arc::new(Unobserved)).unwrap();
    assert!(put(&client, "k").await.unwrap());
    assert_eq!(state(&client, &stub), AddressState::Used);
}

#[tokio::test]
async fn a_single_address_is_asked_nothing_more() {
    let stub = server("1").await;
    let client = of(&stub.addr().to_string());
    client.session_create(&spec()).await.unwrap();
    put(&client, "k").await.unwrap();
    assert_eq!(stub.seen().len(), 2);
}

#[tokio::test]
async fn what_shows_the_session_is_used_and_long_polls_go_there() {
    let (first, second) = (failing("1").await, server("1").await);
    let client = both(&first, &second);
    client.session_create(&spec()).await.unwrap();
    let poll = tokio::spawn({
        let client = client.clone();
        async move { client.kv_get("hangs", Read::default().after(5, Duration::from_secs(600))).await }
    });
    while !first.seen().iter().any(|request| request.contains("hangs")) {
        tokio::task::yield_now().await;
    }
    // A read is sent to the next one at once, a write is not: a proxy may have passed it on.
    assert!(client.kv_get("fail", Read::default()).await.unwrap().value.is_none());
    assert!(put(&client, "k").await.unwrap());
    assert_eq!(writes(&second), ["PUT /v1/kv/k?flags=0 HTTP/1.1"]);
    assert!(poll.await.unwrap().unwrap().value.is_none(), "the long poll goes on at the other one");
}

#[tokio::test]
async fn while_a_session_lives_nothing_is_written_where_it_is_not_shown() {
    let hidden = "X-Consul-Index: 7\r\nX-Consul-Results-Filtered-By-ACLs: true\r\n";
    for (what, said) in [
        ("does not have it", Act::json(200, "[]")),
        ("does not have it, in Go's words", Act::json(200, "null")),
        ("hides some", Act::answer(200, hidden, &session())),
        ("hides it", Act::answer(200, hidden, "[]")),
        ("may not tell", Act::json(403, "Permission denied")),
        ("has no leader", Act::json(500, "No cluster leader")),
        ("has another one", Act::json(200, &session().replace("01\"", "02\""))),
    ] {
        let first = failing("1").await;
        let second =
            Stub::choosing(
                move |_, request| {
                    if request.contains("session/info") { said.clone() } else { serve(request, "1") }
                },
            )
            .await;
        let client = both(&first, &second);
        client.session_create(&spec()).await.unwrap();
        assert!(client.kv_get("fail", Read::default()).await.is_err(), "{what}");
        for _ in 0..3 {
            assert!(put(&client, "k").await.is_err(), "{what}");
            assert!(client.session_renew(ID).await.is_err(), "{what}");
        }
        assert_eq!(state(&client, &first), AddressState::Used, "{what}");
        let asked = second.seen();
        assert!(
            asked.iter().any(|request| request.contains("session/info") && request.contains("consistent"))
        );
        let harmless = ["session/info", "status/"];
        let others = asked.iter().filter(|request| !harmless.iter().any(|part| request.contains(part)));
        assert_eq!(others.count(), 0, "{what}: {asked:?}");
    }
}

#[tokio::test]
async fn after_the_session_a_move_without_proof_ends_what_was_before() {
    let (first, second) = (failing("1").await, server("1").await);
    let client = both(&first, &second);
    client.session_create(&spec()).await.unwrap();
    client.session_destroy(ID).await.unwrap();
    assert!(client.kv_get("fail", Read::default()).await.is_err());
    tokio::time::timeout(Duration::from_secs(20), client.cut_loose()).await.unwrap();
    // What it has learnt may be another cluster's.
    assert!(put(&client, "k").await.is_err());
    assert_eq!(writes(&second), [""; 0]);
    assert!(put(&client.bound(), "k").await.unwrap());
}

/// As a reload makes one, with other certificates.
#[tokio::test]
async fn a_client_that_continues_uses_the_same_address() {
    let (first, second) = (failing("1").await, server("1").await);
    let before = both(&first, &second);
    before.session_create(&spec()).await.unwrap();
    before.kv_get("fail", Read::default()).await.unwrap();
    let asked = first.seen().len();
    let after = both(&first, &second).in_place_of(&before);
    assert!(put(&after, "k").await.unwrap());
    assert_eq!((first.seen().len(), writes(&second).len()), (asked, 1));
}

#[tokio::test]
async fn of_two_clusters_the_first_listed_is_used_and_the_other_is_told() {
    let (first, second) = (failing("1").await, server("2").await);
    let client = both(&first, &second);
    assert!(put(&client, "k").await.unwrap());
    let told = async {
        while !matches!(state(&client, &second), AddressState::Foreign(_)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), told).await.unwrap();
    for _ in 0..3 {
        assert!(client.kv_get("fail", Read::default()).await.is_err());
    }
    assert_eq!((state(&client, &first), writes(&second)), (AddressState::Used, vec![]));
}

#[tokio::test]
async fn the_session_of_an_earlier_process_leads_to_its_cluster() {
    let other = Stub::choosing(|_, request| {
        if request.contains("session/info") { Act::json(200, "[]") } else { serve(request, "1") }
    })
    .await;
    let right = server("1").await;
    let client = both(&other, &right);
    client.remember(ID, Some(Duration::from_secs(30)));
    client.session_renew(ID).await.unwrap();
    assert_eq!((writes(&other).len(), writes(&right).len()), (0, 1));
    // Where that one is away, the other one is not used before the lease has expired.
    let client = of(&format!("{},{}", other.addr(), nobody()));
    client.remember(ID, Some(Duration::from_secs(30)));
    for _ in 0..3 {
        assert!(client.session_renew(ID).await.is_err());
        assert!(put(&client, "k").await.is_err());
    }
    assert_eq!(writes(&other), [""; 0]);
}

/// A token that may write sessions may read them, which is proof enough on a real Consul.
#[tokio::test]
async fn the_least_policy_shows_the_session() {
    let (consul, root) = acl::denying().await;
    let secret = acl::worker(consul.addr(), &root).await;
    let Address::Http { authority, .. } = consul.addr() else { panic!("by TCP") };
    let proxy = Proxy::start(authority.parse().unwrap()).await;
    let settings = Settings {
        address: format!("http://{},{}", proxy.addr(), consul.addr()).parse().unwrap(),
        token: Some(TokenSource::Value(Secret::new(secret))),
        ..Settings::default()
    };
    let client = Client::new(&settings, Arc::new(Unobserved)).unwrap();
    let session = client.session_create(&spec()).await.unwrap();
    proxy.fail_next("/", &[Fault::Answers(502, "Bad Gateway"); 100]);
    assert!(client.kv_get("jobs/a", Read::default()).await.unwrap().value.is_none());
    assert!(client.kv_put("jobs/a", b"", Put::Acquire(&session), 0).await.unwrap());
    let states: Vec<_> = client.addresses().into_iter().map(|(_, state)| state).collect();
    assert!(matches!(states[..], [AddressState::Failed(_), AddressState::Used]), "{states:?}");
}
