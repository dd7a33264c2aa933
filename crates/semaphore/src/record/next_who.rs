//! The identities of the waiters in the handoff list, as `.lock` has them: `{"0f3a91c2":["import","vm",4711]}`, or in a pod
//! `{"0f3a91c2":["import","batch","loader-7"]}`. Each is paid for by every read and write of `.lock`, so the form is short.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Identity, SessionId};

/// Characters by which the field names a session: its whole id would double the field's size.
const SHORT_ID: usize = 8;

/// The job's name; the pod's namespace, or the host; and the rest.
#[derive(Deserialize, Serialize)]
struct Brief(Option<String>, Option<String>, Place);

#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Place {
    Pid(u32),
    Pod(String),
    Unknown,
}

impl From<Identity> for Brief {
    fn from(Identity { name, pod, namespace, host, pid, .. }: Identity) -> Self {
        match pod {
            Some(pod) => Self(name, namespace, Place::Pod(pod)),
            None => Self(name, host, pid.map_or(Place::Unknown, Place::Pid)),
        }
    }
}

impl From<Brief> for Identity {
    fn from(Brief(name, place, rest): Brief) -> Self {
        let name = Self { name, ..Self::default() };
        match rest {
            Place::Pod(pod) => Self { pod: Some(pod), namespace: place, ..name },
            Place::Pid(pid) => Self { host: place, pid: Some(pid), ..name },
            Place::Unknown => Self { host: place, ..name },
        }
    }
}

/// The field's value for these sessions; `None` if nothing is known of them.
pub(super) fn encode(next: &[SessionId], known: &BTreeMap<String, Identity>) -> Option<Value> {
    let brief = |who: &Identity| Brief::from(who.clone());
    let of = |session| Some((short_id(session), brief(known.get(short_id(session))?)));
    let who: BTreeMap<_, _> = next.iter().filter_map(of).collect();
    // Texts and numbers always serialise.
    serde_json::to_value(&who).ok().filter(|_| !who.is_empty())
}

/// The identities of the sessions in the list. Any client may have written them, and a handoff repeats them: they are bounded.
pub(super) fn decode(value: Value, next: &[SessionId]) -> BTreeMap<String, Identity> {
    let found: BTreeMap<String, Brief> = serde_json::from_value(value).unwrap_or_default();
    let named = |short: &String| next.iter().any(|session| short_id(session) == short);
    let found = found.into_iter().filter(|(short, _)| named(short));
    found.map(|(short, who)| (short, Identity::from(who).brief())).collect()
}

/// The beginning of a session's id.
pub(super) fn short_id(session: &SessionId) -> &str {
    let id = session.as_str();
    id.char_indices().nth(SHORT_ID).map_or(id, |(end, _)| &id[..end])
}
