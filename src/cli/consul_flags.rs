//! The flags of every command that talks to Consul, under the names the `consul` command line gives them.

use std::convert::Infallible;

use clap::{Args, ValueHint};

use crate::config::Overrides;
use slotkeeper_consul::Secret;

/// How to reach Consul, where the environment (`CONSUL_HTTP_ADDR` and the others) or the configuration file should not
/// decide.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Consul")]
pub struct ConsulFlags {
    /// Address of the HTTP API: http://host:port, https://host:port, host:port or unix:///path. Several
    /// with commas: if one fails, the next one is used [env: CONSUL_HTTP_ADDR]
    #[arg(long, value_name = "ADDRESS", value_hint = ValueHint::Url)]
    http_addr: Option<String>,
    /// ACL token; --token-file keeps it out of the process list [env: CONSUL_HTTP_TOKEN]
    #[arg(long, value_name = "TOKEN", value_parser = secret)]
    token: Option<Secret>,
    /// File with the ACL token, read again when it changes [env: CONSUL_HTTP_TOKEN_FILE]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<String>,
    /// PEM file of the certificate authorities to trust [env: CONSUL_CACERT]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ca_file: Option<String>,
    /// Folder of such files [env: CONSUL_CAPATH]
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    ca_path: Option<String>,
    /// PEM file of the client certificate [env: CONSUL_CLIENT_CERT]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    client_cert: Option<String>,
    /// PEM file of the client certificate's private key [env: CONSUL_CLIENT_KEY]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    client_key: Option<String>,
    /// Name that the server's certificate must have [env: CONSUL_TLS_SERVER_NAME]
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Datacenter; by default the addressed agent's own [env: SLOTKEEPER_CONSUL_DATACENTER]
    #[arg(long, value_name = "NAME")]
    datacenter: Option<String>,
    /// Namespace (Consul Enterprise; not tested) [env: CONSUL_NAMESPACE]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Admin partition (Consul Enterprise; not tested) [env: CONSUL_PARTITION]
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Longest wait of a long poll, 2s to 10m, where a proxy ends longer requests
    /// [env: SLOTKEEPER_CONSUL_MAX_WAIT]
    #[arg(long, value_name = "DURATION")]
    consul_max_wait: Option<String>,
}

impl ConsulFlags {
    /// Adds what was given to `overrides`.
    pub fn lay_over(&self, overrides: &mut Overrides) {
        let token = self.token.as_ref().map(Secret::expose);
        overrides.flag("--http-addr", "consul.address", self.http_addr.as_deref());
        overrides.flag("--token", "consul.token", token);
        overrides.flag("--token-file", "consul.token_file", self.token_file.as_deref());
        overrides.flag("--ca-file", "consul.tls.ca_file", self.ca_file.as_deref());
        overrides.flag("--ca-path", "consul.tls.ca_path", self.ca_path.as_deref());
        overrides.flag("--client-cert", "consul.tls.cert_file", self.client_cert.as_deref());
        overrides.flag("--client-key", "consul.tls.key_file", self.client_key.as_deref());
        overrides.flag("--tls-server-name", "consul.tls.server_name", self.tls_server_name.as_deref());
        overrides.flag("--datacenter", "consul.datacenter", self.datacenter.as_deref());
        overrides.flag("--namespace", "consul.namespace", self.namespace.as_deref());
        overrides.flag("--consul-max-wait", "consul.max_wait", self.consul_max_wait.as_deref());
        overrides.flag("--partition", "consul.partition", self.partition.as_deref());
    }
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::config::{self, Environment};
    use slotkeeper_consul::TokenSource;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        consul: ConsulFlags,
    }

    fn overrides(flags: &[&str]) -> Overrides {
        let command = Command::parse_from(["test"].iter().chain(flags));
        assert!(!format!("{command:?}").contains("s3cret"));
        let mut overrides = Overrides::default();
        command.consul.lay_over(&mut overrides);
        overrides
    }

    #[test]
    fn flags_win_over_variables() {
        let environment: Environment =
            [("CONSUL_HTTP_ADDR", "a:1"), ("CONSUL_HTTP_TOKEN_FILE", "/f"), ("CONSUL_NAMESPACE", "n")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into_iter()
                .collect();
        let flags = overrides(&[
            "--http-addr",
            "https://b:2",
            "--token",
            "s3cret",
            "--datacenter",
            "dc2",
            "--consul-max-wait",
            "25s",
        ]);
        let settings = config::consul_settings(&flags, &environment).unwrap().config;
        assert_eq!(settings.token, Some(TokenSource::Value(Secret::new("s3cret".to_owned()))));
        assert_eq!(settings.max_wait, Some(Duration::from_secs(25)));
        assert_eq!((settings.datacenter.as_deref(), settings.namespace.as_deref()), (Some("dc2"), Some("n")));
        assert!(!format!("{settings:?} {flags:?}").contains("s3cret"));
    }

    #[test]
    fn a_wrong_flag_is_named() {
        let faults =
            config::consul_settings(&overrides(&["--http-addr", "ftp://x"]), &Environment::default());
        assert!(faults.unwrap_err().to_string().starts_with("--http-addr: unknown scheme"));
    }
}
