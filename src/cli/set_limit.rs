//! `slotkeeper set-limit`: changes the limit of a live semaphore.

use clap::Args;
use serde_json::json;

use super::cells::counted;
use super::change::{Change, NewHolder};
use super::{Exit, print_message, run_requests};
use crate::clock;
use crate::escape::printable;
use crate::operator::{self, Changed, Error, Place};
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
    #[command(flatten)]
    change: Change,
    /// The new limit.
    #[arg(value_name = "N", value_parser = number_of_slots, help_heading = None)]
    limit: u32,
}

impl SetLimit {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.change.target()?;
        let plan = |view: &View| {
            let now = clock::now();
            plan::set_limit(view, self.limit, &clock::wall().text(now), now)
                .map_err(|why| Error::of_plan(view, why))
        };
        run_requests(&client, async {
            let Changed { before, after, .. } =
                operator::change(&client, &Place::semaphore(&prefix), plan).await?;
            let new_holders = NewHolder::all(&before, &after);
            let line = format!("{}: {}", printable(&prefix), in_words(&before, &after, &new_holders));
            let foreign = before.waiters().iter().filter(|one| one.entry.is_none()).count();
            let (limit, taken) = limit_and_taken(&after);
            let is_other = limit_and_taken(&before).0 != limit;
            let done = json!({
                "limit_before": limit_and_taken(&before).0,
                "limit": limit,
                "slots_taken": taken,
                "new_holders": new_holders,
                "foreign_waiters": foreign,
            });
            self.change.print((&prefix, Kind::Semaphore, &after.lock_key()), done, &line)?;
            if is_other && foreign > 0 {
                print_message(format!(
                    "warning: {} waiting; a `consul lock -n` or Go client that waits ends if its own limit is not {limit}",
                    counted(foreign, "foreign client was", "foreign clients were")
                ))?;
            }
            Ok(Exit::Done)
        })
    }
}

/// Reads a limit or a number of slots.
pub(super) fn number_of_slots(text: &str) -> Result<u32, String> {
    let bounds = 1..=MAX_LIMIT;
    let limit = text.parse().ok().filter(|limit| bounds.contains(limit));
    limit.ok_or_else(|| format!("write a whole number from {} to {}", bounds.start(), bounds.end()))
}

fn limit_and_taken(view: &View) -> (u32, u32) {
    view.record().map_or((0, 0), |record| (record.limit, record.taken()))
}

/// What was done, in a line.
fn in_words(before: &View, after: &View, new_holders: &[NewHolder]) -> String {
    let (limit_before, (limit, taken)) = (limit_and_taken(before).0, limit_and_taken(after));
    let changed = if limit_before == limit {
        format!("the limit is {limit} already")
    } else {
        format!("limit changed from {limit_before} to {limit}")
    };
    let follows = if taken > limit {
        format!("no holder is evicted; no slot is granted until fewer than {limit} are held ({taken} now)")
    } else if limit_before == limit && new_holders.is_empty() {
        "nothing to do".into()
    } else {
        NewHolder::counted(new_holders)
    };
    format!("{changed}; {follows}")
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
            let (before, after) = (view(before.0, before.1), view(after.0, after.1));
            assert_eq!(in_words(&before, &after, &NewHolder::all(&before, &after)), said);
        }
    }
}
