//! Transactions.

use serde_json::json;

use crate::support::http::{self, Body};
use crate::target::Target;

/// A session that no server has.
const NOBODY: &str = "11111111-1111-1111-1111-111111111111";

pub async fn every_writing_verb_applies(t: &mut Target) {
    let s = t.session("{}").await;
    let set =
        t.txn(r#"[{"KV":{"Verb":"set","Key":"{}/a","Value":"aGk=","Flags":16210313421097356768}}]"#).await;
    assert_eq!(set.status, 200);
    assert_eq!(set.json()["Results"][0]["KV"]["Flags"], 16_210_313_421_097_356_768_u64);
    assert!(set.json()["Results"][0]["KV"]["Value"].is_null(), "what was written is not shown");
    t.txn(r#"[{"KV":{"Verb":"set","Key":"{}/a","Value":"aGk=","Flags":16210313421097356768}}]"#).await;
    t.txn(r#"[{"KV":{"Verb":"cas","Key":"{}/b","Index":0,"Value":"aGk="}}]"#).await;
    for value in ["b25l", "b25l", "dHdv"] {
        t.txn(&format!(r#"[{{"KV":{{"Verb":"lock","Key":"{{}}/l","Session":"{s}","Value":"{value}"}}}}]"#))
            .await;
    }
    t.get(&t.kv("l")).await;
    t.txn(r#"[{"KV":{"Verb":"set","Key":"{}/l","Value":"eA=="}}]"#).await;
    t.txn(&format!(r#"[{{"KV":{{"Verb":"unlock","Key":"{{}}/l","Session":"{s}","Value":"eQ=="}}}}]"#)).await;
    t.get(&t.kv("?recurse")).await;
    t.txn(r#"[{"KV":{"Verb":"delete","Key":"{}/a"}},{"KV":{"Verb":"delete","Key":"{}/none"}}]"#).await;
    t.txn(r#"[{"KV":{"Verb":"delete-cas","Key":"{}/none","Index":3}}]"#).await;
    t.txn(r#"[{"KV":{"Verb":"delete-tree","Key":"{}/none"}}]"#).await;
    t.get(&t.kv("?recurse")).await;
    t.txn(r#"[{"KV":{"Verb":"delete-tree","Key":"{}/"}}]"#).await;
    assert_eq!(t.get(&t.kv("?recurse")).await.status, 404);
    // Case of names, null and nothing as values; a session beside a set means nothing.
    t.txn(r#"[{"kv":{"verb":"set","key":"{}/n","value":null}},{"KV":{"Verb":"set","Key":"{}/m"}}]"#).await;
    t.txn(&format!(r#"[{{"KV":{{"Verb":"set","Key":"{{}}/s","Session":"{s}"}}}}]"#)).await;
    t.txn(r#"[{"KV":{"Verb":"set","Key":"{}/x"}},{"KV":{"Verb":"delete-tree","Key":"{}/"}},{"KV":{"Verb":"set","Key":"{}/y"}}]"#)
        .await;
    t.get(&t.kv("?recurse")).await;
    t.get(&t.kv("x")).await;
}

pub async fn every_verb_is_refused_in_its_own_words(t: &mut Target) {
    let holder = t.session("{}").await;
    let other = t.session("{}").await;
    t.put(&t.kv("a"), "x").await;
    t.put(&t.kv(&format!("l?acquire={holder}")), "x").await;
    let key = |key: &str| t.key(key);
    let (a, l, none) = (key("a"), key("l"), key("none"));
    let refused = [
        json!({"Verb": "cas", "Key": a, "Index": 1}),
        json!({"Verb": "cas", "Key": a, "Index": 0}),
        json!({"Verb": "cas", "Key": none, "Index": 7}),
        json!({"Verb": "delete-cas", "Key": a, "Index": 1}),
        json!({"Verb": "delete-cas", "Key": a, "Index": 0}),
        json!({"Verb": "lock", "Key": l, "Session": other}),
        json!({"Verb": "lock", "Key": a}),
        json!({"Verb": "lock", "Key": a, "Session": NOBODY}),
        json!({"Verb": "lock", "Key": a, "Session": "bad"}),
        json!({"Verb": "unlock", "Key": l, "Session": other}),
        json!({"Verb": "unlock", "Key": none, "Session": other}),
        json!({"Verb": "unlock", "Key": l}),
        json!({"Verb": "get", "Key": none}),
        json!({"Verb": "check-session", "Key": l, "Session": other}),
        json!({"Verb": "check-session", "Key": l}),
        json!({"Verb": "check-session", "Key": none, "Session": other}),
        json!({"Verb": "check-index", "Key": a, "Index": 1}),
        json!({"Verb": "check-index", "Key": none, "Index": 1}),
        json!({"Verb": "check-not-exists", "Key": a}),
        json!({"Verb": "nope", "Key": a}),
        json!({"Key": a}),
        json!({"Verb": "set", "Key": ""}),
        json!({"Verb": "get-tree"}),
    ];
    for op in refused {
        let answer = t.put("/v1/txn", json!([{"KV": op}]).to_string()).await;
        assert_eq!(answer.status, 409, "{op}");
        assert!(answer.json()["Results"].is_null(), "{op}");
        assert_eq!(answer.json()["Errors"][0]["OpIndex"], 0, "{op}");
    }
    // A message reports the lock-delay; the write of a single key answers only false.
    t.put(&format!("/v1/session/destroy/{holder}"), "").await;
    let delayed =
        json!([{"KV": {"Verb": "get", "Key": none}}, {"KV": {"Verb": "lock", "Key": l, "Session": other}}]);
    let answer = t.put("/v1/txn", delayed.to_string()).await;
    assert_eq!(answer.status, 409);
    assert!(answer.text().contains("due to lock delay"));
}

pub async fn a_refused_transaction_changes_nothing(t: &mut Target) {
    t.put(&t.kv("a"), "x").await;
    t.put(&t.kv("tree/1"), "x").await;
    let before = t.get(&t.kv("?recurse")).await;
    let answer = t
        .txn(
            r#"[{"KV":{"Verb":"set","Key":"{}/new","Value":"aGk="}},
                {"KV":{"Verb":"delete","Key":"{}/a"}},
                {"KV":{"Verb":"delete-tree","Key":"{}/tree/"}},
                {"KV":{"Verb":"get","Key":"{}/a"}},
                {"KV":{"Verb":"check-not-exists","Key":"{}/new"}},
                {"KV":{"Verb":"nope","Key":"{}/a"}}]"#,
        )
        .await;
    assert_eq!(answer.status, 409);
    // A verb that does not exist is a fault among others in 1.8; newer ones look at nothing else then.
    assert_eq!(answer.json()["Errors"].as_array().unwrap().len(), t.fact(3, 1), "all faults are told");
    let after = t.get(&t.kv("?recurse")).await;
    assert_eq!((after.index(), after.json()), (before.index(), before.json()));
    // A missing key is seen before anything applies, and alone.
    t.txn(r#"[{"KV":{"Verb":"get","Key":"{}/none"}},{"KV":{"Verb":"set","Key":""}}]"#).await;
}

pub async fn checks_and_reads(t: &mut Target) {
    let s = t.session("{}").await;
    for key in ["p/1", "p/2"] {
        t.put(&t.kv(&format!("{key}?acquire={s}")), key).await;
    }
    let index = t.get(&t.kv("p/1")).await.index();
    let tree = t
        .txn(r#"[{"KV":{"Verb":"get-tree","Key":"{}/p/"}},{"KV":{"Verb":"get-tree","Key":"{}/none/"}}]"#)
        .await;
    assert_eq!(tree.json()["Results"].as_array().unwrap().len(), 2);
    t.txn(r#"[{"KV":{"Verb":"get","Key":"{}/p/1"}}]"#).await;
    t.txn(&format!(r#"[{{"KV":{{"Verb":"check-session","Key":"{{}}/p/1","Session":"{s}"}}}}]"#)).await;
    let op = json!([{"KV": {"Verb": "check-index", "Key": t.key("p/1"), "Index": index}}]).to_string();
    let checked = http::put(t.addr(), "/v1/txn", &op).await;
    assert_eq!(checked.status, 200);
    assert_eq!(checked.json()["Results"][0]["KV"]["ModifyIndex"], index);
    t.txn(r#"[{"KV":{"Verb":"check-not-exists","Key":"{}/none"}}]"#).await;
    // With a write among them the answer has another form.
    t.txn(r#"[{"KV":{"Verb":"get","Key":"{}/p/1"}},{"KV":{"Verb":"set","Key":"{}/p/1"}},{"KV":{"Verb":"get","Key":"{}/p/1"}}]"#)
        .await;
    for empty in ["[]", "null", "[{}]", r#"[{"Service":null}]"#] {
        t.put("/v1/txn", empty).await;
    }
    t.put("/v1/txn?stale", "[]").await;
    // Of reads the parameters count, of writes they do not.
    let (read, write) = (
        json!([{"KV": {"Verb": "get", "Key": t.key("p/1")}}]).to_string(),
        json!([{"KV": {"Verb": "set", "Key": t.key("w")}}]).to_string(),
    );
    assert_eq!(t.put("/v1/txn?consistent", &read).await.status, 200);
    assert_eq!(t.put("/v1/txn?consistent&stale", &read).await.status, 400);
    assert_eq!(t.put("/v1/txn?consistent&stale", &write).await.status, 200);
    t.put("/v1/txn?index=5&wait=abc", "[]").await;
}

pub async fn lock_and_cas_together(t: &mut Target) {
    let s = t.session(r#"{"Behavior":"delete"}"#).await;
    let (lock, contender) = (t.key(".lock"), t.key(&s));
    let enter = json!([
        {"KV": {"Verb": "lock", "Key": contender, "Session": s, "Value": "aGk="}},
        {"KV": {"Verb": "cas", "Key": lock, "Index": 0, "Value": "e30="}},
    ]);
    let entered = t.put("/v1/txn", enter.to_string()).await;
    assert_eq!(entered.status, 200);
    let results = entered.json()["Results"].clone();
    assert_eq!(results[0]["KV"]["ModifyIndex"], results[1]["KV"]["ModifyIndex"], "one write, one index");
    let refused = t.put("/v1/txn", enter.to_string()).await;
    assert_eq!(refused.status, 409);
    let index = &results[1]["KV"]["ModifyIndex"];
    let leave = json!([
        {"KV": {"Verb": "cas", "Key": lock, "Index": index, "Value": "W10="}},
        {"KV": {"Verb": "check-session", "Key": contender, "Session": s}},
        {"KV": {"Verb": "delete", "Key": contender}},
    ]);
    let left = http::put(t.addr(), "/v1/txn", leave.to_string()).await;
    assert_eq!(left.status, 200, "{}", left.text());
    let list = t.get(&t.kv("?recurse")).await;
    assert_eq!(list.json().as_array().unwrap().len(), 1);
}

pub async fn operations_are_counted(t: &mut Target) {
    let ops = |count: usize| {
        let op = |n: usize| json!({"KV": {"Verb": "set", "Key": t.key(&n.to_string())}});
        json!((0..count).map(op).collect::<Vec<_>>()).to_string()
    };
    let bound = t.fact(64, 128);
    let (most, more) = (ops(bound), ops(bound + 1));
    assert_eq!(t.put("/v1/txn", most).await.json()["Results"].as_array().unwrap().len(), bound);
    let refused = t.put("/v1/txn", more).await;
    let told = format!("Transaction contains too many operations ({} > {bound})", bound + 1);
    assert_eq!((refused.status, refused.text()), (413, told));
}

pub async fn the_body_has_a_bound(t: &mut Target) {
    let set = |bytes: usize| {
        format!(
            r#"[{{"KV":{{"Verb":"set","Key":"{}","Value":"{}"}}}}]"#,
            t.key("a"),
            "AAAA".repeat(bytes / 3)
        )
    };
    let (fits, large) = (set(380_000), set(400_000));
    assert_eq!(t.put("/v1/txn", fits).await.status, 200);
    assert_eq!(t.put("/v1/txn", &large).await.status, 413);
    assert_eq!(t.send("PUT", "/v1/txn", Body::Chunked(large.as_bytes())).await.status, 413);
}

pub async fn what_is_no_transaction(t: &mut Target) {
    for body in [
        "",
        "junk",
        "{}",
        "5",
        r#"[{"KV":{"Verb":"set","Key":"a","Value":"not base64!"}}]"#,
        r#"[{"KV":{"Verb":"set","Key":"a","Flags":"x"}}]"#,
        r#"[{"KV":{"Verb":"set","Key":"a","Flags":-1}}]"#,
        r#"[{"KV":{"Verb":"cas","Key":"a","Index":"x"}}]"#,
        r#"[{"KV":{"Verb":"set","Key":5}}]"#,
        r#"[{"KV":{"Verb":"set","Key":"a"#,
    ] {
        assert_eq!(t.put("/v1/txn", body).await.status, 400, "{body}");
    }
    assert_eq!(t.txn(r#"[{"KV":{"Verb":"set","Key":"{}/c"}}] trailing"#).await.status, 200);
}
