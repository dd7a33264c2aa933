//! `slotkeeper set-limit`: changes the limit of a live semaphore.

use clap::Args;
use serde::Serialize;

use super::operator_flags::OperatorFlags;
use super::output::ResultOutput;
use super::row::{NewHolder, counted};
use super::sessions::lock_or_prefix;
use super::{Exit, print_message, run_requests};
use crate::clock;
use crate::escape::printable;
use crate::operator::{self, Changed, Error, Place};
use crate::schema_version::SchemaVersion;
use crate::status::Kind;
use slotkeeper_semaphore::{MAX_LIMIT, View, plan};

/// Change the limit of a live semaphore, up or down.
///
/// A higher limit grants the new slots to the next waiters at once. Below the slots in use, a lower limit evicts no holder: no slot is
/// granted until fewer are held. So the command does not ask for confirmation. Agents with `limit_policy: adopt` use the new
/// limit. With `set`, an agent writes its own limit again when it starts or its limit changes; with `refuse`, it is blocked. A
/// `consul lock -n` or Go client that waits ends if its own limit differs; one that holds continues.
#[derive(Debug, Args)]
pub(super) struct SetLimit {
    /// The semaphore's prefix in Consul's key-value store. `.lock` at its end can be omitted.
    #[arg(value_parser = lock_or_prefix)]
    prefix: String,
    /// The new limit.
    #[arg(value_name = "N", value_parser = number_of_slots)]
    limit: u32,
    #[command(flatten)]
    output: ResultOutput,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl SetLimit {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.consul.target(&self.prefix)?;
        let plan = |view: &View| {
            let now = clock::now();
            plan::set_limit(view, self.limit, &clock::wall().text(now), now)
                .map_err(|why| Error::of_plan(view, why))
        };
        run_requests(&client, async {
            let place = Place::Semaphore(prefix.clone());
            let changed = operator::change(&client, &place, plan).await?;
            // The plan requires a record, so both views have one.
            let done = Done::of(&prefix, &changed).map_err(anyhow::Error::msg)?;
            self.output.print(&done, Done::describe)?;
            if let Some(warning) = done.warning() {
                print_message(warning)?;
            }
            Ok(Exit::Done)
        })
    }
}

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    schema_version: SchemaVersion,
    kind: Kind,
    prefix: String,
    /// The key that coordinates the clients.
    key: String,
    limit_before: u32,
    limit: u32,
    slots_taken: u32,
    new_holders: Vec<NewHolder>,
    /// Foreign clients in the queue.
    foreign_waiters: usize,
}

/// Reads a limit or a number of slots.
pub(super) fn number_of_slots(text: &str) -> Result<u32, String> {
    let bounds = 1..=MAX_LIMIT;
    let limit = text.parse().ok().filter(|limit| bounds.contains(limit));
    limit.ok_or_else(|| format!("write a whole number from {} to {}", bounds.start(), bounds.end()))
}

impl Done {
    fn of(prefix: &str, changed: &Changed) -> Result<Self, String> {
        let (before, after) =
            (plan::existing_record(&changed.before)?, plan::existing_record(&changed.after)?);
        Ok(Self {
            schema_version: SchemaVersion::default(),
            kind: Kind::Semaphore,
            prefix: prefix.to_owned(),
            key: changed.after.lock_key(),
            limit_before: before.limit,
            limit: after.limit,
            slots_taken: after.taken(),
            new_holders: NewHolder::all(&changed.before, &changed.after),
            foreign_waiters: changed.before.waiters().iter().filter(|one| one.entry.is_none()).count(),
        })
    }

    /// The effect on waiting foreign clients.
    fn warning(&self) -> Option<String> {
        let changed = self.limit != self.limit_before && self.foreign_waiters > 0;
        let waiting = counted(self.foreign_waiters, "foreign client was", "foreign clients were");
        changed.then(|| {
            format!(
                "warning: {waiting} waiting; a `consul lock -n` or Go client that waits ends if its own limit is not {}",
                self.limit
            )
        })
    }

    /// In a line.
    fn describe(&self) -> String {
        let (limit, taken) = (self.limit, self.slots_taken);
        let changed = if self.limit_before == limit {
            format!("the limit is {limit} already")
        } else {
            format!("limit changed from {} to {limit}", self.limit_before)
        };
        let follows = if taken > limit {
            format!(
                "no holder is evicted; no slot is granted until fewer than {limit} are held ({taken} now)"
            )
        } else if self.limit_before == limit && self.new_holders.is_empty() {
            "nothing to do".into()
        } else {
            NewHolder::counted(&self.new_holders)
        };
        format!("{}: {changed}; {follows}", printable(&self.prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slotkeeper_semaphore::Pair;

    fn view(limit: u32, holders: &[&str]) -> View {
        let record = serde_json::json!({"Limit": limit, "Holders": holders}).to_string();
        let lock = Pair {
            key: "p/.lock".into(),
            value: record.into_bytes(),
            flags: 0,
            session: None,
            times_locked: 0,
            create_index: 1,
            modify_index: 1,
        };
        View::new("p", vec![lock], 1)
    }

    #[test]
    fn the_result_is_one_line() {
        for (before, after, said) in [
            (
                (1, &["a"][..]),
                (4, &["a", "b", "c", "c"][..]),
                "limit changed from 1 to 4; slots were granted to 2 waiters",
            ),
            ((5, &["a"]), (3, &["a"]), "limit changed from 5 to 3; no slot was granted"),
            ((2, &["a"]), (2, &["a"]), "the limit is 2 already; nothing to do"),
            ((2, &["a"]), (2, &["a", "b"]), "the limit is 2 already; slots were granted to 1 waiter"),
            (
                (3, &["a", "b", "c"]),
                (1, &["a", "b", "c"]),
                "limit changed from 3 to 1; no holder is evicted; no slot is granted until fewer than 1 are held (3 \
                 now)",
            ),
        ] {
            let changed = Changed { before: view(before.0, before.1), after: view(after.0, after.1) };
            let done = Done::of("p", &changed).unwrap();
            assert_eq!(done.describe(), format!("p: {said}"));
        }
    }
}
