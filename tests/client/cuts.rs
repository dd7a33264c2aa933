//! Blocking reads that what lies between ends before Consul answers.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use slotkeeper_consul::{Client, Code, Error, Kind, MAX_LONG_POLLS, Operation, Read, Settings};

use crate::stub::{Act, Stub};
use crate::{Recorder, client};

/// Longer than a read has to have waited for its end to be a cut.
const LATE: Duration = Duration::from_millis(1100);

fn blocking() -> Read {
    Read::default().after(7, Duration::from_secs(60))
}

fn late(act: Act) -> Act {
    Act::After(LATE, Box::new(act))
}

fn status(status: u16) -> Act {
    Act::answer(status, "", "<html>token: none</html>")
}

/// A stub that does this, and a client of it.
async fn at(act: Act) -> (Stub, Client) {
    let stub = Stub::start(vec![act]).await;
    let client = client(&stub.addr());
    (stub, client)
}

/// How reads of that sort end, which begin together.
async fn ended(clients: &[(Stub, Client)], read: Read) -> Vec<Error> {
    let reads = clients.iter().map(|(_, client)| client.kv_get("some/key", read));
    join_all(reads).await.into_iter().map(Result::unwrap_err).collect()
}

#[tokio::test]
async fn a_blocking_read_that_ends_late_is_cut_off_and_one_that_ends_early_fails() {
    let ends = [
        ("end of file", Act::Close(Vec::new()), Kind::Unknown),
        ("reset", Act::Break(Vec::new()), Kind::Unknown),
        ("half a head", Act::Close("HTTP/1.1 200 X\r\n".into()), Kind::Unknown),
        ("half a body", Act::Close("HTTP/1.1 200 X\r\nContent-Length: 4\r\n\r\ntr".into()), Kind::Unknown),
        ("408", status(408), Kind::Unknown),
        ("499", status(499), Kind::Unknown),
        ("502", status(502), Kind::Unknown),
        ("504", status(504), Kind::Unknown),
    ];
    let early = join_all(ends.iter().map(|(_, act, _)| at(act.clone()))).await;
    let late = join_all(ends.iter().map(|(_, act, _)| at(late(act.clone())))).await;
    let early = ended(&early, blocking()).await;
    let (cut, other) = tokio::join!(ended(&late, blocking()), ended(&late, Read::default()));
    for (nth, (name, _, class)) in ends.into_iter().enumerate() {
        assert_eq!(early[nth].kind, class, "{name}, early: {}", early[nth]);
        assert_eq!(other[nth].kind, class, "{name}, of a read that does not block: {}", other[nth]);
        assert_eq!((cut[nth].kind, cut[nth].code), (Kind::Cut, Code::Cut), "{name}: {}", cut[nth]);
        let age = cut[nth].detail.strip_prefix("cut off after ").unwrap().split_once("s without").unwrap().0;
        // In tenths of a second.
        assert!(age.parse::<f64>().unwrap() >= 1.1, "{name}: {age}");
    }
}

#[tokio::test]
async fn other_ends_of_a_blocking_read_are_no_cuts() {
    let ends = [
        (status(500), Kind::Unknown),
        (status(503), Kind::Unknown),
        (Act::json(500, "rpc error making call: EOF"), Kind::NoLeader),
        (Act::json(403, "Permission denied"), Kind::Denied),
        (Act::json(200, "<html>"), Kind::NotConsul),
        (Act::Say(b"SSH-2.0-OpenSSH_9.2\r\n".into()), Kind::Unknown),
    ];
    let clients = join_all(ends.iter().map(|(act, _)| at(late(act.clone())))).await;
    for (error, (_, class)) in ended(&clients, blocking()).await.into_iter().zip(ends) {
        assert_eq!(error.kind, class, "{error}");
    }
    let stub = Stub::start(vec![Act::Silence]).await;
    let client = client(&stub.addr()).within(Duration::from_millis(100));
    let read = Read::default().after(7, Duration::from_secs(1));
    assert_eq!(client.kv_get("k", read).await.unwrap_err().code, Code::Timeout);
}

#[tokio::test]
async fn a_long_poll_is_cut_off_once_requests_are_answered_again_that_had_no_answer() {
    let stub = Stub::choosing(|_, request| match request.contains("/kv/answered") {
        true => Act::json(200, "[]"),
        false => Act::Silence,
    })
    .await;
    let client = client(&stub.addr());
    let hurried = client.within(Duration::from_millis(20));
    for round in 0..=MAX_LONG_POLLS {
        let mut poll = pin!(client.kv_get("k", blocking()));
        let contact = async {
            client.kv_get("answered", Read::default()).await.unwrap();
            assert_eq!(hurried.kv_get("silent", Read::default()).await.unwrap_err().code, Code::Timeout);
            client.kv_get("answered", Read::default()).await.unwrap();
        };
        tokio::select! {
            biased;
            ended = &mut poll => panic!("nothing was answered again: {ended:?}"),
            () = contact => {}
        }
        // Consul counts the connections of those that were given up: no more of them than there may be polls.
        match tokio::time::timeout(Duration::from_millis(200), poll).await {
            Ok(ended) => {
                assert_eq!((ended.unwrap_err().kind, round < MAX_LONG_POLLS), (Kind::Cut, true));
            }
            Err(_) => assert_eq!(round, MAX_LONG_POLLS),
        }
    }
}

#[tokio::test]
async fn a_cut_is_reported_and_counted_once_and_no_read_is_sent_again() {
    let recorder = Arc::new(Recorder::default());
    let stub = Stub::start(vec![late(status(504))]).await;
    let settings = Settings { address: stub.addr().into(), ..Settings::default() };
    let client = Client::new(&settings, recorder.clone()).unwrap();
    let error = client.kv_list("p/", blocking()).await.unwrap_err();
    let said = error.to_string();
    let expected = format!("cannot watch p/ at {}: cut off after 1.", stub.addr());
    assert!(said.starts_with(&expected) && said.contains("504: <html>token: none</html>"), "{said}");
    assert_eq!(recorder.seen(), [(Operation::KvWatch, Code::Cut)]);
    assert_eq!(stub.seen().len(), 1);
}

#[tokio::test]
async fn no_read_waits_longer_than_configured() {
    let stub = Stub::start(vec![Act::json(200, "[]")]).await;
    let max_wait = Some(Duration::from_secs(25));
    let settings = Settings { address: stub.addr().into(), max_wait, ..Settings::default() };
    let client = Client::new(&settings, Arc::new(Recorder::default())).unwrap();
    client.kv_list("p/", blocking()).await.unwrap();
    client.kv_get("k", blocking()).await.unwrap();
    client.session_list(blocking()).await.unwrap();
    client.kv_get("k", Read::default().after(7, Duration::from_secs(3))).await.unwrap();
    client.kv_get("k", Read::default()).await.unwrap();
    let waits = stub.seen().into_iter().map(|request| {
        let wait = request.lines().next()?.split_once("wait=")?.1.split_once(' ')?.0.to_owned();
        Some(wait)
    });
    let wait = |wait: &str| Some(wait.to_owned());
    assert_eq!(
        waits.collect::<Vec<_>>(),
        [wait("25000ms"), wait("25000ms"), wait("25000ms"), wait("3000ms"), None]
    );
}
