//! A wait in words, and when it is told on standard error.

use std::cmp::Reverse;
use std::time::Duration;

use crate::config::Naming;
use crate::console;
use crate::duration::{age, of_seconds};
use crate::escape::{escape_control_chars, printable};
use crate::status::{Entry, Lock, Mode, Semaphore, State, Status};
use slotkeeper_semaphore::{Identity, Moment};

/// The shortest wait that is told, and the time between two looks until it is; on a terminal also afterwards.
const FIRST: Duration = Duration::from_secs(1);
/// The time between two looks for a line of text, and the longest time without one while the queue is not known.
const LATER: Duration = Duration::from_secs(5);
/// The longest time between two lines of text: many CI systems end a job that prints nothing for ten minutes.
const AGAIN: Duration = Duration::from_secs(5 * 60);
/// How long before a line the holders are read.
const FRESH: Duration = Duration::from_secs(10);

/// The most holders that are named.
const NAMED: usize = 2;
/// Characters of a session, for a holder without an identity.
const OF_SESSION: usize = 8;

/// A wait on standard error: one line that is drawn in place on a terminal, otherwise lines of text.
#[derive(Debug)]
pub struct Wait {
    began: Moment,
    /// The next look.
    next: Moment,
    is_drawn: bool,
    /// What the last line of text was about, and its time.
    told: Option<(String, Moment)>,
}

impl Wait {
    /// `lines`: whether to print lines where none can be drawn.
    pub fn begin(lines: bool, now: Moment) -> Option<Self> {
        let is_drawn = console::can_draw();
        (is_drawn || lines).then_some(Self { began: now, next: now + FIRST, is_drawn, told: None })
    }

    /// When to look again.
    pub fn next(&self) -> Moment {
        self.next
    }

    /// Whether the holders should be read now.
    pub fn reads(&self, now: Moment) -> bool {
        self.is_drawn || self.told.as_ref().is_none_or(|(_, at)| now.since(*at) + FRESH >= AGAIN)
    }

    /// Tells what is due at a look.
    pub fn tell(&mut self, awaited: Option<&Awaited>, now: Moment) {
        if now < self.next {
            return;
        }
        let is_told = self.told.is_some();
        self.next = now + if self.is_drawn || !is_told { FIRST } else { LATER };
        let waited = awaited.map(|one| one.waited).filter(|waited| is_told || *waited > LATER);
        let so_far = waited.map(|waited| format!(" ({} so far)", age(waited))).unwrap_or_default();
        let line = awaited.map(|one| format!("waiting for {}{so_far}", one.text()));
        if self.is_drawn {
            console::draw(line.as_deref());
        } else if let Some((line, awaited)) = line.zip(awaited).filter(|(_, one)| self.is_due(one, now)) {
            self.told = Some((awaited.place(), now));
            console::say(&line);
        }
    }

    /// Whether a line of text is due: at the beginning, at a new position, and now and then.
    fn is_due(&self, awaited: &Awaited, now: Moment) -> bool {
        match &self.told {
            None => awaited.seen || now.since(self.began) >= LATER,
            Some((place, at)) => *place != awaited.place() || now.since(*at) >= AGAIN,
        }
    }
}

/// What a process waits for: of several semaphores and locks, the one that keeps it waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// Its name, or its prefix.
    name: String,
    waited: Duration,
    /// The number of required ones that are missing, and of all required ones.
    missing: (usize, usize),
    /// Its participants are known.
    seen: bool,
    /// It has a free slot, and waits for another one of its group.
    free: bool,
    /// The own position in the queue, from 1, and its length.
    position: Option<(u32, u32)>,
    /// The holders that are listed, and the number of others.
    holders: Vec<String>,
    unlisted: usize,
    reason: Option<String>,
}

impl Awaited {
    /// Of the required semaphores and locks that the agent does not hold, one without a free slot, and of those the one with the
    /// longest wait.
    pub fn of(status: &Status, naming: Naming) -> Option<Self> {
        let semaphores = status.semaphores.iter().map(|one| (&one.entry, Self::semaphore(one, naming)));
        let locks = status.locks.iter().map(|one| (&one.entry, Self::lock(one, naming)));
        let required = semaphores.chain(locks);
        let required = required.filter(|(entry, _)| entry.required && entry.mode != Mode::OnDemand);
        let (held, missing): (Vec<_>, Vec<_>) = required.partition(|(entry, _)| entry.state == State::Held);
        let number = (missing.len(), missing.len() + held.len());
        let first = missing.into_iter().map(|(_, one)| one).min_by_key(|one| (one.free, Reverse(one.waited)));
        first.map(|first| Self { missing: number, ..first })
    }

    /// Something else, and why it is not there.
    pub fn other(name: &str, reason: String) -> Self {
        Self { name: name.to_owned(), seen: true, reason: Some(reason), ..Self::default() }
    }

    fn semaphore(one: &Semaphore, naming: Naming) -> Self {
        let mut holders: Vec<_> = one.holders.iter().filter(|holder| !holder.mine).collect();
        // The longest first, and those of unknown age last.
        holders.sort_by(|a, b| b.age_seconds.unwrap_or(-1.0).total_cmp(&a.age_seconds.unwrap_or(-1.0)));
        let named = holders.iter().map(|one| holder(&one.session, one.who.as_ref(), one.age_seconds));
        let free = one.limit.zip(one.slots_taken).map(|(limit, taken)| limit.saturating_sub(taken));
        Self {
            seen: one.queue_length.is_some(),
            free: free.is_some_and(|free| free >= one.slots),
            // Before all participants were read, the queue is at least as long as the part before this waiter.
            position: one.position.map(|position| (position, one.queue_length.unwrap_or(position))),
            holders: named.collect(),
            unlisted: one.unlisted(),
            ..Self::entry(&one.entry, naming.of(&one.entry.name, &one.prefix))
        }
    }

    fn lock(one: &Lock, naming: Naming) -> Self {
        let leader = one.leader.iter().filter(|leader| !leader.mine);
        let holders = leader.map(|one| holder(&one.session, one.who.as_ref(), one.age_seconds));
        let entry = Self::entry(&one.entry, naming.of(&one.entry.name, &one.key));
        Self { seen: true, holders: holders.collect(), ..entry }
    }

    fn entry(one: &Entry, title: &str) -> Self {
        let waited = one.age_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let waited = waited.unwrap_or_default();
        Self { name: title.to_owned(), waited, reason: one.reason.clone(), ..Self::default() }
    }

    /// The part whose change is worth another line of text.
    fn place(&self) -> String {
        let (missing, of) = self.missing;
        let reason = self.reason.as_ref().filter(|_| of == 0);
        format!("{missing} {} {:?} {:?}", self.name, self.position.map(|(first, _)| first), reason)
    }

    /// Its name, the position, the holders, and what is wrong.
    pub fn text(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.position.map(|(place, of)| format!("{} of {of} in the queue", ordinal(place))));
        parts.extend(list(&self.holders, self.unlisted).map(|holders| format!("held by {holders}")));
        parts.extend(self.reason.as_deref().map(|reason| escape_control_chars(&reason.replace('\n', " "))));
        if parts.is_empty() {
            parts.push("not read yet".into());
        }
        let count = match self.missing {
            (_, 0 | 1) => String::new(),
            (missing, of) => format!("{missing} of {of} missing; "),
        };
        format!("{count}{}: {}", printable(&self.name), parts.join(", "))
    }
}

/// A holder in words, and for how long it has held.
pub fn holder(session: &str, who: Option<&Identity>, age_seconds: Option<f64>) -> String {
    let named = who.and_then(Identity::in_words).unwrap_or_else(|| {
        format!("session {}", printable(&session.chars().take(OF_SESSION).collect::<String>()))
    });
    age_seconds.map(|age| format!("{named} for {}", of_seconds(age))).unwrap_or(named)
}

/// The first holders, and the number of all others. `None` if there is none.
pub fn list(holders: &[String], unlisted: usize) -> Option<String> {
    let named = &holders[..holders.len().min(NAMED)];
    let more = holders.len() - named.len() + unlisted;
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| named.join(", ") + &more)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(semaphores: &[&str]) -> Awaited {
        let status = format!(
            r#"{{"agent":{{"version":"1","state":"running","ready":false}},"session":null,"semaphores":[{}]}}"#,
            semaphores.join(",")
        );
        Awaited::of(&serde_json::from_str(&status).unwrap(), Naming::Name).unwrap()
    }

    fn semaphore(name: &str, more: &str) -> String {
        format!(
            r#"{{"name":"{name}","state":"waiting","required":true,"mode":"hold","slot_indexes":[],"leases":[],"slots":1{more}}}"#
        )
    }

    #[test]
    fn the_holder_with_the_longest_time_is_named_first() {
        let holders = r#","queue_length":5,"position":3,"age_seconds":130,"holders":[{"session":"new"},
            {"session":"b","age_seconds":12.7},{"session":"a","age_seconds":11537}]"#;
        let expected = "s: 3rd of 5 in the queue, held by session a for 3h12m, session b for 12s and 1 more";
        assert_eq!(of(&[&semaphore("s", holders)]).text(), expected);
        assert_eq!(of(&[&semaphore("s\u{202e}", r#","holders":[]"#)]).text(), "s\\u{202e}: not read yet");
    }

    #[test]
    fn of_several_one_that_has_no_free_slot_is_named_and_then_the_longest_wait() {
        let taken = |taken: u32, age: u32| {
            format!(r#","holders":[],"limit":1,"slots_taken":{taken},"age_seconds":{age},"position":1"#)
        };
        let named = |free: u32, first: u32, second: u32| {
            let (a, b) = (semaphore("a", &taken(free, first)), semaphore("b", &taken(1, second)));
            of(&[&a, &b]).text()
        };
        assert_eq!(named(0, 9, 9), "2 of 2 missing; b: 1st of 1 in the queue");
        assert_eq!(named(1, 9, 8), "2 of 2 missing; a: 1st of 1 in the queue");
        assert_eq!(named(1, 8, 9), "2 of 2 missing; b: 1st of 1 in the queue");
    }

    #[test]
    fn a_line_is_due_when_the_queue_is_known_at_a_new_position_and_every_five_minutes() {
        let at = |seconds| Moment::from_boot(Duration::from_secs(seconds));
        let mut wait = Wait { began: at(100), next: at(101), is_drawn: false, told: None };
        let vague = Awaited { name: "s".into(), ..Awaited::default() };
        let seen = Awaited { seen: true, position: Some((2, 3)), ..vague.clone() };
        assert!(!wait.is_due(&vague, at(104)) && wait.is_due(&vague, at(105)) && wait.is_due(&seen, at(101)));
        assert!(wait.reads(at(101)));
        wait.told = Some((seen.place(), at(101)));
        let longer = Awaited { position: Some((2, 4)), holders: vec!["a".into()], ..seen.clone() };
        let moved = Awaited { position: Some((1, 4)), ..longer.clone() };
        assert!(
            !wait.is_due(&longer, at(400)) && wait.is_due(&longer, at(401)) && wait.is_due(&moved, at(106))
        );
        assert!(!wait.reads(at(390)) && wait.reads(at(391)));
    }

    #[test]
    fn names_are_nothing_that_a_terminal_would_obey() {
        let named = |identity: Identity| holder("5e55-10n-1d", Some(&identity), None);
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(named(Identity { pod: some("a\x1b[2J"), ..Identity::default() }), "a\\u{1b}[2J");
        assert_eq!(named(Identity { host: some("vm"), pid: Some(7), ..Identity::default() }), "vm pid 7");
        assert_eq!(holder("\x1b]0;x-and-more", None, None), "session \\u{1b}]0;x-an");
        let reason = Awaited::other("agent", "something\x1b[2Jis\nwrong".into());
        assert_eq!(reason.text(), "agent: something\\u001b[2Jis wrong");
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
