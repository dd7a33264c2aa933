//! The environment variables: slotkeeper's own, and Consul's with the meaning they have for `consul`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::fault::{Fault, Place};
use super::identity::{Identity, JOB_NAME, job_name};
use super::overrides::{Override, Overrides};
use super::path::FieldPath;
use super::suggest;
use crate::termination;
use crate::workload::{METRICS_FILE_VARIABLE, RESULT_FILE_VARIABLE, RUN_VARIABLES, is_child_variable};

/// Variables that set one field.
const FIELDS: &[(&str, &str)] = &[
    ("CONSUL_HTTP_ADDR", "consul.address"),
    ("CONSUL_HTTP_TOKEN", "consul.token"),
    ("CONSUL_HTTP_TOKEN_FILE", "consul.token_file"),
    ("CONSUL_NAMESPACE", "consul.namespace"),
    ("CONSUL_PARTITION", "consul.partition"),
    ("CONSUL_CACERT", "consul.tls.ca_file"),
    ("CONSUL_CAPATH", "consul.tls.ca_path"),
    ("CONSUL_CLIENT_CERT", "consul.tls.cert_file"),
    ("CONSUL_CLIENT_KEY", "consul.tls.key_file"),
    ("CONSUL_TLS_SERVER_NAME", "consul.tls.server_name"),
    ("SLOTKEEPER_CONSUL_DATACENTER", "consul.datacenter"),
    ("SLOTKEEPER_CONSUL_MAX_WAIT", "consul.max_wait"),
    ("SLOTKEEPER_CONSUL_LOGIN_AUTH_METHOD", "consul.login.auth_method"),
    ("SLOTKEEPER_CONSUL_LOGIN_BEARER_TOKEN_FILE", "consul.login.bearer_token_file"),
    ("SLOTKEEPER_SESSION_NAME", "session.name"),
    ("SLOTKEEPER_SESSION_TTL", "session.ttl"),
    ("SLOTKEEPER_SESSION_NODE", "session.node"),
    ("SLOTKEEPER_SESSION_LOCK_DELAY", "session.lock_delay"),
    ("SLOTKEEPER_STATE_FILE", "session.state_file"),
    ("SLOTKEEPER_HTTP_LISTEN", "http.listen"),
    ("SLOTKEEPER_CONTROL_LISTEN", "control.listen"),
    ("SLOTKEEPER_READINESS_FILE", "readiness.file"),
    ("SLOTKEEPER_WORKLOAD_VOLUME", "workload.volume"),
    ("SLOTKEEPER_DRAIN_TIMEOUT", "drain.timeout"),
    ("SLOTKEEPER_DRAIN_RELEASE", "drain.release"),
    ("SLOTKEEPER_LOG_FORMAT", "log.format"),
    ("SLOTKEEPER_LOG_LEVEL", "log.level"),
];

/// Variables of files that slotkeeper writes only on request. An empty value turns the file off.
const FILES: [&str; 2] = ["SLOTKEEPER_STATE_FILE", "SLOTKEEPER_READINESS_FILE"];

/// slotkeeper's own variables that set no field.
const OTHERS: &[&str] = &[
    LOGIN_META,
    JOB_NAME,
    "SLOTKEEPER_CONFIG",
    METRICS_FILE_VARIABLE,
    RESULT_FILE_VARIABLE,
    termination::VARIABLE,
    "SLOTKEEPER_POD_NAME",
    "SLOTKEEPER_POD_NAMESPACE",
    "SLOTKEEPER_NODE_NAME",
    // The chart makes addresses of them.
    "SLOTKEEPER_POD_IP",
    "SLOTKEEPER_HOST_IP",
];

/// Several entries of one field: `pod=batch/import-7,team=warehouse`.
const LOGIN_META: &str = "SLOTKEEPER_CONSUL_LOGIN_META";
const AUTH: &str = "CONSUL_HTTP_AUTH";
const SSL: &str = "CONSUL_HTTP_SSL";
const SSL_VERIFY: &str = "CONSUL_HTTP_SSL_VERIFY";

/// Variables by name. An empty one counts as absent, as it does for `consul`, except for slotkeeper's own files.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process. Bytes that are not UTF-8 are replaced, and the check of the value refuses them.
    pub fn of_process() -> Self {
        let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
        std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
    }

    /// The agent's identity.
    pub fn identity(&self) -> Identity {
        let own = |name| self.get(name).map(str::to_owned);
        Identity {
            name: own(JOB_NAME),
            command: None,
            pod: own("SLOTKEEPER_POD_NAME"),
            namespace: own("SLOTKEEPER_POD_NAMESPACE"),
            node: own("SLOTKEEPER_NODE_NAME"),
        }
    }

    /// The readiness file, if a variable names it. It overrides the configuration's.
    pub fn readiness_file(&self) -> Option<&Path> {
        self.of_field("SLOTKEEPER_READINESS_FILE").map(Path::new)
    }

    pub(super) fn overrides(&self) -> Overrides {
        let mut overrides = Overrides::default();
        for (name, field) in FIELDS {
            overrides.variable(name, field, self.of_field(name));
        }
        if let Ok(verify) = self.boolean(SSL_VERIFY, "consul.tls.insecure_skip_verify") {
            overrides.variable(SSL_VERIFY, "consul.tls.insecure_skip_verify", verify.map(|verify| !verify));
        }
        overrides
    }

    /// Entries of the description of a login's token. Each replaces the file's entry of the same key.
    pub(super) fn login_meta(&self) -> Result<Vec<Override>, Fault> {
        let origin = || Place::Variable(LOGIN_META);
        let field = FieldPath::of("consul.login.meta");
        let entries = self.get(LOGIN_META).into_iter().flat_map(|entries| entries.split(','));
        let entry = |entry: &str| match entry.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok(Override { origin: origin(), field: field.key(key.trim()), value: value.trim().into() })
            }
            _ => Err(Fault {
                place: origin(),
                field: field.clone(),
                message: format!("`{}` is not key=value; write key=value,key=value", entry.escape_debug()),
            }),
        };
        entries.map(entry).collect()
    }

    /// Whether TLS is required for all addresses.
    pub(super) fn requires_tls(&self) -> bool {
        matches!(self.boolean(SSL, "consul.address"), Ok(Some(true)))
    }

    /// Faults of the variables themselves.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let booleans = [(SSL, "consul.address"), (SSL_VERIFY, "consul.tls.insecure_skip_verify")];
        let booleans = booleans.into_iter().filter_map(|(name, field)| self.boolean(name, field).err());
        booleans.chain(self.login_meta().err()).chain(self.job_name().err()).collect()
    }

    fn job_name(&self) -> Result<(), Fault> {
        let checked = self.get(JOB_NAME).map_or(Ok(()), |name| job_name(name).map(drop));
        checked.map_err(|message| Fault {
            place: Place::Variable(JOB_NAME),
            field: FieldPath::root(),
            message,
        })
    }

    /// A line for each variable that its user would expect to have an effect: Consul's for basic authentication, and unknown ones
    /// that begin with `SLOTKEEPER_`.
    pub(super) fn warnings(&self) -> Vec<String> {
        let own = self.0.keys().filter(|name| name.starts_with("SLOTKEEPER_"));
        let unsupported = self.get(AUTH).map(|_| {
            format!(
                "{AUTH}: basic authentication is not supported, so the variable has no effect; use a token"
            )
        });
        unsupported.into_iter().chain(own.filter_map(|name| unknown(name))).collect()
    }

    fn of_field(&self, name: &str) -> Option<&str> {
        if FILES.contains(&name) { self.0.get(name).map(String::as_str) } else { self.get(name) }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn boolean(&self, name: &'static str, field: &str) -> Result<Option<bool>, Fault> {
        self.get(name).map(boolean).transpose().map_err(|error| Fault {
            place: Place::Variable(name),
            field: FieldPath::of(field),
            message: format!("`{}` is {error}", self.get(name).unwrap_or_default().escape_debug()),
        })
    }
}

/// A variable that switches something on or off: the values of Go's `strconv.ParseBool`, with which `consul` reads its variables.
///
/// # Errors
///
/// For any other text, what is wrong.
pub fn boolean(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("neither true nor false; write one of them"),
    }
}

/// The variables that set one field, with their fields.
#[cfg(test)]
pub(crate) fn fields() -> impl Iterator<Item = (&'static str, &'static str)> {
    let others = [(SSL_VERIFY, "consul.tls.insecure_skip_verify"), (LOGIN_META, "consul.login.meta")];
    FIELDS.iter().copied().chain(others)
}

/// The names of all known variables.
#[cfg(test)]
pub(crate) fn known() -> impl Iterator<Item = &'static str> {
    own().chain([SSL, SSL_VERIFY])
}

/// All but Consul's switches.
fn own() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|(name, _)| *name).chain(OTHERS.iter().chain(RUN_VARIABLES).copied())
}

fn unknown(name: &str) -> Option<String> {
    if own().any(|known| known == name)
        || is_child_variable(name)
        || is_hook_variable(name)
        || is_service_link(name)
    {
        return None;
    }
    Some(match suggest::nearest(name, own().filter(|known| known.starts_with("SLOTKEEPER_"))) {
        Some(near) => format!("{name}: no such variable; did you mean {near}?"),
        None => format!("{name}: no such variable; it has no effect"),
    })
}

/// The variables of hooks, besides those of commands and of a leader.
const HOOKS: [&str; 6] = [
    "SLOTKEEPER_EVENT",
    "SLOTKEEPER_SEMAPHORE",
    "SLOTKEEPER_KIND",
    "SLOTKEEPER_PREFIX",
    "SLOTKEEPER_KEY",
    "SLOTKEEPER_REASON",
];

/// The variables of hooks. A hook may call slotkeeper.
fn is_hook_variable(name: &str) -> bool {
    HOOKS.contains(&name) || name.starts_with("SLOTKEEPER_LEADER_")
}

/// The variables that Kubernetes sets in every container for a Service named `slotkeeper` or `slotkeeper-…`.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}

/// Shows the names alone, since a value may be a token.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(names: &[&str]) -> Vec<String> {
        let environment: Environment =
            names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect();
        environment.warnings()
    }

    #[test]
    fn a_misspelt_variable_has_a_warning() {
        let warnings = warnings(&["SLOTKEEPER_SESION_TTL", "SLOTKEEPER_REPLICA_COUNT_MAXIMUM", "PATH"]);
        assert_eq!(
            warnings,
            [
                "SLOTKEEPER_REPLICA_COUNT_MAXIMUM: no such variable; it has no effect",
                "SLOTKEEPER_SESION_TTL: no such variable; did you mean SLOTKEEPER_SESSION_TTL?",
            ]
        );
    }

    #[test]
    fn a_variable_of_consul_that_has_no_effect_has_a_warning() {
        let warnings = warnings(&["CONSUL_HTTP_AUTH", "CONSUL_HTTP_TOKEN"]);
        assert!(warnings.len() == 1 && warnings[0].starts_with("CONSUL_HTTP_AUTH: "), "{warnings:?}");
    }

    #[test]
    fn known_variables_of_hooks_and_services_have_no_warning() {
        let names = [
            "SLOTKEEPER_CONFIG",
            "SLOTKEEPER_LOG_LEVEL",
            "SLOTKEEPER_POD_IP",
            "SLOTKEEPER_HOST_IP",
            "SLOTKEEPER_SESSION",
            "SLOTKEEPER_FENCING_TOKEN_WAREHOUSE",
            "SLOTKEEPER_SLOT",
            "SLOTKEEPER_SLOT_WAREHOUSE",
            "SLOTKEEPER_LOCK_INDEX",
            "SLOTKEEPER_LOCK_INDEX_WAREHOUSE",
            "SLOTKEEPER_EVENT",
            "SLOTKEEPER_SEMAPHORE",
            "SLOTKEEPER_KIND",
            "SLOTKEEPER_PREFIX",
            "SLOTKEEPER_KEY",
            "SLOTKEEPER_SLOT_INDEXES",
            "SLOTKEEPER_REASON",
            "SLOTKEEPER_LEADER_MINE",
            "SLOTKEEPER_LEADER_SESSION",
            "SLOTKEEPER_LEADER_POD",
            "SLOTKEEPER_LEADER_NAMESPACE",
            "SLOTKEEPER_SERVICE_HOST",
            "SLOTKEEPER_SERVICE_PORT_HTTP",
            "SLOTKEEPER_PORT",
            "SLOTKEEPER_PORT_9377_TCP_ADDR",
            "SLOTKEEPER_METRICS_SERVICE_HOST",
        ];
        assert_eq!(warnings(&names), Vec::<String>::new());
    }

    #[test]
    fn debug_shows_no_value() {
        let environment: Environment =
            [("CONSUL_HTTP_TOKEN".to_owned(), "s3cret".to_owned())].into_iter().collect();
        assert!(!format!("{environment:?} {:?}", environment.overrides()).contains("s3cret"));
    }
}
