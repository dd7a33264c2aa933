//! Several addresses: which one is used, and what is never sent to the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use slotkeeper_consul::{
    Address, AddressState, AuthMethod, Client, Kind, Read, Secret, Settings, TokenSource, Unobserved,
};
use tokio::time::{Instant, sleep, timeout};

use crate::consul::nobody;
use crate::stub::{Act, Stub};
use crate::support::embedded::Embedded;
use crate::support::kv::{Put, put};
use crate::support::proxy::{Fault, Proxy};
use crate::{acl, spec, write};

/// The shortest of the times after which the client goes on without what a look at the addresses has still to show.
const LOOK: Duration = Duration::from_millis(1500);
/// Time after which something has not come and will not.
const TIMEOUT: Duration = Duration::from_secs(60);

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
    } else if request.contains("/v1/txn") {
        Act::committed()
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

/// What was written there.
fn writes(stub: &Stub) -> Vec<String> {
    let line = |request: String| request.lines().next().unwrap_or_default().to_owned();
    stub.seen().into_iter().filter(|request| request.starts_with("PUT")).map(line).collect()
}

fn state(client: &Client, stub: &Stub) -> AddressState {
    let shown = stub.addr().to_string();
    client.addresses().into_iter().find(|(address, _)| *address == shown).unwrap().1
}

/// What comes of a trial in which no look can have run out of its time. Where the machine is so busy that one may have, the
/// trial is made again, whatever came of it.
async fn in_time<T>(trial: impl AsyncFn() -> T) -> T {
    for _ in 0..30 {
        let began = Instant::now();
        let result = trial().await;
        if began.elapsed() < LOOK {
            return result;
        }
    }
    panic!("no trial took less than {LOOK:?}");
}

#[tokio::test]
async fn the_next_address_is_used_if_no_server_listens() {
    let ((_reserved, one), (_too, other)) = (nobody(), nobody());
    let (written, used) = in_time(async || {
        let stub = server("1").await;
        let client = of(&format!("{one},{}", stub.addr()));
        (write(&client, "k").await, state(&client, &stub))
    })
    .await;
    assert!(written.unwrap(), "the first request succeeds already");
    assert_eq!(used, AddressState::Used);
    // Where none answers, the error has what was tried.
    let error = write(&of(&format!("{one},{other}")), "k").await.unwrap_err().to_string();
    assert!(error.contains(&one) && error.contains(&other), "{error}");
}

#[tokio::test]
async fn the_next_address_is_used_where_the_first_one_never_answers() {
    let (first, second) = (Stub::start(vec![Act::Silence]).await, server("1").await);
    let client = both(&first, &second);
    assert!(client.kv_get("k", Read::default()).await.unwrap().value.is_none());
    assert_eq!((first.seen().len(), state(&client, &second)), (1, AddressState::Used));
}

#[tokio::test]
async fn the_next_address_is_used_where_tls_fails() {
    let (written, used) = in_time(async || {
        // A server that says at once that this is no request, where a stub would wait for the rest of it.
        let (plain, stub) = (Embedded::start(), server("1").await);
        let https = format!("https://{}", plain.addr());
        let settings = Settings {
            address: format!("{https},{}", stub.addr()).parse().unwrap(),
            tls: slotkeeper_consul::Tls { insecure_skip_verify: true, ..Default::default() },
            ..Settings::default()
        };
        let client = Client::new(&settings, Arc::new(Unobserved)).unwrap();
        (write(&client, "k").await, state(&client, &stub))
    })
    .await;
    assert!(written.unwrap());
    assert_eq!(used, AddressState::Used);
}

/// A balancer that has no backend takes connections and closes them, or answers that it waited in vain.
#[tokio::test]
async fn the_next_address_is_used_where_a_balancer_has_no_backend() {
    for answers in [Act::Close(Vec::new()), Act::json(503, ""), Act::json(504, "Gateway Timeout")] {
        let first = Stub::choosing(move |number, request| {
            if number < 8 && !request.contains("/kv/fail") { serve(request, "1") } else { answers.clone() }
        })
        .await;
        let second = server("1").await;
        let client = both(&first, &second);
        assert!(write(&client, "k").await.unwrap());
        let moved = async {
            while state(&client, &second) != AddressState::Used {
                let _ = client.kv_get("fail", Read::default()).await;
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(TIMEOUT, moved).await.unwrap();
    }
}

#[tokio::test]
async fn a_single_address_gets_no_extra_requests() {
    let stub = server("1").await;
    let client = of(&stub.addr().to_string());
    client.session_create(&spec()).await.unwrap();
    write(&client, "k").await.unwrap();
    assert_eq!(stub.seen().len(), 2);
}

#[tokio::test]
async fn the_address_that_shows_the_session_is_used_for_long_polls_too() {
    let (read, written, writes, polled) = in_time(async || {
        let (first, second) = (failing("1").await, server("1").await);
        let client = both(&first, &second);
        client.session_create(&spec()).await.unwrap();
        let poll = tokio::spawn({
            let client = client.clone();
            async move { client.kv_get("hangs", Read::default().after(5, Duration::from_secs(600))).await }
        });
        let hangs = async {
            while !first.seen().iter().any(|request| request.contains("hangs")) {
                tokio::task::yield_now().await;
            }
        };
        timeout(TIMEOUT, hangs).await.unwrap();
        let read = client.kv_get("fail", Read::default()).await;
        let written = write(&client, "k").await;
        (read, written, writes(&second), timeout(TIMEOUT, poll).await)
    })
    .await;
    // A read is sent to the next one at once, a write is not: a proxy may have passed it on.
    assert!(read.unwrap().value.is_none());
    assert!(written.unwrap());
    assert_eq!(writes, ["PUT /v1/txn? HTTP/1.1"]);
    let polled = polled.expect("the long poll goes on at the other one");
    assert!(polled.unwrap().unwrap().value.is_none());
}

#[tokio::test]
async fn while_a_session_lives_no_address_without_it_is_written_to() {
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
            assert!(write(&client, "k").await.is_err(), "{what}");
            assert!(client.session_renew(ID).await.is_err(), "{what}");
        }
        assert_eq!(state(&client, &first), AddressState::Used, "{what}");
        let is_proof = |request: &String| request.contains("session/info") && request.contains("consistent");
        let proof = async {
            while !second.seen().iter().any(is_proof) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TIMEOUT, proof).await.expect("a read that shows the session");
        let asked = second.seen();
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
    // Where a look runs out of its time, the requests that follow begin another one.
    let asks = async {
        loop {
            assert!(client.kv_get("fail", Read::default()).await.is_err());
            sleep(Duration::from_millis(50)).await;
        }
    };
    let moved = async {
        tokio::select! {
            () = client.cut_loose() => {}
            () = asks => {}
        }
    };
    timeout(TIMEOUT, moved).await.unwrap();
    // What it has learnt may be another cluster's.
    assert!(write(&client, "k").await.is_err());
    assert_eq!(writes(&second), [""; 0]);
    assert!(write(&client.bound(), "k").await.unwrap());
}

/// The address may be another cluster's, although nothing was read at the first one.
#[tokio::test]
async fn a_session_that_was_asked_for_before_a_move_without_proof_does_not_count() {
    let slow = Duration::from_millis(500);
    let first = Stub::choosing(move |_, request| {
        if request.contains("session/create") {
            Act::After(slow, Box::new(serve(request, "1")))
        } else {
            Act::json(502, "Bad Gateway")
        }
    })
    .await;
    let second = server("2").await;
    let client = both(&first, &second);
    let spec = spec();
    let moves = async {
        while first.seen().is_empty() {
            tokio::task::yield_now().await;
        }
        while state(&client, &second) != AddressState::Used {
            let _ = client.kv_get("k", Read::default()).await;
        }
    };
    let (created, ()) = tokio::join!(client.session_create(&spec), moves);
    let error = created.unwrap_err();
    assert!(error.kind == Kind::Unknown && error.to_string().contains("another cluster"), "{error}");
    assert!(write(&client, "k").await.unwrap(), "nothing was read there");
}

/// As a reload makes one, with other certificates.
#[tokio::test]
async fn a_client_that_continues_uses_the_same_address() {
    let (used, written, asked, writes) = in_time(async || {
        let (first, second) = (failing("1").await, server("1").await);
        let before = both(&first, &second);
        before.session_create(&spec()).await.unwrap();
        let _ = before.kv_get("fail", Read::default()).await;
        let after = both(&first, &second).in_place_of(&before);
        // Before it has asked anything.
        let used = state(&after, &second);
        let written = write(&after, "k").await;
        (used, written, writes(&first), writes(&second).len())
    })
    .await;
    assert_eq!(used, AddressState::Used);
    assert!(written.unwrap());
    assert_eq!((asked.len(), writes), (1, 1), "what makes the session, and what comes after: {asked:?}");
}

#[tokio::test]
async fn the_session_of_an_earlier_process_leads_to_its_cluster() {
    let lacking = async || {
        Stub::choosing(|_, request| {
            if request.contains("session/info") { Act::json(200, "[]") } else { serve(request, "1") }
        })
        .await
    };
    let (renewed, writes_of_both) = in_time(async || {
        let (other, right) = (lacking().await, server("1").await);
        let client = both(&other, &right);
        client.remember(ID, Duration::from_secs(30));
        let renewed = client.session_renew(ID).await;
        (renewed, (writes(&other).len(), writes(&right).len()))
    })
    .await;
    renewed.unwrap();
    assert_eq!(writes_of_both, (0, 1));
    // Where that one is away, the other one is not used before the lease has expired.
    let (_reserved, away) = nobody();
    let (done, writes) = in_time(async || {
        let other = lacking().await;
        let client = of(&format!("{},{away}", other.addr()));
        client.remember(ID, Duration::from_secs(30));
        let mut done = 0;
        for _ in 0..3 {
            done += usize::from(client.session_renew(ID).await.is_ok());
            done += usize::from(write(&client, "k").await.is_ok());
        }
        (done, writes(&other))
    })
    .await;
    assert_eq!((done, writes), (0, vec![]));
}

/// Before a login no address shows a session, and what it hides proves nothing. The login goes to the first one that does it,
/// although nothing else may.
#[tokio::test]
async fn after_a_restart_a_login_comes_before_the_proof() {
    let stranger = Stub::choosing(|_, request| {
        if request.contains("session/info") { Act::json(200, "[]") } else { Act::json(403, "ACL not found") }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let bearer_token_file = folder.path().join("bearer");
    std::fs::write(&bearer_token_file, "a.b.c").unwrap();
    let (_reserved, away) = nobody();
    let right = Stub::choosing(|_, request| {
        let has_token = request.to_ascii_lowercase().contains("x-consul-token: secret");
        if request.contains("/acl/login") {
            Act::json(200, r#"{"AccessorID":"1","SecretID":"secret"}"#)
        } else if has_token {
            serve(request, "1")
        } else if request.contains("session/info") {
            // As Consul hides it from a request without a token.
            Act::json(200, "[]")
        } else {
            Act::json(403, "Permission denied")
        }
    })
    .await;
    let method = AuthMethod { name: "kube".into(), bearer_token_file, meta: BTreeMap::new() };
    let address = format!("{away},{},{}", stranger.addr(), right.addr()).parse().unwrap();
    let token = Some(TokenSource::Login(method));
    let client =
        Client::new(&Settings { address, token, ..Settings::default() }, Arc::new(Unobserved)).unwrap();
    client.remember(ID, TIMEOUT * 10);
    let renewed = async {
        while client.session_renew(ID).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TIMEOUT, renewed).await.unwrap();
    let seen = right.seen();
    let at = |part: &str| seen.iter().position(|request| request.contains(part)).unwrap();
    let shown = seen.iter().rposition(|request| request.contains("session/info")).unwrap();
    assert!(at("/acl/login") < shown && shown < at("session/renew"), "{seen:?}");
    let others: Vec<_> =
        writes(&stranger).into_iter().filter(|request| !request.contains("/acl/login")).collect();
    assert_eq!(others, [""; 0]);
}

/// A token that may write sessions may read them, which is proof enough on a real Consul.
#[tokio::test]
async fn the_least_policy_shows_the_session() {
    let (consul, root) = acl::denying().await;
    let secret = acl::worker(consul.addr(), &root).await;
    let Address::Http { authority, .. } = consul.addr() else { panic!("by TCP") };
    let (read, locked, states) = in_time(async || {
        let proxy = Proxy::start(authority.parse().unwrap()).await;
        let settings = Settings {
            address: format!("http://{},{}", proxy.addr(), consul.addr()).parse().unwrap(),
            token: Some(TokenSource::Value(Secret::new(secret.clone()))),
            ..Settings::default()
        };
        let client = Client::new(&settings, Arc::new(Unobserved)).unwrap();
        let session = client.session_create(&spec()).await.unwrap();
        proxy.fail_next("/", &[Fault::Answers(502, "Bad Gateway"); 100]);
        // A key of the trial's own: the session of the one before may have locked it.
        let key = format!("jobs/{session}");
        let read = client.kv_get(&key, Read::default()).await;
        let locked = put(&client, &key, b"", Put::Acquire(&session), 0).await;
        let states: Vec<_> = client.addresses().into_iter().map(|(_, state)| state).collect();
        (read, locked, states)
    })
    .await;
    assert!(read.unwrap().value.is_none());
    assert!(locked.unwrap());
    assert!(matches!(states[..], [AddressState::Failed(_), AddressState::Used]), "{states:?}");
}
