//! docs/systemd.md, taken at its word: its files are the examples, its table has the unit's settings, its commands work.

use std::collections::BTreeMap;

use crate::support::ports::Ports;
use crate::unit::Host;
use crate::wait_for;

const PAGE: &str = include_str!("../../docs/systemd.md");
const UNIT: &str = include_str!("../../packaging/systemd/slotkeeper@.service");
const TOKEN: &str = "/etc/systemd/system/slotkeeper@.service.d/consul-token.conf";

/// The page's blocks of a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    PAGE.split(begin.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The page's files, by the path in their first line.
fn files(language: &str) -> BTreeMap<&'static str, &'static str> {
    let file = |block: &'static str| block.strip_prefix("# ").and_then(|rest| rest.split_once('\n'));
    blocks(language).into_iter().map(|block| file(block).expect("a path in the first line")).collect()
}

/// The lines that systemd reads.
fn settings(unit: &str) -> Vec<&str> {
    unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[test]
fn its_files_are_the_examples() {
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd/examples");
    let mut shown = files("ini");
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().display().to_string();
        let (place, _) = shown.iter().find(|(place, _)| place.ends_with(&format!("/{name}"))).unwrap();
        let file = shown.remove(*place).unwrap();
        assert_eq!(settings(file), settings(&std::fs::read_to_string(&path).unwrap()), "{name}");
    }
    assert!(shown.is_empty(), "no example: {shown:?}");
}

#[test]
fn every_setting_has_a_reason() {
    let rows: Vec<_> = PAGE.lines().filter_map(|line| line.strip_prefix("| `")).collect();
    let explained = |text: &str| rows.iter().any(|row| row.split(" | ").next().unwrap().contains(text));
    let service = UNIT.split_once("[Service]\n").unwrap().1;
    let (own, _sandbox) = service.split_once("Group=slotkeeper\n").unwrap();
    for setting in settings(own) {
        let (name, _) = setting.split_once('=').unwrap();
        assert!(explained(&format!("{name}=")), "{setting}");
    }
    // A value in the table is the unit's.
    let cells = rows.iter().flat_map(|row| row.split(" | ").next().unwrap().split('`'));
    let named = cells.filter(|cell| cell.split_once('=').is_some_and(|(_, value)| !value.is_empty()));
    let named: Vec<_> = named.filter(|cell| cell.starts_with(|c: char| c.is_ascii_uppercase())).collect();
    assert!(named.len() > 10, "{named:?}");
    for setting in named {
        assert!(settings(UNIT).contains(&setting) || setting.starts_with("status="), "{setting}");
    }
}

#[test]
fn its_commands_work() {
    let host = Host::boot();
    for (path, text) in files("ini").into_iter().chain(files("yaml")).filter(|(path, _)| *path != TOKEN) {
        host.write(path, text);
    }
    for program in ["import-worker", "loader"] {
        host.install(&format!("/usr/local/bin/{program}"), "#!/bin/sh\nexec sleep infinity\n");
    }
    host.install("/usr/local/bin/import", "#!/bin/sh\necho \"$*\" > /run/import\n");
    let consul = format!("CONSUL_HTTP_ADDR={}", host.address());
    host.write("/etc/slotkeeper/environment", &consul);
    // The default is this machine's only one.
    let ports = Ports::reserve();
    let listen = format!("SLOTKEEPER_HTTP_LISTEN={}", ports.addr(0));
    host.drop_in("slotkeeper@.service", &format!("[Service]\nEnvironment={listen}\n"));
    host.run(&["env", &consul, &listen, "bash", "-euxc", &blocks("sh").concat()]);
    for unit in ["slotkeeper@writers", "import-worker", "loader"] {
        host.await_property(unit, "ActiveState", "active");
    }
    wait_for("the job", || host.read("/run/import") == "--full\n");
    assert_eq!(host.property("nightly-import.timer", "ActiveState"), "active");
}
