//! The local agent's locks as a table.

use super::{age_of, describe, for_, remarks, required, token};
use crate::cli::table::{Layout, NONE, always, table, unless, wide};
use crate::status::Lock;

/// The lock's holder.
fn leader(lock: &Lock) -> String {
    match &lock.leader {
        Some(leader) => {
            let who =
                describe(&leader.session, leader.who.as_ref(), leader.mine, leader.foreign, leader.health);
            // The age of this agent is that of its row.
            for_(who, leader.age_seconds.filter(|_| !leader.mine))
        }
        None => NONE.into(),
    }
}

/// One line per lock, and the reasons below.
pub(super) fn table_of(locks: &[Lock], layout: Layout) -> String {
    if locks.is_empty() {
        return String::new();
    }
    let columns = [
        always("LOCK", |lock: &Lock| lock.entry.name.clone()),
        always("STATE", |lock: &Lock| lock.entry.state.as_str().into()),
        unless("yes", "REQUIRED", |lock: &Lock| required(&lock.entry)),
        always("HELD BY", leader).flexible(),
        always("AGE", |lock: &Lock| age_of(&lock.entry)),
        wide("TOKEN", |lock: &Lock| token(&lock.entry)),
        wide("SINCE", |lock: &Lock| lock.entry.since.clone().unwrap_or(NONE.into())),
        wide("KEY", |lock: &Lock| lock.key.clone()),
    ];
    table(&columns, locks, layout) + &remarks(locks.iter().map(|lock| &lock.entry), layout.columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_the_leader() {
        let locks = r#"[
            {"name":"nightly","state":"waiting","required":false,"since":"2026-01-02T03:04:05Z","age_seconds":3.2,
             "leader":{"session":"5e55","mine":false,"age_seconds":11537,"who":{"pod":"batch-7"}}},
            {"name":"other","state":"waiting","required":true,"age_seconds":1.0,"leader":null,
             "reason":"no leader"},
            {"name":"mine","state":"held","required":true,"fencing_token":7,"age_seconds":61.2,
             "leader":{"session":"5e55","mine":true,"age_seconds":60.4,"who":{"host":"vm","pid":1}}},
            {"name":"foreign","state":"waiting","required":true,"leader":{"session":"f0","mine":false}}]"#;
        let expected = "\
LOCK     STATE    REQUIRED  HELD BY                AGE
nightly  waiting  no        batch-7 for 3h12m      3s
other    waiting  yes       -                      1s
mine     held     yes       vm pid 1 (this agent)  1m1s
foreign  waiting  yes       session f0             -
other: no leader
";
        let locks: Vec<Lock> = serde_json::from_str(locks).unwrap();
        assert_eq!(table_of(&locks, Layout::NARROW), expected);
        assert_eq!(table_of(&[], Layout::NARROW), "");
    }
}
