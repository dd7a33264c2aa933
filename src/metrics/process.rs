//! The usual `process_*`.

use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{Counter, MetricFamily};

use crate::clock;

const CPU: &str = "process_cpu_seconds_total";

/// The crate's collector, but with the CPU time in nanoseconds instead of whole seconds. An agent needs about one second an hour, so a
/// rate of whole seconds would be useless.
pub(super) struct Process(ProcessCollector);

impl Process {
    pub(super) fn of_this() -> Self {
        Self(ProcessCollector::for_self())
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.0.collect();
        for family in families.iter_mut().filter(|family| family.name() == CPU) {
            for metric in family.mut_metric() {
                let mut counter = Counter::default();
                counter.set_value(clock::processor_time().as_secs_f64());
                metric.set_counter(counter);
            }
        }
        families
    }
}
