//! `slotkeeper set-limit`: changes the limit of a live semaphore.

use std::collections::BTreeSet;
use std::io::{self, Write};

use clap::{Args, value_parser};

use super::{ConsulFlags, Exit, block_on};
use crate::operator;
use crate::semaphore::{Record, View, plan};
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
    #[arg(value_name = "N", value_parser = value_parser!(u32).range(1..=i64::from(config::MOST_SLOTS)))]
    limit: u32,
    #[command(flatten)]
    consul: ConsulFlags,
}

impl SetLimit {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let client = self.consul.client()?;
        let plan = |view: &View| {
            let now = clock::now();
            plan::set_limit(view, self.limit, &clock::wall().text(now), now)
        };
        let changed = block_on(operator::change(&client, &self.prefix, plan))??;
        // The plan has found a record in both.
        let record = |view| plan::present(view).map_err(anyhow::Error::msg);
        let said = describe(record(&changed.before)?, record(&changed.after)?);
        writeln!(io::stdout(), "{}: {said}", self.prefix)?;
        Ok(Exit::Done)
    }
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
        _ if taken > limit => format!(
            "nobody is thrown out: of the {taken} slots held, {} must come back before one is given on",
            taken - limit + 1
        ),
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
                "limit changed from 3 to 1; nobody is thrown out: of the 3 slots held, 3 must come back before one is \
                 given on",
            ),
        ] {
            assert_eq!(describe(&before, &after), said);
        }
    }
}
