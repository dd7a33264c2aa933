//! `slotkeeper evict`: evicts one holder or waiter.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::cells::in_brackets;
use super::change::{Change, NewHolder};
use super::consent::Consent;
use super::{Exit, print_message, run_requests};
use crate::escape::printable;
use crate::operator::evict::{self, Target};
use crate::operator::{Error, ParticipantState};
use crate::{duration, user};
use slotkeeper_consul::Client;
use slotkeeper_semaphore::View;
use slotkeeper_semaphore::plan::MembershipKind;

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
    #[command(flatten)]
    change: Change,
    /// The session, as `slotkeeper sessions PREFIX` shows it, or at least four characters of it; or the participant's name or process
    /// id. It must be unique.
    #[arg(help_heading = None)]
    session: String,
    #[command(flatten, next_help_heading = None)]
    consent: Consent,
    /// Remove it at once, although its workload may still run: for a participant that does not respond.
    #[arg(long, help_heading = None)]
    force: bool,
    /// How long to wait until the participant is out. With 0s, do not wait.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse, help_heading = None)]
    wait: Duration,
}

impl Evict {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.change.target()?;
        run_requests(&client, async {
            let target = evict::find(&client, &prefix, &self.session).await?;
            let session = printable(target.participant.id());
            if target.newer && !self.force {
                return Err(Error::Refused(format!(
                    "session {session} uses a later version of slotkeeper, which this version cannot evict; use that version, or \
                     --force, which removes it at once although its workload may still run"
                ))
                .into());
            }
            if let Some(exit) = self.consent.refused(&self.intention(&target)).await? {
                return Ok(exit);
            }
            let after = self.act(&client, &target).await?;
            let is_done = after.is_some() || self.wait.is_zero();
            if is_done || self.change.prints_document() {
                self.print(&prefix, &target, after.as_ref())?;
            }
            if is_done {
                return Ok(Exit::Done);
            }
            let waits = target.membership.part == MembershipKind::Waits;
            let stands = if waits { "is still in the queue" } else { "still holds" };
            print_message(format!(
                "session {session} is being evicted and {stands} after {}; it leaves when its workload has stopped. --force \
                 removes it at once, and its workload may then run beside the next holder's",
                duration::show(self.wait)
            ))?;
            Ok(Exit::Timeout)
        })
    }

    /// Asks a live slotkeeper participant to leave.
    fn asks(&self, target: &Target) -> bool {
        target.participant.state != ParticipantState::Dead && !target.membership.foreign && !self.force
    }

    /// The view once the participant is out; `None` if it is still there.
    async fn act(&self, client: &Client, target: &Target) -> Result<Option<View>, Error> {
        if !self.asks(target) {
            return Ok(Some(evict::act(client, target, None).await?.after));
        }
        let by = operator();
        evict::act(client, target, Some(&by)).await?;
        evict::gone(client, target, &by, self.wait).await
    }

    /// The change and its consequences, for the confirmation.
    fn intention(&self, target: &Target) -> String {
        use ParticipantState::{Dead, Held, Leaving, Locked, Offered, Removed, Unknown, Waiting};
        let one = &target.participant;
        let (session, place) = (printable(one.id()), printable(&target.place.key));
        let who = in_brackets(one.who.as_ref());
        let slots = match one.slots {
            Some(1) => "a slot".to_owned(),
            Some(slots) => format!("{slots} slots"),
            None => "the lock".to_owned(),
        };
        let since = one.since.as_deref().map(|since| format!(" since {}", printable(since)));
        let since = since.unwrap_or_default();
        let stands = match one.state {
            Waiting | Leaving | Removed => format!("which waits for {slots} of {place}{since}"),
            Offered => format!("which was offered {slots} of {place}{since}"),
            Held | Locked => format!("which holds {slots} of {place}{since}"),
            Dead | Unknown => format!("which is dead and listed with {slots} of {place}"),
        };
        let by = one.evicted_by.as_deref().map(|by| format!(" {} evicts it already.", printable(by)));
        let by = by.unwrap_or_default();
        format!("evicting session {session}{who}, {stands}.{by} {}", self.consequences(target))
    }

    fn consequences(&self, target: &Target) -> &'static str {
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
                "It is notified at once: `run` stops its command, an agent calls `on_lost`. Its slots are released when the workload has \
                 stopped, or has had its time."
            }
            (MembershipKind::Holds, true) => {
                "It is a foreign client, so its slots are free at once, and the next holder's workload may run beside its own. \
                 `consul lock` stops its command when it notices."
            }
        }
    }

    /// Prints the result; `after` is the view once the participant is out.
    fn print(&self, prefix: &str, target: &Target, after: Option<&View>) -> anyhow::Result<()> {
        let one = &target.participant;
        let new_holders = after.map(|after| NewHolder::all(&target.before, after)).unwrap_or_default();
        let names: Vec<_> = new_holders.iter().map(NewHolder::describe).collect();
        let done = match (one.state, names.as_slice(), one.slots) {
            _ if after.is_none() => "is being evicted".into(),
            (ParticipantState::Waiting | ParticipantState::Leaving, ..) => "is out of the queue".into(),
            // The waiters of a lock acquire it a moment later.
            (_, [], None) => "is out".into(),
            (_, [], Some(_)) => "is out; no new holder".into(),
            (_, names, _) => format!("is out; new holders: {}", names.join(" and ")),
        };
        let line = format!("{}: {} {done}", printable(&target.place.key), printable(one.id()));
        // `forced`: it was removed without being asked. `evicted`: it is out, and otherwise it still leaves.
        let done = json!({
            "session": one.id(),
            "state": one.state,
            "slots": one.slots,
            "foreign": target.membership.foreign,
            "forced": !self.asks(target),
            "evicted": after.is_some(),
            "new_holders": new_holders,
        });
        self.change.print((prefix, target.place.kind, &target.before.lock_key()), done, &line)
    }
}

/// The operator's name, which the evicted participant logs.
fn operator() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{}@{host}", user::name()).chars().take(MAX_NAME_CHARS).collect()
}
