//! Reads that wait.
//!
//! What is written meanwhile is written from the moment at which the read is sent. Where it comes first, the read finds
//! its index passed and answers at once, so nothing here depends on which is faster.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::support::http;
use crate::target::{Ended, Target};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(600);

/// Writes until the time of a short read is over, so that some of it comes while the read waits.
async fn keep_writing(addr: SocketAddr, path: String, same: bool) {
    let mut n = 0;
    let writing = async {
        loop {
            n += 1;
            let value = if same { "x".to_owned() } else { n.to_string() };
            http::put(addr, &path, value).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _: Result<(), _> = tokio::time::timeout(SHORT, writing).await;
}

pub async fn a_write_to_the_key_wakes(t: &mut Target) {
    let key = t.kv("a");
    t.put(&key, "1").await;
    let index = t.get(&key).await.index();
    let (addr, path) = (t.addr(), key.clone());
    let (read, ended) =
        t.block(&key, index, LONG, async move { drop(http::put(addr, &path, "2").await) }).await;
    assert_eq!(ended, Ended::Woken);
    assert!(read.index() > index);
    // An index that has been passed does not wait at all, and neither does 0.
    let (_, ended) = t.block(&key, index, LONG, async {}).await;
    assert_eq!(ended, Ended::Woken);
    let (_, ended) = t.block(&key, 0, LONG, async {}).await;
    assert_eq!(ended, Ended::Woken);
}

pub async fn a_write_to_another_key_does_not_wake(t: &mut Target) {
    let key = t.kv("a");
    t.put(&key, "1").await;
    let index = t.get(&key).await.index();
    // Neighbours that share the beginning of the name too.
    for other in ["b", "a2", "a/below"] {
        let (addr, path) = (t.addr(), t.kv(other));
        let (read, ended) = t.block(&key, index, SHORT, keep_writing(addr, path, false)).await;
        assert_eq!(ended, Ended::TimedOut, "{other}");
        assert_eq!(read.index(), index);
    }
}

pub async fn an_identical_write_does_not_wake(t: &mut Target) {
    let key = t.kv("a");
    t.put(&key, "x").await;
    let index = t.get(&key).await.index();
    let (addr, path) = (t.addr(), key.clone());
    let (read, ended) = t.block(&key, index, SHORT, keep_writing(addr, path, true)).await;
    assert_eq!((ended, read.index()), (Ended::TimedOut, index));
}

pub async fn a_deletion_wakes(t: &mut Target) {
    let key = t.kv("a");
    t.put(&key, "1").await;
    let index = t.get(&key).await.index();
    let (addr, path) = (t.addr(), key.clone());
    let delete = async move { drop(http::request(addr, "DELETE", &path, &[], http::Body::None).await) };
    let (read, ended) = t.block(&key, index, LONG, delete).await;
    assert_eq!((ended, read.status), (Ended::Woken, 404));
    assert!(read.index() > index);
}

pub async fn a_creation_wakes_a_reader_of_a_missing_key(t: &mut Target) {
    let key = t.kv("a");
    let index = t.get(&key).await.index();
    let (addr, path) = (t.addr(), key.clone());
    let (read, ended) =
        t.block(&key, index, LONG, async move { drop(http::put(addr, &path, "1").await) }).await;
    assert_eq!((ended, read.status), (Ended::Woken, 200));
}

/// In 1.8 any write to the store wakes a reader that waits for a missing key. In newer versions it still wakes an empty listing.
pub async fn what_is_missing_is_woken_by_its_neighbours(t: &mut Target) {
    let single = t.fact(Ended::Woken, Ended::TimedOut);
    for (path, ends) in
        [(t.kv("missing"), single), (t.kv("none/?recurse"), Ended::Woken), (t.kv("none/?keys"), Ended::Woken)]
    {
        // The transcript has none of it: how many writes there have been is chance. Where a write comes before the read,
        // the read finds its index passed, and says nothing of what wakes.
        let mut seen = Vec::new();
        let always = ends == Ended::Woken;
        // A read that has to be woken is not to end by itself while the machine stands still.
        let wait = if always { LONG } else { SHORT };
        while seen.len() < 10 && seen.last() != Some(&ends) {
            seen.push(beside(t.addr(), &path, wait, &t.kv("other")).await);
        }
        assert_eq!(seen.last(), Some(&ends), "{path}");
        assert!(!always || seen.len() == 1, "{path}: {seen:?}");
    }
    t.get(&t.kv("missing")).await;
}

/// A read of what is missing, beside which another key is written.
async fn beside(addr: SocketAddr, path: &str, wait: Duration, other: &str) -> Ended {
    let index = http::get(addr, path).await.index();
    let join = if path.contains('?') { '&' } else { '?' };
    let read = format!("{path}{join}index={index}&wait={}ms", wait.as_millis());
    let began = Instant::now();
    let write = async {
        tokio::time::sleep(SHORT / 4).await;
        let value = format!("{:?}", began.elapsed());
        http::put(addr, other, value).await;
    };
    let read = async {
        http::get(addr, &read).await;
        began.elapsed()
    };
    let (took, ()) = tokio::join!(read, write);
    if took < wait { Ended::Woken } else { Ended::TimedOut }
}

pub async fn a_prefix_wakes_for_what_is_below_it(t: &mut Target) {
    t.put(&t.kv("p/1"), "1").await;
    for list in [t.kv("p/?recurse"), t.kv("p/?keys")] {
        let index = t.get(&list).await.index();
        let (addr, path) = (t.addr(), t.kv("p-2/1"));
        let (read, ended) = t.block(&list, index, SHORT, keep_writing(addr, path, false)).await;
        assert_eq!((ended, read.index()), (Ended::TimedOut, index));
        let (addr, path) = (t.addr(), t.kv("p/2"));
        let value = list.clone();
        let write = async move { drop(http::put(addr, &path, value).await) };
        let (read, ended) = t.block(&list, index, LONG, write).await;
        assert_eq!(ended, Ended::Woken);
        assert!(read.index() > index);
    }
}

pub async fn a_prefix_wakes_for_a_deletion(t: &mut Target) {
    for list in [t.kv("p/?recurse"), t.kv("p/?keys")] {
        for key in ["p/1", "p/2"] {
            t.put(&t.kv(key), "1").await;
        }
        for (delete, status) in [("p/1", 200), ("p/?recurse", 404)] {
            let index = t.get(&list).await.index();
            let (addr, path) = (t.addr(), t.kv(delete));
            let delete =
                async move { drop(http::request(addr, "DELETE", &path, &[], http::Body::None).await) };
            let (read, ended) = t.block(&list, index, LONG, delete).await;
            assert_eq!((ended, read.status), (Ended::Woken, status));
            assert!(read.index() > index);
        }
    }
}

/// The names alone: what changes a value below is news too, and a deletion leaves the index where it was made.
pub async fn names_wake_for_values_and_keep_the_index_of_a_deletion(t: &mut Target) {
    let (names, sibling) = (t.kv("p/?keys"), t.kv("p-2/1"));
    for key in ["p/1", "p/2", "p-2/1"] {
        t.put(&t.kv(key), "1").await;
    }
    let index = t.get(&names).await.index();
    let (addr, path) = (t.addr(), t.kv("p/1"));
    let write = async move { drop(http::put(addr, &path, "2").await) };
    let (read, ended) = t.block(&names, index, LONG, write).await;
    assert_eq!(ended, Ended::Woken, "by a value");
    let changed = t.get(&t.kv("p/1")).await.index();
    assert_eq!((read.index(), read.json()), (changed, serde_json::json!([t.key("p/1"), t.key("p/2")])));

    let (addr, path) = (t.addr(), t.kv("p/2"));
    let delete = async move { drop(http::request(addr, "DELETE", &path, &[], http::Body::None).await) };
    let (read, ended) = t.block(&names, changed, LONG, delete).await;
    assert_eq!((ended, read.json()), (Ended::Woken, serde_json::json!([t.key("p/1")])));
    let deleted = read.index();
    assert!(deleted > changed, "the tombstone has the index");
    // Neither siblings nor other writes below them move it.
    t.put(&sibling, "2").await;
    t.delete(&sibling).await;
    assert_eq!(t.get(&names).await.index(), deleted);
    let writing = keep_writing(t.addr(), sibling, false);
    let (read, ended) = t.block(&names, deleted, SHORT, writing).await;
    assert_eq!((ended, read.index()), (Ended::TimedOut, deleted));
    // A key that stands there again is news again.
    t.put(&t.kv("p/2"), "1").await;
    assert!(t.get(&names).await.index() > deleted);
}

pub async fn the_time_runs_out(t: &mut Target) {
    let key = t.kv("a");
    t.put(&key, "1").await;
    let index = t.get(&key).await.index();
    let (read, ended) = t.block(&key, index, SHORT, async {}).await;
    assert_eq!((ended, read.status, read.index()), (Ended::TimedOut, 200, index));
    let missing = t.kv("missing");
    let index = t.get(&missing).await.index();
    let (read, ended) = t.block(&missing, index, SHORT, async {}).await;
    assert_eq!((ended, read.status, read.index()), (Ended::TimedOut, 404, index));
}

/// As after a restore: the read waits for its whole time and returns the lower index, from which a client starts again.
pub async fn an_index_above_the_current_one_waits(t: &mut Target) {
    let key = t.kv("a");
    t.put(&key, "1").await;
    let current = t.get(&key).await.index();
    for path in [key.clone(), t.kv("?recurse"), t.kv("missing")] {
        let addr = t.addr();
        let write = keep_writing(addr, t.kv("a"), true);
        let (read, ended) = t.block(&path, current + 1_000_000, SHORT, write).await;
        assert_eq!(ended, Ended::TimedOut);
        assert!(read.index() < current + 1_000_000);
    }
}

pub async fn a_destroyed_session_wakes_its_watcher_and_its_keys(t: &mut Target) {
    let other = t.session("{}").await;
    for behavior in ["release", "delete"] {
        let id = t.session(&format!(r#"{{"Behavior":"{behavior}","Name":"x"}}"#)).await;
        let key = t.kv(behavior);
        assert!(t.put_bool(&format!("{key}?acquire={id}"), "x").await);
        let index = t.get(&key).await.index();
        let (addr, destroy) = (t.addr(), format!("/v1/session/destroy/{id}"));
        let (read, ended) =
            t.block(&key, index, LONG, async move { drop(http::put(addr, &destroy, "").await) }).await;
        assert_eq!(ended, Ended::Woken);
        assert!(read.status == 404 || read.json()[0].get("Session").is_none());
    }
    let info = format!("/v1/session/info/{other}");
    let index = t.get(&info).await.index();
    let (addr, destroy) = (t.addr(), format!("/v1/session/destroy/{other}"));
    let (read, ended) =
        t.block(&info, index, LONG, async move { drop(http::put(addr, &destroy, "").await) }).await;
    assert_eq!((ended, read.text().trim()), (Ended::Woken, "[]"));
}

pub async fn the_list_of_sessions_wakes_for_any(t: &mut Target) {
    let first = t.session("{}").await;
    let index = t.get(&format!("/v1/session/info/{first}")).await.index();
    let addr = t.addr();
    let path = format!("/v1/session/list?index={index}&wait=60s");
    let began = http::get(addr, &path);
    let create = http::put(addr, "/v1/session/create", "{}");
    let (list, created) = tokio::join!(began, create);
    assert!(list.index() > index);
    assert!(list.text().contains(created.json()["ID"].as_str().unwrap()));
    // A renewal is no change.
    let list = http::get(addr, "/v1/session/list").await.index();
    let renew = keep_writing(addr, format!("/v1/session/renew/{first}"), true);
    let info = format!("/v1/session/info/{first}");
    let (_, ended) = t.block(&info, list, SHORT, renew).await;
    assert_eq!(ended, Ended::TimedOut);
}
