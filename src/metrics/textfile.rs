//! The metrics of `slotkeeper run` as a file for the node exporter's textfile collector.
//!
//! The file outlives its process, so it has what stays true: counters, histograms and the result. A gauge of the present, such as a
//! lease that expires, would raise its alert for ever.

use prometheus::proto::{LabelPair, MetricFamily, MetricType};

use super::make::Maker;
use super::{Metrics, date, encode};
use slotkeeper_semaphore::{Moment, Wall};

/// The label that tells the files of a folder apart: the node exporter refuses a series that two files have.
const RUN: &str = "run";
const BUILD_INFO: &str = "slotkeeper_build_info";
const PROCESS: &str = "process_";

/// One `slotkeeper run`.
#[derive(Debug)]
pub struct Run {
    /// The value of the label `run`.
    pub name: String,
    /// When it started.
    pub started: Moment,
    /// Its exit code, and when it ended.
    pub ended: Option<(u8, Moment)>,
}

impl Metrics {
    /// The content of the file.
    ///
    /// # Errors
    ///
    /// A metric cannot be encoded: a programming error.
    pub fn textfile(&self, run: &Run, wall: Wall) -> prometheus::Result<String> {
        let mut families = self.registry.gather();
        families.retain(outlives_the_process);
        families.extend(result(run, wall)?);
        for metric in families.iter_mut().flat_map(MetricFamily::mut_metric) {
            let mut label = LabelPair::default();
            label.set_name(RUN.to_owned());
            label.set_value(run.name.clone());
            let mut labels = metric.take_label();
            labels.push(label);
            labels.sort();
            metric.set_label(labels);
        }
        encode(&families)
    }
}

fn outlives_the_process(family: &MetricFamily) -> bool {
    let counts = matches!(family.get_field_type(), MetricType::COUNTER | MetricType::HISTOGRAM);
    family.name() == BUILD_INFO || (counts && !family.name().starts_with(PROCESS))
}

/// The metrics that only the file has. Those of the end appear with it.
#[rustfmt::skip] // A line for each metric, as in docs/metrics.md.
fn result(run: &Run, wall: Wall) -> prometheus::Result<Vec<MetricFamily>> {
    let make = Maker::default();
    if let Some((code, ended)) = run.ended {
        make.gauge("run_exit_code", "Exit code of slotkeeper run; absent until it has ended")?.set(code.into());
        make.float_gauge("run_finished_timestamp_seconds", "Time at which slotkeeper run ended, as Unix time; absent until then")?.set(date(Some(ended), wall));
    }
    make.float_gauge("run_started_timestamp_seconds", "Time at which slotkeeper run started, as Unix time")?.set(date(Some(run.started), wall));
    Ok(make.registry.gather())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn has_what_stays_true_and_one_label_more() {
        let metrics = Metrics::new().unwrap();
        metrics.add_semaphore("s", false);
        let at = |seconds| Moment::from_boot(Duration::from_secs(seconds));
        let wall = Wall::new(UNIX_EPOCH + Duration::from_secs(1000), at(10));
        let mut run = Run { name: "a \"b\"".into(), started: at(5), ended: None };
        let text = metrics.textfile(&run, wall).unwrap();
        assert!(
            text.contains("slotkeeper_run_started_timestamp_seconds{run=\"a \\\"b\\\"\"} 995\n"),
            "{text}"
        );
        assert!(!text.contains("run_exit_code") && !text.contains("run_finished"), "{text}");
        run.name = "nightly".into();
        run.ended = Some((80, at(9)));
        let text = metrics.textfile(&run, wall).unwrap();
        for sample in [
            "slotkeeper_run_exit_code{run=\"nightly\"} 80",
            "slotkeeper_run_finished_timestamp_seconds{run=\"nightly\"} 999",
            "slotkeeper_hold_duration_seconds_count{run=\"nightly\",semaphore=\"s\"} 0",
            "slotkeeper_slots_lost_total{reason=\"evicted\",run=\"nightly\",semaphore=\"s\"} 0",
            "slotkeeper_session_renew_duration_seconds_count{run=\"nightly\"} 0",
        ] {
            assert!(text.lines().any(|line| line == sample), "{sample} is missing in\n{text}");
        }
        assert!(text.contains("slotkeeper_build_info{"), "{text}");
        let gauges = text.lines().filter(|line| line.starts_with("# TYPE ") && line.ends_with(" gauge"));
        assert_eq!(gauges.count(), 4, "{text}");
        assert!(!text.contains("process_"), "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        assert!(
            samples.clone().count() > 10 && samples.clone().all(|line| line.contains("run=\"nightly\"")),
            "{text}"
        );
    }
}
