//! Login by the `jwt` auth method, whose keys are made here.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, SigningKey};
use serde_json::json;
use slotkeeper::consul::{Error, Put, Secret, TokenSource};

use crate::acl::{denying, worker};
use crate::{client, stub};

/// A JWT for `audience` that ends in so many seconds.
fn jwt(key: &KeyPair, audience: &str, seconds: i64) -> Secret {
    let now =
        slotkeeper::clock::wall().at(slotkeeper::clock::now()).duration_since(UNIX_EPOCH).unwrap().as_secs()
            as i64;
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({"iss": "test", "sub": "pod", "aud": audience, "iat": now - 3600, "nbf": now - 3600, "exp": now + seconds});
    let signed = format!("{}.{}", part(json!({"alg": "ES256", "typ": "JWT"})), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(raw(&key.sign(signed.as_bytes()).unwrap()));
    Secret::new(format!("{signed}.{signature}"))
}

/// The two numbers of an ECDSA signature, 32 bytes each, out of their DER.
fn raw(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let length = usize::from(rest[1]);
        let number = &rest[2..2 + length];
        let number = &number[length.saturating_sub(32)..];
        numbers.extend(std::iter::repeat_n(0, 32 - number.len()).chain(number.iter().copied()));
        rest = &rest[2 + length..];
    }
    numbers
}

#[tokio::test]
async fn a_login_gives_a_token_and_a_logout_ends_it() {
    let (consul, root) = denying().await;
    worker(consul.addr(), &root).await;
    let key = KeyPair::generate().unwrap();
    for (path, body) in [
        ("role", json!({"Name": "worker", "Policies": [{"Name": "worker"}]})),
        (
            "auth-method",
            json!({"Name": "kube", "Type": "jwt", "Config": {"JWTValidationPubKeys": [key.public_key_pem()],
                "BoundIssuer": "test", "BoundAudiences": ["slotkeeper"], "ClaimMappings": {"sub": "name"}}}),
        ),
        ("binding-rule", json!({"AuthMethod": "kube", "BindType": "role", "BindName": "worker"})),
    ] {
        let path = format!("/v1/acl/{path}");
        let (status, said) = stub::http(consul.addr().clone(), "PUT", path, &root, &body.to_string()).await;
        assert_eq!(status, 200, "{said}");
    }
    let client = client(consul.addr());
    let meta = BTreeMap::from([("pod".to_owned(), "a".to_owned())]);
    let login = client.login("kube", &jwt(&key, "slotkeeper", 60), &meta).await.unwrap();
    assert!(!format!("{login:?}").contains(login.secret.expose()));
    let known = client.with_token(&TokenSource::Value(login.secret)).unwrap();
    assert!(known.kv_put("jobs/a", b"", Put::Plain, 0).await.unwrap());
    known.logout().await.unwrap();
    assert!(matches!(known.kv_put("jobs/a", b"", Put::Plain, 0).await, Err(Error::Denied { .. })));

    let stranger = KeyPair::generate().unwrap();
    for (method, bearer) in [
        ("kube", jwt(&key, "someone", 60)),
        ("kube", jwt(&key, "slotkeeper", -600)),
        ("kube", jwt(&stranger, "slotkeeper", 60)),
        ("kube", Secret::new("no-jwt-at-all")),
        ("none", jwt(&key, "slotkeeper", 60)),
    ] {
        let error = client.login(method, &bearer, &meta).await.unwrap_err();
        assert!(
            matches!(error, Error::Denied { .. }) && error.to_string().contains("auth method"),
            "{error}"
        );
        assert!(!format!("{error} {error:?}").contains(bearer.expose()));
    }
}
