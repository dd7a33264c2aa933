//! What an agent says at `/metrics`, and that docs/metrics.md says the same.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::OnceLock;

use crate::consul::Consul;
use crate::process::{Agent, Home};
use crate::prometheus::promtool;
use crate::support::ports::Ports;
use crate::{repository, textfile};

const CONFIG: &str = "session: {ttl: 10s}\n\
                      semaphores: [{name: s, prefix: p/s, limit: 1}, {name: d, prefix: p/d, limit: 1, mode: on_demand}]\n\
                      locks: [{name: l, key: p/l}]\ncontrol: {listen: 'unix:$HOME/control.sock'}\n";

/// All metrics of an agent that has a semaphore, a lock, and a semaphore on demand.
fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let (home, ports) = (Home::new(), Ports::reserve());
        home.configure(&ports.addr(0).to_string(), CONFIG);
        let agent = Agent::start_with(&home, &["--dev"], &[]);
        agent.await_ready();
        agent.get("/metrics").body
    })
}

/// The names of its own series.
pub(crate) fn series() -> BTreeSet<String> {
    let lines = text().lines().filter(|line| line.starts_with("slotkeeper_"));
    lines.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

/// Its own metrics, with what the help of each says.
pub(crate) fn families() -> Vec<(String, String)> {
    families_of(text())
}

fn families_of(text: &str) -> Vec<(String, String)> {
    let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP slotkeeper_"));
    helps
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, help)| (format!("slotkeeper_{name}"), help.to_owned()))
        .collect()
}

/// Its labels but for a histogram's own.
fn labels(text: &str, family: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| {
        line.strip_prefix(family)
            .is_some_and(|rest| ["{", "_bucket{", "_count{"].iter().any(|start| rest.starts_with(start)))
    });
    let pairs = lines.filter_map(|line| line.split_once('{')?.1.rsplit_once('}'));
    let names = pairs.flat_map(|(pairs, _)| pairs.split(',')).filter_map(|pair| pair.split_once('='));
    names.map(|(name, _)| name.to_owned()).filter(|name| name != "le").collect()
}

fn kind<'a>(text: &'a str, family: &str) -> &'a str {
    let start = format!("# TYPE {family} ");
    text.lines().find_map(|line| line.strip_prefix(&start)).unwrap()
}

#[test]
fn promtool_accepts_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics");
    std::fs::write(&file, text()).unwrap();
    assert_eq!(promtool(&["check", "metrics"], File::open(&file).unwrap().into()), "");
    std::fs::write(&file, "# TYPE a_total gauge\na_total 1\n").unwrap();
    let bad = std::panic::catch_unwind(|| promtool(&["check", "metrics"], File::open(&file).unwrap().into()));
    assert!(bad.is_err(), "promtool finds nothing wrong with anything");
}

/// One line each, in the order of their names in each table.
#[test]
fn the_page_of_metrics_has_every_one_as_it_is() {
    let page = std::fs::read_to_string(repository("docs/metrics.md")).unwrap();
    let told: Vec<_> = page.lines().filter(|line| line.starts_with("| `slotkeeper_")).collect();
    let rows = |text: &str| -> Vec<String> {
        let row = |(name, help): (String, String)| {
            let labels: Vec<_> = labels(text, &name).into_iter().map(|label| format!("`{label}`")).collect();
            format!("| `{name}` | {} | {} | {help} |", kind(text, &name), labels.join(", "))
        };
        families_of(text).into_iter().map(row).collect()
    };
    // A second table has what only the file of `run` has.
    let (consul, folder) = (Consul::start(), tempfile::tempdir().unwrap());
    let file = textfile::written(&consul.address(), &folder.path().join("job.prom"));
    let of_run = rows(&file).into_iter().filter(|row| row.starts_with("| `slotkeeper_run_"));
    let there: Vec<_> = rows(text()).into_iter().chain(of_run).collect();
    assert_eq!(told, there, "docs/metrics.md, and the agent; as it should be:\n{}", there.join("\n"));
}
