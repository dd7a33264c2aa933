//! Which requests wait for a connection, and for which others.

use std::time::Duration;

use futures_util::future::join_all;
use slotkeeper::internals::bridge;
use slotkeeper_consul::{Client, Code, Kind, MAX_LONG_POLLS, Read};
use slotkeeper_semaphore::FailureKind;

use crate::stub::{Act, Stub};
use crate::{client, write};

/// Reads besides, of 8 connections of which 2 are kept for sessions.
const CALLS: usize = 6;
/// Those that are kept.
const LEASE_CALLS: usize = 2;
/// Time after which something has not come and will not.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Answers sessions, and the key `k`; all others hang.
async fn stub() -> Stub {
    Stub::choosing(|_, request| {
        if request.contains("session/renew") {
            let session = r#"[{"ID":"a","Node":"n","Behavior":"delete","CreateIndex":1,"ModifyIndex":1}]"#;
            Act::json(200, session)
        } else if request.contains("/kv/k") {
            Act::json(200, "[]")
        } else if request.contains(r#""Key":"k""#) {
            Act::committed()
        } else {
            Act::Silence
        }
    })
    .await
}

async fn wait_for(stub: &Stub, requests: usize) {
    let come = async {
        while stub.seen().len() < requests {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(TIMEOUT, come).await.is_err() {
        panic!("{} requests have come, and not {requests}", stub.seen().len());
    }
}

#[tokio::test]
async fn a_renewal_waits_neither_for_reads_nor_for_long_polls() {
    let stub = stub().await;
    // One that timed out would make room for another.
    let client = client(&stub.addr()).within(TIMEOUT * 2);
    for _ in 0..CALLS * 3 {
        let client = client.clone();
        tokio::spawn(async move { client.kv_get("hangs", Read::default()).await });
    }
    let wait = Duration::from_secs(600);
    for _ in 0..MAX_LONG_POLLS + 6 {
        let client = client.clone();
        tokio::spawn(async move { client.kv_get("polled", Read::default().after(5, wait)).await });
    }
    wait_for(&stub, CALLS + MAX_LONG_POLLS).await;
    for _ in 0..10 {
        tokio::time::timeout(TIMEOUT, client.session_renew("a")).await.expect("an answer").unwrap();
    }
    let seen = stub.seen();
    let asked = |what: &str| seen.iter().filter(|request| request.contains(what)).count();
    assert_eq!((asked("hangs"), asked("polled"), asked("renew")), (CALLS, MAX_LONG_POLLS, 10));
}

/// A renewal that only stood in the line says nothing of Consul, and was surely not done.
#[tokio::test]
async fn a_request_without_a_connection_in_time_was_not_sent() {
    let stub = Stub::choosing(|_, _| Act::Silence).await;
    let client = client(&stub.addr()).within(TIMEOUT * 2);
    for _ in 0..CALLS {
        let client = client.clone();
        tokio::spawn(async move { client.kv_get("hangs", Read::default()).await });
    }
    for _ in 0..LEASE_CALLS {
        let client = client.clone();
        tokio::spawn(async move { client.session_renew("a").await });
    }
    wait_for(&stub, CALLS + LEASE_CALLS).await;
    let error = client.within(Duration::from_millis(100)).session_renew("b").await.unwrap_err();
    assert_eq!((error.kind, error.code), (Kind::NotSent, Code::Other));
    let said = error.to_string();
    assert!(said.ends_with("not sent: no connection was free in time"), "{said}");
    assert_eq!(stub.seen().len(), CALLS + LEASE_CALLS);
}

#[tokio::test]
async fn reads_do_not_wait_for_long_polls_and_have_their_time_from_when_they_are_sent() {
    let stub = stub().await;
    let client = client(&stub.addr());
    let wait = Duration::from_secs(600);
    for _ in 0..MAX_LONG_POLLS {
        let client = client.clone();
        tokio::spawn(async move { client.kv_get("polled", Read::default().after(5, wait)).await });
    }
    wait_for(&stub, MAX_LONG_POLLS).await;
    client.kv_get("k", Read::default()).await.unwrap();

    // Those that have all connections time out twice before this one is sent. Not that each of them was sent in its time.
    let time = Duration::from_secs(1);
    for _ in 0..CALLS * 2 {
        let client = client.within(time);
        tokio::spawn(async move { client.kv_get("hangs", Read::default()).await });
    }
    wait_for(&stub, MAX_LONG_POLLS + 2).await;
    client.within(Duration::from_secs(60)).kv_get("k", Read::default()).await.unwrap();
    let seen = stub.seen();
    assert_eq!(seen.iter().filter(|request| request.contains("/kv/k")).count(), 2);
    let hangs = seen.iter().filter(|request| request.contains("hangs")).count();
    assert!((1..=CALLS * 2).contains(&hangs), "{hangs}");
}

#[tokio::test]
async fn a_write_waits_for_few_of_the_reads_that_wait() {
    let stub = stub().await;
    let client = client(&stub.addr()).within(TIMEOUT * 2);
    let read = |client: Client| async move { client.kv_get("hangs", Read::default()).await };
    let reads: Vec<_> = (0..CALLS * 10).map(|_| tokio::spawn(read(client.clone()))).collect();
    wait_for(&stub, CALLS).await;
    let write = write(&client, "k");
    // One after the other they end, and each makes room for one request.
    let ends = async {
        for (ended, read) in reads.iter().enumerate() {
            read.abort();
            wait_for(&stub, CALLS + ended + 1).await;
        }
    };
    tokio::select! {
        // It is in the queue before the first of them ends.
        biased;
        _ = write => {}
        () = ends => panic!("the write is the last"),
    }
    let before = stub.seen().iter().take_while(|request| request.contains("hangs")).count();
    assert!(before < CALLS * 3, "{before}");
}

#[tokio::test]
async fn hurry_shortens_requests_under_way_and_not_new_ones() {
    let stub = stub().await;
    let client = client(&stub.addr()).within(Duration::from_secs(600));
    let reads = join_all((0..CALLS * 3).map(|_| client.kv_get("hangs", Read::default())));
    let write = write(&client, "hangs");
    let wait = Duration::from_secs(600);
    let poll = client.kv_get("polled", Read::default().after(5, wait));
    let next = async {
        wait_for(&stub, CALLS + 1).await;
        client.hurry(Duration::from_millis(50));
        client.kv_get("k", Read::default()).await
    };
    let over = async { tokio::join!(reads, write, next) };
    let (reads, write, next) = tokio::select! {
        over = over => over,
        _ = poll => panic!("the long poll has ended"),
    };
    let timed_out = |error: slotkeeper_consul::Error| error.code == Code::Timeout;
    assert!(reads.into_iter().map(Result::unwrap_err).chain(write.err()).all(timed_out));
    next.unwrap();
}

#[tokio::test]
async fn hurry_reaches_requests_from_before_a_reload() {
    let stub = stub().await;
    let before = client(&stub.addr()).within(Duration::from_secs(600));
    // Each reload makes another one.
    let now = client(&stub.addr()).in_place_of(&before);
    let now = client(&stub.addr()).in_place_of(&now);
    let reads = join_all((0..CALLS * 3).map(|_| before.kv_get("hangs", Read::default())));
    let write = write(&before, "hangs");
    let hurry = async {
        wait_for(&stub, CALLS).await;
        now.hurry(Duration::from_millis(50));
    };
    let over = async { tokio::join!(reads, write, hurry) };
    let (reads, write, ()) = tokio::time::timeout(TIMEOUT, over).await.expect("an end of them all");
    let errors = reads.into_iter().map(Result::unwrap_err).chain(write.err());
    assert_eq!(errors.filter(|error| error.code == Code::Timeout).count(), CALLS * 3 + 1);
}

/// A leader that does not know of sessions yet, but for a consistent read; other reads hang.
async fn new_leader(renewed: Act, read: Act) -> Stub {
    Stub::choosing(move |_, request| {
        if request.contains("session/renew") {
            renewed.clone()
        } else if request.contains("session/info") {
            read.clone()
        } else {
            Act::Silence
        }
    })
    .await
}

const UNKNOWN: &str = "Session id 'a' not found";
const KNOWN: &str = r#"[{"ID":"a","Node":"n","Behavior":"delete","CreateIndex":1,"ModifyIndex":1}]"#;

#[tokio::test]
async fn whether_a_session_has_ended_is_read_beside_a_crowd_of_reads() {
    let stub = new_leader(Act::json(404, UNKNOWN), Act::json(200, KNOWN)).await;
    let client = client(&stub.addr()).within(Duration::from_secs(600));
    for _ in 0..CALLS * 3 {
        let client = client.clone();
        tokio::spawn(async move { client.kv_get("hangs", Read::default()).await });
    }
    wait_for(&stub, CALLS).await;
    let session = "a".into();
    let renewal = bridge::renew(&client, &session, TIMEOUT * 2);
    let failure = tokio::time::timeout(TIMEOUT, renewal).await.expect("an answer").unwrap_err();
    assert_eq!(failure.kind, FailureKind::NoLeader, "{}", failure.text);
    assert!(failure.text.contains("but it exists"), "{}", failure.text);
}

#[tokio::test]
async fn a_renewal_does_not_wait_for_requests_without_an_answer() {
    let stub = Stub::choosing(|_, request| {
        if request.contains("session/renew/a") {
            Act::json(404, UNKNOWN)
        } else if request.contains("session/renew/b") {
            Act::json(200, &KNOWN.replace("\"a\"", "\"b\""))
        } else {
            Act::Silence
        }
    })
    .await;
    let client = client(&stub.addr()).within(Duration::from_secs(600));
    for _ in 0..CALLS {
        let client = client.clone();
        tokio::spawn(async move { client.kv_get("hangs", Read::default()).await });
    }
    wait_for(&stub, CALLS).await;
    let doubted = 5;
    for _ in 0..doubted {
        let client = client.clone();
        tokio::spawn(async move { bridge::renew(&client, &"a".into(), TIMEOUT * 2).await });
    }
    // One of them is read, and the others wait for their turn.
    wait_for(&stub, CALLS + doubted + 1).await;
    for _ in 0..10 {
        let renewal = client.session_renew("b");
        tokio::time::timeout(TIMEOUT, renewal).await.expect("an answer").unwrap();
    }
    let read = stub.seen().iter().filter(|request| request.contains("session/info")).count();
    assert_eq!(read, 1);
}

#[tokio::test]
async fn a_session_has_not_ended_where_a_server_fails_to_read_it() {
    for (status, said, kind) in [
        (500, "rpc error making call: EOF", FailureKind::NoLeader),
        (502, "<html>bad gateway</html>", FailureKind::Unavailable),
        (200, "[]", FailureKind::NotFound),
        // A token that may renew may not be allowed to read.
        (403, "Permission denied", FailureKind::NotFound),
    ] {
        let stub = new_leader(Act::json(404, UNKNOWN), Act::json(status, said)).await;
        let failure = bridge::renew(&client(&stub.addr()), &"a".into(), TIMEOUT).await.unwrap_err();
        assert_eq!(failure.kind, kind, "{}", failure.text);
    }
}

#[tokio::test]
async fn a_renewal_has_one_time_limit_for_all_its_requests() {
    let stub = new_leader(Act::late(404, UNKNOWN), Act::Silence).await;
    let client = client(&stub.addr());
    let time = Duration::from_secs(1);
    // The answer comes when most of that is over.
    let later = async {
        wait_for(&stub, 1).await;
        tokio::time::sleep(time * 9 / 10).await;
        let _ = client.kv_get("hangs", Read::default()).await;
        std::future::pending::<()>().await;
    };
    let session = "a".into();
    let failure = tokio::select! {
        biased;
        renewed = bridge::renew(&client, &session, time) => renewed.unwrap_err(),
        () = tokio::time::sleep(time * 3 / 2) => panic!("the second request has a time of its own"),
        () = later => unreachable!(),
    };
    assert_eq!(failure.kind, FailureKind::Unavailable, "{}", failure.text);
}
