//! The text of a wait's progress; pure.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::Naming;
use crate::duration::{age, of_seconds};
use crate::escape::{escape_control_chars, printable};
use crate::status::{Entry, Holder, Lock, Mode, Semaphore, State, Status};
use slotkeeper_semaphore::Identity;

/// The most holders that are named.
const NAMED: usize = 2;
/// Characters of a session, for a holder without an identity.
const OF_SESSION: usize = 8;

/// Age in seconds up to which a list of holders is shown without being asked for.
const CURRENT: f64 = 10.0;

/// What a wait is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Nothing to show.
    #[default]
    Nothing,
    /// Required semaphores and locks.
    Missing {
        /// The number of required ones.
        of: usize,
        /// Those that are not held, the longest wait first.
        missing: Vec<Awaited>,
    },
    /// Anything else, in words.
    Else(String),
}

/// A semaphore or a lock with a waiter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// Its name, or its prefix.
    pub name: String,
    /// The time waited.
    pub waited: Duration,
    /// In place of a reason that the log has already.
    pub logged: Option<&'static str>,
    /// The longest time to wait.
    pub limit: Option<Duration>,
    /// Whether all participants were read: before, the queue may be longer, and the holders' identities are unknown.
    pub seen: bool,
    /// The holders may have changed since they were read.
    pub old: bool,
    /// The own position in the queue, from 1, and its length.
    pub place: Option<(u32, u32)>,
    /// The holders that are listed.
    pub holders: Vec<String>,
    /// The number of further holders.
    pub unlisted: usize,
    /// A reason to show.
    pub reason: Option<String>,
}

impl View {
    /// The required semaphores and locks that the agent does not hold.
    pub fn of(status: &Status, naming: Naming) -> Self {
        let semaphores = status.semaphores.iter().map(|one| (&one.entry, Awaited::semaphore(one, naming)));
        let locks = status.locks.iter().map(|one| (&one.entry, Awaited::lock(one, naming)));
        let required = semaphores.chain(locks);
        let required = required.filter(|(entry, _)| entry.required && entry.mode != Mode::OnDemand);
        let (held, missing): (Vec<_>, Vec<_>) = required.partition(|(entry, _)| entry.state == State::Held);
        let of = held.len() + missing.len();
        Self::missing(of, missing.into_iter().map(|(_, awaited)| awaited).collect())
    }

    /// The same, with the longest times to wait, by name.
    pub fn within(self, limits: &BTreeMap<String, Duration>) -> Self {
        self.each(|one| one.limit = limits.get(&one.name).copied())
    }

    fn each(mut self, change: impl FnMut(&mut Awaited)) -> Self {
        if let Self::Missing { missing, .. } = &mut self {
            missing.iter_mut().for_each(change);
        }
        self
    }

    /// The missing ones, the longest wait first.
    pub fn missing(of: usize, mut missing: Vec<Awaited>) -> Self {
        if missing.is_empty() {
            return Self::Nothing;
        }
        missing.sort_by_key(|awaited| std::cmp::Reverse(awaited.waited));
        Self::Missing { of, missing }
    }

    /// The same, with one longest time to wait for all, of which `waited` is over.
    pub fn within_all(self, limit: Option<Duration>, so_far: Duration) -> Self {
        if limit.is_none() {
            return self;
        }
        self.each(|one| (one.limit, one.waited) = (limit, so_far))
    }

    /// In short, for readers of the log, which has each failure and obstacle once.
    pub fn beside_the_log(self) -> Self {
        self.each(|one| one.reason = one.reason.take().map(|why| one.logged.map_or(why, str::to_owned)))
    }

    /// Without holders that may have left meanwhile.
    pub fn current(self) -> Self {
        self.each(|one| {
            if one.old {
                (one.holders, one.unlisted) = (Vec::new(), 0);
            }
        })
    }

    /// Whether holders are left out.
    pub(super) fn is_old(&self) -> bool {
        matches!(self, Self::Missing { missing, .. } if missing.first().is_some_and(|first| first.old))
    }

    /// Time and text: a line that may be cut at its end.
    pub(super) fn line(&self) -> Option<String> {
        let time = self.time().map(|time| format!("{time} · ")).unwrap_or_default();
        Some(format!("{time}{}", self.awaited()?))
    }

    /// The time waited, and the longest time to wait.
    fn time(&self) -> Option<String> {
        let Self::Missing { missing, .. } = self else { return None };
        let first = missing.first()?;
        let limit = first.limit.map(|limit| format!(" of {}", age(limit))).unwrap_or_default();
        Some(format!("{}{limit}", age(first.waited)))
    }

    /// The text for a log, without the time.
    pub(crate) fn entry(&self) -> Option<String> {
        match self {
            Self::Missing { .. } => Some(format!("waiting for {}", self.awaited()?)),
            Self::Nothing => None,
            Self::Else(words) => Some(format!("waiting: {words}")),
        }
    }

    /// The text for a log that has an earlier one of this wait.
    pub(super) fn later_entry(&self) -> Option<String> {
        let time = self.time().map(|time| format!(" ({time} so far)")).unwrap_or_default();
        Some(format!("{}{time}", self.entry()?))
    }

    /// What is missing.
    pub fn awaited(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Missing { of, missing } => {
                Some(format!("{}{}", count(*of, missing.len()), missing.first()?.text()))
            }
            Self::Else(words) => Some(words.clone()),
        }
    }

    /// Whether the next read shows more, so that a log line is better written then.
    pub(super) fn is_vague(&self) -> bool {
        match self {
            Self::Missing { missing, .. } => missing.first().is_some_and(|first| !first.seen),
            Self::Nothing | Self::Else(_) => false,
        }
    }

    /// The part of a view whose change is worth another log line.
    pub(super) fn place(&self) -> Self {
        match self {
            Self::Nothing | Self::Else(_) => self.clone(),
            Self::Missing { of, missing } => {
                let first = missing.first().map(|first| Awaited {
                    name: first.name.clone(),
                    place: first.place.map(|(place, _)| (place, 0)),
                    ..Awaited::default()
                });
                Self::Missing { of: of - missing.len(), missing: first.into_iter().collect() }
            }
        }
    }
}

impl Awaited {
    fn semaphore(one: &Semaphore, naming: Naming) -> Self {
        let mut holders: Vec<_> = one.holders.iter().filter(|holder| !holder.mine).collect();
        // The longest first, and those of unknown age last.
        holders.sort_by(|a, b| b.age_seconds.unwrap_or(-1.0).total_cmp(&a.age_seconds.unwrap_or(-1.0)));
        let named = |holder: &&Holder| who(&holder.session, holder.who.as_ref(), holder.age_seconds);
        Self {
            seen: one.queue_length.is_some(),
            old: one.entry.seen_seconds_ago.is_some_and(|age| age > CURRENT),
            // Before all participants were read, the queue is at least as long as the part before this waiter.
            place: one.position.map(|position| (position, one.queue_length.unwrap_or(position))),
            holders: holders.iter().map(named).collect(),
            unlisted: one.unlisted(),
            ..Self::entry(&one.entry, naming.of(&one.entry.name, &one.prefix))
        }
    }

    fn lock(one: &Lock, naming: Naming) -> Self {
        let leader = one.leader.iter().filter(|leader| !leader.mine);
        Self {
            seen: true,
            holders: leader
                .map(|leader| who(&leader.session, leader.who.as_ref(), leader.age_seconds))
                .collect(),
            ..Self::entry(&one.entry, naming.of(&one.entry.name, &one.key))
        }
    }

    fn entry(one: &Entry, title: &str) -> Self {
        Self {
            name: title.to_owned(),
            waited: duration(one.age_seconds),
            reason: one.reason.clone(),
            logged: if one.state == State::Starting {
                Some("no answer from Consul yet")
            } else {
                Some("blocked").filter(|_| one.state == State::Blocked)
            },
            ..Self::default()
        }
    }

    fn text(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.place.map(|(place, of)| format!("{} of {of} in the queue", ordinal(place))));
        if let Some((first, others)) = self.holders.split_first() {
            let mut held = format!("held by {first}");
            let named = &others[..others.len().min(NAMED - 1)];
            let rest = others.len() - named.len() + self.unlisted;
            for (n, name) in named.iter().enumerate() {
                let is_last = rest == 0 && n + 1 == named.len();
                held.push_str(if is_last { " and " } else { ", " });
                held.push_str(name);
            }
            if rest > 0 {
                held.push_str(&format!(" and {rest} more"));
            }
            parts.push(held);
        }
        parts.extend(self.reason.as_deref().map(|reason| escape_control_chars(&reason.replace('\n', " "))));
        if parts.is_empty() {
            parts.push("not read yet".into());
        }
        format!("{}: {}", printable(&self.name), parts.join(", "))
    }
}

/// A holder in words, and for how long it has held.
fn who(session: &str, who: Option<&Identity>, age_seconds: Option<f64>) -> String {
    let named = who.and_then(Identity::in_words).unwrap_or_else(|| {
        format!("session {}", printable(&session.chars().take(OF_SESSION).collect::<String>()))
    });
    match age_seconds {
        Some(age) => format!("{named} for {}", of_seconds(age)),
        None => named,
    }
}

fn count(of: usize, missing: usize) -> String {
    if of < 2 { String::new() } else { format!("{missing} of {of} missing; ") }
}

fn ordinal(number: u32) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        (_, _) => "th",
    };
    format!("{number}{suffix}")
}

/// The JSON's seconds.
fn duration(seconds: Option<f64>) -> Duration {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writers(holders: &[&str]) -> Awaited {
        Awaited {
            name: "writers".into(),
            waited: Duration::from_secs(130),
            seen: true,
            place: Some((3, 5)),
            holders: holders.iter().map(|name| (*name).to_owned()).collect(),
            ..Awaited::default()
        }
    }

    #[test]
    fn a_line_has_the_time_the_name_and_the_holders() {
        for (holders, expected) in [
            (&[] as &[&str], "2m10s · writers: 3rd of 5 in the queue"),
            (&["a"], "2m10s · writers: 3rd of 5 in the queue, held by a"),
            (&["a", "b"], "2m10s · writers: 3rd of 5 in the queue, held by a and b"),
            (&["a", "b", "c", "d"], "2m10s · writers: 3rd of 5 in the queue, held by a, b and 2 more"),
        ] {
            assert_eq!(View::missing(1, vec![writers(holders)]).line().as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_line_has_the_longest_time_to_wait() {
        let limits = BTreeMap::from([("writers".to_owned(), Duration::from_secs(1800))]);
        let line = View::missing(1, vec![writers(&[])]).within(&limits).line();
        assert_eq!(line.as_deref(), Some("2m10s of 30m · writers: 3rd of 5 in the queue"));
        let line = View::missing(1, vec![writers(&[])]).within(&BTreeMap::new()).line();
        assert_eq!(line.as_deref(), Some("2m10s · writers: 3rd of 5 in the queue"));
        let of_wait =
            |limit| View::missing(1, vec![writers(&[])]).within_all(limit, Duration::from_secs(7)).line();
        let limit = Some(Duration::from_secs(60));
        assert_eq!(of_wait(limit).as_deref(), Some("7s of 1m · writers: 3rd of 5 in the queue"));
        assert_eq!(of_wait(None).as_deref(), Some("2m10s · writers: 3rd of 5 in the queue"));
    }

    #[test]
    fn a_later_line_of_a_log_has_the_time() {
        let view = View::missing(1, vec![writers(&["a"])]);
        let expected = "waiting for writers: 3rd of 5 in the queue, held by a";
        assert_eq!(view.entry().as_deref(), Some(expected));
        assert_eq!(view.later_entry(), Some(format!("{expected} (2m10s so far)")));
        let limits = BTreeMap::from([("writers".to_owned(), Duration::from_secs(1800))]);
        assert_eq!(view.within(&limits).later_entry(), Some(format!("{expected} (2m10s of 30m so far)")));
    }

    #[test]
    fn the_holder_with_the_longest_time_is_named_first() {
        let semaphore = r#"{"name":"s","state":"waiting","required":true,"mode":"hold","slot_indexes":[],"leases":[],
            "queue_length":1,"position":1,"holders":[{"session":"new"},
            {"session":"b","age_seconds":12.7},{"session":"a","age_seconds":11537}]}"#;
        let awaited = Awaited::semaphore(&serde_json::from_str(semaphore).unwrap(), Naming::default());
        let expected = "s: 1st of 1 in the queue, held by session a for 3h12m, session b for 12s and 1 more";
        assert_eq!(awaited.text(), expected);
    }

    #[test]
    fn of_several_it_names_the_one_that_is_waited_for_longest() {
        let lock = Awaited {
            name: "nightly".into(),
            waited: Duration::from_secs(3600),
            reason: Some("something\x1b[2Jis\nwrong".into()),
            ..Awaited::default()
        };
        let view = View::missing(3, vec![writers(&["a"]), lock]);
        let expected = "2 of 3 missing; nightly: something\\u001b[2Jis wrong";
        assert_eq!(view.line(), Some(format!("1h · {expected}")));
        assert_eq!(view.entry(), Some(format!("waiting for {expected}")));
        assert_eq!(View::missing(3, Vec::new()).line(), None);
        let unknown = View::missing(1, vec![Awaited { name: "s\u{202e}".into(), ..Awaited::default() }]);
        assert_eq!(unknown.line().as_deref(), Some("0s · s\\u{202e}: not read yet"));
    }

    #[test]
    fn what_the_log_has_is_not_repeated() {
        let one = |logged| Awaited {
            name: "a".into(),
            reason: Some("refused".into()),
            logged,
            ..Awaited::default()
        };
        let text = |logged| View::missing(1, vec![one(logged)]).beside_the_log().awaited();
        assert_eq!(text(None).as_deref(), Some("a: refused"));
        assert_eq!(text(Some("blocked")).as_deref(), Some("a: blocked"));
    }

    #[test]
    fn only_another_position_is_worth_another_log_line() {
        let view = |place, holders: &[&str]| {
            View::missing(1, vec![Awaited { place: Some(place), ..writers(holders) }])
        };
        assert_eq!(view((3, 5), &["a"]).place(), view((3, 6), &["b", "c"]).place());
        assert_ne!(view((3, 5), &["a"]).place(), view((2, 5), &["a"]).place());
    }

    #[test]
    fn names_are_nothing_that_a_terminal_would_obey() {
        let named = |identity: Identity| who("5e55-10n-1d", Some(&identity), None);
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(named(Identity { pod: some("a\x1b[2J"), ..Identity::default() }), "a\\u{1b}[2J");
        assert_eq!(named(Identity { host: some("vm"), pid: Some(7), ..Identity::default() }), "vm pid 7");
        assert_eq!(who("\x1b]0;x-and-more", None, None), "session \\u{1b}]0;x-an");
    }

    #[test]
    fn numbers_are_read_as_people_say_them() {
        for (number, text) in
            [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (112, "112th"), (121, "121st")]
        {
            assert_eq!(ordinal(number), text);
        }
    }
}
