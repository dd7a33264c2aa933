//! The precedence of flags, variables and the file, and Consul's variables with the meaning they have for `consul`.

use std::path::PathBuf;
use std::time::Duration;

use slotkeeper::internals::config::{
    self, CommandRules, Config, Environment, Faults, Loaded, LogLevel, Overrides,
};
use slotkeeper_consul::{Address, Addresses, AuthMethod, Secret, Settings, TokenSource};

const FILE: &str = "\
consul: {address: 'http://file:8500', token: from-file, tls: {insecure_skip_verify: true}}
session: {name: file, ttl: 20s}
http: {listen: off}
semaphores: [{name: a, prefix: b, limit: 1}]
";

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn load(text: &str, variables: &[(&str, &str)], flags: &Overrides) -> Result<Loaded, Faults> {
    config::parse("f.yaml", text, flags, &environment(variables))
}

fn with(variables: &[(&str, &str)]) -> Config {
    load(FILE, variables, &Overrides::default()).unwrap().config
}

fn consul(variables: &[(&str, &str)]) -> Settings {
    config::consul_settings(&Overrides::default(), &environment(variables)).unwrap().config
}

fn http(https: bool, authority: &str) -> Addresses {
    Address::Http { https, authority: authority.to_owned(), path: String::new() }.into()
}

fn token(text: &str) -> Option<TokenSource> {
    Some(TokenSource::Value(Secret::new(text.to_owned())))
}

#[test]
fn a_flag_precedes_a_variable_and_a_variable_the_file() {
    let variables = [("SLOTKEEPER_SESSION_NAME", "variable"), ("SLOTKEEPER_SESSION_TTL", "40s")];
    let mut flags = Overrides::default();
    flags.flag("--session-name", "session.name", Some("flag"));
    flags.flag("--log-level", "log.level", None::<&str>);
    let config = load(FILE, &variables, &flags).unwrap().config;
    assert_eq!((config.session.name.as_deref(), config.session.ttl), (Some("flag"), Duration::from_secs(40)));
    assert_eq!((config.http.listen, config.log.level), (None, LogLevel::Info));
}

#[test]
fn every_slotkeeper_variable_sets_its_field() {
    let config = with(&[
        ("SLOTKEEPER_HTTP_LISTEN", "0.0.0.0:1"),
        ("SLOTKEEPER_READINESS_FILE", "/r"),
        ("SLOTKEEPER_STATE_FILE", "/s"),
        ("SLOTKEEPER_DRAIN_TIMEOUT", "9s"),
        ("SLOTKEEPER_DRAIN_RELEASE", "after_workload"),
        ("SLOTKEEPER_LOG_FORMAT", "json"),
        ("SLOTKEEPER_LOG_LEVEL", "debug"),
        ("SLOTKEEPER_CONSUL_MAX_WAIT", "25s"),
        ("SLOTKEEPER_POD_NAME", "pod"),
        ("SLOTKEEPER_POD_NAMESPACE", "space"),
        ("SLOTKEEPER_NODE_NAME", "node"),
    ]);
    assert_eq!(config.http.listen.map(|address| address.to_string()).as_deref(), Some("0.0.0.0:1"));
    assert_eq!(config.readiness, Some(PathBuf::from("/r")));
    assert_eq!(config.session.state_file, Some(PathBuf::from("/s")));
    assert_eq!(config.drain.timeout, Duration::from_secs(9));
    assert_eq!(config.drain.release, config::Release::AfterWorkload);
    assert_eq!((config.log.format, config.log.level), (config::LogFormat::Json, LogLevel::Debug));
    assert_eq!(config.consul.max_wait, Some(Duration::from_secs(25)));
    let identity = config.identity;
    let identity = [identity.pod, identity.namespace, identity.node].map(Option::unwrap);
    assert_eq!(identity, ["pod", "space", "node"]);
    let workload = with(&[("SLOTKEEPER_WORKLOAD_VOLUME", "/v")]).workload;
    assert_eq!(workload.map(|workload| workload.volume), Some(PathBuf::from("/v")));
}

#[test]
fn an_empty_variable_of_a_file_turns_the_file_off() {
    let text = format!("{FILE}readiness: {{file: /r}}\n").replace("ttl: 20s", "ttl: 20s, state_file: /s");
    let files = |variables: &[(&str, &str)]| {
        let config = load(&text, variables, &Overrides::default()).unwrap().config;
        (config.readiness, config.session.state_file)
    };
    let [readiness, state] = ["/r", "/s"].map(|path| Some(PathBuf::from(path)));
    assert_eq!(files(&[]), (readiness.clone(), state.clone()));
    assert_eq!(files(&[("SLOTKEEPER_READINESS_FILE", "")]), (None, state));
    assert_eq!(files(&[("SLOTKEEPER_STATE_FILE", "")]), (readiness, None));
}

#[test]
fn an_empty_variable_counts_as_absent() {
    assert_eq!(with(&[("CONSUL_HTTP_ADDR", ""), ("SLOTKEEPER_SESSION_TTL", "")]), with(&[]));
}

#[test]
fn the_fault_of_a_variable_names_the_variable() {
    let faults = load(
        FILE,
        &[
            ("SLOTKEEPER_SESSION_TTL", "5"),
            ("SLOTKEEPER_LOG_LEVEL", "loud"),
            ("CONSUL_HTTP_SSL", "perhaps"),
            ("SLOTKEEPER_CONTROL_LISTEN", "0.0.0.0:1"),
        ],
        &Overrides::default(),
    );
    let faults = faults.unwrap_err().to_string();
    for start in [
        "CONSUL_HTTP_SSL: consul.address: `perhaps` is neither",
        "SLOTKEEPER_CONTROL_LISTEN: control.listen: 0.0.0.0:1 can be reached from other machines",
        "SLOTKEEPER_LOG_LEVEL: log.level: unknown value `loud`, expected",
        "SLOTKEEPER_SESSION_TTL: session.ttl: `5` has no unit; write 5s",
    ] {
        assert!(faults.lines().any(|line| line.starts_with(start)), "{start}: {faults}");
    }
}

#[test]
fn an_unknown_slotkeeper_variable_has_a_warning() {
    let loaded =
        load(FILE, &[("SLOTKEEPER_LOGLEVEL", "x"), ("SLOTKEEPER_SLOT_A", "0")], &Overrides::default());
    let warnings = loaded.unwrap().warnings;
    assert!(
        warnings.iter().any(|warning| warning.contains("did you mean SLOTKEEPER_LOG_LEVEL?")),
        "{warnings:?}"
    );
    assert!(!warnings.iter().any(|warning| warning.contains("SLOTKEEPER_SLOT_A")), "{warnings:?}");
}

#[test]
fn consul_variables_have_the_meaning_they_have_for_consul() {
    let settings = consul(&[
        ("CONSUL_HTTP_ADDR", "consul:8501"),
        ("CONSUL_HTTP_SSL", "true"),
        ("CONSUL_HTTP_SSL_VERIFY", "false"),
        ("CONSUL_CACERT", "/ca"),
        ("CONSUL_CAPATH", "/cas"),
        ("CONSUL_CLIENT_CERT", "/cert"),
        ("CONSUL_CLIENT_KEY", "/key"),
        ("CONSUL_TLS_SERVER_NAME", "server"),
        ("CONSUL_NAMESPACE", "n"),
        ("CONSUL_PARTITION", "p"),
        ("CONSUL_HTTP_TOKEN", "t"),
    ]);
    assert_eq!((settings.address, settings.token), (http(true, "consul:8501"), token("t")));
    assert_eq!((settings.namespace.as_deref(), settings.partition.as_deref()), (Some("n"), Some("p")));
    assert!(settings.tls.insecure_skip_verify);
    let files = [settings.tls.ca_file, settings.tls.ca_path, settings.tls.cert_file, settings.tls.key_file];
    assert_eq!(files.map(Option::unwrap), ["/ca", "/cas", "/cert", "/key"].map(PathBuf::from));
    assert_eq!(settings.tls.server_name.as_deref(), Some("server"));
    // The file cannot turn off the verification that a variable requires.
    assert!(!with(&[("CONSUL_HTTP_SSL_VERIFY", "1")]).consul.tls.insecure_skip_verify);
}

#[test]
fn a_variable_that_requires_tls_applies_to_every_address() {
    let ssl = ("CONSUL_HTTP_SSL", "1");
    assert_eq!(consul(&[]).address, http(false, "127.0.0.1:8500"));
    assert_eq!(consul(&[ssl]).address, http(true, "127.0.0.1:8500"));
    assert_eq!(consul(&[ssl, ("CONSUL_HTTP_ADDR", "http://c:1")]).address, http(true, "c:1"));
    assert_eq!(with(&[ssl]).consul.address, http(true, "file:8500"));
    let off = [("CONSUL_HTTP_SSL", "false"), ("CONSUL_HTTP_ADDR", "https://c:1")];
    assert_eq!(consul(&off).address, http(true, "c:1"));
    let unix = [ssl, ("CONSUL_HTTP_ADDR", "unix:///run/c.sock")];
    assert_eq!(consul(&unix).address, Address::Unix("/run/c.sock".into()).into());
}

#[test]
fn several_addresses_are_a_list_or_a_text_with_commas() {
    let shown = |settings: Settings| settings.address.to_string();
    let all = "http://a:1,http://b:2,unix:///s";
    assert_eq!(shown(consul(&[("CONSUL_HTTP_ADDR", "a:1, b:2,unix:///s")])), all);
    for text in ["a:1,b:2,unix:///s", "[a:1, b:2, 'unix:///s']"] {
        let entries = "semaphores: [{name: s, prefix: p, limit: 1}]";
        let file = format!(
            "consul: {{address: {}}}\n{entries}",
            if text.starts_with('[') { text.into() } else { format!("'{text}'") }
        );
        let loaded = load(&file, &[], &Overrides::default()).unwrap();
        assert_eq!(shown(loaded.config.consul), all, "{file}");
        let ssl = load(&file, &[("CONSUL_HTTP_SSL", "1")], &Overrides::default()).unwrap();
        assert_eq!(shown(ssl.config.consul), "https://a:1,https://b:2,unix:///s", "{file}");
    }
    // A variable replaces all addresses.
    let file = "consul: {address: [a:1, b:2]}\nsemaphores: [{name: s, prefix: p, limit: 1}]";
    let loaded = load(file, &[("CONSUL_HTTP_ADDR", "c:3")], &Overrides::default()).unwrap();
    assert_eq!(shown(loaded.config.consul), "http://c:3");
}

#[test]
fn a_token_replaces_both_kinds_of_weaker_sources() {
    let file = |path: &str| Some(TokenSource::File(path.into()));
    assert_eq!(with(&[]).consul.token, token("from-file"));
    assert_eq!(with(&[("CONSUL_HTTP_TOKEN_FILE", "/t")]).consul.token, file("/t"));
    let both = [("CONSUL_HTTP_TOKEN_FILE", "/t"), ("CONSUL_HTTP_TOKEN", "v")];
    assert_eq!(with(&both).consul.token, file("/t"));
    let mut flags = Overrides::default();
    flags.flag("--token", "consul.token", Some("flag"));
    assert_eq!(load(FILE, &both, &flags).unwrap().config.consul.token, token("flag"));
    assert!(load("consul: {token: a, token_file: b}", &[], &Overrides::default()).is_err());
}

#[test]
fn a_login_replaces_a_token_and_its_parts_are_merged() {
    let file = "consul: {login: {auth_method: kube, bearer_token_file: /jwt, meta: {team: a, pod: none}}}\n\
                semaphores: [{name: a, prefix: b, limit: 1}]";
    let token_of = |text: &str, variables: &[(&str, &str)], flags: &Overrides| {
        load(text, variables, flags).unwrap().config.consul.token
    };
    let login = |name: &str, bearer: &str, meta: &[(&str, &str)]| {
        let meta = meta.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Some(TokenSource::Login(AuthMethod { name: name.into(), bearer_token_file: bearer.into(), meta }))
    };
    let none = Overrides::default();
    assert_eq!(token_of(file, &[], &none), login("kube", "/jwt", &[("pod", "none"), ("team", "a")]));
    let meta = ("SLOTKEEPER_CONSUL_LOGIN_META", "pod=batch/import-7, zone = eu");
    let of_pod = [("pod", "batch/import-7"), ("team", "a"), ("zone", "eu")];
    assert_eq!(token_of(file, &[meta], &none), login("kube", "/jwt", &of_pod));
    assert_eq!(
        token_of(file, &[("SLOTKEEPER_CONSUL_LOGIN_AUTH_METHOD", "other")], &none),
        login("other", "/jwt", &[("pod", "none"), ("team", "a")])
    );
    // The token of a stronger source drops the login, and its description has no effect.
    assert_eq!(token_of(file, &[("CONSUL_HTTP_TOKEN", "t"), meta], &none), token("t"));
    let mut flags = Overrides::default();
    flags.flag("--token", "consul.token", Some("flag"));
    assert_eq!(token_of(file, &[meta], &flags), token("flag"));
    assert_eq!(token_of(FILE, &[meta], &none), token("from-file"));
    // A login drops the token of a weaker source.
    let all = [
        ("SLOTKEEPER_CONSUL_LOGIN_AUTH_METHOD", "kube"),
        ("SLOTKEEPER_CONSUL_LOGIN_BEARER_TOKEN_FILE", "/jwt"),
    ];
    assert_eq!(token_of(FILE, &all, &none), login("kube", "/jwt", &[]));
    assert_eq!(consul(&all).token, login("kube", "/jwt", &[]));

    let faults = |variables: &[(&str, &str)]| load(file, variables, &none).unwrap_err().to_string();
    let said = faults(&[("SLOTKEEPER_CONSUL_LOGIN_META", "pod")]);
    assert!(
        said.starts_with("SLOTKEEPER_CONSUL_LOGIN_META: consul.login.meta: `pod` is not key=value"),
        "{said}"
    );
    // A token of the same source drops the login too.
    for (variable, counts) in
        [("CONSUL_HTTP_TOKEN", token("t")), ("CONSUL_HTTP_TOKEN_FILE", Some(TokenSource::File("t".into())))]
    {
        assert_eq!(consul(&[all[0], all[1], meta, (variable, "t")]).token, counts);
        assert_eq!(token_of(FILE, &[all[0], (variable, "t")], &none), counts);
    }
}

#[test]
fn flags_alone_make_a_configuration() {
    let mut flags = Overrides::default();
    flags.flag("PREFIX", "semaphores[0].prefix", Some("jobs/nightly"));
    flags.flag("PREFIX", "semaphores[0].name", Some("jobs-nightly"));
    flags.flag("--limit", "semaphores[0].limit", Some(3));
    flags.flag("--slots", "semaphores[0].slots", Some(2));
    let config =
        config::without_file(CommandRules::default(), &flags, &Environment::default()).unwrap().config;
    assert_eq!((config.semaphores[0].limit, config.semaphores[0].slots), (3, 2));
    flags.flag("--slots", "semaphores[0].slots", Some(4));
    let faults = config::without_file(CommandRules::default(), &flags, &Environment::default())
        .unwrap_err()
        .to_string();
    assert_eq!(faults, "--slots: 4 is more than the limit, 3; write at most 3");
}

#[test]
fn debug_output_shows_no_token() {
    let loaded = load(FILE, &[("CONSUL_HTTP_TOKEN", "s3cret")], &Overrides::default()).unwrap();
    assert_eq!(loaded.config.consul.token, token("s3cret"));
    assert!(!format!("{loaded:?}").contains("s3cret"));
}

#[test]
fn equal_configurations_compare_equal_and_others_do_not() {
    assert_eq!(with(&[]), with(&[]));
    assert_ne!(with(&[]), with(&[("SLOTKEEPER_LOG_LEVEL", "debug")]));
}
