//! Plans for arbitrary keys and values under a prefix.

use std::time::Duration;

use slotkeeper_consul::TXN_OPERATIONS;
use slotkeeper_semaphore::plan::{self, Leave, Me, Memory, Next, Plan, Standing, Write};
use slotkeeper_semaphore::{
    Form, Identity, LimitPolicy, LockKeyState, Moment, OnLost, Op, Pair, Primitive, Record, SessionId,
    Settings, Sightings, View,
};

use super::{assert_harmless, record};

const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));
/// The own session.
const ME: &str = "me";
/// Writes after which a planner whose keys only it changes has nothing left to do.
const ROUNDS: u64 = 200;

/// Takes lines: how one plans (see [`Options`]), the value of `.lock` (none where it is empty), and a key each, as its name, a
/// space and its value. A key is locked by the session of its name; `name*` by no session, `name@other` by another.
///
/// A waiter, a holder, a release and a change of the limit by such keys come to an end, grant no slot above the limit, overwrite
/// nothing that is no semaphore, and stay within the limits of a transaction.
pub fn plan(data: &[u8]) {
    let mut lines = data.splitn(200, |byte| *byte == b'\n');
    let options = Options::of(lines.next().unwrap_or_default());
    let pairs = pairs(options.kind, lines);
    let (who, session, sightings) = (Identity::default(), SessionId::from(ME), Sightings::default());
    let settings = options.settings();
    let me = Me {
        session: &session,
        settings: &settings,
        who: &who,
        now: NOW,
        wall: "",
        together: None,
        holds: &[],
        had: options.had,
    };
    let memory = Memory {
        sightings: &sightings,
        set_limit: options.sets_limit,
        yields_until: options.acts.then_some(NOW),
        ends_soon: options.acts,
        lost_race: options.lost_race,
        settled_at: None,
        delayed_until: None,
        held_since: options.had.then_some(Moment::from_boot(Duration::ZERO)),
        confirms: true,
    };
    let held = follow(pairs.clone(), options.scope, |view| {
        let plan = plan::hold(view, me, memory);
        says(&plan);
        Ok(match plan.next {
            Next::Write(write) => Step::Write(write),
            Next::Read(_) => Step::Read,
            Next::Wait(_) | Next::Yield(_) => Step::End,
        })
    });
    follow(held, options.scope, |view| {
        Ok(match plan::leave(view, me, &sightings) {
            Leave::Write(write) => Step::Write(write),
            Leave::Read(_) => Step::Read,
            Leave::Gone => Step::End,
        })
    });
    follow(pairs, Scope::All, |view| {
        let write = plan::set_limit(view, options.limit.into(), "", NOW)?;
        Ok(write.map_or(Step::End, Step::Write))
    });
}

/// What a plan asks for.
enum Step {
    Write(Write),
    /// A view of all keys.
    Read,
    End,
}

/// The keys that a plan begins with.
#[derive(Clone, Copy)]
enum Scope {
    All,
    /// `.lock` and the own contender key.
    Own,
}

/// Executes plans until there is nothing left to do. Returns the keys.
fn follow(mut pairs: Vec<Pair>, scope: Scope, plan: impl Fn(&View) -> Result<Step, String>) -> Vec<Pair> {
    let mut seen = scope;
    for round in 1.. {
        let view = match seen {
            Scope::All => View::new("p", pairs.clone(), 1000 + round),
            Scope::Own => {
                let own = pairs.iter().filter(|pair| ["p/.lock", "p/me"].contains(&pair.key.as_str()));
                View::of_some("p", own.cloned(), &[ME.into()], 1000 + round)
            }
        };
        let ops = match plan(&view) {
            Ok(Step::Write(write)) => write.ops,
            Ok(Step::Read) => {
                assert!(matches!(seen, Scope::Own), "it has read all keys");
                seen = Scope::All;
                continue;
            }
            Ok(Step::End) => return pairs,
            Err(refused) => {
                assert_harmless(&refused);
                return pairs;
            }
        };
        seen = scope;
        assert!((1..=TXN_OPERATIONS).contains(&ops.len()), "{} steps", ops.len());
        assert!(round <= ROUNDS, "this goes on for ever: {ops:?}");
        let whole = |pairs: &[Pair]| View::new("p", pairs.to_vec(), 1000);
        let before = whole(&pairs);
        for op in ops {
            apply(&mut pairs, op, 10_000 + round);
        }
        let after = whole(&pairs);
        if matches!(before.lock, LockKeyState::Conflict { .. }) {
            assert_eq!(before.lock, after.lock, "it was no semaphore's to write over");
        }
        let taken = |view: &View| view.record().map_or(0, Record::taken);
        if let Some(record) = after.record() {
            assert!(record.taken() <= record.limit.max(taken(&before)), "{record:?} after {before:?}");
        }
    }
    pairs
}

/// Does a step that succeeds.
fn apply(pairs: &mut Vec<Pair>, op: Op, index: u64) {
    let place = pairs.iter().position(|pair| pair.key == op.key());
    let (key, value, flags, session) = match op {
        Op::Lock { key, value, flags, session } => (key, value, flags, Some(session)),
        Op::Unlock { key, value, flags, .. } => (key, value, flags, None),
        Op::Cas { key, value, flags, .. } => {
            let session = place.and_then(|place| pairs[place].session.clone());
            (key, value, flags, session)
        }
        Op::Delete { .. } | Op::DeleteCas { .. } => {
            place.map(|place| pairs.remove(place));
            return;
        }
        Op::CheckIndex { .. } | Op::List { .. } | Op::CheckNotExists { .. } | Op::CheckSession { .. } => {
            return;
        }
    };
    let create_index = place.map_or(index, |place| pairs[place].create_index);
    let pair = Pair { key, value, flags, session, times_locked: 1, create_index, modify_index: index };
    match place {
        Some(place) => pairs[place] = pair,
        None => pairs.push(pair),
    }
}

fn says(plan: &Plan) {
    if let Standing::Blocked(obstacle) = &plan.standing {
        assert_harmless(&obstacle.why);
    }
}

/// The options of a planner: seven bytes, of which any may be missing.
struct Options {
    /// The flags of `.lock`, as in [`record`].
    kind: u8,
    slots: u8,
    limit: u8,
    policy: LimitPolicy,
    sets_limit: bool,
    lost_race: bool,
    /// Whether it does at once what others may do.
    acts: bool,
    /// Whether it had slots before.
    had: bool,
    scope: Scope,
}

impl Options {
    fn of(line: &[u8]) -> Self {
        let byte = |place: usize| line.get(place).copied().unwrap_or(b'1');
        let digit = |place: usize| byte(place) % 16;
        let limit = digit(2).max(1);
        Self {
            kind: byte(0),
            slots: digit(1).clamp(1, limit),
            limit,
            policy: match byte(3) {
                b'r' => LimitPolicy::Refuse,
                b's' => LimitPolicy::Set,
                _ => LimitPolicy::Adopt,
            },
            sets_limit: byte(3) == b's',
            lost_race: byte(4) == b'c',
            acts: byte(5) == b'a',
            had: byte(5) == b'h',
            scope: if byte(6) == b'o' { Scope::Own } else { Scope::All },
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            primitive: Primitive::Semaphore,
            prefix: "p".into(),
            limit: self.limit.into(),
            slots: self.slots.into(),
            priority: 0,
            wait: None,
            on_lost: OnLost::Reacquire,
            limit_policy: self.policy,
            prune_delay: Duration::ZERO,
            form: if self.kind == b'm' { Form::Map } else { Form::List },
            body: None,
        }
    }
}

fn pairs<'a>(kind: u8, mut lines: impl Iterator<Item = &'a [u8]>) -> Vec<Pair> {
    let pair = |name: &str, value: &[u8], session: Option<&str>, index| Pair {
        key: format!("p/{name}"),
        value: value.to_vec(),
        flags: record::flags(kind),
        session: session.map(SessionId::from),
        times_locked: 1,
        create_index: index,
        modify_index: index,
    };
    let mut pairs = Vec::new();
    if let Some(lock) = lines.next().filter(|lock| !lock.is_empty()) {
        pairs.push(pair(".lock", lock, None, 42));
    }
    for (line, index) in lines.zip(100..) {
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b' ').unwrap_or(line.len()));
        let name = String::from_utf8_lossy(name);
        let (name, session) = match (name.strip_suffix('*'), name.split_once('@')) {
            (Some(name), _) => (name, None),
            (None, Some((name, session))) => (name, Some(session)),
            (None, None) => (&*name, Some(&*name)),
        };
        pairs.push(pair(name, value.get(1..).unwrap_or_default(), session, index));
    }
    pairs
}
