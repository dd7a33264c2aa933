//! The dialect of 1.22 by itself: every scenario's own facts, and what that dialect says, word for word. Needs no Consul.

use serde_json::json;
use slotkeeper_consul_dev::Dialect;

use crate::support::http::{self, Body};
use crate::target::{Indexes, Target};
use crate::{Scenario, embedded};

/// A session that no server has.
const NOBODY: &str = "11111111-1111-1111-1111-111111111111";

async fn holds(scenarios: Vec<Scenario>) {
    let server = embedded(Dialect::V1_22);
    for (name, scenario) in scenarios {
        let mut target = Target::new(name, Indexes::Ranked, Dialect::V1_22, server.addr()).await;
        scenario(&mut target).await;
    }
}

#[tokio::test]
async fn the_newer_dialect_has_the_facts_of_every_scenario() {
    holds(crate::keys_scenarios()).await;
    holds(crate::session_scenarios()).await;
    holds(crate::txn_scenarios()).await;
    holds(crate::refusal_scenarios()).await;
    holds(crate::blocking_scenarios()).await;
}

#[tokio::test]
async fn errors_have_the_words_of_1_22() {
    let server = embedded(Dialect::V1_22);
    let addr = server.addr();
    http::put(addr, "/v1/kv/a", "x").await;
    let read = http::get(addr, "/v1/kv/a").await;
    assert_eq!(read.header("x-consul-default-acl-policy"), Some("allow"));
    assert_eq!(read.header("x-consul-query-backend"), Some("blocking-query"));
    assert_eq!(read.header("x-consul-results-filtered-by-acls"), None);
    let this = http::get(addr, "/v1/agent/self").await.json();
    assert_eq!(this["Config"]["Version"], "1.22.0");
    let moved = http::get(addr, "/v1/kv/a//b?x=1&y=2").await;
    assert_eq!((moved.status, moved.header("location")), (307, Some("/v1/kv/a/b?x=1&y=2")));
    assert_eq!(moved.text(), "<a href=\"/v1/kv/a/b?x=1&amp;y=2\">Temporary Redirect</a>.\n\n");
    for (body, said) in [
        (r#"{"Node":"nope"}"#, "apply failed: Missing node registration"),
        (r#"{"Checks":["nope"]}"#, "apply failed: Missing check 'nope' registration"),
        (r#"{"TTL":"5s"}"#, "Invalid Session TTL '5000000000', must be between [10s=24h0m0s]"),
        (
            r#"{"TTL":15}"#,
            "Request decode failed: json: cannot unmarshal number into Go struct field .Alias.TTL of type string",
        ),
    ] {
        assert_eq!(http::put(addr, "/v1/session/create", body).await.text(), said);
    }
    for (query, said) in [
        (format!("acquire={NOBODY}"), format!("raft apply failed: invalid session \"{NOBODY}\"")),
        ("acquire=bad".to_owned(), "raft apply failed: invalid session \"bad\"".to_owned()),
        ("release=".to_owned(), "raft apply failed: missing session".to_owned()),
    ] {
        let refused = http::put(addr, &format!("/v1/kv/a?{query}"), "x").await;
        assert_eq!((refused.status, refused.text()), (500, said));
    }
}

#[tokio::test]
async fn refused_transactions_have_the_words_of_1_22() {
    let server = embedded(Dialect::V1_22);
    let txn = async |op: serde_json::Value| {
        let body = json!([{"KV": {"Verb": "get", "Key": "none"}}, {"KV": op}]).to_string();
        let answer = http::put(server.addr(), "/v1/txn", body).await;
        assert_eq!(answer.status, 409);
        assert_eq!(answer.header("content-type"), Some("application/json; charset=utf-8"));
        answer
    };
    // Neither is evaluated in its turn: the missing key is not reported.
    for (op, what) in [
        (json!({"Verb": "nope", "Key": "a"}), "unknown KV operation: nope"),
        (json!({"Verb": "get-tree", "Key": ""}), "Must provide key"),
    ] {
        let answer = txn(op).await;
        assert_eq!(answer.header("x-consul-knownleader"), Some("false"));
        assert_eq!(
            answer.json(),
            json!({
                "Results": null, "Errors": [{"OpIndex": 1, "What": what}],
                "Index": 0, "LastContact": 0, "KnownLeader": false, "ConsistencyLevel": "",
                "NotModified": false, "Backend": 0, "ResultsFilteredByACLs": false
            })
        );
    }
    let answer = txn(json!({"Verb": "lock", "Key": "a", "Session": "bad"})).await;
    assert_eq!(answer.json()["Errors"][1]["What"], "invalid session \"bad\"");
    let read = http::put(server.addr(), "/v1/txn", "[]").await;
    assert_eq!(
        read.json(),
        json!({
            "Results": [], "Errors": null, "Index": 1, "LastContact": 0, "KnownLeader": true,
            "ConsistencyLevel": "", "NotModified": false, "Backend": 0, "ResultsFilteredByACLs": false
        })
    );
}

#[tokio::test]
async fn the_older_dialect_can_be_asked_for() {
    let server = embedded(Dialect::V1_8);
    let this = http::get(server.addr(), "/v1/agent/self").await;
    assert_eq!(this.json()["Config"]["Version"], "1.8.7");
    assert_eq!(this.header("x-consul-default-acl-policy"), None);
    assert_eq!(http::get(server.addr(), "/v1/kv/a//b").await.status, 301);
    let options = http::request(server.addr(), "OPTIONS", "/v1/kv/a", &[], Body::None).await;
    assert_eq!(options.header("content-type"), None);
}
