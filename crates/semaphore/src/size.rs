//! The size of a transaction as it is sent. Consul refuses one that is too large as a whole, however often it is retried.
//!
//! The size is that of the JSON request, with the values in base64.

use super::contender::{Entry, Identity, WaiterState};
use super::record::{Form, Record};
use super::{Op, SessionId};

/// Characters of the longest date that is written.
const DATE: usize = "2026-01-02T03:04:05.123456789+00:00".len();

/// Bytes that Consul takes of a transaction (`txn_max_req_len`), unless it is told otherwise.
pub(super) const MAX_TRANSACTION: usize = 512 * 1024;

/// What is written besides the key, the value and the session of a step: names, verb, flags and index.
const STEP: usize = 160;

/// Characters of a session's id.
const SESSION: usize = 36;

/// Slots of a semaphore that any configuration may have.
const MOST: u32 = 10_000;

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
    /// Of whoever is configured so, whatever machine or pod it runs in. `together`: the prefixes whose slots it acquires with it.
    pub fn configured(form: Form, prefix: &str, body: Option<&str>, together: &[String]) -> Self {
        Self::of(form, prefix, longest_entry(body, together))
    }

    /// Of one that has such an entry once it holds.
    pub(super) fn by(form: Form, prefix: &str, mut entry: Entry) -> Self {
        (entry.state, entry.since) = (WaiterState::Waiting, "x".repeat(DATE));
        entry.indexes.clear();
        Self::of(form, prefix, entry.encode().len())
    }

    /// Of one whose entry has so many bytes without numbers.
    pub(super) fn of(form: Form, prefix: &str, entry: usize) -> Self {
        let contender = of_text(prefix) + 1 + SESSION;
        // `.lock`, and the contender's key twice: what lay there goes, and the session locks it.
        let keys = of_text(prefix) + "/.lock".len() + 2 * contender;
        Self { form, steps: 3 * STEP + keys + SESSION, entry: entry + r#""indexes":[],"#.len() }
    }

    /// Whether Consul takes it for so many slots, with nobody else in `.lock`.
    pub fn fits(self, slots: u32) -> bool {
        self.bytes(slots, slots) <= MAX_TRANSACTION
    }

    /// The most slots that one session can have.
    pub fn max_slots(self) -> u32 {
        (1..=MOST).rev().find(|slots| self.fits(*slots)).unwrap_or(1)
    }

    /// The most slots that can all be held, by a session each.
    pub fn max_limit(self) -> u32 {
        (1..=MOST).rev().find(|limit| self.bytes(*limit, 1) <= MAX_TRANSACTION).unwrap_or(1)
    }

    /// Whether Consul takes all of these as one transaction: each with the holders that `.lock` comes to list, and the slots among
    /// them that are acquired.
    pub fn fit_together(parts: impl IntoIterator<Item = (Self, u32, u32)>) -> bool {
        let bytes: usize = parts.into_iter().map(|(part, holders, slots)| part.bytes(holders, slots)).sum();
        bytes <= MAX_TRANSACTION
    }

    /// Bytes, where the slots come to those in the record. Hints do not count.
    pub(super) fn beside(self, record: &Record, slots: u32) -> usize {
        let own = holder(record.form(), SESSION).saturating_mul(slots as usize);
        let all = record.taken().saturating_add(slots);
        // They are the first free ones, so that none is higher than all slots that are taken then.
        let numbers = of_numbers(all).saturating_sub(of_numbers(record.taken()));
        self.steps + of_value(record.bytes() + own) + of_value(self.entry + numbers)
    }

    /// Bytes, where `.lock` comes to list so many holders and the entry so many slots.
    fn bytes(self, holders: u32, slots: u32) -> usize {
        const LIMIT: usize = r#"{"Limit":10000,"Holders":[]}"#.len();
        let record = LIMIT + holder(self.form, SESSION).saturating_mul(holders as usize);
        self.steps + of_value(record) + of_value(self.entry + of_numbers(slots))
    }
}

/// Whether a transaction can give anybody so many slots: what any number that somebody else wrote is measured by.
pub(super) fn can_be_granted(form: Form, slots: u32) -> bool {
    slots <= MOST && Acquisition::of(form, "", 0).fits(slots)
}

/// Bytes of the largest entry with that body. Names are as long as Kubernetes, DNS and the kernel allow.
fn longest_entry(body: Option<&str>, together: &[String]) -> usize {
    const NAME: usize = 253;
    const LABEL: usize = 63;
    const HOST: usize = 64;
    let text = |bytes| Some("x".repeat(bytes));
    let [pod, namespace, node, host] = [NAME, LABEL, NAME, HOST].map(text);
    let who = Identity { pod, namespace, node, host, pid: Some(u32::MAX) };
    let mut entry = Entry::new(WaiterState::Waiting, MOST, i32::MIN, "x".repeat(DATE), who);
    entry.body = body.map(str::to_owned);
    entry.together = together.to_vec();
    // A nonce is as long as a session's id.
    entry.nonce = text(SESSION);
    entry.encode().len()
}

/// Bytes of the numbers from 0 on, so many, with a comma each.
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
    fn a_map_lists_fewer_holders_than_a_list() {
        assert_eq!(plain(Form::List).max_limit(), 10_000);
        assert_eq!(plain(Form::Map).max_limit(), 8_904);
    }

    #[test]
    fn longer_keys_and_bodies_leave_room_for_fewer() {
        let (long, body) = ("p".repeat(400), "x".repeat(1024));
        for form in [Form::List, Form::Map] {
            let large = Acquisition::configured(form, &long, Some(&body), &[]);
            assert!(large.max_limit() < plain(form).max_limit());
            assert!(large.max_slots() < plain(form).max_slots());
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

    #[test]
    fn many_slots_of_one_session_need_their_numbers_too() {
        assert!(plain(Form::List).fits(8_800) && !plain(Form::List).fits(10_000));
        let most = plain(Form::List).max_slots();
        assert!(plain(Form::List).fits(most) && !plain(Form::List).fits(most + 1));
    }
}
