//! A Consul that denies by default and is reached by TLS alone, both sides with certificates; with the policy of
//! `config/policy.hcl` for whoever logs in.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Value, json};
use slotkeeper_consul::{Secret, Settings, TokenSource};

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::Home;
use crate::support::authority::Authority;
use crate::support::consul::Setup;
use crate::support::https;
use crate::support::jwt::Issuer;
use crate::support::kubernetes::{ACCOUNT, Kubernetes, NAMESPACE};

/// Whose bearer may do everything.
pub(super) const ROOT: &str = "b00757a9-0000-4000-8000-000000000000";

/// The policy as it is documented.
pub(super) const POLICY: &str = include_str!("../../../config/policy.hcl");

/// One semaphore and one lock, where the policy has them.
pub(super) const BOTH: &str = "session: {ttl: 10s, lock_delay: 0s}\n\
    semaphores: [{name: s, prefix: service/warehouse/writers, limit: 1}]\n\
    locks: [{name: l, key: service/nightly/leader}]\n";

/// Only the one, and only the other.
pub(super) const SEMAPHORE: &str = "session: {ttl: 10s}\n\
    semaphores: [{name: s, prefix: service/warehouse/writers, limit: 1}]\n";
pub(super) const LOCK: &str = "session: {ttl: 10s, lock_delay: 0s}\n\
    locks: [{name: l, key: service/nightly/leader}]\n";

pub(super) const PREFIX: &str = "service/warehouse/writers";

/// The auth method that agents log in by.
pub(super) const METHOD: &str = "pods";

/// Who says which bearer tokens are good.
enum Words {
    Jwt(Issuer),
    /// The second one makes up tokens that look like Kubernetes' own.
    Kubernetes(Kubernetes, Issuer),
}

pub(super) struct Fortress {
    // Goes last but for the certificates.
    _consul: Consul,
    authority: Authority,
    addr: SocketAddr,
    words: Words,
}

impl Fortress {
    /// One where an auth method of the type `jwt` gives [`POLICY`].
    pub(super) fn start() -> Self {
        Self::start_with(|_| Words::Jwt(Issuer::new()))
    }

    /// The same with the type `kubernetes`.
    pub(super) fn of_kubernetes() -> Self {
        Self::start_with(|_| Words::Kubernetes(Kubernetes::start(), Issuer::new()))
    }

    fn start_with(words: impl FnOnce(&Authority) -> Words) -> Self {
        let authority = Authority::new();
        let words = words(&authority);
        let acl = format!(
            "acl {{ enabled = true, default_policy = \"deny\", tokens {{ master = \"{ROOT}\", agent = \"{ROOT}\" }} }}\n"
        );
        let config = format!("verify_incoming = true\nverify_outgoing = true\n{acl}{}", authority.server());
        let setup = Setup {
            config,
            https_only: Some(authority.client()),
            token: Some(ROOT.into()),
            ..Setup::default()
        };
        let consul = Consul::start_with(setup);
        let fortress = Self { addr: consul.https_addr(), _consul: consul, authority, words };
        fortress.put("acl/policy", &json!({"Name": "slotkeeper", "Rules": POLICY}));
        fortress.put("acl/role", &json!({"Name": "slotkeeper", "Policies": [{"Name": "slotkeeper"}]}));
        fortress.put_auth_method();
        fortress
    }

    /// The auth method, and whom it takes in.
    pub(super) fn put_auth_method(&self) {
        let (method, selector) = match &self.words {
            Words::Jwt(issuer) => (issuer.auth_method(METHOD), "value.name == pod".to_owned()),
            Words::Kubernetes(kubernetes, issuer) => {
                let authority = std::fs::read_to_string(self.authority.file("consul-agent-ca.pem")).unwrap();
                let method = json!({"Name": METHOD, "Type": "kubernetes", "MaxTokenTTL": "1h", "Config": {
                    "Host": kubernetes.url(), "CACert": authority,
                    "ServiceAccountJWT": issuer.jwt("kubernetes", 3600),
                }});
                let namespace = format!("serviceaccount.namespace=={NAMESPACE:?}");
                (method, format!("{namespace} and serviceaccount.name=={ACCOUNT:?}"))
            }
        };
        self.put("acl/auth-method", &method);
        let rule =
            json!({"AuthMethod": METHOD, "BindType": "role", "BindName": "slotkeeper", "Selector": selector});
        self.put("acl/binding-rule", &rule);
    }

    /// A bearer token that the auth method believes, another one each time.
    pub(super) fn bearer(&self) -> String {
        match &self.words {
            Words::Jwt(issuer) => issuer.jwt("slotkeeper", 3600),
            Words::Kubernetes(kubernetes, issuer) => {
                let token = issuer.jwt("kubernetes", 3600);
                kubernetes.know(&token);
                token
            }
        }
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}", self.addr)
    }

    /// The `consul` section of a configuration, with what says who asks.
    fn section(&self, who: &str) -> String {
        let file = |name| self.authority.file(name).display().to_string();
        format!(
            "consul: {{address: '{}', tls: {{ca_file: {}, cert_file: {}, key_file: {}}}, {who}}}\n",
            self.url(),
            file("consul-agent-ca.pem"),
            file("dc1-client-consul-0.pem"),
            file("dc1-client-consul-0-key.pem"),
        )
    }

    /// Writes the configuration of an agent that logs in.
    pub(super) fn configure(&self, home: &Home, rest: &str) {
        let file = home.path("jwt");
        if !file.exists() {
            std::fs::write(&file, self.bearer()).unwrap();
        }
        let file = file.display();
        let login =
            format!("{{auth_method: {METHOD}, bearer_token_file: {file}, meta: {{team: warehouse}}}}");
        self.configure_as(home, &format!("login: {login}"), rest);
    }

    /// The same, with other words for who asks.
    pub(super) fn configure_as(&self, home: &Home, who: &str, rest: &str) {
        let ready = home.path("ready").display().to_string();
        let rest = rest.replace("$HOME", home.path("").to_str().unwrap());
        let section = self.section(who);
        let config =
            format!("{section}http: {{listen: '127.0.0.1:0'}}\nreadiness: {{file: '{ready}'}}\n{rest}");
        std::fs::write(home.path("config.yaml"), config).unwrap();
    }

    /// What a command without a configuration file is told by its environment.
    pub(super) fn environment(&self, home: &Home) -> Vec<(&'static str, String)> {
        std::fs::write(home.path("jwt"), self.bearer()).unwrap();
        let login = [
            ("CONSUL_HTTP_ADDR", self.url()),
            ("SLOTKEEPER_CONSUL_LOGIN_AUTH_METHOD", METHOD.to_owned()),
            ("SLOTKEEPER_CONSUL_LOGIN_BEARER_TOKEN_FILE", home.path("jwt").display().to_string()),
            ("SLOTKEEPER_CONSUL_LOGIN_META", "pod=batch/import-7".to_owned()),
        ];
        self.certificates().into_iter().chain(login).collect()
    }

    /// The variables that let `consul` in.
    pub(super) fn certificates(&self) -> [(&'static str, String); 3] {
        let file = |name| self.authority.file(name).display().to_string();
        [
            ("CONSUL_CACERT", file("consul-agent-ca.pem")),
            ("CONSUL_CLIENT_CERT", file("dc1-client-consul-0.pem")),
            ("CONSUL_CLIENT_KEY", file("dc1-client-consul-0-key.pem")),
        ]
    }

    pub(super) fn authority_file(&self) -> PathBuf {
        self.authority.file("consul-agent-ca.pem")
    }

    /// Whoever may do everything.
    pub(super) fn operator(&self) -> Operator {
        let settings = Settings {
            address: self.url().parse().unwrap(),
            token: Some(TokenSource::Value(Secret::new(ROOT))),
            tls: self.authority.client(),
            ..Settings::default()
        };
        Operator::with(&settings)
    }

    pub(super) fn ask(&self, line: &str, body: &str) -> (u16, String) {
        https::try_request(self.addr, &self.authority.client(), line, ROOT, body).unwrap()
    }

    pub(super) fn put(&self, path: &str, body: &Value) {
        let (status, said) = self.ask(&format!("PUT /v1/{path}"), &body.to_string());
        assert_eq!(status, 200, "{path}: {said}");
    }

    pub(super) fn delete(&self, path: &str) {
        let (status, said) = self.ask(&format!("DELETE /v1/{path}"), "");
        assert_eq!(status, 200, "{path}: {said}");
    }

    /// The tokens that came of logins.
    pub(super) fn tokens(&self) -> Vec<Value> {
        let tokens = self.ask("GET /v1/acl/tokens", "").1;
        let tokens: Vec<Value> = serde_json::from_str(&tokens).unwrap();
        tokens.into_iter().filter(|token| token["AuthMethod"] == METHOD).collect()
    }

    /// Their names, which are not secret.
    pub(super) fn accessors(&self) -> Vec<String> {
        self.tokens().iter().map(|token| token["AccessorID"].as_str().unwrap().to_owned()).collect()
    }

    /// The token of that name.
    pub(super) fn secret(&self, accessor: &str) -> String {
        let token = self.ask(&format!("GET /v1/acl/token/{accessor}"), "").1;
        let token: Value = serde_json::from_str(&token).unwrap();
        token["SecretID"].as_str().unwrap().to_owned()
    }

    /// A token of other rules than [`POLICY`].
    pub(super) fn token_of(&self, rules: &str) -> String {
        let name = format!("{:08x}", fastrand::u32(..));
        let secret = format!("{name}-0000-4000-8000-000000000000");
        self.put("acl/policy", &json!({"Name": name, "Rules": rules}));
        self.put("acl/token", &json!({"SecretID": secret, "Policies": [{"Name": name}]}));
        secret
    }
}
