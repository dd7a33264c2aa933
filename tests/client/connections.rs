//! Which requests share a connection, and when one is closed.

use std::time::Duration;

use slotkeeper_consul::Read;

use crate::stub::{Act, Stub};
use crate::{client, spec, write};

const TIMEOUT: Duration = Duration::from_secs(60);
const SESSION: &str = r#"[{"ID":"a","Node":"n","Behavior":"delete","CreateIndex":1,"ModifyIndex":1}]"#;

/// Answers all, but polls of the key `quiet`.
async fn stub() -> Stub {
    Stub::choosing(|_, request| match request {
        _ if request.contains("session/create") => Act::json(200, r#"{"ID":"a"}"#),
        _ if request.contains("session/renew") => Act::json(200, SESSION),
        _ if request.contains("/v1/txn") => Act::committed(),
        _ if request.contains("quiet") => Act::Silence,
        _ if request.starts_with("GET") => Act::json(200, "[]"),
        _ => Act::json(200, "true"),
    })
    .await
}

async fn until_open(stub: &Stub, connections: usize) {
    let closed = async {
        while stub.open() != connections {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(TIMEOUT, closed).await.is_err() {
        panic!("{} connections are open, and not {connections}", stub.open());
    }
}

#[tokio::test]
async fn the_life_of_a_client_needs_one_connection() {
    let stub = stub().await;
    let client = client(&stub.addr());
    let wait = Duration::from_secs(600);
    client.session_create(&spec()).await.unwrap();
    write(&client, "k").await.unwrap();
    client.kv_get("k", Read::default().after(5, wait)).await.unwrap();
    client.kv_get("k", Read::consistent()).await.unwrap();
    client.session_renew("a").await.unwrap();
    write(&client, "k").await.unwrap();
    client.session_destroy("a").await.unwrap();
    assert_eq!((stub.seen().len(), stub.made()), (7, 1));
    assert!(stub.seen().iter().all(|request| !request.to_lowercase().contains("connection: close")));
    until_open(&stub, 0).await;
}

#[tokio::test]
async fn at_rest_there_is_the_connection_of_the_long_poll_alone() {
    let stub = stub().await;
    let client = client(&stub.addr());
    let poll = client.kv_get("quiet", Read::default().after(5, Duration::from_secs(600)));
    let rest = async {
        client.session_renew("a").await.unwrap();
        client.kv_get("k", Read::default()).await.unwrap();
        until_open(&stub, 1).await;
        for _ in 0..2 {
            // Nothing has been asked for as long as a connection lasts without use.
            let (made, asked) = (stub.made(), stub.seen().len());
            client.session_renew("a").await.unwrap();
            let seen = stub.seen().split_off(asked);
            assert!(seen[0].to_lowercase().contains("connection: close"), "{seen:?}");
            assert_eq!(stub.made(), made + 1);
            until_open(&stub, 1).await;
            // What is asked soon after finds others to be expected, and keeps its connection.
            client.session_renew("a").await.unwrap();
            client.session_renew("a").await.unwrap();
            assert_eq!(stub.made(), made + 2);
            until_open(&stub, 1).await;
        }
    };
    tokio::select! {
        biased;
        _ = poll => panic!("it waits"),
        () = rest => {}
    }
}
