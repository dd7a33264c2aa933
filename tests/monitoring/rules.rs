//! The rules: valid, each alert with its runbook and its unit tests, and a copy that does not take as long.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::Value;

use crate::prometheus::promtool;
use crate::repository;

pub(crate) const FILE: &str = "charts/slotkeeper/rules/slotkeeper.yaml";

/// The rules as they are.
pub(crate) fn text() -> String {
    std::fs::read_to_string(repository(FILE)).unwrap()
}

/// All rules, of all groups.
pub(crate) fn all() -> Vec<Value> {
    let file: Value = serde_yaml::from_str(&text()).unwrap();
    let groups = file["groups"].as_array().unwrap().iter();
    groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

/// The alerts.
pub(crate) fn alerts() -> Vec<Value> {
    all().into_iter().filter(|rule| rule["alert"].is_string()).collect()
}

/// The same rules, thirty times as fast: every duration, and every number of seconds in an expression, is divided by
/// 30. All of them are whole minutes; numbers of less than three digits are none of time.
pub(crate) fn hurried() -> String {
    let mut hurried: Value = serde_yaml::from_str(&text()).unwrap();
    for group in hurried["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            rule["expr"] = hurry(rule["expr"].as_str().unwrap()).into();
            if let Some(wait) = rule["for"].as_str() {
                rule["for"] = hurry(wait).into();
            }
        }
    }
    serde_yaml::to_string(&hurried).unwrap()
}

fn hurry(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let end = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
        let (number, after) = from.split_at(end);
        let seconds = |unit: u32| number.parse::<u32>().unwrap() * unit / 30;
        // As in the name of a recorded series.
        let in_word = before.ends_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let (said, used) = match after.chars().next() {
            _ if in_word => (number.to_owned(), 0),
            Some('m') => (format!("{}s", seconds(60)), 1),
            Some('h') => (format!("{}s", seconds(3600)), 1),
            _ if number.len() >= 3 => (seconds(1).to_string(), 0),
            _ => (number.to_owned(), 0),
        };
        out += before;
        out += &said;
        rest = &after[used..];
    }
    out + rest
}

#[test]
fn every_time_in_a_rule_can_be_hurried() {
    assert_eq!(
        hurry("x:y:increase5m > 0 and (p[10m] > time() - 600) / 3 unless sum(a[6h]) < 21600"),
        "x:y:increase5m > 0 and (p[20s] > time() - 20) / 3 unless sum(a[720s]) < 720"
    );
}

#[test]
fn are_valid_as_they_are_and_hurried() {
    let file = repository(FILE);
    promtool(&["check", "rules", "--lint-fatal", file.to_str().unwrap()], Stdio::null());
    let folder = tempfile::tempdir().unwrap();
    let hurried_file = folder.path().join("hurried.yaml");
    std::fs::write(&hurried_file, hurried()).unwrap();
    promtool(&["check", "rules", "--lint-fatal", hurried_file.to_str().unwrap()], Stdio::null());
}

/// Each fires and resolves, and does not fire where it all but should.
#[test]
fn every_alert_passes_its_unit_tests() {
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let path = repository(&format!("tests/monitoring/rules/{name}.yaml"));
        let tests: Value = serde_yaml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let checks = tests["tests"].as_array().unwrap().iter();
        let checks: Vec<_> =
            checks.flat_map(|test| test["alert_rule_test"].as_array().unwrap()).cloned().collect();
        assert!(checks.iter().all(|check| check["alertname"] == name), "{name}");
        let expected =
            |check: &Value| check["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
        let fires = checks.iter().position(expected).unwrap_or_else(|| panic!("{name} is not shown to fire"));
        assert!(!expected(&checks[fires + 1]), "{name} is not shown to resolve");
        promtool(&["test", "rules", path.to_str().unwrap()], Stdio::null());
    }
}

#[test]
fn every_alert_has_its_runbook_and_annotations() {
    let told = std::fs::read_to_string(repository("docs/metrics.md")).unwrap();
    let mut pages = BTreeSet::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        assert!(name.starts_with("Slotkeeper"), "{name}");
        let page = format!("docs/runbooks/{name}.md");
        assert_eq!(alert["annotations"]["runbook_url"], page.as_str());
        assert!(alert["annotations"]["description"].is_string(), "{name}");
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        let text =
            std::fs::read_to_string(repository(&page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.starts_with(&format!("# {name}\n")), "{page} has another title");
        for heading in ["## What it means", "## How bad it is", "## How to look", "## How to fix it"] {
            assert!(text.contains(&format!("\n{heading}\n")), "{page} lacks {heading:?}");
        }
        let summary = alert["annotations"]["summary"].as_str().unwrap();
        let line = format!("| [{name}](runbooks/{name}.md) | {severity} | {summary} |");
        assert!(told.contains(&line), "docs/metrics.md lacks {line}");
        pages.insert(format!("{name}.md"));
    }
    let there = repository("docs/runbooks").read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let there: BTreeSet<_> = there.map(|name| name.into_string().unwrap()).collect();
    // Beside them is one for all: from an alert to a pod, and where to run their commands.
    pages.insert("README.md".into());
    assert_eq!(there, pages, "pages, and alerts");
}
