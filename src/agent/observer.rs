//! Observes the client of Consul: counts requests, and logs logins and changes of address.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tracing::{debug, info, warn};

use crate::bridge;
use crate::config::Config;
use crate::duration::seconds;
use crate::log_events::{
    CONSUL_ADDRESS_CHANGED, CONSUL_ADDRESS_WITHOUT_SESSION, LOGGED_IN, LOGIN_FAILED, REQUEST_ENDED,
};
use crate::metrics::Metrics;
use slotkeeper_consul::{AddressNews, Client, Code, Error, Observer, Tried};

/// The client of Consul, whose requests are counted and whose changes of address and login are logged.
pub(super) fn client(config: &Config, metrics: &Arc<Metrics>) -> anyhow::Result<Client> {
    let observer = AgentObserver { metrics: Arc::clone(metrics) };
    Client::new(&config.consul, Arc::new(observer)).context("cannot create a client for Consul")
}

struct AgentObserver {
    metrics: Arc<Metrics>,
}

impl Observer for AgentObserver {
    fn finished(&self, tried: &Tried, code: Code, took: Duration) {
        debug!(
            operation = tried.operation.label(),
            object = tried.target,
            address = %tried.address,
            code = code.as_str(),
            took_seconds = seconds(took),
            "{REQUEST_ENDED}"
        );
        self.metrics.finished(tried, code, took);
    }

    fn logged_in(&self, auth_method: &str, accessor: &str) {
        info!(auth_method, accessor, "{LOGGED_IN}");
    }

    fn login_failed(&self, error: &Error, has_token: bool) {
        if has_token {
            warn!(error = %bridge::message(error), "{LOGIN_FAILED}; still using the current token");
        } else {
            warn!(error = %bridge::message(error), "{LOGIN_FAILED}");
        }
    }

    fn addresses(&self, news: &AddressNews) {
        match news {
            AddressNews::Moved { from, to, why, proved: true } => {
                warn!(from, to, reason = why, "{CONSUL_ADDRESS_CHANGED}");
            }
            AddressNews::Moved { from, to, why, proved: false } => warn!(
                from,
                to,
                reason = why,
                "{CONSUL_ADDRESS_CHANGED}; both may not be one cluster, so the agent creates a new session"
            ),
            AddressNews::NoSession { .. } => warn!(error = %news, "{CONSUL_ADDRESS_WITHOUT_SESSION}"),
        }
    }
}
