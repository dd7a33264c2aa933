//! The key/value store.

use crate::support::http::Body;
use crate::target::Target;

pub async fn a_key_is_written_read_and_deleted(t: &mut Target) {
    let key = t.kv("a");
    assert_eq!(t.get(&key).await.status, 404);
    assert!(t.put_bool(&key, "one").await);
    let read = t.get(&key).await;
    assert_eq!(read.json()[0]["Value"], "b25l");
    assert_eq!(read.json()[0]["LockIndex"], 0);
    assert_eq!(read.json()[0]["ModifyIndex"], read.index());
    let raw = t.get(&format!("{key}?raw")).await;
    assert_eq!(raw.body, b"one");
    assert!(t.put_bool(&key, "two").await);
    let again = t.get(&key).await;
    assert!(again.index() > read.index());
    assert_eq!(again.json()[0]["CreateIndex"], read.json()[0]["CreateIndex"]);
    // An empty value is null.
    assert!(t.put_bool(&key, "").await);
    assert!(t.get(&key).await.json()[0]["Value"].is_null());
    assert_eq!(t.get(&format!("{key}?raw")).await.body, b"");
    for read in ["stale", "consistent", "pretty", "dc=dc1", "index=0", "wait=1s", "token=x"] {
        assert_eq!(t.get(&format!("{key}?{read}")).await.status, 200);
    }
    assert_eq!(t.delete(&key).await.json(), true);
    assert_eq!(t.delete(&key).await.json(), true);
    let gone = t.get(&key).await;
    assert_eq!(gone.status, 404);
    assert!(gone.index() > again.index());
    assert_eq!(t.get(&format!("{key}?raw")).await.status, 404);
}

pub async fn cas_writes_only_what_stands_at_the_index(t: &mut Target) {
    let key = t.kv("a");
    let cas = |index: u64| format!("{key}?cas={index}");
    assert!(!t.put_bool(&cas(7), "x").await);
    assert!(t.put_bool(&cas(0), "one").await);
    assert!(!t.put_bool(&cas(0), "two").await);
    let index = t.get(&key).await.index();
    let path = cas(index);
    let answer = crate::support::http::put(t.addr(), &path, "two").await;
    assert_eq!(answer.json(), true);
    let stale = crate::support::http::put(t.addr(), &path, "three").await;
    assert_eq!(stale.json(), false);
    assert_eq!(t.get(&key).await.json()[0]["Value"], "dHdv");
    // Deletion by index. What is gone already counts as deleted.
    assert_eq!(t.delete(&cas(0)).await.json(), false);
    assert_eq!(t.delete(&cas(1)).await.json(), false);
    let index = t.get(&key).await.index();
    let deleted = crate::support::http::request(t.addr(), "DELETE", &cas(index), &[], Body::None).await;
    assert_eq!(deleted.json(), true);
    assert_eq!(t.get(&key).await.status, 404);
    assert_eq!(t.delete(&cas(5)).await.json(), true);
    assert_eq!(t.delete(&cas(0)).await.json(), true);
}

pub async fn acquire_and_release(t: &mut Target) {
    let key = t.kv("lock");
    let first = t.session("{}").await;
    let second = t.session("{}").await;
    let acquire = |session: &str| format!("{key}?acquire={session}");
    let release = |session: &str| format!("{key}?release={session}");
    assert!(!t.put_bool(&release(&first), "x").await, "a key that does not exist");
    assert!(t.put_bool(&acquire(&first), "one").await);
    let held = t.get(&key).await;
    assert_eq!(held.json()[0]["Session"], first);
    assert_eq!(held.json()[0]["LockIndex"], 1);
    assert!(!t.put_bool(&acquire(&second), "two").await);
    assert!(!t.put_bool(&release(&second), "two").await);
    // The holder may acquire again: that writes the value and counts no second lock.
    assert!(t.put_bool(&acquire(&first), "one again").await);
    let again = t.get(&key).await;
    assert_eq!(again.json()[0]["LockIndex"], 1);
    assert!(again.index() > held.index());
    assert!(t.put_bool(&acquire(&first), "one again").await);
    assert_eq!(t.get(&key).await.index(), again.index());
    assert!(t.put_bool(&format!("{}&flags=9", release(&first)), "free").await);
    let free = t.get(&key).await;
    assert!(free.json()[0].get("Session").is_none());
    assert_eq!(free.json()[0]["Flags"], 9);
    assert_eq!(free.json()[0]["LockIndex"], 1);
    assert!(!t.put_bool(&release(&first), "free").await);
    assert!(t.put_bool(&acquire(&second), "two").await);
    assert_eq!(t.get(&key).await.json()[0]["LockIndex"], 2);
}

pub async fn a_plain_write_keeps_the_holder(t: &mut Target) {
    let key = t.kv("lock");
    let session = t.session("{}").await;
    assert!(t.put_bool(&format!("{key}?acquire={session}"), "one").await);
    assert!(t.put_bool(&key, "two").await);
    let read = t.get(&key).await;
    assert_eq!(read.json()[0]["Session"], session);
    // 1.8 also forgets the lock count; newer versions may keep it.
    t.put(&format!("{key}?acquire={session}"), "three").await;
    t.get(&key).await;
    t.put(&key, "three").await;
    t.get(&key).await;
    t.put(&format!("{key}?cas=1"), "four").await;
    assert!(t.put_bool(&format!("{key}?release={session}"), "five").await);
    t.get(&key).await;
    // Any client may delete a locked key.
    assert!(t.put_bool(&format!("{key}?acquire={session}"), "six").await);
    assert_eq!(t.delete(&key).await.json(), true);
    assert_eq!(t.get(&key).await.status, 404);
}

pub async fn flags_are_unsigned(t: &mut Target) {
    let key = t.kv("a");
    for flags in [0, 16_210_313_421_097_356_768, u64::MAX, 3_304_740_253_564_472_344] {
        assert!(t.put_bool(&format!("{key}?flags={flags}"), "x").await);
        assert_eq!(t.get(&key).await.json()[0]["Flags"], flags);
    }
    // A write that says nothing of flags clears them.
    assert!(t.put_bool(&key, "x").await);
    assert_eq!(t.get(&key).await.json()[0]["Flags"], 0);
}

pub async fn an_identical_write_changes_nothing(t: &mut Target) {
    let key = t.kv("a");
    assert!(t.put_bool(&format!("{key}?flags=5"), "x").await);
    let before = t.get(&key).await.index();
    assert!(t.put_bool(&format!("{key}?flags=5"), "x").await);
    assert_eq!(t.get(&key).await.index(), before);
    assert_eq!(t.get(&format!("{key}?recurse")).await.index(), before);
    assert!(t.put_bool(&format!("{key}?flags=6"), "x").await);
    assert!(t.get(&key).await.index() > before);
}

pub async fn lists_and_separators(t: &mut Target) {
    for key in ["k/a/1", "k/a/2", "k/b", "k", "k-2/a", "k//x"] {
        t.put(&t.kv(key), key).await;
    }
    let list = t.get(&t.kv("k/?recurse")).await;
    assert_eq!(list.json().as_array().unwrap().len(), 3, "the slash keeps the neighbour k-2 out");
    for query in [
        "k?recurse",
        "k/?keys",
        "k?keys",
        "k/?keys&separator=/",
        "k?keys&separator=/",
        "k/?keys&separator=",
        "k/?keys&separator=a/",
        "k/?recurse&keys",
        "k/?recurse&raw",
        "k/?recurse=false",
        "k/b?recurse",
        "none/?recurse",
        "none/?keys",
        "none/?keys&separator=/",
    ] {
        t.get(&t.kv(query)).await;
    }
    assert_eq!(t.get(&t.kv("none/?recurse")).await.status, 404);
}

pub async fn deletions_move_the_index_of_their_prefix(t: &mut Target) {
    for key in ["p/1", "p/2", "q/1"] {
        t.put(&t.kv(key), "x").await;
    }
    let (p, q) = (t.kv("p/?recurse"), t.kv("q/?recurse"));
    let before = (t.get(&p).await.index(), t.get(&q).await.index());
    t.delete(&t.kv("p/2")).await;
    let after = (t.get(&p).await.index(), t.get(&q).await.index());
    assert!(after.0 > before.0);
    assert_eq!(after.1, before.1);
    // What never was is no deletion.
    t.delete(&t.kv("q/9")).await;
    assert_eq!(t.get(&q).await.index(), before.1);
    // A tombstone has the index of its key, and survives a new creation of the key.
    t.get(&t.kv("p/?keys")).await;
    t.put(&t.kv("p/2"), "again").await;
    t.get(&p).await;
    t.delete(&t.kv("p/1")).await;
    t.delete(&t.kv("p/2")).await;
    let empty = t.get(&p).await;
    assert_eq!(empty.status, 404);
    assert!(empty.index() > after.0);
    t.put(&t.kv("other"), "x").await;
    assert_eq!(t.get(&p).await.index(), empty.index(), "a remembered deletion has its own index");
}

pub async fn trees_are_deleted(t: &mut Target) {
    for key in ["t/1", "t/sub/2", "t", "t2"] {
        t.put(&t.kv(key), "x").await;
    }
    assert_eq!(t.delete(&t.kv("t/?recurse")).await.json(), true);
    t.get(&t.kv("?keys")).await;
    t.get(&t.kv("t/?recurse")).await;
    t.get(&t.kv("t/sub/?recurse")).await;
    t.get(&t.kv("t/1")).await;
    // Again, where nothing is left.
    assert_eq!(t.delete(&t.kv("t/?recurse")).await.json(), true);
    t.get(&t.kv("t/?recurse")).await;
    // A prefix need not end with a slash.
    assert_eq!(t.delete(&t.kv("t?recurse")).await.json(), true);
    assert_eq!(t.get(&t.kv("?recurse")).await.status, 404);
}

pub async fn keys_are_bytes_of_a_path(t: &mut Target) {
    for key in ["sp%20ace%2Fx", "caf%C3%A9", "%3Chtml%26%3E", "quote%22", "plus+plus", "a;b=c", "trailing/"] {
        assert!(t.put_bool(&t.kv(key), "x").await, "{key}");
        assert_eq!(t.get(&t.kv(key)).await.status, 200, "{key}");
    }
    t.get(&t.kv("?keys")).await;
    // Such keys cannot be reached: the path is made clean by a redirect.
    let redirect = t.fact(301, 307);
    for key in ["a//b", "a/../b", "a/./b", "a//b?raw&recurse", "a//"] {
        assert_eq!(t.get(&t.kv(key)).await.status, redirect, "{key}");
        assert_eq!(t.put(&t.kv(key), "x").await.status, redirect, "{key}");
    }
    assert_eq!(t.get("/v1/kv//a").await.status, redirect);
    for unprintable in ["%00", "a%09", "%C2%A0", "a%E2%80%8B", "%7F"] {
        assert_eq!(t.get(&t.kv(unprintable)).await.status, 400, "{unprintable}");
    }
}

/// What 1.8 redirects by the path's escapes resolved, newer ones resolve in the key itself.
pub async fn keys_are_made_clean_or_refused(t: &mut Target) {
    let scenario = t.key("").trim_end_matches('/').to_owned();
    for key in ["x/%2e/d", "x/%2e%2e/b", "x%2F..%2Fc", "x/a%2F%2Fe", "x/%22%2F%2Ff"] {
        let path = t.kv(key);
        assert_eq!(t.put(&path, "x").await.status, t.fact(301, 200), "{key}");
        t.delete(&path).await;
        t.put(&path, "y").await;
    }
    t.get(&t.kv("?keys")).await;
    for (key, fault) in [
        ("%20", "leading/trailing spaces are not allowed"),
        ("a%20", "leading/trailing spaces are not allowed"),
        ("%20a", ""),
        ("a%20/%20b", ""),
    ] {
        let path = t.kv(key);
        let refused = !fault.is_empty() && t.fact(false, true);
        for answer in [t.put(&path, "x").await, t.get(&path).await, t.get(&format!("{path}?recurse")).await] {
            if refused {
                assert_eq!(
                    (answer.status, answer.text()),
                    (500, format!("invalid key name, {fault}")),
                    "{key}"
                );
            } else {
                assert_eq!(answer.status, 200, "{key}");
            }
        }
        assert_eq!(t.delete(&path).await.status, if refused { 500 } else { 200 });
    }
    let outside = format!("/v1/kv/%2e%2e%2f{scenario}");
    let answer = t.get(&outside).await;
    let refused = (500, "invalid key name, path traversal is not allowed".to_owned());
    if t.fact(false, true) {
        assert_eq!((answer.status, answer.text()), refused);
    } else {
        assert_eq!(answer.status, 301);
    }
}

pub async fn values_have_a_bound(t: &mut Target) {
    let key = t.kv("big");
    assert!(t.put_bool(&key, vec![b'x'; 512 * 1024]).await);
    let refused = t.put(&key, vec![b'y'; 512 * 1024 + 1]).await;
    assert_eq!(refused.status, 413);
    assert_eq!(refused.header("connection"), Some("close"));
    let page = t.fact(
        "https://www.consul.io/docs/agent/options.html#kv_max_value_size",
        "https://developer.hashicorp.com/docs/agent/config/config-files#kv_max_value_size",
    );
    let told = format!("Request body(524289 bytes) too large, max size: 524288 bytes. See {page}.");
    assert_eq!(refused.text(), told);
    // In chunks a small value is as good as any. (1.8 lets a large one pass there; the embedded server does not.)
    t.send("PUT", &key, Body::Chunked(b"chunk")).await;
    assert_eq!(t.get(&format!("{key}?raw")).await.body, b"chunk");
}

/// Of both versions: JSON goes out in chunks where it is longer than a buffer of Go's, and raw values never do.
pub async fn larger_answers_are_chunked(t: &mut Target) {
    let key = t.kv("a");
    t.put(&key, vec![b'x'; 5000]).await;
    let json = t.get(&key).await;
    assert_eq!((json.header("transfer-encoding"), json.header("content-length")), (Some("chunked"), None));
    assert_eq!(json.json()[0]["Key"], t.key("a"));
    let raw = t.get(&format!("{key}?raw")).await;
    assert_eq!((raw.header("transfer-encoding"), raw.header("content-length")), (None, Some("5000")));
    t.put(&key, "small").await;
    let small = t.get(&key).await;
    assert_eq!(small.header("transfer-encoding"), None);
    assert!(small.header("content-length").is_some());
}
