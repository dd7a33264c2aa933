//! The semaphores and locks below a root. The names of keys show where they are; only their own keys, and the contender keys of a few
//! holders, are read.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Error;
use crate::bridge::{self, Found};
use crate::schema_version::SchemaVersion;
use crate::status::Kind;
use slotkeeper_consul::{self as consul, Client, Indexed, Read, TXN_OPERATIONS};
use slotkeeper_semaphore::contender::{Entry, WaiterState};
use slotkeeper_semaphore::{Failure, FailureKind, NotASemaphore, Pair, Record, plan};

/// The most keys named `.lock` that are read.
pub const MAX_LOCK_KEYS: usize = 10_000;
/// The most other keys that are read below a root to find locks.
pub const MAX_OTHER_KEYS: usize = 1000;
/// The most holders of a semaphore whose contender keys are read.
const MAX_HOLDERS: usize = 64;
/// The most contender keys that are read.
const MAX_CONTENDERS: usize = 1024;

/// The end of the key of a semaphore, and of a lock that `run` or `consul lock` takes.
const LOCK: &str = "/.lock";
/// Characters of a session's id.
const ID_CHARS: usize = 36;

/// A semaphore or lock. No field is ever omitted from its JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// The prefix of a semaphore, or of a lock whose key is `.lock` below it; else the lock's key.
    pub prefix: String,
    /// Which of the two it is.
    pub kind: Kind,
    /// The number of slots; 1 for a lock.
    pub limit: u32,
    /// Slots taken.
    pub taken: u32,
    /// The number of contender keys that are not a holder's; `None` for a lock, whose waiters Consul does not store.
    pub waiting: Option<usize>,
    /// The age of the oldest holder, once it is computed from `since`.
    pub oldest_age_seconds: Option<u64>,
    /// The oldest time stamp of its holders, if all of them have one and were read.
    pub since: Option<String>,
    /// The sessions of its holders, once each.
    #[serde(skip)]
    pub holders: Vec<String>,
}

/// What there is below a root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// The version of the document.
    pub schema_version: SchemaVersion,
    /// The root, if one was given.
    pub root: Option<String>,
    /// The semaphores and locks, in the order of their prefixes.
    pub entries: Vec<Listed>,
    /// Whether something was not read.
    pub truncated: bool,
    /// The rule that would show what Consul hides from the token, if it says that it hides keys.
    pub hidden: Option<String>,
    /// What was not read, in sentences.
    #[serde(skip)]
    pub cut: Vec<String>,
}

/// Reads the semaphores and locks below a root; without one, of all keys.
///
/// # Errors
///
/// [`Error::Failed`].
pub async fn read(client: &Client, root: Option<&str>, read: Read) -> Result<Indexed<Listing>, Error> {
    let folder = root.map(|root| format!("{root}/")).unwrap_or_default();
    let names = names(client, &folder, read).await?;
    let Selection { locks, others, contenders, cut } = Selection::of(&names.value, root.is_some());
    let mut entries = Vec::new();
    for pair in pairs(client, locks).await? {
        let prefix = pair.key.strip_suffix(LOCK).unwrap_or(&pair.key);
        let sessions = contenders.get(prefix).map(Vec::as_slice).unwrap_or_default();
        entries.extend(Listed::of(prefix, &pair, sessions));
    }
    for pair in pairs(client, others).await? {
        // A semaphore's record at another key has no clients.
        entries.extend(Listed::of(&pair.key, &pair, &[]).filter(|one| one.kind == Kind::Lock));
    }
    entries.sort_by(|a, b| a.prefix.cmp(&b.prefix));
    let dated = pairs(client, holders(&entries)).await?.into_iter();
    let since = dated.filter_map(|pair| Some((pair.key, held_since(&pair.value)?))).collect();
    entries.iter_mut().for_each(|one| one.date(&since));
    let hidden = names.filtered.then(|| rule(root, "read"));
    let root = root.map(str::to_owned);
    let truncated = !cut.is_empty();
    let listing = Listing { schema_version: SchemaVersion::default(), root, entries, truncated, hidden, cut };
    Ok(Indexed { index: names.index, filtered: names.filtered, value: listing })
}

/// The keys to read, by the names of all keys.
#[derive(Debug, PartialEq, Eq)]
struct Selection<'k> {
    /// Keys named `.lock`.
    locks: Vec<String>,
    /// Keys that may be locks.
    others: Vec<String>,
    /// The sessions with a contender key, by the prefix.
    contenders: BTreeMap<&'k str, Vec<&'k str>>,
    /// What is not read, in sentences.
    cut: Vec<String>,
}

impl<'k> Selection<'k> {
    /// `with_others`: whether locks may have any key.
    fn of(names: &'k [String], with_others: bool) -> Self {
        let prefixes: BTreeSet<&str> = prefixes(names).collect();
        let mut contenders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let (mut locks, mut others) = (Vec::new(), Vec::new());
        for name in names {
            let (prefix, last) = name.rsplit_once('/').unwrap_or(("", name));
            if last == ".lock" && prefixes.contains(prefix) {
                locks.push(name.clone());
            } else if is_session(last) && prefixes.contains(prefix) {
                contenders.entry(prefix).or_default().push(last);
            } else if with_others && !last.is_empty() {
                others.push(name.clone());
            }
        }
        let mut cut = Vec::new();
        let mut limit = |keys: &mut Vec<String>, max: usize, what: &str| {
            if keys.len() > max {
                let all = keys.len();
                cut.push(format!("only the first {max} of {all} {what} were read; name a ROOT below"));
                keys.truncate(max);
            }
        };
        limit(&mut locks, MAX_LOCK_KEYS, "semaphores and locks");
        limit(&mut others, MAX_OTHER_KEYS, "keys that may be locks");
        Self { locks, others, contenders, cut }
    }
}

impl Listed {
    /// The semaphore or lock that a key holds, with the sessions that have a contender key there; `None` if it is neither.
    fn of(prefix: &str, pair: &Pair, contenders: &[&str]) -> Option<Self> {
        let lock = Self { prefix: prefix.to_owned(), kind: Kind::Lock, limit: 1, ..Self::default() };
        match Record::decode(&pair.value, pair.flags) {
            Ok(record) => {
                let holders: BTreeSet<&str> = record.holders.iter().map(|holder| holder.as_str()).collect();
                let waiting = contenders.iter().filter(|session| !holders.contains(*session)).count();
                Some(Self {
                    kind: Kind::Semaphore,
                    limit: record.limit,
                    taken: record.taken(),
                    waiting: Some(waiting),
                    holders: holders.into_iter().map(str::to_owned).collect(),
                    ..lock
                })
            }
            Err(NotASemaphore::SingleKeyLock) => {
                let owner = pair.session.as_ref();
                let since = owner.and_then(|_| held_since(&pair.value));
                Some(Self { taken: u32::from(owner.is_some()), since, ..lock })
            }
            Err(_) => None,
        }
    }

    /// Sets the time of the oldest holder from the time stamps of contender keys.
    fn date(&mut self, since: &BTreeMap<String, String>) {
        let of_holder = |holder: &String| {
            let written = since.get(&format!("{}/{holder}", self.prefix))?;
            Some((humantime::parse_rfc3339(written).ok()?, written))
        };
        // One without a time stamp may be the oldest.
        let all: Option<Vec<_>> = self.holders.iter().map(of_holder).collect();
        let oldest = all.into_iter().flatten().min().map(|(_, written)| written.clone());
        self.since = oldest.or(self.since.take());
    }
}

/// The time since when a holder holds, as it wrote it. It writes it a moment after its slot was granted by another client.
fn held_since(value: &[u8]) -> Option<String> {
    let entry = Entry::decode(value).filter(|entry| entry.state == WaiterState::Held)?;
    Some(entry.since).filter(|since| !since.is_empty())
}

/// The contender keys of the holders that are read, of the first semaphores.
fn holders(listed: &[Listed]) -> Vec<String> {
    let mut keys = Vec::new();
    for one in listed.iter().filter(|one| one.holders.len() <= MAX_HOLDERS) {
        if keys.len() + one.holders.len() > MAX_CONTENDERS {
            break;
        }
        keys.extend(one.holders.iter().map(|holder| format!("{}/{holder}", one.prefix)));
    }
    keys
}

/// The prefixes of the keys named `.lock`, in the order of the keys.
fn prefixes(names: &[String]) -> impl Iterator<Item = &str> {
    names.iter().filter_map(|name| name.strip_suffix(LOCK)).filter(|prefix| !prefix.is_empty())
}

/// Whether it is the id of a session, as Consul makes them.
fn is_session(text: &str) -> bool {
    text.len() == ID_CHARS && uuid::Uuid::try_parse(text).is_ok()
}

/// The folder with the semaphores and locks that are nearest to a prefix at which there is none, and their prefixes: those below
/// the prefix, else those below the folder that contains it. One request; `None` if there are none.
///
/// # Errors
///
/// [`Error::Failed`].
pub async fn neighbours(client: &Client, prefix: &str) -> Result<Option<(String, Vec<String>)>, Error> {
    let own = format!("{prefix}/");
    let folder = prefix.rsplit_once('/').map_or_else(|| own.clone(), |(folder, _)| format!("{folder}/"));
    let names = names(client, &folder, Read::default()).await?.value;
    let (below, beside): (Vec<_>, Vec<_>) =
        prefixes(&names).map(str::to_owned).partition(|one| one.starts_with(&own));
    let nearest = if below.is_empty() { (folder, beside) } else { (own, below) };
    Ok(Some(nearest).filter(|(_, prefixes)| !prefixes.is_empty()))
}

/// The rule that lets a token read all keys below a root.
fn rule(root: Option<&str>, policy: &str) -> String {
    root.map_or_else(
        || format!("`key_prefix \"\" {{ policy = \"{policy}\" }}`"),
        |root| plan::acl_rule(root, policy),
    )
}

/// The names of the keys that begin with a text.
async fn names(client: &Client, begin: &str, read: Read) -> Result<Indexed<Vec<String>>, Error> {
    client.kv_keys(begin, read).await.map_err(|error| {
        let Failure { kind, text } = bridge::failure(&error);
        let root = begin.strip_suffix('/');
        let text = if bridge::lacks_right(&error) {
            format!("{text}; the token needs {}", rule(root, "list"))
        } else if error.code == consul::Code::BadAnswer {
            format!("{text}; if there are too many keys, name a ROOT below")
        } else {
            text
        };
        Error::Failed(Failure { kind, text })
    })
}

/// The keys that exist, by transactions.
async fn pairs(client: &Client, keys: Vec<String>) -> Result<Vec<Pair>, Error> {
    let mut pairs = Vec::new();
    let mut batches: Vec<Vec<String>> = keys.chunks(TXN_OPERATIONS).rev().map(<[String]>::to_vec).collect();
    while let Some(mut batch) = batches.pop() {
        match bridge::read_many(client, &batch).await {
            Ok(Found::Pairs(found)) => pairs.extend(found),
            // The others exist.
            Ok(Found::Refused(missing)) => {
                let mut nth = 0..;
                batch.retain(|_| !nth.next().is_some_and(|nth| missing.contains(&nth)));
                batches.extend(Some(batch).filter(|batch| !batch.is_empty()));
            }
            // The answer may be too long, or a key may be denied.
            Err(Failure { kind: FailureKind::Rejected | FailureKind::Denied, .. }) if batch.len() > 1 => {
                let rest = batch.split_off(batch.len() / 2);
                batches.extend([rest, batch]);
            }
            Err(Failure { kind: FailureKind::Denied, .. }) => {}
            Err(failure) => return Err(Error::Failed(failure)),
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slotkeeper_semaphore::LOCK_FLAGS;

    const A: &str = "aaaaaaaa-0000-4000-8000-000000000000";
    const B: &str = "bbbbbbbb-0000-4000-8000-000000000000";

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn pair(key: &str, value: &str, flags: u64, session: Option<&str>) -> Pair {
        Pair {
            key: key.into(),
            value: value.into(),
            flags,
            session: session.map(Into::into),
            times_locked: 1,
            create_index: 1,
            modify_index: 2,
        }
    }

    #[test]
    fn keys_are_selected_by_their_names() {
        let own = format!("p/{A}");
        let stray = format!("q/{B}");
        let names =
            names(&[".lock", "/.lock", "p/.lock", &own, "p/secret", "p/deep/.lock", "p/folder/", &stray]);
        let found = Selection::of(&names, false);
        assert_eq!(found.locks, ["p/.lock", "p/deep/.lock"]);
        assert_eq!(found.contenders, BTreeMap::from([("p", vec![A])]));
        assert_eq!((found.others.len(), found.cut.len()), (0, 0));
        let found = Selection::of(&names, true);
        assert_eq!(found.others, [".lock", "/.lock", "p/secret", &stray]);
    }

    #[test]
    fn a_selection_is_bounded_and_says_so() {
        let many: Vec<_> = (0..=MAX_LOCK_KEYS).map(|n| format!("p/{n}/.lock")).collect();
        let found = Selection::of(&many, true);
        assert_eq!((found.locks.len(), found.cut.len()), (MAX_LOCK_KEYS, 1));
        assert!(found.cut[0].contains("10000 of 10001 semaphores and locks"), "{:?}", found.cut);
        let many: Vec<_> = (0..=MAX_OTHER_KEYS).map(|n| format!("p/{n}")).collect();
        let found = Selection::of(&many, true);
        assert_eq!((found.others.len(), found.cut.len()), (MAX_OTHER_KEYS, 1));
        let crowd = |holders: usize| Listed {
            prefix: "p".into(),
            holders: (0..holders).map(|n| n.to_string()).collect(),
            ..Listed::default()
        };
        assert_eq!(holders(&[crowd(MAX_HOLDERS + 1), crowd(2)]), ["p/0", "p/1"]);
        let crowds: Vec<_> = (0..100).map(|_| crowd(MAX_HOLDERS)).collect();
        assert_eq!(holders(&crowds).len(), MAX_CONTENDERS);
    }

    #[test]
    fn a_key_is_recognised_by_its_flags_and_its_value() {
        let record = format!(r#"{{"Limit":3,"Holders":["{A}","{A}"]}}"#);
        let semaphore = Listed::of("p", &pair("p/.lock", &record, 0, None), &[A, B]).unwrap();
        assert_eq!((semaphore.kind, semaphore.limit, semaphore.taken), (Kind::Semaphore, 3, 2));
        assert_eq!((semaphore.waiting, semaphore.since), (Some(1), None));
        let entry = r#"{"slotkeeper":1,"state":"held","slots":1,"since":"2026-01-02T03:04:05Z"}"#;
        let lock = Listed::of("l", &pair("l", entry, LOCK_FLAGS, Some(B)), &[]).unwrap();
        assert_eq!((lock.kind, lock.limit, lock.taken, lock.waiting), (Kind::Lock, 1, 1, None));
        assert_eq!(lock.since.as_deref(), Some("2026-01-02T03:04:05Z"));
        let free = Listed::of("l", &pair("l", entry, LOCK_FLAGS, None), &[]).unwrap();
        assert_eq!((free.taken, free.since), (0, None));
        assert_eq!(Listed::of("p", &pair("p/.lock", "a secret", 0, None), &[]), None);
    }

    #[test]
    fn the_oldest_holder_is_known_if_all_have_a_time_stamp() {
        let record = format!(r#"{{"Limit":3,"Holders":["{B}","{A}"]}}"#);
        let one = Listed::of("p", &pair("p/.lock", &record, 0, None), &[]).unwrap();
        let date = |written: &[(&str, &str)]| {
            let written =
                written.iter().map(|(id, since)| (format!("p/{id}"), (*since).to_owned())).collect();
            let mut one = one.clone();
            one.date(&written);
            one.since
        };
        let (early, late) = ("2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z");
        assert_eq!(date(&[(A, early), (B, late)]).as_deref(), Some(early));
        assert_eq!(date(&[(A, early)]), None);
        assert_eq!(date(&[(A, early), (B, "soon")]), None);
    }
}
