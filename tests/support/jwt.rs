//! Bearer tokens of the test's own, for auth methods of the type `jwt`.

use std::time::UNIX_EPOCH;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, SigningKey};
use serde_json::json;

/// Whoever signs them.
pub struct Issuer(KeyPair);

impl Issuer {
    pub fn new() -> Self {
        Self(KeyPair::generate().unwrap())
    }

    /// The auth method `name` that believes this issuer, as Consul is configured with it.
    pub fn auth_method(&self, name: &str) -> serde_json::Value {
        json!({"Name": name, "Type": "jwt", "Config": {
            "JWTValidationPubKeys": [self.0.public_key_pem()], "BoundIssuer": "test",
            "BoundAudiences": ["slotkeeper"], "ClaimMappings": {"sub": "name"},
        }})
    }

    /// A JWT for `audience` that ends in so many seconds; no two are the same.
    pub fn jwt(&self, audience: &str, seconds: i64) -> String {
        let now = slotkeeper::internals::clock::wall().at(slotkeeper::internals::clock::now());
        let now = i64::try_from(now.duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap();
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let claims = json!({
            "iss": "test", "sub": "pod", "aud": audience, "iat": now - 3600, "nbf": now - 3600, "exp": now + seconds,
            "jti": fastrand::u64(..).to_string(),
        });
        let signed = format!("{}.{}", part(json!({"alg": "ES256", "typ": "JWT"})), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(raw(&self.0.sign(signed.as_bytes()).unwrap()));
        format!("{signed}.{signature}")
    }
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
