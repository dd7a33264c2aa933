//! The local agent's locks as a table.

use std::io::{self, Write};

use tabwriter::TabWriter;

use super::{describe, identity, remarks, since, token};
use crate::cli::row::text_of;
use crate::status::Lock;

/// The lock's holder, or the rest of its lock-delay.
fn leader(lock: &Lock) -> String {
    match (&lock.leader, lock.delayed_seconds) {
        (Some(leader), _) => {
            describe(&leader.session, leader.who.as_ref(), leader.mine, leader.foreign, leader.health)
        }
        (None, Some(left)) => format!("free in {left:.0} s (lock-delay)"),
        (None, None) => "-".into(),
    }
}

/// One line per lock, and the reasons below.
pub(super) fn table(locks: &[Lock], columns: usize) -> io::Result<String> {
    if locks.is_empty() {
        return Ok(String::new());
    }
    let mut table = TabWriter::new(Vec::new()).padding(2);
    writeln!(table, "LOCK\tSTATE\tREQUIRED\tHELD BY\tTOKEN\tSINCE")?;
    for lock in locks {
        let entry = &lock.entry;
        let since = since(entry).unwrap_or("-".into());
        writeln!(table, "{}\t{}\t{}\t{since}", identity(entry), leader(lock), token(entry))?;
    }
    Ok(text_of(table)? + &remarks(locks.iter().map(|lock| &lock.entry), columns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::window;

    #[test]
    fn the_table_shows_the_leader() {
        let locks = r#"[
            {"name":"nightly","state":"waiting","required":false,"since":"2026-01-02T03:04:05Z","age_seconds":3.2,
             "leader":{"session":"5e55","mine":false,"who":{"pod":"batch-7"}}},
            {"name":"other","state":"waiting","required":true,"age_seconds":1.0,"leader":null,"delayed_seconds":7.9,
             "reason":"no leader"},
            {"name":"mine","state":"held","required":true,"fencing_token":7,"since":"2026-01-02T03:04:05Z",
             "leader":{"session":"5e55","mine":true,"who":{"host":"vm","pid":1}}},
            {"name":"foreign","state":"waiting","required":true,"leader":{"session":"f0","mine":false}}]"#;
        let expected = "\
LOCK     STATE    REQUIRED  HELD BY                   TOKEN  SINCE
nightly  waiting  no        batch-7                   -      waiting 3 s
other    waiting  yes       free in 8 s (lock-delay)  -      waiting 1 s
mine     held     yes       vm pid 1 (this agent)     7      2026-01-02T03:04:05Z
foreign  waiting  yes       session f0                -      -
other: no leader
";
        assert_eq!(
            table(&serde_json::from_str::<Vec<Lock>>(locks).unwrap(), window::ENDLESS).unwrap(),
            expected
        );
        assert_eq!(table(&[], window::ENDLESS).unwrap(), "");
    }
}
