//! The value of `<prefix>/.offered`: how long free slots were left to foreign clients, for waiters that join later.
//!
//! It has a key of its own because foreign clients may reject unknown fields in `.lock`. It is written together with `.lock` only.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::SessionId;

/// The total time for which free slots are left to a foreign client. Then the client is passed over until its key changes.
pub const MAX_OFFER: Duration = Duration::from_secs(3);

/// The first time for which a slot is left to a foreign client. Most foreign clients watch the whole prefix and try at once.
pub(super) const FIRST_TURN: Duration = Duration::from_millis(300);

/// The maximum number of stored offers.
pub(super) const MAX_OFFERS: usize = 16;

/// The time for which free slots were left to a foreign client that did not take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The index of its contender key's last change. A changed key makes it another client.
    pub index: u64,
    /// The time, at most [`MAX_OFFER`].
    pub open: Duration,
}

/// The offers by session.
pub type Offers = BTreeMap<SessionId, Offer>;

impl Offer {
    /// Whether the offer was long enough to be stored for other clients.
    pub(super) fn is_worth_storing(&self) -> bool {
        self.open >= MAX_OFFER / 10
    }
}

/// The length of the next turn, after turns of `before` in total: as long as all before. So a client that polls once a second meets a turn
/// that is longer than a second. Short turns might all fall between its polls.
pub(super) fn next_turn(before: Duration) -> Duration {
    before.max(FIRST_TURN).min(MAX_OFFER.saturating_sub(before))
}

/// Decodes the value. An invalid value contains no offer.
pub fn decode(value: &[u8]) -> Offers {
    let offer = |(session, value): (&String, &Value)| {
        let [index, millis] = value.as_array()?.as_slice() else { return None };
        let open = Duration::from_millis(millis.as_u64()?).min(MAX_OFFER);
        Some((SessionId::from(session.as_str()), Offer { index: index.as_u64()?, open }))
    };
    let value: Option<Value> = serde_json::from_slice(value).ok();
    let offers = value.as_ref().and_then(Value::as_object).filter(|map| map.len() <= MAX_OFFERS);
    offers.and_then(|map| map.iter().map(offer).collect()).unwrap_or_default()
}

/// The value to store: for each session its key's index, and milliseconds.
pub fn encode(offers: &Offers) -> Vec<u8> {
    let millis = |offer: &Offer| u64::try_from(offer.open.as_millis()).unwrap_or(u64::MAX);
    let one = |(id, offer): (&SessionId, &Offer)| {
        (id.as_str().to_owned(), Value::from(vec![offer.index, millis(offer)]))
    };
    Value::Object(offers.iter().map(one).collect()).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_back_and_says_nothing_where_it_is_odd() {
        let offer = |index, millis| Offer { index, open: Duration::from_millis(millis) };
        let offers = decode(br#"{"a":[7,900],"b":[9,9999]}"#);
        assert_eq!(offers, BTreeMap::from([("a".into(), offer(7, 900)), ("b".into(), offer(9, 3000))]));
        assert_eq!(encode(&offers), br#"{"a":[7,900],"b":[9,3000]}"#);
        for odd in ["1", "[]", r#"{"a":1}"#, r#"{"a":[1]}"#, r#"{"a":[1,-1]}"#, r#"{"a":[1,1e400]}"#, "{"] {
            assert_eq!(decode(odd.as_bytes()), BTreeMap::new(), "{odd}");
        }
    }
}
