//! What the agent makes of the client's events: metrics of its requests, and log lines of its logins and addresses.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::{CONSUL_ADDRESS_CHANGED, CONSUL_ADDRESS_FOREIGN};
use crate::metrics::Metrics;
use slotkeeper_consul::{AddressNews, Code, Error, Observer, Operation};

/// Passes each event on to the metrics and to the log.
pub(super) struct ClientObserver {
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: ClientLog,
}

impl Observer for ClientObserver {
    fn finished(&self, operation: Operation, code: Code, took: Duration) {
        self.metrics.finished(operation, code, took);
        self.log.finished(operation, code, took);
    }

    fn logged_in(&self, auth_method: &str, accessor: &str) {
        self.metrics.logged_in(auth_method, accessor);
        self.log.logged_in(auth_method, accessor);
    }

    fn login_failed(&self, error: &Error, has_token: bool) {
        self.metrics.login_failed(error, has_token);
        self.log.login_failed(error, has_token);
    }

    fn addresses(&self, news: &AddressNews) {
        self.metrics.addresses(news);
        self.log.addresses(news);
    }
}

/// Logs logins and changes of the address. Requests are counted, not logged.
pub(super) struct ClientLog;

impl Observer for ClientLog {
    fn finished(&self, _: Operation, _: Code, _: Duration) {}

    fn logged_in(&self, auth_method: &str, accessor: &str) {
        info!(auth_method, accessor, "logged in to Consul");
    }

    fn login_failed(&self, error: &Error, has_token: bool) {
        warn!("{error}{}", if has_token { "; still using the current token" } else { "" });
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
                "{CONSUL_ADDRESS_CHANGED}; nothing proves that both are one cluster, so everything begins anew"
            ),
            AddressNews::NoSession { .. } => warn!("{news}"),
            AddressNews::Foreign { address, used, why } => warn!(
                address,
                used,
                reason = why,
                "{CONSUL_ADDRESS_FOREIGN}; correct consul.address, or remove it there"
            ),
        }
    }
}
