//! The value of a slotkeeper contender key, `<prefix>/<session>`: what other agents need of its owner, and text for operators.

use serde::{Deserialize, Serialize};

use super::printable;
use super::settings::MAX_LIMIT;

/// The version of the format. A reader accepts any version up to its own, and takes a newer one for a foreign client.
const VERSION: u32 = 1;

/// The maximum size in bytes of a waiter's value without its slot indexes. A transaction writes several contender keys of other clients
/// beside a `.lock` of any size. A larger value is taken for a foreign client's. A holder's value is written by nobody else, and is of any
/// size.
pub const MAX_BYTES: usize = 16 * 1024;

/// The maximum size of a slot index, with its comma.
const INDEX_BYTES: usize = 5;

/// The state of a participant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaiterState {
    /// In the queue.
    #[default]
    Waiting,
    /// In `.lock`, by another client's write that its owner has not accepted yet. Nothing runs on such a slot.
    Offered,
    /// In `.lock`.
    Held,
}

/// The identity of a participant, for people who look at the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The job's name: that of `run --name`, or of its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The command that it runs, if its file name is not the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The operating system's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The pod's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The pod's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The host's name, in a container the container's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The agent's process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

impl Identity {
    /// The maximum size of a job's name, a command and a user in bytes.
    pub const MAX_TEXT: usize = 100;

    /// The maximum size in bytes of each name in [`Self::in_words`].
    const MAX_WORD: usize = 100;

    /// The identity for logs, hooks and the status: each name is cut and printable. Any client may have written it.
    #[must_use]
    pub fn shown(&self) -> Self {
        let cut = |text: &Option<String>, most| text.as_deref().map(|text| printable(text, most));
        let [name, command, user] =
            [&self.name, &self.command, &self.user].map(|text| cut(text, Self::MAX_TEXT));
        // The longest names that Kubernetes and DNS have.
        let [pod, node, host] = [&self.pod, &self.node, &self.host].map(|name| cut(name, 253));
        let namespace = cut(&self.namespace, 63);
        Self { name, command, user, pod, namespace, node, host, pid: self.pid }
    }

    /// A short printable text, such as `import on vm pid 763` or `import batch/loader-7`; without a job's name `vm pid 763` or
    /// `batch/loader-7`. `None` if the identity has no name.
    ///
    /// It is the one form in which a participant is named to people.
    pub fn in_words(&self) -> Option<String> {
        let text = |text: &String| printable(text, Self::MAX_WORD);
        let name = self.name.as_ref().map(text);
        let (place, preposition) = match (&self.pod, &self.namespace, &self.host, self.pid) {
            (Some(pod), Some(namespace), ..) => (format!("{}/{}", text(namespace), text(pod)), ""),
            (Some(pod), None, ..) => (text(pod), ""),
            (None, _, Some(host), Some(pid)) => (format!("{} pid {pid}", text(host)), "on "),
            (None, _, Some(host), None) => (text(host), "on "),
            (None, _, None, _) => return name,
        };
        Some(name.map_or(place.clone(), |name| format!("{name} {preposition}{place}")))
    }
}

/// The decoded value of a slotkeeper client's contender key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Marks the value as slotkeeper's, with its version.
    pub(crate) slotkeeper: u32,
    /// The state of its owner.
    pub state: WaiterState,
    /// Slots its owner takes or wants.
    pub slots: u32,
    /// The numbers of the slots that its owner holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<u32>,
    /// A higher priority is served first.
    #[serde(default)]
    pub priority: i32,
    /// The prefixes of its owner's acquire group; empty if it is in none. No other client can grant slots to a member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub together: Vec<String>,
    /// The time of the last change of the state, RFC 3339; for people.
    #[serde(default)]
    pub since: String,
    /// The identity of its owner.
    #[serde(default)]
    pub who: Identity,
    /// Text from the configuration, for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Whether its owner was asked for a sign of life, as it did not accept an offer, or stands behind one that did not. It answers by removing
    /// the mark. Until then, waiters behind it are served first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
    /// The fencing token of an accepted offer: the index of the write that made it. A holder without one took its slots itself, and its
    /// token is the index of that write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The number of waiters that one write granted slots, if there were several: they are likely to leave at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<u32>,
    /// The operator that evicts its owner. The owner stops its workload and then leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicted_by: Option<String>,
}

impl Entry {
    /// An entry of this version.
    pub fn new(state: WaiterState, slots: u32, priority: i32, since: String, who: Identity) -> Self {
        Self { slotkeeper: VERSION, state, slots, priority, since, who, ..Self::default() }
    }

    /// The same entry with slots that are offered to its owner, and a date for people.
    #[must_use]
    pub fn offered(self, slots: u32, indexes: Vec<u32>, since: &str) -> Self {
        Self { state: WaiterState::Offered, slots, indexes, since: since.to_owned(), asked: false, ..self }
    }

    /// The same entry of a waiter that is asked for a sign of life.
    #[must_use]
    pub fn asked(self) -> Self {
        Self { state: WaiterState::Waiting, indexes: Vec::new(), asked: true, beside: None, ..self }
    }

    /// Whether the two are equal, apart from the time.
    pub fn agrees(&self, other: &Self) -> bool {
        *self == Self { since: self.since.clone(), ..other.clone() }
    }

    /// Decodes a contender's value; `None` for a foreign client's, which is opaque.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let entry: Self = serde_json::from_slice(value).ok()?;
        let indexes = entry.indexes.len().min(MAX_LIMIT as usize) * INDEX_BYTES;
        let fits = entry.state == WaiterState::Held || value.len() <= MAX_BYTES + indexes;
        (entry.slotkeeper <= VERSION && fits).then_some(entry)
    }

    /// Whether a later version of slotkeeper wrote a contender's value.
    pub fn is_newer(value: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Mark {
            slotkeeper: u32,
        }
        serde_json::from_slice(value).is_ok_and(|Mark { slotkeeper }| slotkeeper > VERSION)
    }

    /// The value to store.
    pub fn encode(&self) -> Vec<u8> {
        // A struct of texts and numbers always serialises.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let who = Identity { pod: Some("p-1".into()), pid: Some(7), ..Identity::default() };
        let mut entry = Entry::new(WaiterState::Held, 2, 5, "2026-01-02T03:04:05Z".into(), who);
        entry.body = Some("nightly".into());
        entry.evicted_by = Some("root@vm".into());
        assert_eq!(Entry::decode(&entry.encode()), Some(entry));
    }

    #[test]
    fn an_identity_in_words_is_the_job_and_its_place() {
        let some = |text: &str| Some(text.to_owned());
        let none = Identity::default;
        let vm = || Identity { host: some("vm"), pid: Some(763), user: some("root"), ..none() };
        let pod = || Identity { pod: some("loader-7"), node: some("n1"), ..vm() };
        let namespace = some("batch");
        for (identity, expected) in [
            (vm(), Some("vm pid 763")),
            (Identity { name: some("import"), ..vm() }, Some("import on vm pid 763")),
            (Identity { name: some("import"), pid: None, ..vm() }, Some("import on vm")),
            (pod(), Some("loader-7")),
            (Identity { namespace: namespace.clone(), ..pod() }, Some("batch/loader-7")),
            (Identity { name: some("import"), ..pod() }, Some("import loader-7")),
            (Identity { name: some("import"), namespace, ..pod() }, Some("import batch/loader-7")),
            (Identity { name: some("import"), ..none() }, Some("import")),
            (
                Identity { name: some("a\r"), host: some("vm\u{1b}[2J"), ..none() },
                Some("a\\r on vm\\u{1b}[2J"),
            ),
            (Identity { user: some("root"), pid: Some(7), node: some("n1"), ..none() }, None),
        ] {
            assert_eq!(identity.in_words().as_deref(), expected);
        }
    }

    #[test]
    fn the_fields_of_an_identity_are_bounded() {
        let long = || Some("\u{1b}".repeat(400));
        let identity = Identity {
            name: long(),
            command: long(),
            user: long(),
            pod: long(),
            namespace: long(),
            node: long(),
            host: long(),
            pid: Some(u32::MAX),
        };
        let bytes = |identity: &Identity| serde_json::to_string(identity).unwrap().len();
        assert!(bytes(&identity.shown()) < 1500);
    }

    #[test]
    fn a_waiters_value_is_bounded_apart_from_its_slot_indexes() {
        let of = |state, text: usize| {
            let who = Identity { pod: Some("n".repeat(text)), ..Identity::default() };
            Entry::new(state, 1, 0, String::new(), who)
        };
        let is_read = |entry: &Entry| Entry::decode(&entry.encode()).as_ref() == Some(entry);
        assert!(is_read(&of(WaiterState::Waiting, 15_000)) && !is_read(&of(WaiterState::Waiting, 17_000)));
        let most = (0..MAX_LIMIT).collect();
        assert!(is_read(&of(WaiterState::Waiting, 3000).offered(MAX_LIMIT, most, "")));
        assert!(!is_read(&of(WaiterState::Offered, 17_000)));
        assert!(is_read(&of(WaiterState::Held, 100_000)), "nobody else writes it");
    }

    #[test]
    fn foreign_values_are_opaque() {
        for value in [&b""[..], b"null", b"\"text\"", b"{}", br#"{"state":"held","slots":1}"#, b"\xff"] {
            assert_eq!(Entry::decode(value), None);
        }
        let newer = br#"{"slotkeeper":2,"state":"held","slots":1}"#;
        assert_eq!(Entry::decode(newer), None);
        assert!(Entry::is_newer(newer) && Entry::is_newer(br#"{"slotkeeper":2,"state":"unheard-of"}"#));
        assert!(!Entry::is_newer(br#"{"slotkeeper":1,"state":"held","slots":1}"#) && !Entry::is_newer(b"2"));
    }
}
