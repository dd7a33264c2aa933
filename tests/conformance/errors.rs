//! What is refused, and in which words.

use crate::support::http::{self, Body};
use crate::target::Target;

const NOBODY: &str = "11111111-1111-1111-1111-111111111111";

pub async fn methods(t: &mut Target) {
    let key = t.kv("a");
    for (method, path, status) in [
        ("POST", key.as_str(), 405),
        ("PATCH", &key, 405),
        ("OPTIONS", &key, 200),
        ("GET", "/v1/session/create", 405),
        ("POST", "/v1/session/create", 405),
        ("OPTIONS", "/v1/session/create", 200),
        ("PUT", "/v1/session/list", 405),
        ("PUT", "/v1/session/info/x", 405),
        ("PUT", "/v1/session/node/x", 405),
        ("GET", "/v1/session/renew/x", 405),
        ("POST", "/v1/session/destroy/x", 405),
        ("GET", "/v1/txn", 405),
        ("DELETE", "/v1/txn", 405),
        ("PUT", "/v1/status/leader", 405),
        ("PUT", "/v1/agent/self", 405),
    ] {
        let answer = t.send(method, path, Body::None).await;
        assert_eq!(answer.status, status, "{method} {path}");
        assert!(answer.header("allow").is_some(), "{method} {path}");
        if method == "OPTIONS" {
            let told = t.fact(None, Some("application/json; charset=utf-8"));
            assert_eq!(answer.header("content-type"), told);
        }
    }
}

pub async fn parameters_that_exclude_each_other(t: &mut Target) {
    let key = t.kv("a");
    for query in
        ["cas=0&acquire=foo", "release=x&acquire=foo", "release=x&cas=1", "cas=1&acquire=x&release=y"]
    {
        assert_eq!(t.put(&format!("{key}?{query}"), "x").await.status, 400, "{query}");
    }
    assert_eq!(t.delete(&format!("{key}?cas=1&recurse")).await.status, 400);
    assert_eq!(t.delete("/v1/kv/?recurse&cas=1").await.status, 400);
    assert_eq!(t.get(&format!("{key}?stale&consistent")).await.status, 400);
    assert_eq!(t.get("/v1/session/list?stale&consistent").await.status, 400);
}

pub async fn numbers_and_durations(t: &mut Target) {
    let key = t.kv("a");
    t.put(&key, "x").await;
    for query in ["cas=abc", "cas=", "cas=-1", "flags=abc", "flags=", "flags=18446744073709551616"] {
        assert_eq!(t.put(&format!("{key}?{query}"), "y").await.status, 500, "{query}");
    }
    assert_eq!(t.delete(&format!("{key}?cas=bad")).await.status, 500);
    for query in ["index=abc", "index=-1", "wait=abc", "wait=abc&index=1", "wait=5"] {
        assert_eq!(t.get(&format!("{key}?{query}")).await.status, 400, "{query}");
        assert_eq!(t.get(&format!("/v1/session/list?{query}")).await.status, 400, "{query}");
    }
    for query in ["index=", "wait=-5s&index=1", "wait=&index=1", "wait=1h&index=1"] {
        assert_eq!(t.get(&format!("{key}?{query}")).await.status, 200, "{query}");
    }
}

pub async fn keys_and_ids_that_are_missing_or_wrong(t: &mut Target) {
    assert_eq!(t.get("/v1/kv/").await.status, 400);
    assert_eq!(t.put("/v1/kv/", "x").await.status, 400);
    assert_eq!(t.delete("/v1/kv/").await.status, 400);
    for verb in ["info", "node"] {
        assert_eq!(t.get(&format!("/v1/session/{verb}/")).await.status, 400);
    }
    for verb in ["renew", "destroy"] {
        assert_eq!(t.put(&format!("/v1/session/{verb}/"), "").await.status, 400);
        let malformed = t.fact(500, if verb == "renew" { 404 } else { 200 });
        for id in ["abc", "zzzzzzzz-1111-1111-1111-111111111111", "1-1-1-1-1-1111111111111111111111111"] {
            assert_eq!(t.put(&format!("/v1/session/{verb}/{id}"), "").await.status, malformed, "{id}");
        }
    }
    let id = "111111111111111111111111111111111111";
    assert_eq!(t.put(&format!("/v1/session/destroy/{id}"), "").await.status, 200);
    // The headers of 1.8 say beside this that no leader is known, which is a fault of its own and not copied.
    let info = http::get(t.addr(), "/v1/session/info/abc").await;
    let told = t.fact((500, Some("text/plain; charset=utf-8")), (200, Some("application/json")));
    assert_eq!((info.status, info.header("content-type")), told);
    for body in ["junk", "[]", r#""x""#, r#"{"Name":5}"#, r#"{"NodeChecks":"x"}"#, r#"{"Name":"x""#] {
        assert_eq!(t.put("/v1/session/create", body).await.status, 400, "{body}");
    }
}

pub async fn sessions_that_do_not_exist(t: &mut Target) {
    let key = t.kv("a");
    for (query, status) in [
        (format!("acquire={NOBODY}"), 500),
        ("acquire=foo".to_owned(), 500),
        ("acquire=".to_owned(), 500),
        (format!("release={NOBODY}"), 200),
        ("release=foo".to_owned(), 200),
        ("release=".to_owned(), 500),
    ] {
        let answer = t.put(&format!("{key}?{query}"), "x").await;
        assert_eq!(answer.status, status, "{query}");
        let of_raft = answer.text().starts_with("raft apply failed: ");
        assert_eq!(of_raft, status == 500 && t.fact(false, true), "{query}");
    }
    let renewed = t.put(&format!("/v1/session/renew/{NOBODY}"), "").await;
    assert_eq!((renewed.status, renewed.text()), (404, format!("Session id '{NOBODY}' not found")));
    assert!(t.put_bool(&format!("/v1/session/destroy/{NOBODY}"), "").await);
    assert_eq!(t.get(&format!("/v1/session/info/{NOBODY}")).await.text().trim(), "[]");
}

pub async fn places_that_do_not_exist(t: &mut Target) {
    let key = t.kv("a");
    for path in ["/v1/nope", "/nope", "/v1/session/list/foo"] {
        assert_eq!(t.get(path).await.status, 404, "{path}");
    }
    // Neither has access control, so there is nothing to log in to.
    for path in ["/v1/acl/login", "/v1/acl/logout"] {
        assert_eq!(t.send("POST", path, Body::Sized(b"{}")).await.status, 401, "{path}");
        assert_eq!(t.put(path, "{}").await.status, 405, "{path}");
    }
    assert_eq!(t.get(&format!("{key}?dc=nope")).await.status, 500);
    assert_eq!(t.put(&format!("{key}?dc=nope"), "x").await.status, 500);
    assert_eq!(t.put("/v1/session/create?dc=nope", "").await.status, 500);
    // Namespaces are Enterprise's.
    assert_eq!(t.get(&format!("{key}?ns=foo")).await.status, 400);
    assert_eq!(t.get("/v1/status/leader").await.status, 200);
    assert_eq!(t.get("/v1/status/peers").await.status, 200);
}
