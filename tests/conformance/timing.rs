//! What takes its time: expiry and lock-delay. These run beside each other on one server.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::http;
use crate::target::{Ended, Target};

const TTL: Duration = Duration::from_secs(10);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(9);

pub async fn a_session_expires_at_twice_its_ttl(t: &mut Target) {
    let began = Instant::now();
    let deletes = t.session(r#"{"TTL":"10s","Behavior":"delete","LockDelay":"1s"}"#).await;
    let releases = t.session(r#"{"TTL":"10s","Behavior":"release","LockDelay":"1s"}"#).await;
    for (key, session) in [("d", &deletes), ("r", &releases)] {
        assert!(t.put_bool(&t.kv(&format!("{key}?acquire={session}")), "x").await);
    }
    let index = t.get(&t.kv("d")).await.index();
    let (_, ended) = t.block(&t.kv("d"), index, Duration::from_secs(60), async {}).await;
    let took = began.elapsed();
    assert_eq!(ended, Ended::Woken, "expiry wakes who waits for the key");
    // Never before the TTL: a lease is built on that. In practice at twice the TTL.
    assert!(took > TTL * 2 - Duration::from_millis(500), "expired after {took:?}");
    assert!(took < TTL * 2 + SLACK, "expired after {took:?}");
    gone(t, &releases).await;
    assert_eq!(t.put(&format!("/v1/session/renew/{deletes}"), "").await.status, 404);
    assert_eq!(t.get(&t.kv("d")).await.status, 404);
    assert!(t.get(&t.kv("r")).await.json()[0].get("Session").is_none());
}

pub async fn a_renewed_session_lives_on(t: &mut Target) {
    let id = t.session(r#"{"TTL":"10s"}"#).await;
    let renew = format!("/v1/session/renew/{id}");
    let mut renewed = Instant::now();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(8)).await;
        renewed = Instant::now();
        assert_eq!(t.put(&renew, "").await.status, 200);
    }
    gone(t, &id).await;
    let took = renewed.elapsed();
    assert!(took > TTL * 2 - Duration::from_millis(500), "expired {took:?} after the last renewal");
    assert!(took < TTL * 2 + SLACK, "expired {took:?} after the last renewal");
}

/// Waits until a session has ended.
async fn gone(t: &mut Target, id: &str) {
    let info = format!("/v1/session/info/{id}");
    let ended = async {
        while http::get(t.addr(), &info).await.text().trim() != "[]" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the session ends");
}

/// How long after the holder's end a key can be locked again.
async fn locked_again_after(t: &mut Target, lock_delay: &str) -> Duration {
    let key = t.kv("lock");
    let first = t.session(&format!("{{{lock_delay}}}")).await;
    let next = t.session("{}").await;
    assert!(t.put_bool(&format!("{key}?acquire={first}"), "1").await);
    let began = Instant::now();
    assert!(t.put_bool(&format!("/v1/session/destroy/{first}"), "").await);
    assert!(t.put_bool(&key, "a plain write is never delayed").await);
    let acquire = format!("{key}?acquire={next}");
    let locked = async {
        while http::put(t.addr(), &acquire, "2").await.json() != true {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        began.elapsed()
    };
    let took = tokio::time::timeout(Duration::from_secs(60), locked).await.expect("a lock-delay ends");
    assert_eq!(t.get(&key).await.json()[0]["Session"], next);
    took
}

pub async fn a_lock_delay_keeps_the_key_free(t: &mut Target) {
    let took = locked_again_after(t, r#""LockDelay":"3s""#).await;
    assert!(took >= Duration::from_millis(2950), "{took:?}");
    assert!(took < Duration::from_secs(3) + SLACK, "{took:?}");
}

pub async fn a_lock_delay_of_zero_is_none(t: &mut Target) {
    let took = locked_again_after(t, r#""LockDelay":"0s""#).await;
    assert!(took < SLACK, "{took:?}");
}

pub async fn the_default_lock_delay_is_15_s(t: &mut Target) {
    let took = locked_again_after(t, "").await;
    assert!(took >= Duration::from_millis(14_900), "{took:?}");
    assert!(took < Duration::from_secs(15) + SLACK, "{took:?}");
}
