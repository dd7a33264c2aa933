//! The worked example of docs/guarantees.md: a store that refuses whoever has lost its slot.

use std::process::Command;

use super::job::Job;
use crate::consul::Consul;

const STORE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/fenced_store.py");

#[test]
fn a_store_refuses_the_token_of_an_earlier_holder() {
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("store.db").display().to_string();
    let put = |value: &str| {
        let script = format!("echo $SLOTKEEPER_FENCING_TOKEN; exec {STORE} {database} put colour {value}");
        let mut job = Job::start(&consul.address(), &["demo/store", "-n", "1"], &["sh", "-c", &script]);
        assert_eq!(job.code(), Some(0), "{}", job.log());
        job.out().trim().parse::<u64>().unwrap()
    };
    let (first, second) = (put("red"), put("blue"));
    assert!(first < second);
    let late = |token: u64| {
        let mut store = Command::new(STORE);
        store.args([&database, "put", "colour", "green"]).env("SLOTKEEPER_FENCING_TOKEN", token.to_string());
        store.output().unwrap()
    };
    let refused = late(first);
    assert_eq!(refused.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("refused: token"));
    assert_eq!(late(second).status.code(), Some(0), "the holder itself may write again");
}
