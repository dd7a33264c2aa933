//! Long polls whose packets are dropped: the connection is neither closed nor answered.

use std::time::Duration;

use slotkeeper_consul::{Code, Error, MAX_WAIT, Read};

use crate::client;
use crate::stub::{Act, Stub, answer};

/// Far less than the wait of these polls, and far more than a busy machine takes to notice.
const TIMEOUT: Duration = Duration::from_secs(240);

/// The error of a poll with Consul's maximum wait.
async fn polled(stub: &Stub, before: usize) -> Error {
    let client = client(&stub.addr());
    for _ in 0..before {
        client.kv_get("k", Read::default()).await.unwrap();
    }
    let poll = client.kv_get("k", Read::default().after(7, MAX_WAIT));
    tokio::time::timeout(TIMEOUT, poll).await.expect("it ends long before its wait").unwrap_err()
}

#[tokio::test]
async fn a_poll_of_minutes_ends_where_its_packets_are_dropped() {
    // The packets are dropped from the middle of the poll on, so TCP keep-alives get no answer.
    let waits = Stub::start(vec![Act::Vanish(Vec::new())]).await;
    // It has begun before: the poll itself never arrives.
    let lost = Stub::start(vec![Act::Vanish(answer(200, "X-Consul-Index: 7\r\n", "[]"))]).await;
    for error in <[Error; 2]>::from(tokio::join!(polled(&waits, 0), polled(&lost, 1))) {
        // Neither an answer nor a proxy's cut, which would be no failure.
        assert_eq!(error.code, Code::Interrupted, "{error}");
    }
    assert_eq!((waits.seen().len(), lost.seen().len()), (1, 1), "none is sent again by itself");
}
