//! `slotkeeper evict`: evicts one holder or waiter.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::consent::Consent;
use super::operator_flags::OperatorFlags;
use super::output::ResultOutput;
use super::row::NewHolder;
use super::sessions::lock_or_prefix;
use super::{Exit, print_message, run_requests};
use crate::escape::printable;
use crate::operator::evict::{self, Method, Target};
use crate::operator::{Error, Part, Place};
use crate::schema_version::SchemaVersion;
use crate::status::Kind;
use crate::{duration, user};
use slotkeeper_semaphore::{Identity, View, plan};

/// Characters of the operator's name that are recorded.
const MAX_NAME_CHARS: usize = 100;

/// Evict one holder or waiter.
///
/// A slotkeeper participant learns of its eviction within about a second, stops its workload as for a lost slot, and only then
/// releases the slot. `slotkeeper run` ends with 80, or with 75 while it waited. An agent with `on_lost: reacquire` joins the queue
/// again behind the waiters of its priority, and can be the first again. Dead holders and foreign clients are removed at once.
///
/// Exits with 0 when the participant is out, and with 75 if it is not out within --wait; the eviction then stays in force.
#[derive(Debug, Args)]
pub(super) struct Evict {
    /// Prefix of a semaphore, or key of a single-key lock, in Consul's key-value store. `.lock` at its end can be omitted.
    #[arg(value_parser = lock_or_prefix)]
    prefix: String,
    /// The session, as `slotkeeper sessions PREFIX` shows it, or at least four characters of it; or the participant's name or process
    /// id. It must be unique.
    session: String,
    #[command(flatten)]
    consent: Consent,
    /// Remove it at once, although its workload may still run: for a participant that does not respond.
    #[arg(long)]
    force: bool,
    /// How long to wait until the participant is out. With 0s, do not wait.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    wait: Duration,
    #[command(flatten)]
    output: ResultOutput,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl Evict {
    pub(super) fn run(mut self) -> anyhow::Result<Exit> {
        let client;
        (client, self.prefix) = self.consul.target(&self.prefix)?;
        run_requests(&client, async {
            let target = evict::find(&client, &self.prefix, &self.session).await?;
            if target.newer && !self.force {
                return Err(Error::Refused(format!(
                    "session {} uses a later version of slotkeeper, which this version cannot evict; use that version, or \
                     --force, which removes it at once although its workload may still run",
                    printable(target.participant.id.as_str())
                ))
                .into());
            }
            if let Some(exit) = self.consent.refused(&self.describe_change(&target)).await? {
                return Ok(exit);
            }
            let after = self.act(&client, &target).await?;
            self.end(&target, after.as_ref())
        })
    }

    /// The outcome.
    fn end(&self, target: &Target, after: Option<&View>) -> anyhow::Result<Exit> {
        let ended = Ended::of(self, target, after);
        let is_done = ended.evicted || self.wait.is_zero();
        if self.output.document().is_some() || is_done {
            self.output.print(&ended, Ended::describe)?;
        }
        if is_done {
            return Ok(Exit::Done);
        }
        let stands = if target.membership.part == plan::MembershipKind::Waits {
            "is still in the queue"
        } else {
            "still holds"
        };
        print_message(format!(
            "session {} is being evicted and {stands} after {}; it leaves when its workload has stopped. --force removes it \
             at once, and its workload may then run beside the next holder's",
            printable(&ended.session),
            duration::show(self.wait)
        ))?;
        Ok(Exit::Timeout)
    }

    /// Asks a live slotkeeper participant to leave.
    fn asks(&self, target: &Target) -> bool {
        target.participant.role.state != Part::Dead && !target.membership.foreign && !self.force
    }

    /// The view once the participant is out; `None` if it is still there.
    async fn act(&self, client: &slotkeeper_consul::Client, target: &Target) -> Result<Option<View>, Error> {
        if !self.asks(target) {
            return Ok(Some(evict::act(client, target, Method::Force).await?.after));
        }
        let by = operator();
        evict::act(client, target, Method::Request(&by)).await?;
        evict::gone(client, target, &by, self.wait).await
    }

    /// The change and its consequences, for the confirmation.
    fn describe_change(&self, target: &Target) -> String {
        let one = &target.participant;
        let (session, place) = (printable(one.id.as_str()), printable(place(&target.place)));
        let role = &one.role;
        let who = role.who.as_ref().and_then(Identity::in_words);
        let who = who.map(|who| format!(" ({who})")).unwrap_or_default();
        let slots = match role.slots {
            Some(1) => "a slot".to_owned(),
            Some(slots) => format!("{slots} slots"),
            None => "the lock".to_owned(),
        };
        let since =
            role.since.as_deref().map(|since| format!(" since {}", printable(since))).unwrap_or_default();
        let stands = match role.state {
            Part::Waiting | Part::Leaving | Part::Removed => {
                format!("which waits for {slots} of {place}{since}")
            }
            Part::Held | Part::Locked => format!("which holds {slots} of {place}{since}"),
            Part::Dead | Part::Unknown => format!("which is dead and listed with {slots} of {place}"),
        };
        let asked = role
            .evicted_by
            .as_deref()
            .map(|by| format!(" {} evicts it already.", printable(by)))
            .unwrap_or_default();
        format!("evicting session {session}{who}, {stands}.{asked} {}", self.consequences(target))
    }

    fn consequences(&self, target: &Target) -> &'static str {
        use plan::MembershipKind;
        match (target.membership.part, target.membership.foreign) {
            (MembershipKind::Dead, _) => "Its slots are free at once.",
            (MembershipKind::Waits, false) if self.force => {
                "It is removed from the queue. If it is still alive, it joins again behind the waiters of its priority."
            }
            (MembershipKind::Waits, false) => {
                "It leaves the queue: `run` and agents with `on_lost: exit` exit with 75, others join again behind the waiters of their priority."
            }
            (MembershipKind::Waits, true) => {
                "It is a foreign client, and its contender key is deleted. `consul lock` notices only when its turn comes, \
                 and ends then."
            }
            (MembershipKind::Holds, false) if self.force => {
                "Its slots are free at once, whether or not its workload has stopped: the next holder's may run beside it. \
                 It notices when it responds again."
            }
            (MembershipKind::Holds, false) => {
                "It is notified at once and stops its workload; its slots are released when the workload has stopped."
            }
            (MembershipKind::Holds, true) => {
                "It is a foreign client, so its slots are free at once, and the next holder's workload may run beside its own. \
                 `consul lock` stops its command when it notices."
            }
        }
    }
}

/// The result as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Ended {
    schema_version: SchemaVersion,
    kind: Kind,
    /// The prefix as it was given.
    prefix: String,
    /// The key that coordinates the clients.
    key: String,
    session: String,
    /// Its state before, as in `sessions`.
    state: Part,
    slots: Option<u32>,
    foreign: bool,
    /// Whether it was removed without being asked.
    forced: bool,
    /// Whether it is out. If not, it still leaves.
    evicted: bool,
    /// The sessions that became holders meanwhile, of its slots or others.
    new_holders: Vec<NewHolder>,
}

impl Ended {
    fn of(evict: &Evict, target: &Target, after: Option<&View>) -> Self {
        let one = &target.participant;
        Self {
            schema_version: SchemaVersion::default(),
            kind: match target.place {
                Place::Semaphore(_) => Kind::Semaphore,
                Place::Lock(_) => Kind::Lock,
            },
            prefix: evict.prefix.clone(),
            key: target.before.lock_key(),
            session: one.id.to_string(),
            state: one.role.state,
            slots: one.role.slots,
            foreign: target.membership.foreign,
            forced: !evict.asks(target),
            evicted: after.is_some(),
            new_holders: after.map(|after| NewHolder::all(&target.before, after)).unwrap_or_default(),
        }
    }

    /// In a line.
    fn describe(&self) -> String {
        let place = match self.kind {
            Kind::Semaphore => &self.prefix,
            Kind::Lock => &self.key,
        };
        let one = format!("{}: {}", printable(place), printable(&self.session));
        if !self.evicted {
            return format!("{one} is being evicted");
        }
        if matches!(self.state, Part::Waiting | Part::Leaving) {
            return format!("{one} is out of the queue");
        }
        let new_holders: Vec<_> = self.new_holders.iter().map(NewHolder::describe).collect();
        match (new_holders.as_slice(), self.slots) {
            // The waiters of a lock acquire it a moment later.
            ([], None) => format!("{one} is out"),
            ([], Some(_)) => format!("{one} is out; no new holder"),
            (new_holders, _) => format!("{one} is out; new holders: {}", new_holders.join(" and ")),
        }
    }
}

fn place(place: &Place) -> &str {
    match place {
        Place::Semaphore(prefix) => prefix,
        Place::Lock(key) => key,
    }
}

/// The operator's name, which the evicted participant logs.
fn operator() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{}@{host}", user::name()).chars().take(MAX_NAME_CHARS).collect()
}
