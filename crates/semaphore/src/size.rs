//! The size of a transaction as it is sent. Consul refuses a transaction that is too large, however often it is retried.
//!
//! The size is that of the JSON request, with the values in base64.

use super::contender::{Entry, Identity, WaiterState};
use super::record::{Form, Record};
use super::{Op, SessionId};

/// Characters of the longest date that is written.
const DATE: usize = "2026-01-02T03:04:05.123456789+00:00".len();

/// The maximum size of a transaction in bytes: Consul's default of `txn_max_req_len`.
pub(super) const MAX_TRANSACTION: usize = 512 * 1024;

/// Bytes of a step besides its key, value and session: names, verb, flags and index.
const STEP: usize = 160;

/// Characters of a session's id.
const SESSION: usize = 36;

/// The maximum limit of a semaphore, and the most slots of one client: a transaction of `MAX_TRANSACTION` has room for as many
/// in either form, with the longest key and body.
pub const MAX_LIMIT: u32 = 5_000;

/// Bytes of a step, or a few more.
pub(super) fn of_step(op: &Op) -> usize {
    let (value, session) = match op {
        Op::Lock { value, session, .. } | Op::Unlock { value, session, .. } => {
            (value.len(), session.as_str().len())
        }
        Op::Cas { value, .. } => (value.len(), 0),
        Op::CheckSession { session, .. } => (0, session.as_str().len()),
        Op::Delete { .. }
        | Op::DeleteCas { .. }
        | Op::CheckIndex { .. }
        | Op::List { .. }
        | Op::CheckNotExists { .. } => (0, 0),
    };
    STEP + of_text(op.key()) + of_value(value) + session
}

/// Bytes of the step that writes `.lock`.
pub(super) fn of_record(record: &Record, key: &str) -> usize {
    STEP + of_text(key) + of_value(record.encode().len())
}

/// Bytes by which a session with that many slots makes the record longer.
pub(super) fn of_holder(form: Form, session: &SessionId, slots: u32) -> usize {
    of_value(holder(form, session.as_str().len()).saturating_mul(slots as usize))
}

/// The transaction by which a session acquires slots of a semaphore: what it has besides the holders in `.lock` and the numbers
/// of the slots.
#[derive(Clone, Copy, Debug)]
pub struct Acquisition {
    form: Form,
    /// Bytes of the steps, without their values.
    steps: usize,
    /// Bytes of the contender entry.
    entry: usize,
}

impl Acquisition {
    /// Of a client with this configuration, with the longest names of pod and host. `together`: the prefixes of its acquire group.
    pub fn configured(form: Form, prefix: &str, body: Option<&str>, together: &[String]) -> Self {
        Self::of(form, prefix, longest_entry(body, together))
    }

    /// Of a client whose contender key has this value as a holder's.
    pub(super) fn by(form: Form, prefix: &str, mut entry: Entry) -> Self {
        (entry.state, entry.since) = (WaiterState::Waiting, "x".repeat(DATE));
        entry.indexes.clear();
        Self::of(form, prefix, entry.encode().len())
    }

    /// Of a client whose contender key has a value of so many bytes, without slot indexes.
    pub(super) fn of(form: Form, prefix: &str, entry: usize) -> Self {
        let contender = of_text(prefix) + 1 + SESSION;
        // `.lock`, and the contender key twice: a leftover is deleted, and the session locks the key.
        let keys = of_text(prefix) + "/.lock".len() + 2 * contender;
        Self { form, steps: 3 * STEP + keys + SESSION, entry: entry + r#""indexes":[],"#.len() }
    }

    /// Whether all of these fit into one transaction: each with the number of holders in its `.lock` afterwards, and the number of acquired
    /// slots.
    pub fn fit_together(parts: impl IntoIterator<Item = (Self, u32, u32)>) -> bool {
        let bytes: usize = parts.into_iter().map(|(part, holders, slots)| part.bytes(holders, slots)).sum();
        bytes <= MAX_TRANSACTION
    }

    /// The size if the slots are added to the record. Hints do not count.
    pub(super) fn beside(self, record: &Record, slots: u32) -> usize {
        let own = holder(record.form(), SESSION).saturating_mul(slots as usize);
        let all = record.taken().saturating_add(slots);
        // The lowest free indexes are granted, so that none is above the number of slots taken.
        let numbers = of_numbers(all).saturating_sub(of_numbers(record.taken()));
        self.steps + of_value(record.bytes() + own) + of_value(self.entry + numbers)
    }

    /// The size if `.lock` lists so many holders and the contender key so many slots.
    fn bytes(self, holders: u32, slots: u32) -> usize {
        const LIMIT: usize = r#"{"Limit":10000,"Holders":[]}"#.len();
        let record = LIMIT + holder(self.form, SESSION).saturating_mul(holders as usize);
        self.steps + of_value(record) + of_value(self.entry + of_numbers(slots))
    }
}

/// Bytes of the largest contender value with that body. Names are as long as Kubernetes, DNS and the kernel allow; in a job's
/// name each character may be escaped.
fn longest_entry(body: Option<&str>, together: &[String]) -> usize {
    const NAME: usize = 253;
    const LABEL: usize = 63;
    const HOST: usize = 64;
    let text = |bytes| Some("x".repeat(bytes));
    let [pod, namespace, node, host] = [NAME, LABEL, NAME, HOST].map(text);
    let [name, command, user] = [(); 3].map(|()| text(2 * Identity::MAX_TEXT));
    let who = Identity { name, command, user, pod, namespace, node, host, pid: Some(u32::MAX) };
    let mut entry = Entry::new(WaiterState::Waiting, MAX_LIMIT, i32::MIN, "x".repeat(DATE), who);
    entry.body = body.map(str::to_owned);
    entry.together = together.to_vec();
    entry.encode().len()
}

/// Bytes of the numbers from 0 to `slots`, with a comma each.
fn of_numbers(slots: u32) -> usize {
    let longer = [10, 100, 1000, 10_000, 100_000].map(|shorter| slots.saturating_sub(shorter) as usize);
    2 * slots as usize + longer.iter().sum::<usize>()
}

/// Bytes of a holder in the record.
pub(super) fn holder(form: Form, session: usize) -> usize {
    session
        + match form {
            Form::List => r#""","#.len(),
            Form::Map => r#""":true,"#.len(),
        }
}

fn of_value(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

fn of_text(text: &str) -> usize {
    // A text always serialises.
    serde_json::to_string(text).map_or(text.len(), |text| text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(form: Form) -> Acquisition {
        Acquisition::configured(form, "service/warehouse/writers", None, &[])
    }

    #[test]
    fn all_that_may_be_configured_fits() {
        // JSON writes each of these characters as six.
        let (prefix, body) = ("\u{1}".repeat(400), "\u{1}".repeat(1024));
        for form in [Form::List, Form::Map] {
            let large = Acquisition::configured(form, &prefix, Some(&body), &[]);
            assert!(Acquisition::fit_together([(large, MAX_LIMIT, MAX_LIMIT)]));
        }
    }

    #[test]
    fn an_entry_names_all_that_is_acquired_together() {
        let together = vec!["p".repeat(400); 16];
        let one = Acquisition::configured(Form::List, "p", None, &together);
        assert!(one.bytes(1, 1) > plain(Form::List).bytes(1, 1) + 16 * 400);
        let part = (plain(Form::List), 5_000, 5_000);
        assert!(Acquisition::fit_together([part]) && !Acquisition::fit_together([part, part]));
    }

    #[test]
    fn what_is_measured_is_what_is_sent() {
        let session = SessionId::from("f".repeat(36));
        let prefix = "p\"".repeat(200);
        let mut record = Record::new(Form::List, 10_000);
        record.holders = vec![session.clone(); 8_800];
        let key = format!("{prefix}/{session}");
        let (state, who) = (WaiterState::Held, Identity { pod: Some("p-1".into()), ..Identity::default() });
        let entry = Entry::new(state, 8_800, 0, String::new(), who);
        let measured = Acquisition::of(Form::List, &prefix, entry.encode().len()).bytes(8_800, 8_800);
        let value = entry.held((0..8_800).collect(), "").encode();
        let steps = of_step(&Op::DeleteCas { key: key.clone(), index: 1 })
            + of_step(&Op::Lock { key, value, flags: 0, session })
            + of_record(&record, &format!("{prefix}/.lock"));
        assert!((steps..steps + 20).contains(&measured), "{steps} {measured}");
    }

    #[test]
    fn a_record_is_measured_with_what_others_have_written_into_it() {
        for holders in [r#"["f","g"]"#, r#"{"f":true,"g":true}"#, "null"] {
            let text = format!(r#"{{"limit":3,"Holders":{holders},"x\n":[1,2],"Next":["h"],"next":{{}}}}"#);
            let mut record = Record::decode(text.as_bytes(), 0).unwrap();
            record.next.clear();
            let (measured, written) = (record.bytes(), record.encode().len());
            assert!((written..written + 20).contains(&measured), "{measured} {written} {text}");
        }
    }

    #[test]
    fn numbers_are_as_long_as_they_are_written() {
        for slots in [0, 1, 9, 10, 11, 99, 100, 101, 12_345] {
            let written: usize = (0..slots).map(|number: u32| number.to_string().len() + 1).sum();
            assert_eq!(of_numbers(slots), written, "{slots}");
        }
    }
}
