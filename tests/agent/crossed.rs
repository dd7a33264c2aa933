//! Jobs that want slots of several semaphores: they do not wait for each other for ever, or are told that they may.

use std::fs;
use std::process::{Command, Output, Stdio};

use slotkeeper::internals::log_events::{CONFIGURATION_WARNING, RUN_IN_RUN};

use crate::consul::Consul;
use crate::inspect::operate;
use crate::operator::Operator;
use crate::process::{BINARY, Lodger};
use crate::support::crossed::Crossed;
use crate::support::kv::Put;
use crate::wait_for;

fn entry(name: &str, more: &str) -> String {
    format!("{{name: {name}, prefix: p/{name}, limit: 1{more}}}")
}

fn of(entries: [&str; 2]) -> String {
    format!("semaphores: [{}, {}]", entries[0], entries[1])
}

/// `slotkeeper run` with a configuration of that text, and nothing of our environment.
fn run(consul: &Consul, folder: &tempfile::TempDir, text: &str, words: &[&str]) -> Command {
    let file = folder.path().join(format!("{:x}.yaml", fastrand::u64(..)));
    fs::write(&file, text).unwrap();
    let mut run = Command::new(BINARY);
    run.arg("run").arg("--config").arg(file).args(words).env_clear();
    run.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    run.env("CONSUL_HTTP_ADDR", consul.address()).stdin(Stdio::null());
    run
}

#[test]
fn jobs_on_two_semaphores_all_end_in_one_order_and_in_opposite_ones() {
    let (consul, folder) = (Consul::start(), tempfile::tempdir().unwrap());
    let (a, b) = (entry("a", ""), entry("b", ""));
    for orders in [[[&a, &b], [&a, &b]], [[&a, &b], [&b, &a]]] {
        let texts = orders.map(|[first, second]| of([first, second]));
        let mut jobs: Vec<_> = (0..12)
            .map(|n| {
                let mut job = run(&consul, &folder, &texts[n % 2], &["--quiet", "--", "sleep", "0.05"]);
                job.spawn().unwrap()
            })
            .collect();
        let ended = |jobs: &mut Vec<std::process::Child>| {
            jobs.retain_mut(|job| job.try_wait().unwrap().is_none_or(|status| !status.success()));
            jobs.is_empty()
        };
        wait_for("all jobs to end", || ended(&mut jobs));
    }
}

#[test]
fn entries_that_cannot_be_a_group_are_acquired_independently_with_a_warning() {
    let (consul, folder) = (Consul::start(), tempfile::tempdir().unwrap());
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    operator.put(&format!("p/b/{session}"), "", Put::Acquire(&session), 0);
    operator.put("p/b/.lock", &format!(r#"{{"Limit":1,"Holders":["{session}"]}}"#), Put::Plain, 0);
    let (a, b) = (entry("a", ""), entry("b", ", wait: 2s"));
    for (written, warnings) in [("", 1), ("acquire: independently\n", 0)] {
        let text = format!("{written}{}", of([&a, &b]));
        let Output { status, stderr, .. } =
            run(&consul, &folder, &text, &["-v", "--", "true"]).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(75), "{said}");
        assert!(said.contains("slot acquired name=a"), "independently: {said}");
        assert_eq!(said.matches(CONFIGURATION_WARNING).count(), warnings, "{said}");
        assert_eq!(said.contains("may wait for each other for ever"), warnings == 1, "{said}");
        let file = folder.path().join("check.yaml");
        fs::write(&file, text).unwrap();
        let (code, _, said) = operate(&consul.address(), &["check", "--for", "run", file.to_str().unwrap()]);
        assert_eq!((code, said.lines().count()), (Some(0), warnings), "{said}");
        assert_eq!(said.contains("semaphores[1].wait: differs"), warnings == 1, "{said}");
    }
}

#[test]
fn a_ring_is_named_by_the_waiter_and_by_inspect() {
    let consul = Consul::start();
    let address = consul.address();
    let operator = Operator::at(&address);
    let start = |entries: [&str; 2]| {
        let text = format!("acquire: independently\nsession: {{ttl: 10s}}\n{}", of(entries));
        Lodger::start(&address, &text)
    };
    let session = operator.create_session();
    operator.put(&format!("p/b/{session}"), "", Put::Acquire(&session), 0);
    operator.put("p/b/.lock", &format!(r#"{{"Limit":1,"Holders":["{session}"]}}"#), Put::Plain, 0);
    // The first acquires a, and the second is ahead of it for b.
    let (a, b, urgent) = (entry("a", ""), entry("b", ""), entry("b", ", priority: 9"));
    let first = start([&a, &b]);
    wait_for("a to be held", || first.status()["semaphores"][0]["state"] == "held");
    let second = start([&urgent, &a]);
    wait_for("both to be waited for", || operator.keys("p/a").len() == 3 && operator.keys("p/b").len() == 4);
    let (code, said, _) = operate(&address, &["inspect", "p/a"]);
    assert!(code == Some(0) && !said.contains("ring"), "{said}");
    operator.destroy(&session);
    wait_for("the ring", || operator.holders("p/b") == [second.session()]);
    for (agent, waits_at, held) in [(&first, 1, "a"), (&second, 1, "b")] {
        let expected = format!("holds a slot and waits for {held}, which is held here: end one of the two");
        wait_for(&format!("the waiter's line; log:\n{}", agent.log()), || {
            let reason = agent.status()["semaphores"][waits_at]["reason"].clone();
            reason.as_str().is_some_and(|it| it.starts_with("ring: ") && it.contains(&expected))
        });
    }
    let (_, said, _) = operate(&address, &["inspect", "p/a"]);
    assert!(
        said.contains("holds a slot here and waits for p/b") && said.contains("acquire: together"),
        "{said}"
    );
    let (_, said, _) = operate(&address, &["inspect", "p/b", "--json"]);
    let seen: serde_json::Value = serde_json::from_str(&said).unwrap();
    let expected = serde_json::json!([
        {"holder": second.session(), "waiter": first.session(), "prefix": "p/a"}
    ]);
    assert_eq!(seen["rings"], expected);
}

#[test]
fn a_run_inside_another_says_once_what_to_write_instead() {
    let consul = Consul::start();
    let nested = ["run", "p/a", "-n", "2", "--", BINARY, "run", "p/c", "-n", "2", "--quiet", "--", BINARY];
    let (outer, itself) = (&nested[..6], "a slot of p/a, which is not free before both have ended");
    for (outer, inner, expected, part) in [
        (outer, &["p/b", "-n", "1"][..], 1, "slotkeeper run --config FILE"),
        (outer, &["p/b", "-n", "1", "--quiet"], 0, ""),
        // It ends by itself.
        (outer, &["p/b", "-n", "1", "--timeout", "9s"], 0, ""),
        // It may wait for itself.
        (outer, &["p/a", "-n", "2", "--quiet"], 1, itself),
        (&nested, &["p/a", "-n", "2"], 1, itself),
    ] {
        let words = [outer, &["run"], inner, &["--", "true"]].concat();
        let (code, _, said) = operate(&consul.address(), &words);
        assert_eq!((code, said.matches(RUN_IN_RUN).count()), (Some(0), expected), "{inner:?}: {said}");
        assert!(said.contains(part), "{said}");
    }
}

/// `scripts/chaos --crossed` plays many more.
#[test]
fn crossed_jobs_with_priorities_kills_and_changed_limits_all_end() {
    let (consul, folder) = (Consul::start(), tempfile::tempdir().unwrap());
    let seed = slotkeeper_test_seed::base();
    let mut game = Crossed::new(consul.address(), folder.path(), seed);
    // The eighth has kills.
    for _ in 0..8 {
        game.round().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    eprintln!("{}", game.counts);
}
