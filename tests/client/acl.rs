//! ACLs with default deny: refusals, tokens, token files that change.

use std::fs;

use serde_json::Value;
use slotkeeper_consul::{Address, Error, Fault, Kind, Read, Secret, TokenSource, Txn, TxnOp};

use crate::consul::{Consul, Setup};
use crate::support::kv::{Put, put};
use crate::{client, client_with, spec, stub, write};

/// The management token of [`denying`].
const ROOT: &str = "b00757a9-0000-4000-8000-000000000000";

/// A Consul that denies what it does not allow, and its management token.
pub(crate) async fn denying() -> (Consul, String) {
    // The node registers itself with the same token.
    let tokens = format!("tokens {{ master = \"{ROOT}\", agent = \"{ROOT}\" }}");
    let config = format!("acl {{ enabled = true, default_policy = \"deny\", {tokens} }}");
    let setup = Setup { config, token: Some(ROOT.to_owned()), ..Setup::default() };
    (Consul::start_with(setup).await, ROOT.to_owned())
}

/// A token for keys below `jobs/` and for sessions.
pub(crate) async fn worker(address: &Address, root: &str) -> String {
    let rules = r#"key_prefix \"jobs/\" { policy = \"write\" } session_prefix \"\" { policy = \"write\" }"#;
    let policy = format!(r#"{{"Name":"worker","Rules":"{rules}"}}"#);
    let (status, body) = stub::http(address.clone(), "PUT", "/v1/acl/policy".into(), root, &policy).await;
    assert_eq!(status, 200, "{body}");
    token(address, root).await.0
}

/// One more token of that policy: its secret and its accessor.
async fn token(address: &Address, root: &str) -> (String, String) {
    let token = r#"{"Policies":[{"Name":"worker"}]}"#;
    let (status, body) = stub::http(address.clone(), "PUT", "/v1/acl/token".into(), root, token).await;
    assert_eq!(status, 200, "{body}");
    (field(&body, "SecretID"), field(&body, "AccessorID"))
}

fn field(body: &str, name: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    body[name].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_token_opens_what_its_policy_says() {
    let (consul, root) = denying().await;
    let secret = worker(consul.addr(), &root).await;
    let anonymous = client(consul.addr());
    let worker = client_with(consul.addr(), TokenSource::Value(Secret::new(secret.clone())));

    let error = anonymous.kv_get("jobs/a", Read::default()).await.unwrap_err();
    assert!(error.kind == Kind::Denied && error.detail.contains("no token was sent"), "{error}");
    assert!(matches!(anonymous.session_create(&spec()).await, Err(Error { kind: Kind::Denied, .. })));

    let session = worker.session_create(&spec()).await.unwrap();
    assert!(put(&worker, "jobs/a", b"", Put::Acquire(&session), 0).await.unwrap());
    assert_eq!(worker.kv_list("jobs/", Read::consistent()).await.unwrap().value.len(), 1);
    let error = worker.kv_get("else/a", Read::default()).await.unwrap_err();
    assert!(error.kind == Kind::Denied && !format!("{error} {error:?}").contains(&secret), "{error}");
    let ops = [
        TxnOp::Cas { key: "jobs/b".into(), value: Vec::new(), flags: 0, index: 0 },
        TxnOp::Cas { key: "else/b".into(), value: Vec::new(), flags: 0, index: 0 },
    ];
    let Txn::RolledBack(faults) = worker.txn(&ops).await.unwrap() else { panic!("committed") };
    assert_eq!((faults[0].op_index, faults[0].fault), (1, Fault::Denied));
    assert!(!format!("{worker:?}").contains(&secret));
}

#[tokio::test]
async fn a_token_file_is_read_again_after_a_refusal() {
    let (consul, root) = denying().await;
    let secret = worker(consul.addr(), &root).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let client = client_with(consul.addr(), TokenSource::File(file.clone()));

    let error = write(&client, "jobs/a").await.unwrap_err();
    assert!(error.kind == Kind::NotSent && error.token.is_some(), "{error}");

    fs::write(&file, "00000000-dead-beef-0000-000000000000\n").unwrap();
    let error = write(&client, "jobs/a").await.unwrap_err();
    assert!(error.kind == Kind::Denied && error.to_string().contains("token"), "{error}");
    assert!(!format!("{error} {error:?}").contains("dead-beef"), "{error}");

    // Within the second in which the file is not looked at: the refusal is what makes it.
    fs::write(&file, format!("{secret}\n")).unwrap();
    assert!(write(&client, "jobs/a").await.unwrap());
}

#[tokio::test]
async fn a_token_that_is_deleted_is_followed_by_its_successor() {
    let (consul, root) = denying().await;
    worker(consul.addr(), &root).await;
    let (old, accessor) = token(consul.addr(), &root).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, old).unwrap();
    let client = client_with(consul.addr(), TokenSource::File(file.clone()));
    assert!(write(&client, "jobs/a").await.unwrap());

    let path = format!("/v1/acl/token/{accessor}");
    assert_eq!(stub::http(consul.addr().clone(), "DELETE", path, &root, "").await.0, 200);
    fs::write(&file, token(consul.addr(), &root).await.0).unwrap();
    assert!(write(&client, "jobs/a").await.unwrap());
}
