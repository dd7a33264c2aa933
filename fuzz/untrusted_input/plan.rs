//! Plans for arbitrary keys and values under a prefix.

use std::collections::BTreeMap;
use std::time::Duration;

use slotkeeper_consul::TXN_OPERATIONS;
use slotkeeper_semaphore::plan::{self, Plan, PlanInput, Role};
use slotkeeper_semaphore::{
    Form, Identity, LimitPolicy, LockKeyState, Moment, OnLost, Op, Pair, Primitive, Record, SessionId,
    Settings, View,
};

use super::{assert_harmless, record};

const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));
/// The own session.
const ME: &str = "me";
/// Writes after which a planner whose view only it changes has nothing left to do.
const ROUNDS: u64 = 200;

/// Takes lines: how one plans (see [`Options`]), the value of `.lock` (none where it is empty), and a key each, as its name, a
/// space and its value. A key is locked by the session of its name; `name*` by no session, `name@other` by another.
///
/// A waiter, a holder, a release and a change of the limit by such a view come to an end, grant no slot above the limit, overwrite
/// nothing that is no semaphore, and stay within the limits of a transaction.
pub fn plan(data: &[u8]) {
    let mut lines = data.splitn(200, |byte| *byte == b'\n');
    let options = Options::of(lines.next().unwrap_or_default());
    let view = view(options.kind, lines);
    let (who, session) = (Identity::default(), SessionId::from(ME));
    let dead_since: BTreeMap<_, _> =
        view.record().into_iter().flat_map(|record| &record.holders).map(|one| (one.clone(), NOW)).collect();
    let settings = options.settings();
    let me = PlanInput {
        session: &session,
        settings: &settings,
        who: &who,
        wall: "",
        set_limit: options.sets_limit,
        dead_since: &dead_since,
        lost_cas_race: options.crowded,
        yield_until: None,
        follows_up: false,
        confirmed: true,
        free_since: Some(Moment::from_boot(Duration::ZERO)),
        last_role: (options.role, Moment::from_boot(Duration::ZERO)),
        delayed_until: None,
        held: Some(&[0]),
        together: None,
        holds: &[],
        resumed: false,
    };
    let taken = follow(view.clone(), |view| {
        let planned = plan::hold(view, me, NOW);
        says(&planned);
        Ok(planned.write.map(|write| write.ops))
    });
    follow(taken, |view| Ok(plan::leave(view, me, NOW).write.map(|write| write.ops)));
    follow(view, |view| {
        let write = plan::set_limit(view, options.limit.into(), "", NOW)?;
        Ok(write.map(|write| write.ops))
    });
}

/// Executes plans until there is nothing left to do.
fn follow(mut view: View, plan: impl Fn(&View) -> Result<Option<Vec<Op>>, String>) -> View {
    for round in 1.. {
        let ops = match plan(&view) {
            Ok(Some(ops)) => ops,
            Ok(None) => return view,
            Err(refused) => {
                assert_harmless(&refused);
                return view;
            }
        };
        assert!((1..=TXN_OPERATIONS).contains(&ops.len()), "{} steps", ops.len());
        assert!(round <= ROUNDS, "this goes on for ever: {ops:?}");
        let before = view.clone();
        view.apply(&ops, 10_000 + round);
        if matches!(before.lock, LockKeyState::Conflict { .. }) {
            assert_eq!(before.lock, view.lock, "it was no semaphore's to write over");
        }
        let taken = |view: &View| view.record().map_or(0, Record::taken);
        if let Some(record) = view.record() {
            assert!(record.taken() <= record.limit.max(taken(&before)), "{record:?} after {before:?}");
        }
        if ops.iter().any(|op| matches!(op, Op::List { .. })) {
            // What the listing shows is not to be had here.
            return view;
        }
    }
    view
}

fn says(plan: &Plan) {
    if let plan::PlanOutcome::Blocked(obstacle) = &plan.outcome {
        assert_harmless(&obstacle.why);
    }
}

/// The options of a planner: six bytes, of which any may be missing.
struct Options {
    /// The flags of `.lock`, as in [`record`].
    kind: u8,
    slots: u8,
    limit: u8,
    policy: LimitPolicy,
    sets_limit: bool,
    crowded: bool,
    role: Role,
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
            crowded: byte(4) == b'c',
            role: match byte(5) {
                b'h' => Role::Head,
                b'e' => Role::Entering,
                b'o' => Role::Holding,
                _ => Role::Behind,
            },
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

fn view<'a>(kind: u8, mut lines: impl Iterator<Item = &'a [u8]>) -> View {
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
    View::new("p", pairs, 1000)
}
