//! What `run --metrics-file` writes, as the node exporter's textfile collector reads it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::consul::Consul;
use crate::process::BINARY;
use crate::prometheus::promtool;

/// The content of the file after a run on the slot of `service/writers`.
pub(crate) fn written(consul: &str, file: &Path) -> String {
    let run = ["run", "--http-addr", consul, "service/writers", "-n", "1", "--metrics-file"];
    let mut command = Command::new(BINARY);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let output = command.args(run).arg(file).args(["--", "true"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(file).unwrap()
}

#[test]
fn promtool_accepts_the_file_and_two_files_have_no_series_in_common() {
    let consul = Consul::start();
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|job| {
        let file = folder.path().join(job).with_extension("prom");
        let text = written(&consul.address(), &file);
        assert_eq!(promtool(&["check", "metrics"], File::open(&file).unwrap().into()), "", "{text}");
        text
    });
    let samples = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| {
                // A third field would be a timestamp, with which the collector leaves out the whole file.
                let (series, value) = line.rsplit_once(' ').unwrap();
                assert!(!series.contains("} ") && value.parse::<f64>().is_ok(), "{line}");
                series.to_owned()
            })
            .collect()
    };
    let (one, other) = (samples(&first), samples(&second));
    assert!(one.len() > 40 && one.len() <= 140, "{} series", one.len());
    assert_eq!(one.intersection(&other).next(), None);
    // The same metric has the same help in all files, or the collector replaces it.
    let helps = |text: &str| {
        text.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    assert_eq!(helps(&first), helps(&second));
}
