//! `slotkeeper set-limit`: changes the limit of a live semaphore.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{self, Write};

use clap::Args;

use super::operator_flags::{OperatorFlags, refused};
use super::{Exit, ask};
use crate::operator;
use crate::semaphore::{Lock, Record, View, plan};
use crate::{clock, config};

/// Change the limit of a live semaphore, up or down.
///
/// Waiters for whom there are slots then are let in at once, in their order. Where more slots are held than the new
/// limit has, nobody is thrown out; none is given on until fewer are. Agents with `limit_policy: adopt` follow; one with
/// `set` writes its own limit again when it starts or its limit changes, and one with `refuse` stays out.
#[derive(Debug, Args)]
pub(super) struct SetLimit {
    /// The semaphore's prefix in Consul's key-value store.
    #[arg(value_parser = config::plain_key)]
    prefix: String,
    /// How many slots there shall be.
    #[arg(value_name = "N", value_parser = limit)]
    limit: u32,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl SetLimit {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let client = self.consul.client()?;
        let is_missing = Cell::new(false);
        let plan = |view: &View| {
            is_missing.set(view.lock == Lock::Missing);
            let now = clock::now();
            plan::set_limit(view, self.limit, &clock::wall().text(now), now)
        };
        let changed =
            ask(&client, operator::change(&client, &self.prefix, plan))?.map_err(|error| match error {
                operator::Error::Refused(why) if is_missing.get() => refused(why, &client),
                error @ (operator::Error::Failed(_)
                | operator::Error::Refused(_)
                | operator::Error::Contended { .. }) => error,
            })?;
        // The plan has found a record in both.
        let record = |view| plan::present(view).map_err(anyhow::Error::msg);
        let said = describe(record(&changed.before)?, record(&changed.after)?);
        writeln!(io::stdout(), "{}: {said}", self.prefix)?;
        Ok(Exit::Done)
    }
}

fn limit(text: &str) -> Result<u32, String> {
    let bounds = 1..=config::MOST_SLOTS;
    let limit = text.parse().ok().filter(|limit| bounds.contains(limit));
    limit.ok_or_else(|| format!("write a whole number from {} to {}", bounds.start(), bounds.end()))
}

/// What has become of it, in a line.
fn describe(before: &Record, after: &Record) -> String {
    let (limit, taken) = (after.limit, after.taken());
    let changed = if before.limit == limit {
        format!("the limit is {limit} already")
    } else {
        format!("limit changed from {} to {limit}", before.limit)
    };
    let held: BTreeSet<_> = before.holders.iter().collect();
    let let_in: BTreeSet<_> = after.holders.iter().filter(|holder| !held.contains(holder)).collect();
    let follows = match let_in.len() {
        _ if taken > limit => {
            format!(
                "nobody is thrown out: no slot is given on until fewer than {limit} are held; {taken} are now"
            )
        }
        0 if before.limit == limit => "nothing to do".into(),
        0 => "nobody was let in".into(),
        1 => "1 waiter was let in".into(),
        several => format!("{several} waiters were let in"),
    };
    format!("{changed}; {follows}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(limit: u32, holders: &[&str]) -> Record {
        let holders = serde_json::to_string(holders).unwrap();
        Record::decode(format!(r#"{{"Limit":{limit},"Holders":{holders}}}"#).as_bytes(), 0).unwrap()
    }

    #[test]
    fn what_was_done_is_said_in_a_line() {
        for (before, after, said) in [
            (
                record(1, &["a"]),
                record(4, &["a", "b", "c", "c"]),
                "limit changed from 1 to 4; 2 waiters were let in",
            ),
            (record(5, &["a"]), record(3, &["a"]), "limit changed from 5 to 3; nobody was let in"),
            (record(2, &["a"]), record(2, &["a"]), "the limit is 2 already; nothing to do"),
            (record(2, &["a"]), record(2, &["a", "b"]), "the limit is 2 already; 1 waiter was let in"),
            (
                record(3, &["a", "b", "c"]),
                record(1, &["a", "b", "c"]),
                "limit changed from 3 to 1; nobody is thrown out: no slot is given on until fewer than 1 are held; 3 \
                 are now",
            ),
        ] {
            assert_eq!(describe(&before, &after), said);
        }
    }
}
