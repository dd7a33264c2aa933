//! The pages of docs/ by task: every command runs on a real Consul, and prints what the page says.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::consul::Consul;
use crate::page::Page;
use crate::process::BINARY;

/// Runs each page, in a test of its own.
macro_rules! run {
    ($($test:ident: $page:literal,)*) => {
        /// The pages that are run.
        const RUN: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                let consul = Consul::start();
                Page::read(concat!("docs/", $page)).assert_runs(&consul.address());
            }
        )*
    };
}

run! {
    index: "README.md",
    run: "run.md",
    locks: "locks.md",
    guarantees: "guarantees.md",
    gate_a_job: "gate-a-job.md",
    replace_consul_lock: "replace-consul-lock.md",
    limit_a_fleet: "limit-a-fleet.md",
    change_a_limit: "change-a-limit.md",
    find_a_stuck_slot: "find-a-stuck-slot.md",
    follow_a_leader: "follow-a-leader.md",
    read_the_dashboard: "read-the-dashboard.md",
    shell_setup: "shell-setup.md",
    operators: "operators.md",
    security: "security.md",
    metrics: "metrics.md",
    endpoints: "endpoints.md",
    control_api: "control-api.md",
    agent: "agent.md",
    container_image: "container-image.md",
    benchmarks: "benchmarks.md",
    development_server: "development-server.md",
    compatibility: "compatibility.md",
    glossary: "glossary.md",
    stability: "stability.md",
    upgrading: "upgrading.md",
    comparison: "comparison.md",
    configuration: "configuration.md",
}

/// The other pages, each with the test that takes it at its word.
const TAKEN: &[(&str, &str)] = &[
    ("clients.md", "tests/clients/main.rs"),
    ("consul-acl.md", "tests/agent/login/docs.rs"),
    ("cron.md", "tests/agent/cron.rs"),
    ("decisions", "tests/agent/docs.rs"),
    ("internals", "tests/agent/docs.rs"),
    ("kubernetes.md", "tests/chart/page.rs"),
    ("nomad.md", "tests/hosts/nomad.rs"),
    ("releasing.md", "tests/agent/docs.rs"),
    ("runbooks", "tests/monitoring/rules.rs"),
    ("schemas", "tests/agent/schemas.rs"),
    ("step-by-step.md", "tests/agent/steps.rs"),
    ("systemd.md", "tests/systemd/page.rs"),
    ("troubleshooting.md", "tests/agent/troubleshooting.rs"),
];

#[test]
fn every_page_is_run_or_its_claims_are_compared() {
    let files = fs::read_dir(Path::new(REPOSITORY).join("docs")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<_> = names.filter(|name| name.ends_with(".md") || !name.contains('.')).collect();
    let taken = TAKEN.iter().map(|(page, _)| *page);
    let mut known: Vec<_> = RUN.iter().copied().chain(taken).collect();
    pages.sort_unstable();
    known.sort_unstable();
    assert_eq!(pages, known);
    for (page, test) in TAKEN {
        assert!(read(test).contains(&format!("docs/{page}")), "{test} does not know {page}");
    }
}

/// What is not run as it stands, by page: what wants a cluster, a builder of images, or an agent that
/// drains. `tests/chart`, `tests/image` and `drain` have these.
const NOT_RUN: &[(&str, &[&str])] = &[
    ("agent.md", &["workload"]),
    ("container-image.md", &["image"]),
    ("kubernetes.md", &["cluster"; 4]),
    ("metrics.md", &["repository", "cluster"]),
    ("nomad.md", &["nomad"]),
    ("releasing.md", &["release"; 4]),
];

#[test]
fn no_block_is_left_out_unnoticed() {
    for file in fs::read_dir(Path::new(REPOSITORY).join("docs")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".md") {
            continue;
        }
        let listed = NOT_RUN.iter().find(|(page, _)| *page == name).map_or(&[][..], |(_, why)| why);
        assert_eq!(Page::read(&format!("docs/{name}")).not_run(), listed, "{name}");
    }
}

#[test]
fn the_page_on_run_has_every_flag() {
    let help = Command::new(BINARY).args(["run", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    // What all commands have that ask Consul is said elsewhere.
    let (own, _) = help.split_once("\nConsul:\n").unwrap();
    let page = read("docs/run.md");
    let flags = own.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2);
    for flag in flags.map(|flag| flag.trim_end_matches(|c: char| !c.is_ascii_alphanumeric())) {
        assert!(page.contains(flag) || matches!(flag, "--help" | "--version"), "{flag}");
    }
}

#[test]
fn the_page_on_releases_has_every_file() {
    // What `scripts/release --test` finds is what the page lists.
    let script = read("scripts/release-test");
    let (_, rest) = script.split_once("same \"the files of a release\" \"\\\n").unwrap();
    let (files, _) = rest.split_once("\" \"$(").unwrap();
    let named = |file: &str| {
        let file = file.replace("$version", "VERSION");
        ["x86_64", "aarch64"]
            .iter()
            .fold(file, |file, arch| file.replace(&format!("${arch}"), &format!("{arch}-unknown-linux-musl")))
    };
    let mut files: Vec<_> = files.lines().map(named).collect();
    let page = read("docs/releasing.md");
    let (_, table) = page.split_once("| file | for |\n|---|---|\n").unwrap();
    let rows = table.lines().map_while(|line| line.strip_prefix("| `"));
    let mut rows: Vec<_> = rows.map(|row| row.split('`').next().unwrap().to_owned()).collect();
    files.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, files);
}

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(REPOSITORY).join(path)).unwrap()
}

/// All panels, rows left out.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let all =
        panels.flat_map(|panel| [panel].into_iter().chain(panel["panels"].as_array().into_iter().flatten()));
    all.filter(|panel| panel["type"] != "row").collect()
}

#[test]
fn every_panel_has_a_row_with_its_own_metrics() {
    let dashboard: Value =
        serde_json::from_str(&read("charts/slotkeeper/dashboards/slotkeeper.json")).unwrap();
    let panels = panels(&dashboard);
    let page = read("docs/read-the-dashboard.md");
    let mut told = Vec::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| **")) {
        let (title, rest) = row.split_once("** | `").unwrap();
        let metric = rest.split('`').next().unwrap();
        let of_title = panels.iter().filter(|panel| panel["title"] == title);
        let is_made_of_it = of_title.into_iter().any(|panel| panel["targets"].to_string().contains(metric));
        assert!(is_made_of_it, "no panel {title:?} is made of {metric}");
        told.push(title);
    }
    let mut titles: Vec<_> = panels.iter().map(|panel| panel["title"].as_str().unwrap()).collect();
    titles.sort_unstable();
    told.sort_unstable();
    assert_eq!(told, titles);
    let alerts = fs::read_dir(Path::new(REPOSITORY).join("docs/runbooks"))
        .unwrap()
        .map(|file| file.unwrap().file_name());
    for alert in alerts.map(|name| name.into_string().unwrap()).filter(|name| name != "README.md") {
        assert!(page.contains(&format!("(runbooks/{alert})")), "{alert}");
    }
}

/// The Markdown files of a folder, as paths from the root of the repository.
fn markdown(folder: &str) -> Vec<String> {
    let files = fs::read_dir(Path::new(REPOSITORY).join(folder)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")).collect()
}

#[test]
fn every_decision_has_its_sections_and_is_in_the_index() {
    let index = read("docs/decisions/README.md");
    let mut numbers = BTreeSet::new();
    for page in markdown("docs/decisions") {
        let name = page.rsplit('/').next().unwrap();
        if name == "README.md" {
            continue;
        }
        let text = read(&page);
        let headings: Vec<_> = text.lines().filter(|line| line.starts_with('#')).collect();
        let title = headings[0].strip_prefix("# ").unwrap();
        assert_eq!(headings[1..], ["## Context", "## Decision", "## Consequence"], "{page}");
        assert!((10..=40).contains(&text.lines().count()), "{page} has {} lines", text.lines().count());
        assert!(index.contains(&format!("- [{title}]({name})\n")), "{page} is not in the index");
        let (number, _) = name.split_once('-').unwrap();
        assert!(number.len() == 4 && numbers.insert(number.parse::<u32>().unwrap()), "{page}");
    }
    assert!(!numbers.is_empty());
}

/// What the Markdown of a page links to, in this repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.contains("://"))
}

/// As a heading's anchor is made.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

#[test]
fn every_page_is_in_the_index_and_every_link_leads_somewhere() {
    let docs = Path::new(REPOSITORY).join("docs");
    let files = fs::read_dir(&docs).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<_> = files.filter(|name| name.ends_with(".md")).collect();
    let index = read("docs/README.md");
    for page in pages.iter().filter(|name| *name != "README.md") {
        assert!(links(&index).any(|link| link == page), "{page} is not in the index");
    }
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(str::to_owned);
    let folders = ["docs/decisions", "docs/internals"].into_iter().flat_map(markdown);
    for page in pages.iter().map(|name| format!("docs/{name}")).chain(others).chain(folders) {
        let text = read(&page);
        for link in links(&text) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let folder = Path::new(&page).parent().unwrap();
            let target = if file.is_empty() { page.clone() } else { folder.join(file).display().to_string() };
            let path = Path::new(REPOSITORY).join(&target);
            assert!(path.exists(), "{page}: {link}");
            if !heading.is_empty() {
                let target = fs::read_to_string(path).unwrap();
                let headings = target.lines().filter(|line| line.starts_with('#'));
                let anchors: Vec<_> = headings.map(|line| anchor(line.trim_start_matches('#'))).collect();
                assert!(anchors.iter().any(|anchor| anchor == heading), "{page}: {link}, of {anchors:?}");
            }
        }
    }
}

#[test]
fn every_file_that_the_map_names_exists() {
    let root = Path::new(REPOSITORY);
    let roots = [
        "clients",
        "crates",
        "src",
        "tests",
        "charts",
        "benches",
        "docs",
        "examples",
        "packaging",
        "scripts",
        "fuzz",
    ];
    let mut files = roots.map(|name| format!("/{name}")).to_vec();
    let mut folders = roots.map(|name| root.join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            files.push(format!("/{}", path.strip_prefix(root).unwrap().display()));
        }
    }
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let quoted = map.split('`').skip(1).step_by(2);
    let named: Vec<_> = quoted.filter(|text| text.ends_with(".rs") || text.ends_with('/')).collect();
    assert!(named.len() > 100, "{named:?}");
    for name in named {
        let ending = format!("/{}", name.trim_end_matches('/'));
        assert!(files.iter().any(|file| file.ends_with(&ending)), "ARCHITECTURE.md names {name}");
    }
}
