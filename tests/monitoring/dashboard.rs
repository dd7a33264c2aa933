//! The dashboard: what Grafana needs stands in it, and nothing that grows with the number of pods.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::prometheus::promtool;
use crate::{exposition, repository, rules, words};

/// Metrics that are not on it, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("slotkeeper_fencing_token", "an index, which says something only beside the resource's"),
    ("slotkeeper_slot_index", "the name of a slot, and no quantity"),
    ("slotkeeper_slot_held", "whoever holds has a time since when"),
    ("slotkeeper_slots", "configuration; for the alerts"),
];

/// One expression of a panel.
pub(crate) struct Target {
    /// The panel's title and the reference in it.
    pub(crate) name: String,
    pub(crate) expr: String,
    pub(crate) unit: String,
    /// A table of the few that are furthest, which may name pods.
    pub(crate) names_pods: bool,
}

fn load() -> Value {
    let file = repository("charts/slotkeeper/dashboards/slotkeeper.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row")
}

/// All expressions, with Grafana's variables as they are when everything is selected, a minute is shown and a scrape
/// comes every second or so.
pub(crate) fn targets() -> Vec<Target> {
    let mut targets = Vec::new();
    for panel in panels(&load()) {
        for target in panel["targets"].as_array().unwrap() {
            let mut expr = target["expr"].as_str().unwrap().to_owned();
            for (variable, value) in [
                ("$__rate_interval_ms", "10000"),
                ("$__rate_interval", "10s"),
                ("$__range_s", "60"),
                ("$__range", "60s"),
                ("$cluster", ".*"),
                ("$namespace", ".*"),
                ("$semaphore", ".*"),
            ] {
                expr = expr.replace(variable, value);
            }
            assert!(!expr.contains('$'), "a variable that is not known in {expr}");
            targets.push(Target {
                name: format!("{} {}", panel["title"], target["refId"]),
                unit: panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap().to_owned(),
                names_pods: expr.contains("topk("),
                expr,
            });
        }
    }
    targets
}

#[test]
fn has_what_grafana_needs() {
    let dashboard = load();
    assert_eq!(dashboard["uid"], "slotkeeper");
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 39);
    assert!(
        dashboard["__inputs"].is_null(),
        "the form of exports is not resolved where files are provisioned"
    );
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "cluster", "namespace", "semaphore"]);
    for variable in &variables[1..] {
        assert_eq!(variable["allValue"], ".*", "a label that the scrape does not have is empty");
        assert_eq!(variable["datasource"]["uid"], "${datasource}");
    }
    let all = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = all.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), all.len(), "an id twice");
    let mut taken = BTreeSet::new();
    for panel in all {
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{} is too wide", panel["title"]);
        for cell in
            (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            assert!(taken.insert(cell), "{} lies over another", panel["title"]);
        }
    }
    for panel in panels(&dashboard) {
        let title = &panel["title"];
        assert!(
            panel["description"].as_str().is_some_and(|text| text.ends_with('.')),
            "{title} is not described"
        );
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        let targets = panel["targets"].as_array().unwrap();
        let refs: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert_eq!(refs.len(), targets.len(), "{title} has a reference twice");
        for part in targets.iter().chain([panel]) {
            assert_eq!(part["datasource"]["type"], "prometheus", "{title}");
            assert_eq!(part["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

/// The series of a code appears with the first answer of that code, which a rate alone would miss.
#[test]
fn a_failed_request_counts_although_its_series_is_new() {
    let expr =
        targets().into_iter().find(|target| target.name.contains("Failed requests to Consul")).unwrap().expr;
    let series = |labels: &str, of: &str, values: &str| json!({"series": format!("{of}{{{labels}job=\"j\",instance=\"a\"}}"), "values": values});
    let failed = |code: &str, values: &str| {
        series(&format!("code=\"{code}\",operation=\"txn\","), "slotkeeper_consul_requests_total", values)
    };
    let shows = |seconds: u32, codes: &[(&str, f64)]| {
        let samples: Vec<_> = codes
            .iter()
            .map(|(code, value)| json!({"labels": format!("{{code=\"{code}\"}}"), "value": value}))
            .collect();
        json!({"expr": expr, "eval_time": format!("{seconds}s"), "exp_samples": samples})
    };
    let tests = json!({"evaluation_interval": "1s", "tests": [
        {
            "name": "an agent that has run for long",
            "interval": "1s",
            "input_series": [
                series("", "slotkeeper_ready", "1x60"),
                series("", "process_start_time_seconds", "-86400x60"),
                failed("500", "7x60"),
                failed("403", "_x20 1x40"),
                failed("200", "0+1x60"),
            ],
            "promql_expr_test": [shows(19, &[]), shows(25, &[("403", 0.1)]), shows(40, &[])],
        },
        {
            "name": "an agent that has just started",
            "interval": "1s",
            "input_series": [
                series("", "slotkeeper_ready", "_x20 1x40"),
                series("", "process_start_time_seconds", "_x20 19x40"),
                failed("unreachable", "_x20 2x40"),
            ],
            "promql_expr_test": [shows(25, &[("unreachable", 0.2)]), shows(40, &[])],
        },
        {
            "name": "old failures after a gap in the scrapes",
            "interval": "1s",
            "input_series": [
                series("", "slotkeeper_ready", "1x5 _x400 1x40"),
                series("", "process_start_time_seconds", "-86400x5 _x400 -86400x40"),
                failed("500", "3x5 _x400 3x40"),
            ],
            "promql_expr_test": [shows(408, &[]), shows(430, &[])],
        },
    ]});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tests.yaml");
    std::fs::write(&file, tests.to_string()).unwrap();
    promtool(&["test", "rules", file.to_str().unwrap()], Stdio::null());
}

#[test]
fn shows_every_metric_that_there_is_and_none_that_is_not() {
    let there = exposition::series();
    let recorded: BTreeSet<_> =
        rules::all().iter().filter_map(|rule| rule["record"].as_str().map(str::to_owned)).collect();
    for target in targets() {
        for word in target.expr.split(['(', '{', ' ', '\n']).filter(|word| word.starts_with("semaphore:")) {
            assert!(recorded.contains(word), "no rule records {word}");
        }
    }
    let used: BTreeSet<_> =
        targets().iter().flat_map(|target| words(&target.expr, "slotkeeper_")).map(str::to_owned).collect();
    for name in &used {
        assert!(there.contains(name), "no agent has {name}");
    }
    let family = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"];
        parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<_> = used.iter().map(|name| family(name)).collect();
    let left_out: BTreeSet<_> = LEFT_OUT.iter().map(|(name, _)| (*name).to_owned()).collect();
    let families: BTreeSet<_> = exposition::families().into_iter().map(|(name, _)| name).collect();
    assert_eq!(&shown | &left_out, families, "what is shown or left out on purpose, and what there is");
    assert_eq!(&shown & &left_out, BTreeSet::new());
}
