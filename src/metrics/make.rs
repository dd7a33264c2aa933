//! How metrics are made: named, described and registered in one step.

use prometheus::core::Collector;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::SEMAPHORE;

pub(super) fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("slotkeeper")
}

pub(super) fn buckets(name: &str, help: &str, buckets: &[f64]) -> HistogramOpts {
    HistogramOpts::new(name, help).namespace("slotkeeper").buckets(buckets.to_vec())
}

pub(super) struct Maker {
    pub(super) registry: Registry,
}

impl Maker {
    pub(super) fn registered<C: Collector + Clone + 'static>(&self, metric: C) -> prometheus::Result<C> {
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    pub(super) fn gauges(&self, name: &str, help: &str) -> prometheus::Result<IntGaugeVec> {
        self.registered(IntGaugeVec::new(opts(name, help), SEMAPHORE)?)
    }

    pub(super) fn floats(&self, name: &str, help: &str) -> prometheus::Result<GaugeVec> {
        self.registered(GaugeVec::new(opts(name, help), SEMAPHORE)?)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.registered(IntCounterVec::new(opts(name, help), labels)?)
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> prometheus::Result<HistogramVec> {
        self.registered(HistogramVec::new(self::buckets(name, help, buckets), labels)?)
    }
}
