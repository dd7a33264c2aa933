//! Sessions, keys, transactions and blocking reads, as a real Consul has them.

use std::sync::Arc;
use std::time::Duration;

use slotkeeper::internals::bridge;
use slotkeeper_consul::{
    Behavior, Client, Code, Consistency, Fault, Kind, Operation, Read, SessionSpec, Settings, Txn, TxnOp,
};
use slotkeeper_semaphore::Reading;
use tokio::time::Instant;

use crate::consul::Consul;
use crate::support::kv::{Put, delete, put};
use crate::support::proxy::Proxy;
use crate::{Recorder, client, spec};

const FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

#[tokio::test]
async fn a_session_lives_and_ends() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    let asked = SessionSpec { lock_delay: Duration::from_millis(1500), ..spec() };
    let id = client.session_create(&asked).await.unwrap();
    let session = client.session_info(&id, Read::consistent()).await.unwrap().value.unwrap();
    // All of it arrived, so the body had a length.
    assert_eq!((session.id.as_str(), session.name.as_str()), (id.as_str(), "client test"));
    assert_eq!((session.ttl, session.behavior), (Some(asked.ttl), Behavior::Delete));
    assert_eq!(session.lock_delay, asked.lock_delay);
    assert_eq!(client.session_renew(&id).await.unwrap(), session);
    assert_eq!(client.session_list(Read::default()).await.unwrap().value, [session]);

    client.session_destroy(&id).await.unwrap();
    client.session_destroy(&id).await.unwrap();
    assert_eq!(client.session_info(&id, Read::consistent()).await.unwrap().value, None);
    let error = client.session_renew(&id).await.unwrap_err();
    assert_eq!(error.kind, Kind::Gone, "{error}");
}

#[tokio::test]
async fn no_checks_means_no_checks() {
    let consul = Consul::start().await;
    let (client, address) = (client(consul.addr()), consul.addr());
    let raw =
        |id: String| crate::stub::http(address.clone(), "GET", format!("/v1/session/info/{id}"), "", "");
    let without = client.session_create(&spec()).await.unwrap();
    let (_, body) = raw(without).await;
    assert!(body.contains("\"Name\"") && !body.contains("serfHealth"), "{body}");
    let with = SessionSpec { node_checks: vec!["serfHealth".into()], ..spec() };
    let (_, body) = raw(client.session_create(&with).await.unwrap()).await;
    assert!(body.contains("serfHealth"), "{body}");
}

#[tokio::test]
async fn a_session_that_consul_refuses() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    let refused = async |spec: SessionSpec| client.session_create(&spec).await.unwrap_err();
    let error = refused(SessionSpec { service_checks: vec!["none".into()], ..spec() }).await;
    assert!(error.kind == Kind::Refused && error.detail.contains("Missing"), "{error}");
    let error = refused(SessionSpec { node: Some("none".into()), ..spec() }).await;
    assert!(error.kind == Kind::Refused && error.detail.contains("Missing"), "{error}");
    let error = refused(SessionSpec { ttl: Duration::from_secs(1), ..spec() }).await;
    assert_eq!(error.kind, Kind::Refused, "{error}");
}

#[tokio::test]
async fn several_keys_are_read_at_one_instant_or_those_that_are_missing_are_named() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    let keys: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
    for key in ["a", "c"] {
        assert!(put(&client, key, key.as_bytes(), Put::Plain, 7).await.unwrap());
    }
    let Txn::RolledBack(faults) = client.kv_get_many(&keys, Consistency::Default).await.unwrap() else {
        panic!("b is missing")
    };
    let faults: Vec<_> = faults.iter().map(|fault| (fault.op_index, fault.fault)).collect();
    assert_eq!(faults, [(1, Fault::NoSuchKey)]);
    assert!(put(&client, "b", b"b", Put::Plain, 7).await.unwrap());
    let Txn::Committed(pairs) = client.kv_get_many(&keys, Consistency::Default).await.unwrap() else {
        panic!("rolled back")
    };
    for (pair, key) in pairs.iter().zip(&keys) {
        assert_eq!((&pair.key, pair.value.as_slice(), pair.flags), (key, key.as_bytes(), 7));
    }
    assert_eq!(pairs.len(), 3);
}

/// How often the server has asked a quorum before it answered a read, and how many transactions have read, in the ten
/// seconds that its metrics report.
async fn proved_reads(consul: &Consul) -> (u64, u64) {
    let (_, body) = crate::stub::http(consul.addr().clone(), "GET", "/v1/agent/metrics".into(), "", "").await;
    let metrics: serde_json::Value = serde_json::from_str(&body).unwrap();
    let samples = metrics["Samples"].as_array().unwrap();
    let count = |name: &str| {
        let found = samples.iter().find(|sample| sample["Name"] == name);
        found.map_or(0, |sample| sample["Count"].as_u64().unwrap())
    };
    (count("consul.rpc.consistentRead"), count("consul.txn.read"))
}

#[tokio::test]
async fn a_transaction_of_reads_is_proved_by_a_quorum_where_that_is_asked_for() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    assert!(put(&client, "a", b"a", Put::Plain, 0).await.unwrap());
    let keys = ["a".to_owned()];
    for (consistency, is_proved) in [(Consistency::Default, false), (Consistency::Consistent, true)] {
        // The agent proves a few reads of its own at its start; here are many more.
        let seen = async {
            loop {
                let read = client.kv_get_many(&keys, consistency).await.unwrap();
                assert!(matches!(read, Txn::Committed(pairs) if pairs[0].value == b"a"));
                let (proved, reads) = proved_reads(&consul).await;
                // The end of the ten seconds may come between a proof and its read.
                let each = proved + 1 >= reads;
                if reads >= 30 && each == is_proved {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(90), seen).await.expect("the metrics tell of it");
    }
}

#[tokio::test]
async fn names_are_read_without_values_and_waited_for() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    let none = client.kv_keys("p/", Read::consistent()).await.unwrap();
    assert!(none.value.is_empty() && none.index >= 1);
    for key in ["p/.lock", "p/b ☃", "p/a", "p-2/a"] {
        assert!(put(&client, key, key.as_bytes(), Put::Plain, 7).await.unwrap());
    }
    let names = client.kv_keys("p/", Read::consistent()).await.unwrap();
    assert_eq!(names.value, ["p/.lock", "p/a", "p/b ☃"]);
    let news = client.kv_keys("p/", Read::default().after(names.index, Duration::from_secs(60)));
    let (news, deleted) = tokio::join!(news, delete(&client, "p/a"));
    let news = news.unwrap();
    assert!(deleted.unwrap() && news.index > names.index);
    assert_eq!(news.value, ["p/.lock", "p/b ☃"]);
    let began = Instant::now();
    let wait = Duration::from_millis(300);
    let same = client.kv_keys("p/", Read::default().after(news.index, wait)).await.unwrap();
    assert_eq!((same.index, same.value), (news.index, news.value));
    assert!(began.elapsed() >= wait);
}

#[tokio::test]
async fn several_groups_of_keys_are_read_at_one_instant_although_some_do_not_exist() {
    let consul = Consul::start().await;
    let recorder = Arc::new(Recorder::default());
    let settings = Settings { address: consul.addr().clone().into(), ..Settings::default() };
    let client = Client::new(&settings, recorder.clone()).unwrap();
    // Two of one semaphore, and two of others.
    let groups: Vec<Vec<String>> =
        [["a/one", "a/.lock"], ["b/one", "b/.lock"], ["a/two", "a/.lock"], ["c/one", "c/.lock"]]
            .map(|keys| keys.map(str::to_owned).to_vec())
            .to_vec();
    for key in groups.concat() {
        assert!(put(&client, &key, key.as_bytes(), Put::Plain, 7).await.unwrap());
        // Another key, of which that one is the beginning.
        assert!(put(&client, &format!("{key}-2"), b"other", Put::Plain, 7).await.unwrap());
    }
    let read = async |groups: &[Vec<String>]| {
        let before = recorder.seen().len();
        let answers = bridge::read_groups(&client, groups).await;
        assert_eq!(recorder.seen().split_off(before), [(Operation::KvGetMany, Code::Ok)]);
        let shown = |key: &String, reading: &Reading| {
            let pair = reading.pair.as_ref();
            assert!(pair.is_none_or(|pair| pair.key == *key && pair.value == key.as_bytes()), "{pair:?}");
            assert_eq!(reading.index, pair.map_or(0, |pair| pair.modify_index));
            pair.is_some()
        };
        let all = groups.iter().zip(answers).map(|(keys, answer)| {
            keys.iter().zip(&answer.unwrap()).map(|(key, reading)| shown(key, reading)).collect::<Vec<_>>()
        });
        all.collect::<Vec<_>>()
    };
    let there = vec![true, true];
    assert_eq!(read(&groups).await, vec![there.clone(); 4]);
    assert!(delete(&client, "b/one").await.unwrap());
    assert_eq!(read(&groups).await, [there.clone(), vec![false, true], there.clone(), there]);
    assert_eq!(read(&groups[1..2]).await, [vec![false, true]]);
}

#[tokio::test]
async fn a_long_answer_comes_compressed_and_a_short_one_as_it_is() {
    let consul = Consul::start().await;
    let proxy = Proxy::start(consul.http_addr()).await;
    let client = client(&proxy.addr().to_string().parse().unwrap());
    let value = format!("{{\"state\":\"waiting\",\"host\":\"{}\"}}", "a".repeat(200));
    for number in 0..50 {
        assert!(put(&client, &format!("p/{number}"), value.as_bytes(), Put::Plain, 7).await.unwrap());
    }
    let passed = async |read: &str| {
        let before = proxy.counts().bytes();
        let pairs = match read {
            "listing" => client.kv_list("p/", Read::default()).await.unwrap().value,
            "transaction" => {
                let list = TxnOp::GetTree { prefix: "p/".into() };
                let Txn::Committed(pairs) = client.txn(&[list]).await.unwrap() else { panic!("rolled back") };
                pairs
            }
            one => client.kv_get(one, Read::default()).await.unwrap().value.into_iter().collect(),
        };
        assert!(pairs.iter().all(|pair| pair.value == value.as_bytes()));
        (pairs.len(), usize::try_from(proxy.counts().bytes() - before).unwrap())
    };
    for long in ["listing", "transaction"] {
        let (pairs, bytes) = passed(long).await;
        assert_eq!(pairs, 50);
        assert!(bytes < 50 * value.len() / 4, "{long}: {bytes}");
    }
    let (_, bytes) = passed("p/7").await;
    assert!(bytes > value.len(), "{bytes}");
}

#[tokio::test]
async fn a_key_is_written_read_and_removed() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    for key in ["plain", "a b/é☃/50%", "q?x#y&z=1+2", "back\\slash \"quote\"", "trailing/"] {
        assert!(put(&client, key, b"value\0\xff", Put::Plain, FLAGS).await.unwrap());
        let pair = client.kv_get(key, Read::consistent()).await.unwrap().value.unwrap();
        assert_eq!((pair.key.as_str(), pair.flags, pair.session), (key, FLAGS, None));
        assert_eq!(pair.value, b"value\0\xff");
        let listed = client.kv_list(key, Read::default()).await.unwrap().value;
        assert_eq!(listed.len(), 1, "{key}");
        assert!(delete(&client, key).await.unwrap());
        assert!(delete(&client, key).await.unwrap());
        let gone = client.kv_get(key, Read::default()).await.unwrap();
        assert!(gone.value.is_none() && gone.index >= 1);
    }
    assert!(client.kv_list("", Read::default()).await.unwrap().value.is_empty());
}

#[tokio::test]
async fn keys_that_no_url_carries_are_refused_before_they_become_others() {
    let consul = Consul::start().await;
    let recorder = Arc::new(Recorder::default());
    let settings = Settings { address: consul.addr().clone().into(), ..Settings::default() };
    let client = Client::new(&settings, recorder.clone()).unwrap();
    for key in ["", "/lead", "a//b", "a/../b", "a/./b"] {
        let error = client.kv_get(key, Read::default()).await.unwrap_err();
        assert_eq!(error.kind, Kind::Refused, "{error}");
    }
    assert_eq!(recorder.seen(), []);
}

#[tokio::test]
async fn a_transaction_does_all_or_nothing() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    let session = client.session_create(&spec()).await.unwrap();
    let other = client.session_create(&spec()).await.unwrap();
    let (key, value, flags) = ("s/c".to_owned(), b"held".to_vec(), FLAGS);
    let Txn::Committed(pairs) = client
        .txn(&[
            TxnOp::CheckNotExists { key: key.clone() },
            TxnOp::Cas { key: "s/.lock".into(), value: b"{}".into(), flags, index: 0 },
            TxnOp::Lock { key: key.clone(), value, flags, session: session.clone() },
            TxnOp::CheckSession { key: key.clone(), session: session.clone() },
            TxnOp::Delete { key: "s/none".into() },
            TxnOp::GetTree { prefix: "s/".into() },
        ])
        .await
        .unwrap()
    else {
        panic!("rolled back")
    };
    let shown: Vec<_> = pairs.iter().map(|pair| (pair.key.as_str(), pair.value.as_slice())).collect();
    let (lock, contender) = (("s/.lock", b"{}".as_slice()), ("s/c", b"held".as_slice()));
    let bare = |pair: (&'static str, &[u8])| (pair.0, b"".as_slice());
    assert_eq!(shown, [bare(lock), bare(contender), bare(contender), lock, contender]);
    assert_eq!((pairs[1].session.as_ref(), pairs[1].flags, pairs[1].lock_index), (Some(&session), FLAGS, 1));
    let index = pairs[0].modify_index;
    assert_eq!(pairs[4].modify_index, index);

    let (key, nobody) = (key.clone(), "00000000-0000-0000-0000-000000000000".to_owned());
    let lock = |key: &str, session: &String| TxnOp::Lock {
        key: key.into(),
        value: Vec::new(),
        flags: 0,
        session: session.clone(),
    };
    let cases = [
        (TxnOp::Cas { key: "s/free".into(), value: Vec::new(), flags: 0, index: 0 }, None),
        (TxnOp::Get { key: "s/.lock".into() }, None),
        (
            TxnOp::Cas { key: "s/.lock".into(), value: Vec::new(), flags: 0, index: 1 },
            Some(Fault::StaleIndex),
        ),
        (TxnOp::DeleteCas { key: "s/.lock".into(), index: 1 }, Some(Fault::StaleIndex)),
        (TxnOp::CheckIndex { key: "s/.lock".into(), index: 1 }, Some(Fault::StaleIndex)),
        (TxnOp::CheckIndex { key: "s/.lock".into(), index }, None),
        (lock(&key, &other), Some(Fault::LockHeld)),
        (lock("s/new", &nobody), Some(Fault::InvalidSession)),
        (lock("s/new", &"not-a-session".to_owned()), Some(Fault::InvalidSession)),
        (
            TxnOp::Unlock { key: key.clone(), value: Vec::new(), flags: 0, session: other.clone() },
            Some(Fault::NotHolder),
        ),
        (TxnOp::CheckSession { key: key.clone(), session: other.clone() }, Some(Fault::NotHolder)),
        (TxnOp::CheckSession { key: "s/none".into(), session: other.clone() }, Some(Fault::NoSuchKey)),
        (TxnOp::Get { key: "s/none".into() }, Some(Fault::NoSuchKey)),
        (TxnOp::CheckNotExists { key: key.clone() }, Some(Fault::KeyExists)),
        (TxnOp::Cas { key: String::new(), value: Vec::new(), flags: 0, index: 0 }, Some(Fault::Other)),
    ];
    // Each by itself, since a fault can hide those behind it.
    for (op, expected) in &cases {
        let guard = TxnOp::CheckIndex { key: "s/.lock".into(), index };
        match (client.txn(&[guard, op.clone()]).await.unwrap(), expected) {
            (Txn::Committed(_), None) => {}
            (Txn::RolledBack(faults), Some(fault)) => {
                assert_eq!(faults[0].fault, *fault, "{op:?}: {faults:?}");
            }
            (txn, expected) => panic!("{op:?}: {txn:?} instead of {expected:?}"),
        }
    }
}

#[tokio::test]
async fn a_lock_delay_is_distinguished_from_a_held_lock() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    let delayed = SessionSpec { lock_delay: Duration::from_secs(60), ..spec() };
    let first = client.session_create(&delayed).await.unwrap();
    let second = client.session_create(&spec()).await.unwrap();
    assert!(put(&client, "k", b"", Put::Acquire(&first), 0).await.unwrap());
    client.session_destroy(&first).await.unwrap();
    let lock = TxnOp::Lock { key: "k".into(), value: Vec::new(), flags: 0, session: second };
    let Txn::RolledBack(faults) = client.txn(&[lock]).await.unwrap() else { panic!("no lock-delay") };
    assert_eq!(faults[0].fault, Fault::LockDelay);
}

#[tokio::test]
async fn a_blocking_read_wakes_for_its_key_and_ends_with_its_wait() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    put(&client, "k", b"1", Put::Plain, 0).await.unwrap();
    let first = client.kv_get("k", Read::default().after(0, Duration::from_secs(60))).await.unwrap();

    let waiting = tokio::spawn({
        let client = client.clone();
        let read = Read::consistent().after(first.index, Duration::from_secs(60));
        async move { client.kv_get("k", read).await }
    });
    put(&client, "other", b"1", Put::Plain, 0).await.unwrap();
    put(&client, "k", b"2", Put::Plain, 0).await.unwrap();
    let woken = waiting.await.unwrap().unwrap();
    assert_eq!(woken.value.unwrap().value, b"2");
    assert!(woken.index > first.index);

    let started = Instant::now();
    // The answer itself may take no longer than the wait: what Consul waits comes on top.
    let wait = Duration::from_secs(5);
    let same = client.within(wait).kv_get("k", Read::default().after(woken.index, wait)).await.unwrap();
    assert_eq!(same.index, woken.index);
    assert!(started.elapsed() >= wait);
}

#[tokio::test]
async fn a_blocking_list_wakes_for_removals() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    put(&client, "p/a", b"1", Put::Plain, 0).await.unwrap();
    let listed = client.kv_list("p/", Read::consistent()).await.unwrap();
    let waiting = tokio::spawn({
        let (client, index) = (client.clone(), listed.index);
        async move { client.kv_list("p/", Read::default().after(index, Duration::from_secs(60))).await }
    });
    delete(&client, "p/a").await.unwrap();
    let woken = waiting.await.unwrap().unwrap();
    assert!(woken.value.is_empty() && woken.index > listed.index);
}

#[tokio::test]
async fn an_oversized_value_is_reported() {
    let consul = Consul::start().await;
    let client = client(consul.addr());
    for bytes in [394_000, 4_000_000] {
        let error = put(&client, "k", &vec![b'x'; bytes], Put::Cas(0), 0).await.unwrap_err();
        assert!(error.kind == Kind::Refused && error.code == Code::TooLarge, "{error}");
    }
    let many = vec![TxnOp::Get { key: "k".into() }; 200];
    let error = client.txn(&many).await.unwrap_err();
    assert_eq!(error.code, Code::TooLarge, "{error}");
    // The limit of 512 KiB is that of the request, in which the value is written in base64.
    assert!(put(&client, "k", &vec![b'x'; 390_000], Put::Cas(0), 0).await.unwrap());
}

#[tokio::test]
async fn the_leader_has_an_address() {
    let consul = Consul::start().await;
    assert!(client(consul.addr()).leader().await.unwrap().is_some());
}

#[tokio::test]
async fn every_request_is_observed() {
    let consul = Consul::start().await;
    let recorder = Arc::new(Recorder::default());
    let settings = Settings { address: consul.addr().clone().into(), ..Settings::default() };
    let client = Client::new(&settings, recorder.clone()).unwrap();
    client.kv_get("none", Read::default()).await.unwrap();
    put(&client, "k", b"", Put::Cas(0), 0).await.unwrap();
    client.kv_get("k", Read::default().after(1, Duration::from_secs(1))).await.unwrap();
    client.txn(&[TxnOp::Get { key: "none".into() }]).await.unwrap();
    assert_eq!(
        recorder.seen(),
        [
            (Operation::KvGet, Code::NotFound),
            (Operation::Txn, Code::Ok),
            (Operation::KvWatch, Code::Ok),
            (Operation::Txn, Code::Conflict),
        ]
    );
}

#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("consul.sock");
    let consul = Consul::start_on_socket(&socket).await;
    let client = client(consul.addr());
    assert!(put(&client, "k", b"1", Put::Cas(0), 0).await.unwrap());
    assert_eq!(client.kv_get("k", Read::consistent()).await.unwrap().value.unwrap().value, b"1");
    drop(consul);
    let error = put(&client, "k", b"2", Put::Cas(0), 0).await.unwrap_err();
    let first_after_the_end = matches!(error.code, Code::Unreachable | Code::Interrupted);
    assert!(first_after_the_end, "{error}");
    let error = put(&client, "k", b"2", Put::Cas(0), 0).await.unwrap_err();
    assert!(error.code == Code::Unreachable && error.to_string().contains("consul.sock"), "{error}");
}
