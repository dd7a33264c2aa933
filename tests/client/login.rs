//! Login by the `jwt` auth method, whose keys are made here, and the client that logs in by itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use slotkeeper_consul::{
    Address, AuthMethod, Client, Code, Error, Kind, Operation, Read, Secret, Settings, TokenSource,
};

use crate::acl::{denying, worker};
use crate::consul::Consul;
use crate::stub::{Act, Stub};
use crate::support::jwt::Issuer;
use crate::{Recorder, client, client_with, stub};

/// A Consul that gives the rights of [`worker`] to a bearer token of the issuer.
async fn with_auth_method() -> (Consul, String, Issuer) {
    let (consul, root) = denying().await;
    worker(consul.addr(), &root).await;
    let issuer = Issuer::new();
    for (path, body) in [
        ("role", json!({"Name": "worker", "Policies": [{"Name": "worker"}]})),
        ("auth-method", issuer.auth_method("kube")),
        ("binding-rule", json!({"AuthMethod": "kube", "BindType": "role", "BindName": "worker"})),
    ] {
        let path = format!("/v1/acl/{path}");
        let (status, said) = stub::http(consul.addr().clone(), "PUT", path, &root, &body.to_string()).await;
        assert_eq!(status, 200, "{said}");
    }
    (consul, root, issuer)
}

/// The accessors of the tokens that came of logins.
async fn tokens(consul: &Consul, root: &str) -> Vec<String> {
    let (_, said) = stub::http(consul.addr().clone(), "GET", "/v1/acl/tokens".into(), root, "").await;
    let tokens: Vec<Value> = serde_json::from_str(&said).unwrap();
    let logged_in = tokens.iter().filter(|token| token["AuthMethod"] == "kube");
    logged_in.map(|token| token["AccessorID"].as_str().unwrap().to_owned()).collect()
}

fn source(bearer: &Path) -> TokenSource {
    let meta = BTreeMap::from([("pod".to_owned(), "a".to_owned())]);
    TokenSource::Login(AuthMethod { name: "kube".into(), bearer_token_file: bearer.into(), meta })
}

/// A client that logs in by itself, and what it has asked.
pub(crate) fn logging_in(address: &Address, bearer: &Path) -> (Client, Arc<Recorder>) {
    let recorder = Arc::<Recorder>::default();
    let settings =
        Settings { address: address.clone().into(), token: Some(source(bearer)), ..Settings::default() };
    (Client::new(&settings, Arc::<Recorder>::clone(&recorder)).unwrap(), recorder)
}

pub(crate) fn count(recorder: &Recorder, operation: Operation) -> usize {
    recorder.seen().iter().filter(|(seen, _)| *seen == operation).count()
}

pub(crate) async fn write(client: &Client) -> Result<bool, Error> {
    crate::write(client, "jobs/a").await
}

/// Writes until `done`, within half a minute.
async fn write_until(client: &Client, done: impl Fn() -> bool) {
    for _ in 0..300 {
        assert!(write(client).await.unwrap());
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("waited in vain");
}

#[tokio::test]
async fn a_login_gives_a_token_and_a_logout_ends_it() {
    let (consul, _, issuer) = with_auth_method().await;
    let client = client(consul.addr());
    let meta = BTreeMap::from([("pod".to_owned(), "a".to_owned())]);
    let bearer = |audience, seconds| Secret::new(issuer.jwt(audience, seconds));
    let login = client.login("kube", &bearer("slotkeeper", 60), &meta).await.unwrap();
    assert!(!format!("{login:?}").contains(login.secret.expose()));
    let known = client.with_token(&TokenSource::Value(login.secret)).unwrap();
    assert!(write(&known).await.unwrap());
    known.logout().await.unwrap();
    assert!(matches!(write(&known).await, Err(Error { kind: Kind::Denied, .. })));

    let stranger = Secret::new(Issuer::new().jwt("slotkeeper", 60));
    for (method, bearer, said) in [
        ("kube", bearer("someone", 60), "does not believe the bearer token"),
        ("kube", bearer("slotkeeper", -600), "does not believe the bearer token"),
        ("kube", stranger, "does not believe the bearer token"),
        ("kube", Secret::new("no-jwt-at-all"), "does not believe the bearer token"),
        ("none", bearer("slotkeeper", 60), "there is no auth method of this name"),
    ] {
        let error = client.login(method, &bearer, &meta).await.unwrap_err();
        assert!(error.kind == Kind::Denied && error.to_string().contains(said), "{error}");
        assert!(!format!("{error} {error:?}").contains(bearer.expose()));
    }
    let plain = Consul::start().await;
    let error =
        crate::client(plain.addr()).login("kube", &bearer("slotkeeper", 60), &meta).await.unwrap_err();
    assert!(error.kind == Kind::Denied && error.to_string().contains("ACLs turned off"), "{error}");
}

#[tokio::test]
async fn many_requests_cause_one_login_and_the_end_leaves_no_token() {
    let (consul, root, issuer) = with_auth_method().await;
    let folder = tempfile::tempdir().unwrap();
    let bearer = folder.path().join("jwt");
    fs::write(&bearer, format!("{}\n", issuer.jwt("slotkeeper", 600))).unwrap();
    let (client, recorder) = logging_in(consul.addr(), &bearer);
    // Nothing is asked before it is needed.
    client.log_out_for_good().await.unwrap();
    assert_eq!(recorder.seen(), []);

    let (client, recorder) = logging_in(consul.addr(), &bearer);
    let writes = (0..20).map(|_| write(&client));
    assert!(futures_util::future::join_all(writes).await.into_iter().all(|written| written.unwrap()));
    assert_eq!((count(&recorder, Operation::Login), tokens(&consul, &root).await.len()), (1, 1));
    client.log_out_for_good().await.unwrap();
    assert_eq!(tokens(&consul, &root).await, [""; 0]);
    // No login follows the end.
    assert!(matches!(write(&client).await, Err(Error { kind: Kind::Denied, .. })));
    assert_eq!(count(&recorder, Operation::Login), 1);
}

#[tokio::test]
async fn a_token_that_was_deleted_has_a_successor_within_the_request() {
    let (consul, root, issuer) = with_auth_method().await;
    let folder = tempfile::tempdir().unwrap();
    let bearer = folder.path().join("jwt");
    fs::write(&bearer, issuer.jwt("slotkeeper", 600)).unwrap();
    let (client, recorder) = logging_in(consul.addr(), &bearer);
    assert!(write(&client).await.unwrap());
    for accessor in tokens(&consul, &root).await {
        let path = format!("/v1/acl/token/{accessor}");
        assert_eq!(stub::http(consul.addr().clone(), "DELETE", path, &root, "").await.0, 200);
    }
    // A second has to pass before a token is taken for one that may be replaced.
    let mut written = write(&client).await;
    for _ in 0..300 {
        if written.is_ok() {
            break;
        }
        assert!(matches!(written, Err(Error { kind: Kind::Denied, .. })), "{written:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        written = write(&client).await;
    }
    assert!(written.unwrap());
    assert_eq!((count(&recorder, Operation::Login), tokens(&consul, &root).await.len()), (2, 1));
}

#[tokio::test]
async fn another_bearer_token_earns_another_login_and_a_bad_one_costs_nothing() {
    let (consul, root, issuer) = with_auth_method().await;
    let folder = tempfile::tempdir().unwrap();
    let bearer = folder.path().join("jwt");
    fs::write(&bearer, issuer.jwt("slotkeeper", 600)).unwrap();
    let (client, recorder) = logging_in(consul.addr(), &bearer);
    assert!(write(&client).await.unwrap());
    let first = tokens(&consul, &root).await;
    fs::write(&bearer, issuer.jwt("slotkeeper", 600)).unwrap();
    write_until(&client, || count(&recorder, Operation::Logout) == 1).await;
    let second = tokens(&consul, &root).await;
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");

    // The old token is still sent, and the new bearer token is not tried again and again.
    fs::write(&bearer, issuer.jwt("someone", 600)).unwrap();
    write_until(&client, || recorder.seen().contains(&(Operation::Login, Code::ServerError))).await;
    for _ in 0..20 {
        assert!(write(&client).await.unwrap());
    }
    assert!(count(&recorder, Operation::Login) < 10, "{:?}", recorder.seen());
    assert_eq!(tokens(&consul, &root).await, second);
}

#[tokio::test]
async fn the_error_of_a_login_is_reported_and_shared() {
    let (consul, _, issuer) = with_auth_method().await;
    let folder = tempfile::tempdir().unwrap();
    let bearer = folder.path().join("jwt");
    let (client, recorder) = logging_in(consul.addr(), &bearer);
    let error = write(&client).await.unwrap_err();
    assert_eq!(error.kind, Kind::Denied);
    let said = error.to_string();
    for part in [
        "cannot commit a transaction on jobs/a",
        "nothing was sent: cannot log in by kube",
        "jwt cannot be read: No such file",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(recorder.seen(), []);

    // One rejected login fails all waiting requests.
    let jwt = issuer.jwt("someone", 600);
    fs::write(&bearer, &jwt).unwrap();
    let (client, recorder) = logging_in(consul.addr(), &bearer);
    for error in futures_util::future::join_all((0..10).map(|_| write(&client))).await {
        let error = error.unwrap_err();
        assert!(error.kind == Kind::Denied && error.token.is_some(), "{error}");
        assert!(error.to_string().contains("does not believe the bearer token"), "{error}");
        assert!(!format!("{error} {error:?}").contains(&jwt), "{error}");
    }
    assert_eq!(count(&recorder, Operation::Login), 1);

    // Consul away is what it is without a login, too.
    let (_ports, nobody) = crate::consul::nobody();
    let (client, _) = logging_in(&nobody.parse().unwrap(), &bearer);
    assert_eq!(write(&client).await.unwrap_err().code, Code::Unreachable);
}

#[tokio::test]
async fn a_right_that_is_lacking_is_no_reason_to_log_in_again_at_once() {
    let (consul, _, issuer) = with_auth_method().await;
    let folder = tempfile::tempdir().unwrap();
    let bearer = folder.path().join("jwt");
    fs::write(&bearer, issuer.jwt("slotkeeper", 600)).unwrap();
    let (client, recorder) = logging_in(consul.addr(), &bearer);
    for _ in 0..30 {
        let error = client.kv_get("else/a", Read::default()).await.unwrap_err();
        assert!(error.kind == Kind::Denied && error.to_string().contains("auth method kube"), "{error}");
    }
    assert_eq!(count(&recorder, Operation::Login), 1);
}

#[tokio::test]
async fn a_token_is_replaced_before_it_expires() {
    let login = |name: &str, times: &str| {
        Act::json(200, &format!(r#"{{"AccessorID":"{name}","SecretID":"secret-{name}"{times}}}"#))
    };
    let two_seconds =
        r#","CreateTime":"2026-11-21T11:00:00.5+01:00","ExpirationTime":"2026-11-21T10:00:02.5Z""#;
    let stub = Stub::start(vec![login("one", two_seconds), Act::committed()]).await;
    let folder = tempfile::tempdir().unwrap();
    let bearer = folder.path().join("jwt");
    fs::write(&bearer, "word").unwrap();
    let (client, recorder) = logging_in(&stub.addr(), &bearer);
    // From the second on the answers are not logins, so the old token is still sent.
    write_until(&client, || count(&recorder, Operation::Login) >= 2).await;
    assert!(write(&client).await.unwrap());
    let sent = stub.seen();
    assert!(
        sent[0].contains(r#""BearerToken":"word""#) && !sent[0].contains("x-consul-token"),
        "{}",
        sent[0]
    );
    assert!(sent[1].to_lowercase().contains("x-consul-token: secret-one"), "{}", sent[1]);
}

#[tokio::test]
async fn a_login_goes_on_with_another_clients_certificates() {
    let (consul, _, issuer) = with_auth_method().await;
    let folder = tempfile::tempdir().unwrap();
    let bearer = folder.path().join("jwt");
    fs::write(&bearer, issuer.jwt("slotkeeper", 600)).unwrap();
    let (old, asked) = logging_in(consul.addr(), &bearer);
    assert!(write(&old).await.unwrap());
    let (new, asked_anew) = logging_in(consul.addr(), &bearer);
    assert!(write(&new.in_place_of(&old)).await.unwrap());
    let other = client_with(consul.addr(), source(&folder.path().join("other"))).in_place_of(&old);
    assert!(matches!(write(&other).await, Err(Error { kind: Kind::Denied, .. })), "it is another login");
    assert_eq!(count(&asked, Operation::Login) + count(&asked_anew, Operation::Login), 1);
}
