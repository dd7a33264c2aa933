//! The client that logs in by itself, against a Consul that leaves logins and logouts without an answer, or refuses them.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slotkeeper_consul::{
    AuthMethod, Client, Code, Error, Kind, Observer, Read, Settings, TokenSource, Tried,
};
use tempfile::TempDir;

use crate::client_with;
use crate::login::{logging_in, write};
use crate::stub::{Act, Stub};

/// Longer than a login is waited for.
const WITHIN: Duration = Duration::from_secs(8);

/// What Consul says of a token that was deleted.
const UNKNOWN: &str = "ACL not found";

fn token(name: &str, life: &str) -> String {
    format!(r#"{{"AccessorID":"{name}","SecretID":"secret-{name}"{life}}}"#)
}

fn gives(name: &str) -> Act {
    Act::json(200, &token(name, ""))
}

/// A token that is to be replaced after a second or two.
fn gives_for_short(name: &str) -> Act {
    let life = r#","CreateTime":"2026-11-21T10:00:00Z","ExpirationTime":"2026-11-21T10:00:02Z""#;
    Act::json(200, &token(name, life))
}

/// A server with given answers to the nth login, from 1 on, to the logout, and to all other requests.
async fn consul(
    login: impl Fn(usize) -> Act + Send + Sync + 'static,
    logout: Act,
    else_: impl Fn(&str) -> Act + Send + Sync + 'static,
) -> Stub {
    let logins = AtomicUsize::new(0);
    Stub::choosing(move |_, request| {
        if request.contains("/v1/acl/login") {
            login(logins.fetch_add(1, Ordering::Relaxed) + 1)
        } else if request.contains("/v1/acl/logout") {
            logout.clone()
        } else {
            else_(request)
        }
    })
    .await
}

fn done() -> Act {
    Act::json(200, "true")
}

fn bearer() -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let bearer = folder.path().join("jwt");
    fs::write(&bearer, "word").unwrap();
    (folder, bearer)
}

/// Whether something of this kind was asked with the token `name`.
fn asked(stub: &Stub, what: &str, name: &str) -> bool {
    stub.seen().iter().any(|request| request.contains(what) && request.contains(&format!("secret-{name}")))
}

async fn wait_for(what: &str, is_so: impl AsyncFn() -> bool) {
    for _ in 0..600 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("waited in vain for {what}");
}

#[tokio::test]
async fn a_login_without_an_answer_is_given_up_and_sent_again() {
    let first = |nth| if nth == 1 { Act::Silence } else { gives("two") };
    let stub = consul(first, done(), |_| Act::committed()).await;
    let (_folder, bearer) = bearer();
    let (client, _) = logging_in(&stub.addr(), &bearer);
    let client = client.within(WITHIN);
    let error = write(&client).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 5s"), "{error}");
    wait_for("the second login", async || write(&client).await.is_ok()).await;
    assert!(asked(&stub, "/v1/txn", "two"));
}

#[tokio::test]
async fn a_logout_without_an_answer_delays_no_request() {
    // The second token is refused, so that a third one is needed while the first one's logout hangs.
    let login = |nth: usize| gives(["one", "two", "three"][nth.min(3) - 1]);
    let refuse = |request: &str| {
        if request.contains("secret-two") { Act::json(403, UNKNOWN) } else { Act::committed() }
    };
    let stub = consul(login, Act::Silence, refuse).await;
    let (_folder, bearer) = bearer();
    let (client, _) = logging_in(&stub.addr(), &bearer);
    let client = client.within(WITHIN);
    assert!(write(&client).await.unwrap());
    fs::write(&bearer, "another word").unwrap();
    wait_for("the third token", async || {
        // While the second one is young there is no third one for it.
        if let Err(error) = write(&client).await {
            let said = error.to_string();
            assert!(said.contains(UNKNOWN) && !said.contains("another login failed"), "{error}");
        }
        asked(&stub, "/v1/txn", "three")
    })
    .await;
}

#[tokio::test]
async fn the_end_ends_the_token_though_a_login_has_no_answer() {
    let login = |nth| if nth == 1 { gives_for_short("one") } else { Act::Silence };
    let stub = consul(login, done(), |_| Act::committed()).await;
    let (_folder, bearer) = bearer();
    let (client, _) = logging_in(&stub.addr(), &bearer);
    let logins = || stub.seen().iter().filter(|request| request.contains("/v1/acl/login")).count();
    wait_for("another login", async || {
        assert!(write(&client).await.unwrap());
        logins() >= 2
    })
    .await;
    let error = client.within(Duration::from_millis(500)).log_out_for_good().await.unwrap_err();
    assert!(error.to_string().starts_with("cannot log in by kube"), "{error}");
    assert!(asked(&stub, "/v1/acl/logout", "one"));
}

#[tokio::test]
async fn a_token_that_is_gone_needs_no_logout() {
    let stub = consul(|_| gives("one"), Act::json(403, UNKNOWN), |_| Act::committed()).await;
    let (_folder, bearer) = bearer();
    let (client, _) = logging_in(&stub.addr(), &bearer);
    assert!(write(&client).await.unwrap());
    client.log_out_for_good().await.unwrap();
}

#[tokio::test]
async fn a_refusal_is_returned_whatever_the_outcome_of_another_login() {
    for again in [Act::json(403, "Permission denied"), Act::Silence] {
        let hangs = matches!(again, Act::Silence);
        let login = move |nth| if nth == 1 { gives("one") } else { again.clone() };
        let stub = consul(login, done(), |_| Act::json(403, UNKNOWN)).await;
        let (_folder, bearer) = bearer();
        let (client, _) = logging_in(&stub.addr(), &bearer);
        let client = client.within(Duration::from_secs(3));
        let said = Mutex::new(String::new());
        wait_for("another login", async || {
            let error = write(&client).await.unwrap_err();
            // A first login under way counts for no refusal: it is a server on a busy machine.
            let text = error.to_string();
            assert!(error.kind == Kind::Denied && text.contains(UNKNOWN), "{error}");
            assert!(!text.contains("nothing was sent") && !text.contains("all the same"), "{error}");
            let again = text.contains("and another login failed: cannot log in by kube");
            *said.lock().unwrap() = text;
            again
        })
        .await;
        let why = if hangs { "no answer within" } else { "no binding rule" };
        assert!(said.lock().unwrap().contains(why), "{said:?}");
    }
}

/// Remembers the logins that failed.
#[derive(Default)]
struct Reported(Mutex<Vec<(String, bool)>>);

impl Observer for Reported {
    fn finished(&self, _: &Tried, _: Code, _: Duration) {}

    fn login_failed(&self, error: &Error, has_token: bool) {
        self.0.lock().unwrap().push((error.to_string(), has_token));
    }
}

#[tokio::test]
async fn a_failed_login_is_reported_when_its_reason_changes() {
    let login = |nth| match nth {
        1 => gives_for_short("one"),
        2 | 3 => Act::json(500, "No cluster leader"),
        _ => Act::json(403, "Permission denied"),
    };
    let stub = consul(login, done(), |_| Act::committed()).await;
    let (_folder, bearer) = bearer();
    let told = Arc::<Reported>::default();
    let method = AuthMethod {
        name: "kube".into(),
        bearer_token_file: bearer,
        meta: std::collections::BTreeMap::new(),
    };
    let token = Some(TokenSource::Login(method));
    let settings = Settings { address: stub.addr().into(), token, ..Settings::default() };
    let client = Client::new(&settings, Arc::<Reported>::clone(&told)).unwrap();
    wait_for("the second reason", async || {
        assert!(write(&client).await.unwrap());
        told.0.lock().unwrap().len() >= 2
    })
    .await;
    let told = told.0.lock().unwrap().clone();
    assert!(told.len() == 2 && told.iter().all(|(_, has_token)| *has_token), "{told:?}");
    assert!(told[0].0.contains("no leader") && told[1].0.contains("no binding rule"), "{told:?}");
}

#[tokio::test]
async fn a_hidden_answer_is_asked_for_again_with_another_token() {
    // The file is looked at every second at most: on a machine that is too busy the first request has the new one.
    for _ in 0..30 {
        let hides = |_: usize, request: &str| match request {
            _ if request.contains("X-Consul-Token: new") || request.contains("x-consul-token: new") => {
                Act::json(200, "[]")
            }
            _ if request.starts_with("PUT") => Act::committed(),
            _ => Act::answer(200, "X-Consul-Index: 7\r\nX-Consul-Results-Filtered-By-ACLs: true\r\n", "[]"),
        };
        let stub = Stub::choosing(hides).await;
        let (_folder, file) = bearer();
        let client = client_with(&stub.addr(), TokenSource::File(file.clone()));
        assert!(write(&client).await.unwrap());
        assert!(client.kv_list("jobs/", Read::default()).await.unwrap().filtered);
        fs::write(&file, "new").unwrap();
        assert!(!client.kv_list("jobs/", Read::default()).await.unwrap().filtered);
        if stub.seen().len() == 4 {
            return;
        }
    }
    panic!("the file was always read before it was needed");
}
