//! Automatic reloads of changed files.

use std::fs;
use std::os::unix::fs::symlink;

use rustix::process::Signal;
use slotkeeper::internals::log_events;
use slotkeeper::internals::log_events::{CHANGE_DEFERRED, FILES_CHANGED};

use super::{names, reloaded};
use crate::consul::{Consul, Newer};
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::authority::Authority;
use crate::support::consul::Setup;
use crate::wait_for;

const RELOADED: &str = "slotkeeper_config_last_reload_successful";
const RENEWALS: &str = "slotkeeper_session_renew_duration_seconds_count";

/// A folder like a volume of the kubelet: the files are links into `..data`, a link that is replaced as a whole.
struct Volume<'h> {
    home: &'h Home,
    version: u32,
}

impl<'h> Volume<'h> {
    /// Moves the configuration into a volume.
    fn mount(home: &'h Home, consul: &str, rest: &str) -> Self {
        let mut volume = Self { home, version: 0 };
        volume.swap(consul, rest);
        symlink("..data/config.yaml", home.path("link")).unwrap();
        fs::rename(home.path("link"), home.path("config.yaml")).unwrap();
        volume
    }

    /// Replaces its content.
    fn swap(&mut self, consul: &str, rest: &str) {
        self.version += 1;
        let (folder, link) = (format!("..{}", self.version), self.home.path("..data_tmp"));
        // Written beside the volume, not through its link.
        let own = Home::new();
        own.configure(consul, rest);
        let text = fs::read_to_string(own.path("config.yaml")).unwrap();
        let (own, home) = (own.path("").display().to_string(), self.home.path("").display().to_string());
        fs::create_dir(self.home.path(&folder)).unwrap();
        fs::write(self.home.path(&folder).join("config.yaml"), text.replace(&own, &home)).unwrap();
        symlink(folder, &link).unwrap();
        fs::rename(link, self.home.path("..data")).unwrap();
    }
}

/// The deferred changes in the status.
fn deferred(agent: &Agent, list: &str) -> Vec<String> {
    let status = agent.status();
    let all = status[list].as_array().unwrap().iter();
    all.filter_map(|one| Some(format!("{}: {}", one["name"].as_str()?, one["deferred"].as_str()?))).collect()
}

#[test]
fn a_swapped_volume_is_reloaded_and_no_slot_is_released() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let mut volume = Volume::mount(
        &home,
        &consul.address(),
        "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1, limit_policy: set}]",
    );
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    let changed = "semaphores: [{name: b, prefix: p/b, limit: 4, limit_policy: set}, {name: c, prefix: p/c, limit: 1}]\n\
                   log: {level: debug}";
    volume.swap(&consul.address(), changed);
    wait_for("the new semaphore", || names(&agent) == ["b held", "c held", "a held"]);
    wait_for("the new limit", || operator.record("p/b")["Limit"] == 4);
    wait_for("the new log level", || agent.log().contains("DEBUG"));
    let (kept, required) = (
        "a: no longer configured so; kept until an explicit reload or the drain",
        "c: required: true takes effect by an explicit reload",
    );
    assert_eq!(deferred(&agent, "semaphores"), [required, kept]);
    let log = agent.log();
    assert!(log.contains(FILES_CHANGED) && log.contains(r#"added=c changed="b.limit, log.level""#), "{log}");
    assert!(log.contains(&format!("{CHANGE_DEFERRED} name=a")), "{log}");
    assert_eq!((operator.holders("p/a"), agent.session()), (vec![session.clone()], session));
    assert!(agent.is_ready() && !log.contains(log_events::NOT_READY), "{log}");
    assert_eq!(agent.status()["configuration"]["last_reload"], "done");

    // The same content in another file is no change, and a deferred change is logged once.
    volume.swap(&consul.address(), changed);
    volume.swap(&consul.address(), &changed.replace("limit: 4", "limit: 3"));
    wait_for("the next limit", || operator.record("p/b")["Limit"] == 3);
    assert_eq!(
        (reloaded(&agent), agent.log().matches(&format!("{CHANGE_DEFERRED} name=a")).count()),
        (2, 1),
        "{}",
        agent.log()
    );

    agent.signal(Signal::HUP);
    wait_for("a to be released", || operator.holders("p/a").is_empty());
    wait_for("the rest", || {
        names(&agent) == ["b held", "c held"] && deferred(&agent, "semaphores").is_empty()
    });
    assert_eq!(agent.status()["semaphores"][1]["required"], true);
    assert!(agent.is_ready());
    assert_eq!(agent.terminate(), Some(0));
    for prefix in ["p/a", "p/b", "p/c"] {
        operator.assert_nothing_left(prefix);
    }
}

#[test]
fn a_new_prefix_or_key_is_deferred_until_an_explicit_reload() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    home.configure(
        &consul.address(),
        "semaphores: [{name: a, prefix: p/1, limit: 1}]\nlocks: [{name: l, key: k/1}]",
    );
    let mut agent = Agent::start(&home);
    agent.await_ready();
    home.configure(
        &consul.address(),
        "semaphores: [{name: a, prefix: p/2, limit: 1}]\nlocks: [{name: m, key: k/1}, {name: l, key: k/2}]",
    );
    // A new name is applied at once.
    wait_for("the new name", || agent.status()["locks"][0]["name"] == "m");
    let status = agent.status();
    assert_eq!(
        (&status["semaphores"][0]["prefix"], status["locks"].as_array().unwrap().len()),
        (&"p/1".into(), 2)
    );
    let kept = "a: no longer configured so; kept until an explicit reload or the drain, and a (p/2) must wait for that";
    assert_eq!(deferred(&agent, "semaphores"), [kept]);
    wait_for("the new lock", || operator.key("k/2").is_some_and(|pair| pair.session.is_some()));
    assert_eq!(operator.key("k/1").unwrap().session, Some(agent.session()));
    assert!(operator.keys("p/2").is_empty() && agent.is_ready(), "{}", agent.log());
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("p/1");
}

#[test]
fn a_refused_file_is_reported_once_and_read_after_a_change() {
    let consul = Consul::start();
    let home = Home::new();
    let of =
        |rest: &str| format!("session: {{ttl: 10s}}\nsemaphores: [{{name: a, prefix: p/a, limit: 1{rest}}}]");
    home.configure(&consul.address(), &of(""));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    home.configure(&consul.address(), &of(", limmit: 2"));
    wait_for("the refusal", || agent.metric(RELOADED) == 0.0);
    assert!(agent.log().contains("semaphores[0].limmit"), "{}", agent.log());
    assert_eq!(agent.status()["configuration"]["last_reload"], "refused");
    // Longer than the watch needs for a change.
    let before = agent.metric(RENEWALS);
    wait_for("renewals", || agent.metric(RENEWALS) >= before + 3.0);
    assert_eq!((names(&agent), agent.is_ready()), (vec!["a held".to_owned()], true));
    home.configure(&consul.address(), &of(", priority: 3"));
    wait_for("the reload", || agent.metric(RELOADED) == 1.0);
    let log = agent.log();
    assert_eq!(
        (log.matches(log_events::RELOAD_FAILED).count(), log.matches(FILES_CHANGED).count()),
        (1, 2),
        "{log}"
    );
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_changed_authority_is_trusted_without_a_signal() {
    let authority = Authority::new();
    let consul = Consul::start_with(Setup { https: true, config: authority.server(), ..Setup::default() });
    let home = Home::new();
    let (trusted, other) = (authority.file("consul-agent-ca.pem"), Authority::new());
    let swap = |file: &std::path::Path| {
        fs::copy(file, home.path("new.pem")).unwrap();
        fs::rename(home.path("new.pem"), home.path("ca.pem")).unwrap();
    };
    swap(&trusted);
    let address = format!("https://{}", consul.https_addr());
    home.configure(&address, "session: {ttl: 10s}\nsemaphores: [{name: s, prefix: service/s, limit: 1}]");
    let config = fs::read_to_string(home.path("config.yaml")).unwrap();
    let file = home.path("ca.pem");
    let tls = format!("consul: {{tls: {{ca_file: '{}', server_name: server.dc1.consul}}, ", file.display());
    fs::write(home.path("config.yaml"), config.replace("consul: {", &tls)).unwrap();
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    // With an authority that has not signed Consul's certificate, every request fails.
    swap(&other.file("consul-agent-ca.pem"));
    wait_for("a failure", || {
        let reason = agent.semaphore()["reason"].clone();
        reason.as_str().is_some_and(|reason| reason.contains("certificate"))
    });
    swap(&trusted);
    wait_for("the second reload", || reloaded(&agent) == 2);
    let before = agent.metric(RENEWALS);
    wait_for("renewals", || agent.metric(RENEWALS) >= before + 2.0);
    assert_eq!((agent.session(), agent.is_ready()), (session, true), "{}", agent.log());
    assert!(agent.log().contains(&format!("{FILES_CHANGED} files={}", file.display())), "{}", agent.log());
    assert_eq!(agent.terminate(), Some(0));
}

/// As Kubernetes renews a Secret: the link `..data` is replaced.
#[test]
fn a_changed_client_certificate_is_used_without_a_signal() {
    let (authority, other) = (Authority::new(), Authority::new());
    let config = format!("verify_incoming = true\nverify_outgoing = true\n{}", authority.server());
    let setup = Setup { config, https_only: Some(authority.client()), ..Setup::default() };
    let consul = Consul::start_with(setup);
    let home = Home::new();
    let volume = home.path("tls");
    fs::create_dir(&volume).unwrap();
    let mut number = 0;
    let mut swap = |of: &Authority| {
        number += 1;
        let data = volume.join(format!("..data-{number}"));
        fs::create_dir(&data).unwrap();
        fs::copy(of.file("dc1-client-consul-0.pem"), data.join("tls.crt")).unwrap();
        fs::copy(of.file("dc1-client-consul-0-key.pem"), data.join("tls.key")).unwrap();
        symlink(&data, volume.join("..new")).unwrap();
        fs::rename(volume.join("..new"), volume.join("..data")).unwrap();
    };
    swap(&authority);
    for name in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{name}"), volume.join(name)).unwrap();
    }
    let address = format!("https://{}", consul.https_addr());
    home.configure(&address, "session: {ttl: 10s}\nsemaphores: [{name: s, prefix: service/s, limit: 1}]");
    let config = fs::read_to_string(home.path("config.yaml")).unwrap();
    let (ca, shown) = (authority.file("consul-agent-ca.pem"), volume.display());
    let tls = format!(
        "consul: {{tls: {{ca_file: '{}', cert_file: '{shown}/tls.crt', key_file: '{shown}/tls.key', server_name: server.dc1.consul}}, ",
        ca.display()
    );
    fs::write(home.path("config.yaml"), config.replace("consul: {", &tls)).unwrap();
    let mut agent = Agent::start(&home);
    agent.await_ready();
    // Consul refuses a certificate of another authority.
    swap(&other);
    wait_for("a failure", || agent.semaphore()["reason"].is_string());
    swap(&authority);
    wait_for("the second reload", || reloaded(&agent) == 2);
    agent.await_ready();
    let before = agent.metric(RENEWALS);
    wait_for("renewals", || agent.metric(RENEWALS) >= before + 2.0);
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
}

#[test]
fn without_watch_a_changed_file_needs_a_signal() {
    let consul = Consul::start();
    let home = Home::new();
    let of = |name: &str| {
        format!(
            "session: {{ttl: 10s}}\nreload: {{watch: false}}\nsemaphores: [{{name: {name}, prefix: p/a, limit: 1}}]"
        )
    };
    home.configure(&consul.address(), &of("a"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    home.configure(&consul.address(), &of("b"));
    let before = agent.metric(RENEWALS);
    wait_for("renewals", || agent.metric(RENEWALS) >= before + 3.0);
    assert_eq!(names(&agent), ["a held"]);
    agent.signal(Signal::HUP);
    wait_for("the reload", || names(&agent) == ["b held"]);
    assert_eq!((agent.log().matches(FILES_CHANGED).count(), agent.terminate()), (0, Some(0)));
}
