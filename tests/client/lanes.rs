//! Who waits for a connection, and for whom.

use std::time::Duration;

use slotkeeper::consul::{MAX_LONG_POLLS, Read};

use crate::client;
use crate::stub::{Act, Stub};

/// Reads besides, of 8 connections of which 2 are kept for sessions.
const CALLS: usize = 6;

/// Answers sessions, and the key `k`; all other reads hang.
async fn stub() -> Stub {
    Stub::choosing(|_, request| {
        if request.contains("session/renew") {
            let session = r#"[{"ID":"a","Node":"n","Behavior":"delete","CreateIndex":1,"ModifyIndex":1}]"#;
            Act::json(200, session)
        } else if request.contains("/kv/k") {
            Act::json(200, "[]")
        } else {
            Act::Silence
        }
    })
    .await
}

async fn wait_for(stub: &Stub, requests: usize) {
    while stub.seen().len() < requests {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_renewal_waits_neither_for_reads_nor_for_long_polls() {
    let stub = stub().await;
    let client = client(&stub.addr());
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
        client.session_renew("a").await.unwrap();
    }
    let seen = stub.seen();
    let asked = |what: &str| seen.iter().filter(|request| request.contains(what)).count();
    assert_eq!((asked("hangs"), asked("polled"), asked("renew")), (CALLS, MAX_LONG_POLLS, 10));
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

    // Those that have all connections time out twice before this one is sent.
    let time = Duration::from_millis(200);
    for _ in 0..CALLS * 2 {
        let client = client.within(time);
        tokio::spawn(async move { client.kv_get("hangs", Read::default()).await });
    }
    wait_for(&stub, MAX_LONG_POLLS + 1 + CALLS).await;
    client.within(time * 10).kv_get("k", Read::default()).await.unwrap();
    assert_eq!(stub.seen().len(), MAX_LONG_POLLS + 1 + CALLS * 2 + 1);
}
