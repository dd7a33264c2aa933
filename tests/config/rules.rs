//! The rules of single fields and between fields, and that the reader accepts or refuses any text.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use slotkeeper::internals::config::{self, Environment, Loaded, Overrides};

fn parse(text: &str) -> Result<Loaded, String> {
    config::parse("f", text, &Overrides::default(), &Environment::default())
        .map_err(|faults| faults.to_string())
}

/// A semaphore with `fields`, and defaults for the keys that it needs.
fn semaphore(fields: &str) -> String {
    let given: Vec<&str> =
        fields.split(", ").filter_map(|field| field.split_once(':')).map(|(key, _)| key).collect();
    let rest = [("name", "a"), ("prefix", "p"), ("limit", "4")];
    let rest =
        rest.iter().filter(|(key, _)| !given.contains(key)).map(|(key, value)| format!("{key}: {value}"));
    let all: Vec<String> = rest.chain((!fields.is_empty()).then(|| fields.to_owned())).collect();
    format!("- {{{}}}\n", all.join(", "))
}

fn one(fields: &str) -> Result<Loaded, String> {
    parse(&format!("semaphores:\n{}", semaphore(fields)))
}

fn two(first: &str, second: &str) -> Result<Loaded, String> {
    parse(&format!("semaphores:\n{}{}", semaphore(first), semaphore(second)))
}

fn beside(section: &str) -> Result<Loaded, String> {
    parse(&format!("{section}\nsemaphores:\n{}", semaphore("")))
}

fn refused(result: Result<Loaded, String>, field: &str) {
    let faults = result.expect_err(field);
    assert!(faults.lines().count() == 1 && faults.contains(&format!(": {field}: ")), "{field}: {faults}");
}

#[test]
fn names_are_labels_and_url_segments() {
    for good in ["a", "A.b_c-9", &"x".repeat(63)] {
        one(&format!("name: {good}")).expect(good);
    }
    for bad in ["''", "-a", "a/b", "a b", "ä", &"x".repeat(64)] {
        refused(one(&format!("name: {bad}")), "semaphores[0].name");
    }
    refused(two("prefix: x", "prefix: y"), "semaphores[1].name");
    // Both names have the same variable in a child's environment.
    refused(two("name: a-b, prefix: x", "name: A.b, prefix: y"), "semaphores[1].name");
}

#[test]
fn a_file_among_devices_or_kernel_files_is_refused() {
    let sections = [
        ("readiness: {file: 'PATH'}", "readiness.file"),
        ("session: {state_file: 'PATH'}", "session.state_file"),
        ("control: {listen: 'unix:PATH'}", "control.listen"),
        ("control: {listen: '127.0.0.1:1', token_file: 'PATH'}", "control.token_file"),
    ];
    for (section, field) in sections {
        for path in ["/dev/null", "/dev/shm/../null", "/proc/self/x", "/sys/x", "/run/../dev/x", "/./dev//x"]
        {
            refused(beside(&section.replace("PATH", path)), field);
        }
        for path in ["/dev/shm/x", "/device", "/run/dev/x", "/processes/x"] {
            beside(&section.replace("PATH", path)).expect(path);
        }
    }
    let faults = beside("readiness: {file: /dev/null}").unwrap_err();
    assert!(faults.starts_with("f:1:") && faults.contains("below /dev"), "{faults}");
}

#[test]
fn an_empty_text_turns_a_file_off() {
    let loaded = beside("readiness: {file: ''}\nsession: {state_file: ''}").unwrap().config;
    assert_eq!((loaded.readiness, loaded.session.state_file), (None, None));
    refused(beside("control: {listen: '127.0.0.1:1', token_file: ''}"), "control.token_file");
}

#[test]
fn prefixes_are_plain_and_not_below_each_other() {
    assert_eq!(one("prefix: a/b/").unwrap().config.semaphores[0].entry.key, "a/b");
    for bad in ["''", "/", "/a", "a//b", "a/../b", "./a", "a/.lock", ".lock", "\"a\\nb\"", &"x".repeat(401)] {
        refused(one(&format!("prefix: {bad}")), "semaphores[0].prefix");
    }
    refused(two("prefix: x", "name: b, prefix: x/"), "semaphores[1].prefix");
    refused(two("prefix: x/y", "name: b, prefix: x"), "semaphores[0].prefix");
    two("prefix: writers", "name: b, prefix: writers-2").unwrap();
}

#[test]
fn limits_and_slots_are_bounded() {
    for (fields, field) in [
        ("limit: 0", "semaphores[0].limit"),
        ("limit: -3", "semaphores[0].limit"),
        ("limit: 5001", "semaphores[0].limit"),
        ("limit: 1.5", "semaphores[0].limit"),
        ("limit: ~", "semaphores[0].limit"),
        ("slots: 0", "semaphores[0].slots"),
        ("slots: 5", "semaphores[0].slots"),
        ("slots: 2, format: map", "semaphores[0].format"),
        ("prune_delay: 25h", "semaphores[0].prune_delay"),
        ("priority: 99999999999", "semaphores[0].priority"),
        ("body: [a]", "semaphores[0].body"),
        ("wait: 5", "semaphores[0].wait"),
    ] {
        let faults = one(fields).expect_err(fields);
        assert!(faults.contains(&format!(": {field}: ")), "{faults}");
    }
    refused(one(&format!("body: {}", "x".repeat(1025))), "semaphores[0].body");
    assert_eq!(one("slots: 4").unwrap().config.semaphores[0].slots, 4);
    // Whatever the format and the body, the transaction of the last slot fits.
    for possible in ["limit: 5000, format: map", "limit: 5000, slots: 5000"] {
        one(&format!("{possible}, body: '{}'", "\"".repeat(1024))).unwrap();
    }
    for priority in [i32::MIN, -1, 3, i32::MAX] {
        let config = one(&format!("priority: {priority}")).unwrap().config;
        assert_eq!(config.semaphores[0].priority, priority);
    }
}

#[test]
fn a_session_has_the_bounds_of_consul() {
    for bad in ["9s", "9999ms", "24h1s"] {
        refused(beside(&format!("session: {{ttl: {bad}}}")), "session.ttl");
    }
    for good in ["10s", "24h"] {
        beside(&format!("session: {{ttl: {good}}}")).expect(good);
    }
    refused(beside("session: {lock_delay: 61s}"), "session.lock_delay");
    beside("session: {lock_delay: 0s}").unwrap();
}

#[test]
fn the_watch_grace_is_at_most_the_ttl() {
    refused(beside("session: {ttl: 20s, watch_grace: 21s}"), "session.watch_grace");
    beside("session: {ttl: 20s, watch_grace: 20s}").unwrap();
    beside("session: {watch_grace: 0s}").unwrap();
    // A wrong TTL suppresses the faults of fields that depend on it.
    refused(beside("session: {ttl: soon, watch_grace: 10m}"), "session.ttl");
}

#[test]
fn the_maximum_wait_of_a_long_poll_has_bounds() {
    for bad in ["1999ms", "0s", "10m1ms"] {
        refused(beside(&format!("consul: {{max_wait: {bad}}}")), "consul.max_wait");
    }
    for good in ["2s", "10m"] {
        beside(&format!("consul: {{max_wait: {good}}}")).expect(good);
    }
    assert_eq!(beside("").unwrap().config.consul.max_wait, None);
}

#[test]
fn health_checks_without_a_delay_have_a_warning() {
    let checks = "session: {node_checks: [serfHealth]}";
    assert_eq!(beside(checks).unwrap().warnings.len(), 1);
    let delayed = parse(&format!("{checks}\nsemaphores:\n{}", semaphore("prune_delay: 45s")));
    assert_eq!(delayed.unwrap().warnings, Vec::<String>::new());
    let lock = "locks: [{name: l, key: y}]";
    assert_eq!(parse(&format!("{checks}\n{lock}")).unwrap().warnings.len(), 1);
    let delayed = "session: {node_checks: [serfHealth], lock_delay: 45s}";
    assert_eq!(parse(&format!("{delayed}\n{lock}")).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn sections_are_checked() {
    for (section, field) in [
        ("consul: {tls: {cert_file: c}}", "consul.tls.cert_file"),
        ("consul: {address: ''}", "consul.address"),
        ("consul: {address: []}", "consul.address"),
        ("consul: {address: 'a:1,'}", "consul.address"),
        ("consul: {address: 'a:1,http://a:1'}", "consul.address"),
        ("consul: {address: [a:1, ftp://b]}", "consul.address[1]"),
        ("consul: {address: ['unix:///a,b']}", "consul.address[0]"),
        (
            "consul: {address: [a:1, a:2, a:3, a:4, a:5, a:6, a:7, a:8, a:9, a:10, a:11, a:12, a:13, a:14, a:15, a:16, a:17]}",
            "consul.address",
        ),
        ("consul: {token: ''}", "consul.token"),
        ("consul: {token_file: ''}", "consul.token_file"),
        ("consul: {datacenter: ''}", "consul.datacenter"),
        ("http: {listen: on}", "http.listen"),
        ("hooks: {on_lost: []}", "hooks.on_lost"),
        ("drain: {timeout: 25h}", "drain.timeout"),
        ("log: {format: xml}", "log.format"),
        ("session: {state_file: x}\nreadiness: {file: x}", "readiness.file"),
        ("control: {listen: 'unix:/x'}\nreadiness: {file: /x}", "control.listen"),
    ] {
        refused(beside(section), field);
    }
    assert!(beside("http: {listen: off}").unwrap().config.http.listen.is_none());
}

#[test]
fn an_acquire_group_has_one_wait_and_one_priority() {
    let both = |first: &str, second: &str| {
        let one = |name: &str, more: &str| format!("{{name: {name}, prefix: p/{name}, limit: 1{more}}}");
        parse(&format!("{{acquire: together, semaphores: [{}, {}]}}", one("a", first), one("b", second)))
    };
    assert!(both("", ", wait: forever, priority: 0").is_ok());
    assert!(both("", ", wait: 5s, required: false").is_ok());
    refused(both("", ", wait: 5s"), "semaphores[1].wait");
    refused(both(", priority: 1", ""), "semaphores[1].priority");
    let many: Vec<_> = (0..17).map(|n| format!("{{name: s{n}, prefix: p/{n}, limit: 1}}")).collect();
    let text = format!("{{acquire: together, semaphores: [{}]}}", many.join(", "));
    refused(parse(&text), "acquire");
    assert!(parse(&text.replace("acquire: together, ", "")).is_ok());
}

#[test]
fn several_required_entries_are_a_group_by_default_if_they_can_be() {
    let one = |name: &str, more: &str| format!("{{name: {name}, prefix: p/{name}, limit: 1{more}}}");
    let both = |second: &str| format!("semaphores: [{}, {}]", one("a", ""), one("b", second));
    let lock = |more: &str| format!("{}\nlocks: [{{name: l, key: k{more}}}]", both(""));
    for (text, together, warning) in [
        (both(""), true, None),
        (both(", required: false"), false, None),
        (lock(", required: false"), true, None),
        (both(", wait: 5s"), false, Some("semaphores[1].wait: differs from that of semaphores[0]")),
        (both(", priority: 5"), false, Some("semaphores[1].priority: differs")),
        (both("").replace("limit: 1", "limit: 5000"), false, Some("larger than Consul accepts")),
        (lock(""), false, Some("locks[0].required: `acquire: together` does not include locks")),
        ("locks: [{name: l, key: k}, {name: m, key: m}]".to_owned(), false, Some("locks[0].required")),
        // Each wait ends.
        (both(", wait: 5s").replace("limit: 1}", "limit: 1, wait: 9s}"), false, None),
    ] {
        let loaded = parse(&text).unwrap();
        assert_eq!(loaded.config.acquire.together, together, "{text}");
        assert_eq!(loaded.warnings.len(), usize::from(warning.is_some()), "{:?}", loaded.warnings);
        let said = loaded.warnings.concat();
        assert!(warning.is_none_or(|warning| said.contains(warning)), "{said}");
        assert!(warning.is_none() || said.contains("accept it by `acquire: independently`"), "{said}");
        let accepted = parse(&format!("acquire: independently\n{text}")).unwrap();
        assert!(!accepted.config.acquire.together && accepted.warnings.is_empty());
    }
}

#[test]
fn an_acquire_group_fits_into_one_transaction() {
    let both = |acquire: &str, slots: u32, limit: u32| {
        let one = |name: &str| format!("{{name: {name}, prefix: p/{name}, limit: {limit}, slots: {slots}}}");
        parse(&format!("{{acquire: {acquire}, semaphores: [{}, {}]}}", one("a"), one("b")))
    };
    refused(both("together", 5000, 5000), "acquire");
    assert!(both("independently", 5000, 5000).unwrap().warnings.is_empty());
    assert!(both("together", 3500, 3500).unwrap().warnings.is_empty());
    // The group fits alone, but not when other holders have all slots that the limits allow.
    let warnings = both("together", 1, 5000).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("acquire"), "{warnings:?}");
}

#[test]
fn a_lock_is_outside_prefixes_and_acquire_groups() {
    let with = |lock: &str| parse(&format!("semaphores:\n{}\nlocks: [{lock}]", semaphore("prefix: x")));
    // `consul lock` locks the key `.lock` below its prefix.
    assert_eq!(with("{name: l, key: y/.lock}").unwrap().config.locks[0].key, "y/.lock");
    refused(with("{name: l, key: x/.lock}"), "locks[0].key");
    refused(with("{name: l, key: x/y}"), "locks[0].key");
    refused(with("{name: l, key: /y}"), "locks[0].key");
    refused(with("{name: l}"), "locks[0].key");
    assert!(parse("locks: [{name: l, key: y}]").is_ok());
    let together =
        |required: &str| beside(&format!("acquire: together\nlocks: [{{name: l, key: y{required}}}]"));
    refused(together(""), "locks[0].required");
    assert!(together(", required: false").is_ok());
}

#[test]
fn on_demand_needs_the_control_endpoints_and_is_not_required() {
    let control = "control: {listen: 'unix:/c'}\nsemaphores:\n";
    let with = |fields: &str| parse(&format!("{control}{}", semaphore(fields)));
    let loaded = with("mode: on_demand").unwrap();
    assert!(!loaded.config.semaphores[0].entry.required);
    assert_eq!(loaded.warnings, [""; 0], "no slot is held that could be required");
    refused(one("mode: on_demand"), "semaphores[0].mode");
    refused(with("mode: on_demand, required: true"), "semaphores[0].required");
    with("mode: on_demand, required: false").unwrap();
    for field in ["wait: 5s", "on_lost: exit"] {
        let warnings = with(&format!("mode: on_demand, {field}")).unwrap().warnings;
        assert!(
            warnings.len() == 1 && warnings[0].contains("has no effect with `on_demand`"),
            "{warnings:?}"
        );
    }
    // A semaphore on demand is not part of the acquire group.
    let together = "acquire: together\ncontrol: {listen: 'unix:/c'}\nsemaphores:\n";
    let lent = semaphore("name: b, prefix: q, mode: on_demand, priority: 3");
    parse(&format!("{together}{}{lent}", semaphore(""))).unwrap();
    let warnings = parse(&format!("{control}{}{lent}", semaphore("required: false"))).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("none is required"), "{warnings:?}");
}

#[test]
fn a_misspelt_required_key_is_one_fault() {
    refused(parse("semaphores: [{name: a, prefix: b, limt: 1}]"), "semaphores[0].limt");
    refused(parse("semafores: [{name: a, prefix: b, limit: 1}]"), "semafores");
}

#[test]
fn merge_keys_and_aliases_work() {
    let text = "semaphores:\n- &a {name: a, prefix: a, limit: 2, wait: 5s}\n- {<<: *a, name: b, prefix: b}\n";
    let config = parse(text).unwrap().config;
    assert_eq!(
        (config.semaphores[1].limit, config.semaphores[1].entry.wait),
        (2, config.semaphores[0].entry.wait)
    );
}

/// Random sequences of fragments of configurations.
fn fragments() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "consul",
        "session",
        "semaphores",
        "locks",
        "name",
        "prefix",
        "limit",
        "ttl",
        "hooks",
        "on_lost",
        "wait",
        "tls",
        ": ",
        ":\n  ",
        "\n",
        "\n- ",
        "\n  - ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&a ",
        "*a",
        "<<",
        "!t ",
        "~",
        "30s",
        "5",
        "-1",
        "1.5",
        "yes",
        "true",
        "'",
        "\"",
        "|\n",
        "? ",
        "---\n",
        "#",
        "ü",
        "\t",
        "\u{0}",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(slotkeeper_test_seed::cases())]

    #[test]
    fn any_text_is_accepted_or_refused(text in prop_oneof!["\\PC{0,80}", fragments()]) {
        match parse(&text) {
            Ok(loaded) => prop_assert!(!loaded.config.semaphores.is_empty()),
            Err(faults) => prop_assert!(!faults.is_empty()),
        }
    }

    /// Each fault is one line that begins with the file's name.
    #[test]
    fn every_fault_has_a_place(field in "[a-z_]{1,12}", value in fragments()) {
        let text = format!("semaphores:\n- name: a\n  prefix: p\n  {field}: {value}\n");
        if let Err(faults) = parse(&text) {
            for fault in faults.lines() {
                prop_assert!(fault.starts_with("f:"), "{}", fault);
            }
        }
    }
}

#[test]
fn the_control_endpoints_have_a_token_file_and_bounds() {
    let control = |rest: &str| beside(&format!("control: {{listen: '127.0.0.1:9378'{rest}}}"));
    let checked = control("").unwrap().config.control.unwrap();
    assert_eq!(checked.token_file, Path::new("/run/slotkeeper/control.token"));
    assert_eq!((checked.max_leases, checked.max_waits), (64, 32));
    let checked =
        control(", token_file: /t, max_leases: 1000, max_waits: 1").unwrap().config.control.unwrap();
    assert_eq!(checked.token_file, Path::new("/t"));
    assert_eq!((checked.max_leases, checked.max_waits), (1000, 1));
    refused(control(", token_file: ''"), "control.token_file");
    for bad in [0, -1, 1001] {
        refused(control(&format!(", max_leases: {bad}")), "control.max_leases");
        refused(control(&format!(", max_waits: {bad}")), "control.max_waits");
    }
    refused(beside("control: {max_leases: 3}"), "control.listen");
    let shared = "readiness: {file: /t}\ncontrol: {listen: '127.0.0.1:9378', token_file: /t}";
    refused(beside(shared), "control.token_file");
}

#[test]
fn a_workload_has_a_volume_and_time_to_stop() {
    let parsed = beside("workload: {volume: /run/v}").unwrap().config.workload.unwrap();
    assert_eq!((parsed.volume.as_path(), parsed.kill_after), (Path::new("/run/v"), None));
    let parsed =
        beside("workload: {volume: /run/v, stop: true, kill_after: 20s}").unwrap().config.workload.unwrap();
    assert_eq!(parsed.kill_after, Some(Duration::from_secs(20)));
    refused(beside("workload: {stop: true}"), "workload.volume");
    refused(beside("workload: {volume: run/v}"), "workload.volume");
    refused(beside("workload: {volume: /run/v, stop: true, kill_after: 40s}"), "workload.kill_after");
    beside("workload: {volume: /run/v, kill_after: 40s}").expect("without `stop`, `kill_after` has no bound");
    let without_slot = "workload: {volume: /run/v, stop: true}\nsemaphores: [{name: a, prefix: p, limit: 1, required: false}]";
    refused(parse(without_slot), "workload.stop");
}

#[test]
fn the_agent_has_one_way_to_learn_when_the_workload_is_done() {
    assert_eq!(beside("drain: {hold: 5s}").unwrap().config.drain.hold, Duration::from_secs(5));
    refused(beside("drain: {hold: 25h}"), "drain.hold");
    refused(beside("drain: {hold: 5s, release: after_workload}"), "drain.hold");
    refused(beside("drain: {hold: 5s}\nworkload: {volume: /v}"), "drain.hold");
    refused(beside("drain: {release: after_workload}\nworkload: {volume: /v}"), "drain.release");
}
