//! Sessions.

use crate::support::http::{self, Body};
use crate::target::Target;

pub async fn a_session_is_created_renewed_and_destroyed(t: &mut Target) {
    let id = t.session(r#"{"Name":"one","TTL":"10s"}"#).await;
    let info = t.get(&format!("/v1/session/info/{id}")).await;
    let shown = info.json();
    assert_eq!(shown[0]["LockDelay"], 15_000_000_000_u64);
    assert_eq!(shown[0]["Behavior"], "release");
    assert_eq!(shown[0]["NodeChecks"][0], "serfHealth");
    // A renewal answers with the entry and changes no index.
    let renewed = t.put(&format!("/v1/session/renew/{id}"), "").await;
    assert_eq!(renewed.json()[0]["ID"], id);
    assert_eq!(t.get(&format!("/v1/session/info/{id}")).await.index(), info.index());
    let upper = id.to_uppercase();
    let renewed = http::put(t.addr(), &format!("/v1/session/renew/{upper}"), "").await;
    assert_eq!(renewed.json()[0]["ID"], id);
    for _ in 0..2 {
        assert!(t.put_bool(&format!("/v1/session/destroy/{id}"), "").await);
    }
    assert_eq!(t.put(&format!("/v1/session/renew/{id}"), "").await.status, 404);
    assert_eq!(t.get(&format!("/v1/session/info/{id}")).await.text().trim(), "[]");
}

pub async fn every_field_is_returned(t: &mut Target) {
    for body in [
        r#"{"Name":"all","TTL":"1.5h","Behavior":"delete","LockDelay":"1m","NodeChecks":["serfHealth"]}"#,
        r#"{"nAmE":"case does not matter","unknown":1}"#,
        r#"{"Name":null,"TTL":null,"Behavior":null,"Node":null,"LockDelay":null}"#,
        r#"{"ID":"not mine to choose"}"#,
        r#"{"TTL":"0s"}"#,
        r#"{"Name":"c"} trailing"#,
        "null",
        "{}",
        "",
    ] {
        show(t, body).await;
    }
    let own = format!(r#"{{"Node":"{}"}}"#, t.node());
    show(t, &own).await;
}

/// Creates a session, has it shown and ends it.
async fn show(t: &mut Target, body: &str) -> serde_json::Value {
    let id = t.session(body).await;
    let shown = t.get(&format!("/v1/session/info/{id}")).await.json();
    t.put(&format!("/v1/session/destroy/{id}"), "").await;
    shown[0].clone()
}

pub async fn a_chunked_body_is_ignored(t: &mut Target) {
    let body = br#"{"Name":"chunked","TTL":"10s","Behavior":"delete"}"#;
    let created = http::request(t.addr(), "PUT", "/v1/session/create", &[], Body::Chunked(body)).await;
    assert_eq!(created.status, 200);
    let id = created.json()["ID"].as_str().unwrap().to_owned();
    t.name_session(&id);
    let shown = t.get(&format!("/v1/session/info/{id}")).await.json();
    assert_eq!(shown[0]["Name"], "");
    assert_eq!(shown[0]["TTL"], "");
    assert_eq!(shown[0]["Behavior"], "release");
}

pub async fn ttls_have_bounds(t: &mut Target) {
    for ttl in ["10s", "24h", "86400s", "10000ms"] {
        assert_eq!(show(t, &format!(r#"{{"TTL":"{ttl}"}}"#)).await["TTL"], ttl);
    }
    for ttl in ["9999ms", "5s", "1ns", "24h0m0.1s", "25h", "-10s", "abc", "10", "1d"] {
        let refused = t.put("/v1/session/create", format!(r#"{{"TTL":"{ttl}"}}"#)).await;
        assert_eq!(refused.status, 500, "{ttl}");
    }
    assert_eq!(t.put("/v1/session/create", r#"{"TTL":15}"#).await.status, 400);
    assert_eq!(t.put("/v1/session/create", r#"{"Behavior":"nope"}"#).await.status, 500);
    show(t, r#"{"Behavior":""}"#).await;
}

pub async fn lock_delays_are_read_as_go_does(t: &mut Target) {
    let second = 1_000_000_000_i64;
    for (given, nanos) in [
        (r#""1s""#, second),
        (r#""0s""#, 0),
        ("0", 0),
        ("20", 20 * second),
        ("999", 999 * second),
        ("1000", 1000),
        ("2000000000", 2 * second),
        ("1.5", second),
        ("-5", -5 * second),
        ("null", 15 * second),
        // The bound of 60 s is applied when it is used, not here.
        (r#""70s""#, 70 * second),
    ] {
        let shown = show(t, &format!(r#"{{"LockDelay":{given}}}"#)).await;
        assert_eq!(shown["LockDelay"], nanos, "{given}");
    }
    assert_eq!(t.put("/v1/session/create", r#"{"LockDelay":"abc"}"#).await.status, 400);
    assert_eq!(t.put("/v1/session/create", r#"{"LockDelay":""}"#).await.status, 400);
    show(t, r#"{"LockDelay":true}"#).await;
}

pub async fn checks_have_two_names(t: &mut Target) {
    let none = show(t, r#"{"NodeChecks":[]}"#).await;
    assert_eq!(none["NodeChecks"].as_array().unwrap().len(), 0);
    let none = show(t, r#"{"Checks":[]}"#).await;
    assert_eq!(none["NodeChecks"].as_array().unwrap().len(), 0);
    for body in [
        r#"{"NodeChecks":null}"#,
        r#"{"Checks":null}"#,
        r#"{"Checks":["serfHealth"]}"#,
        r#"{"Checks":["serfHealth","serfHealth"]}"#,
        r#"{"Checks":[],"NodeChecks":["serfHealth"]}"#,
        r#"{"Checks":["serfHealth"],"NodeChecks":[]}"#,
        r#"{"ServiceChecks":[]}"#,
        r#"{"ServiceChecks":[{"ID":"serfHealth","Namespace":"x"}]}"#,
        r#"{"ServiceChecks":[{"ID":"serfHealth"}]}"#,
    ] {
        show(t, body).await;
    }
    for body in [
        r#"{"Checks":["nope"]}"#,
        r#"{"NodeChecks":["nope"]}"#,
        r#"{"ServiceChecks":[{"ID":"nope"}]}"#,
        r#"{"ServiceChecks":[{}]}"#,
        r#"{"Node":"nope"}"#,
    ] {
        assert_eq!(t.put("/v1/session/create", body).await.status, 500, "{body}");
    }
}

pub async fn sessions_live_on_registered_nodes(t: &mut Target) {
    let on = |more: &str| format!(r#"{{"Node":"Slots-Node","TTL":"10s"{more}}}"#);
    let (bare, checked) = (on(r#","NodeChecks":[]"#), on(""));
    assert_eq!(t.put("/v1/session/create", &bare).await.status, 500, "it is missing");
    for (body, status) in [
        ("", 400),
        ("[]", 400),
        ("null", 500),
        (r#"{"Node":1}"#, 400),
        (r#"{"Address":"127.0.0.1"}"#, 500),
        (r#"{"Node":"slots-node"}"#, 500),
        (r#"{"Node":"slots-node","Address":"127.0.0.1","Datacenter":"nope"}"#, 500),
        (r#"{"Node":"slots-node","Address":"127.0.0.1","SkipNodeUpdate":true}"#, 200),
        // It stays as it is.
        (r#"{"Datacenter":"dc1","Node":"slots-node","Address":"192.0.2.7","SkipNodeUpdate":true}"#, 200),
    ] {
        assert_eq!(t.put("/v1/catalog/register", body).await.status, status, "{body}");
    }
    for (method, status) in [("GET", 405), ("OPTIONS", 200)] {
        assert_eq!(t.send(method, "/v1/catalog/register", Body::None).await.status, status);
    }
    // Consul does not tell names of nodes apart by case.
    assert_eq!(show(t, &bare).await["Node"], "Slots-Node");
    assert_eq!(t.put("/v1/session/create", &checked).await.status, 500, "it has no check");
}

pub async fn lists_show_every_session(t: &mut Target) {
    // What other scenarios left would be in the list.
    for session in http::get(t.addr(), "/v1/session/list").await.json().as_array().unwrap() {
        let id = session["ID"].as_str().unwrap();
        http::put(t.addr(), &format!("/v1/session/destroy/{id}"), "").await;
    }
    let none = t.get("/v1/session/list").await;
    assert_eq!(none.text().trim(), "[]");
    let id = t.session(r#"{"Name":"only"}"#).await;
    let list = t.get("/v1/session/list").await;
    assert!(list.index() > none.index());
    assert_eq!(list.json()[0]["ID"], id);
    let node = format!("/v1/session/node/{}", t.node());
    assert_eq!(t.get(&node).await.json()[0]["ID"], id);
    assert_eq!(t.get("/v1/session/node/nope").await.text().trim(), "[]");
    t.get(&format!("/v1/session/info/{id}?pretty")).await;
    assert!(t.put_bool(&format!("/v1/session/destroy/{id}"), "").await);
    assert!(t.get("/v1/session/list").await.index() > list.index());
}

pub async fn behavior_release_keeps_keys_and_delete_removes_them(t: &mut Target) {
    let release = t.session(r#"{"Behavior":"release"}"#).await;
    let delete = t.session(r#"{"Behavior":"delete"}"#).await;
    for (key, session) in [("r/1", &release), ("r/2", &release), ("d/1", &delete), ("d/2", &delete)] {
        assert!(t.put_bool(&t.kv(&format!("{key}?acquire={session}&flags=7")), "x").await);
    }
    t.put(&t.kv("d/3"), "nobody's").await;
    let before = t.get(&t.kv("r/?recurse")).await.index();
    for session in [&release, &delete] {
        assert!(t.put_bool(&format!("/v1/session/destroy/{session}"), "").await);
    }
    let released = t.get(&t.kv("r/?recurse")).await;
    assert!(released.index() > before);
    assert_eq!(released.json().as_array().unwrap().len(), 2);
    assert!(released.json()[0].get("Session").is_none());
    let left = t.get(&t.kv("d/?recurse")).await;
    assert_eq!(left.json().as_array().unwrap().len(), 1);
    // Both kinds leave a lock-delay, also on keys that are gone.
    let next = t.session("{}").await;
    for key in ["r/1", "d/1"] {
        assert!(!t.put_bool(&t.kv(&format!("{key}?acquire={next}")), "y").await);
        assert!(t.put_bool(&t.kv(key), "a plain write is free").await);
    }
    assert!(t.put_bool(&t.kv(&format!("d/3?acquire={next}")), "y").await);
}
