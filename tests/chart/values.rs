//! Every mode and switch of the chart: rendered, validated, and its configuration checked by slotkeeper itself.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use slotkeeper::internals::workload::max_kill_after;

use crate::BINARY;
use crate::helm::{Rendered, VERSIONS, chart, helm, render, rendered, repository, to_render, yaml};
use crate::kubelet::environment;

/// What each file of `values/` renders to.
pub(crate) fn matrix() -> &'static BTreeMap<String, Rendered> {
    static MATRIX: OnceLock<BTreeMap<String, Rendered>> = OnceLock::new();
    MATRIX.get_or_init(|| {
        let mut names = Vec::new();
        let mut jobs = Vec::new();
        for entry in repository("tests/chart/values").read_dir().unwrap() {
            let path = entry.unwrap().path();
            let values = yaml(&std::fs::read_to_string(&path).unwrap());
            names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
            jobs.push(to_render(&chart(), &values));
        }
        assert!(names.len() > 10, "{names:?}");
        let answers = helm(&jobs);
        let result = |name: &str, answer| rendered(answer).unwrap_or_else(|said| panic!("{name}: {said}"));
        names.into_iter().zip(&answers).map(|(name, answer)| (name.clone(), result(&name, answer))).collect()
    })
}

#[test]
fn the_chart_passes_helm_lint() {
    let answers = helm(&[json!({"do": "lint", "chart": chart()})]);
    let messages = answers[0]["messages"].as_array().unwrap();
    // Severity 1 tells of what is only recommended, which is an icon.
    assert!(messages.iter().all(|message| message["Severity"].as_u64() == Some(1)), "{messages:?}");
}

#[test]
fn all_that_is_rendered_fits_kubernetes_schemas() {
    let jobs: Vec<Value> = matrix()
        .values()
        .map(|rendered| {
            let manifests = [&rendered.manifests[..], &rendered.hooks].concat();
            json!({"do": "validate", "manifests": manifests, "versions": VERSIONS})
        })
        .collect();
    for (name, answer) in matrix().keys().zip(helm(&jobs)) {
        assert_eq!(answer["faults"], json!([]), "{name}");
    }
}

#[test]
fn a_manifest_that_is_wrong_does_not_fit() {
    let mut manifest = matrix()["sidecar"].find("Job", "").unwrap().clone();
    manifest["spec"]["template"]["spec"]["initContainers"][0]["readinesProbe"] = json!({});
    let answers = helm(&[json!({"do": "validate", "manifests": [manifest], "versions": VERSIONS})]);
    assert_eq!(answers[0]["faults"].as_array().unwrap().len(), VERSIONS.len(), "{}", answers[0]);
}

#[test]
fn slotkeeper_accepts_every_configuration_without_a_warning() {
    for (name, rendered) in matrix().iter().filter(|(name, _)| *name != "no-workload") {
        let (code, said) = check(rendered);
        assert_eq!((code, said.as_str()), (Some(0), ""), "{name}: {}", rendered.config());
    }
}

/// `slotkeeper check` of the file, with the addresses that the agent gets from its environment in their places.
fn check(rendered: &Rendered) -> (Option<i32>, String) {
    let mut config = yaml(rendered.config());
    if rendered.find("Job", "").or(rendered.find("CronJob", "")).is_some() {
        let agent = agent(&rendered.pod()["spec"]);
        for (name, value) in environment(agent, &|_| "127.0.0.1".to_owned()) {
            match name.as_str() {
                "CONSUL_HTTP_ADDR" => config["consul"]["address"] = value.into(),
                "SLOTKEEPER_HTTP_LISTEN" => config["http"]["listen"] = value.into(),
                _ => {}
            }
        }
    }
    slotkeeper_check(&config.to_string())
}

fn slotkeeper_check(config: &str) -> (Option<i32>, String) {
    let mut command = Command::new(BINARY);
    command.args(["check", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// The container with slotkeeper's port.
pub(crate) fn agent(pod: &Value) -> &Value {
    let containers = ["initContainers", "containers"].iter().flat_map(|list| pod[list].as_array().unwrap());
    let with_port = |container: &&Value| {
        container["ports"]
            .as_array()
            .is_some_and(|ports| ports.iter().any(|port| port["name"] == "slotkeeper"))
    };
    let mut found: Vec<_> = containers.filter(with_port).collect();
    assert_eq!(found.len(), 1, "one agent in {pod}");
    found.remove(0)
}

#[test]
fn contradictory_values_are_refused_with_the_fix() {
    let refusals = [
        ("mode: nope", "/mode"),
        ("mdoe: wrapper", "mdoe"),
        ("config: {semaphores: [{name: a, prefx: b, limit: 1}]}", "prefx"),
        ("config: {semaphores: [{name: a, prefix: b}]}", "limit"),
        ("config: {http: {listen: '0.0.0.0:1'}}", "write the port as `port`"),
        ("config: {readiness: {file: /tmp/ready}}", "/run/slotkeeper/ready"),
        ("config: {session: {state_file: /tmp/state}}", "/run/slotkeeper/session.json"),
        ("config: {control: {listen: '127.0.0.1:1'}}", "`control.enabled: true`"),
        (
            "{mode: sidecar, config: {semaphores: [{name: a, prefix: b, limit: 1, wait: 5m}]}}",
            "write the chart's own `wait`",
        ),
        (
            "{mode: sidecar, config: {semaphores: [{name: a, prefix: b, limit: 1, on_lost: exit}]}}",
            "the fence acts",
        ),
        (
            "{mode: sidecar, workload: {terminationGracePeriodSeconds: 60}}",
            "up to 92 s to end the workload, 90 s of them the pod's grace; the maximum is three fifths of config.session.ttl \
             (2m). Write a TTL of at least 154s",
        ),
        (
            "{mode: sidecar, fence: {failureThreshold: 15}}",
            "a shorter workload.terminationGracePeriodSeconds",
        ),
        ("{mode: sidecar, config: {session: {ttl: 103333ms}}}", "Write a TTL of at least 104s"),
        ("{mode: sidecar, fence: {terminationGracePeriodSeconds: 3}}", "terminationGracePeriodSeconds"),
        ("image: {repository: ''}", "`scripts/image`"),
        ("{mode: sidecar, wait: 4s}", "write at least 5s, or `mode: wrapper`"),
        ("{mode: on_demand, wait: 0s}", "write at least 5s"),
        (
            "{config: {locks: [{name: a, key: b}]}, workload: {container: {image: a, command: [a], ports: \
             [{name: slotkeeper, containerPort: 1}]}}}",
            "another name",
        ),
        ("{mode: sidecar, workload: {container: {ports: [{containerPort: 9377}]}}}", "another `port`"),
        (
            "{config: {locks: [{name: a, key: b}]}, workload: {container: {image: a, command: [a], volumeMounts: \
             [{name: a, mountPath: /opt/slotkeeper/}]}}}",
            "mount it elsewhere",
        ),
        ("killAfter: 30s", "write at most 26200ms, or config.session.ttl of at least 51s"),
        ("{killAfter: 2s, config: {session: {ttl: 9s}}}", "9s is out of bounds; write 10s to 24h"),
        ("enabled: 'yes'", "/enabled"),
        (
            "{mode: sidecar, workload: {container: {livenessProbe: {tcpSocket: {port: 1}}}}}",
            "`fence.enabled: false`",
        ),
        (
            "{mode: sidecar, workload: {container: {startupProbe: {tcpSocket: {port: 1}}}}}",
            "before whose success the kubelet runs no livenessProbe, which is the fence; remove it, let the sidecar end the workload",
        ),
        (
            "{mode: sidecar, workload: {container: {lifecycle: {postStart: {sleep: {seconds: 1}}}}}}",
            "during which the kubelet runs no livenessProbe",
        ),
        ("{mode: sidecar, workload: {container: {restartPolicy: OnFailure}}}", "restart it at once"),
        ("{mode: sidecar, workload: {container: {restartPolicy: Always}}}", "`mode: wrapper`"),
        (
            "{mode: sidecar, workload: {container: {restartPolicy: Never, restartPolicyRules: [{action: Restart}]}}}",
            "RestartAllContainers",
        ),
        ("{mode: sidecar, gate: startupProbe}", "treats the sidecar as started"),
        ("gate: waiter", "the only gate; remove it"),
        ("{mode: sidecar, config: {workload: {volume: /run/slotkeeper}}}", "write `processes`"),
        (
            "{mode: sidecar, config: {drain: {release: after_workload}}}",
            "the sidecar detects the end of the workload",
        ),
        ("{mode: sidecar, config: {drain: {hold: 5s}}}", "the sidecar detects the end of the workload"),
        ("{mode: sidecar, workload: {pod: {hostPID: true}}}", "`processes.shared: false`"),
        ("{mode: sidecar, workload: {pod: {shareProcessNamespace: false}}}", "`processes.shared` sets it"),
        ("{mode: sidecar, processes: {shared: false, stop: true}}", "write `processes.shared: true`"),
        (
            "{mode: sidecar, processes: {stop: true}, workload: {pod: {securityContext: {runAsUser: null}}}}",
            "run as the user of the container main, and not as root",
        ),
        (
            "{mode: sidecar, processes: {stop: true}, workload: {container: {securityContext: {runAsUser: 0}}}}",
            "and not as root",
        ),
        (
            "{mode: sidecar, processes: {stop: true}, fence: {enabled: false}, workload: {terminationGracePeriodSeconds: 90}}",
            "workload.terminationGracePeriodSeconds: with a TTL of 2m, the workload cannot have 90s to stop",
        ),
        (
            "{config: {locks: [{name: a, key: b}]}, workload: {container: {image: 'import:7'}}}",
            "needs its `command`",
        ),
        ("{workload: {container: {image: 'import:7', command: [a]}}}", "write semaphores or locks"),
        (
            "{config: {locks: [{name: a, key: b}]}, workload: {container: {imag: 'import:7', command: [/import]}}}",
            "workload.container.image: missing",
        ),
        ("{mode: sidecar, workload: {container: {args: [--all]}}}", "workload.container.image: missing"),
        ("nameOverride: Bad_Name", "/nameOverride"),
        ("fullnameOverride: -bad", "/fullnameOverride"),
        ("serviceAccount: {name: Bad Name}", "/serviceAccount/name"),
        ("workload: {kind: CronJob}", "workload.cronJob.schedule: a CronJob needs one"),
        ("workload: {cronJob: {schedule: '0 3 * * *'}}", "write `workload.kind: CronJob` too"),
        ("workload: {cronJob: {timeZone: Etc/UTC}}", "workload.cronJob.timeZone: has no effect on a Job"),
        ("workload: {pod: {restartPolicy: OnFailure}}", "'Never'"),
        (
            "workload: {pod: {terminationGracePeriodSeconds: 9}}",
            "write the time that the workload itself needs",
        ),
        ("workload: {pod: {serviceAccountName: batch}}", "write `serviceAccount.name: batch`"),
        ("consul: {token: {secretName: a}, login: {authMethod: b}}", "exclude each other"),
        ("consul: {ca: {secretName: a, configMapName: b}}", "exclude each other"),
        ("port: 80", "/port"),
        ("wait: soon", "/wait"),
        ("workload: {name: Import}", "/workload/name"),
        (
            "workload: {podLabels: {app.kubernetes.io/name: import}}",
            "select the pods by app.kubernetes.io/name; remove it",
        ),
        ("networkPolicy: {from: monitoring}", "/networkPolicy/from"),
        ("wrapper: {binary: copy}", "/wrapper/binary"),
        ("test: {prefix: /p}", "/test/prefix"),
        ("test: {prefix: service/example/test}", "overlaps with example, at `service/example`"),
        (
            "{test: {prefix: p}, config: {locks: [{name: a, key: p/q}]}}",
            "test.prefix: `p` overlaps with a, at `p/q`",
        ),
        ("image: {digest: latest}", "/image/digest"),
    ];
    let jobs: Vec<Value> = refusals.iter().map(|(values, _)| to_render(&chart(), &yaml(values))).collect();
    for ((values, said), answer) in refusals.iter().zip(helm(&jobs)) {
        let refused = rendered(&answer).err().unwrap_or_else(|| panic!("not refused: {values}"));
        assert!(refused.contains(said), "{values}: {refused}");
    }
}

/// What slotkeeper would refuse when the pod is there already, which would wait for ever in its Init.
#[test]
fn the_chart_refuses_what_slotkeeper_refuses() {
    let faults = [
        ("{session: {ttl: 48h}}", "config.session.ttl: 48h is out of bounds; write 10s to 24h"),
        ("{session: {ttl: 9s}}", "9s is out of bounds"),
        ("{consul: {max_wait: 1s}}", "config.consul.max_wait: 1s is out of bounds; write 2s to 10m"),
        ("{session: {lock_delay: 61s}}", "config.session.lock_delay: 61s is out of bounds"),
        ("{consul: {address: ''}}", "consul.address: empty"),
        ("{consul: {address: 'ftp://x'}}", "consul.address: not an address"),
        ("{consul: {address: 'HTTP://x'}}", "consul.address: not an address"),
        ("{consul: {address: 'consul:8500?dc=a'}}", "consul.address: not an address"),
        ("{consul: {address: 'http://user:secret@consul'}}", "consul.address: not an address"),
        ("{consul: {address: '::1:8500'}}", "consul.address: not an address"),
        ("{consul: {address: 'con sul:8500'}}", "consul.address: not an address"),
        ("{consul: {address: 'unix://run/consul.sock'}}", "consul.address: not an address"),
        ("{consul: {address: [consul:8500, 'ftp://x']}}", "consul.address: not an address"),
        ("{consul: {address: 'consul:8500,'}}", "consul.address: not an address"),
        ("{semaphores: [{name: 'a b', prefix: p, limit: 1}]}", "/config/semaphores/0/name"),
        (
            "{semaphores: [{name: a, prefix: /p, limit: 1}]}",
            "config.semaphores[0].prefix: `/p` begins with a slash",
        ),
        ("{locks: [{name: a, key: /p}]}", "config.locks[0].key: `/p` begins with a slash"),
        ("{semaphores: [{name: a, prefix: p//q, limit: 1}]}", "has an empty, `.` or `..` segment"),
        ("{semaphores: [{name: a, prefix: p/../q, limit: 1}]}", "has an empty, `.` or `..` segment"),
        ("{semaphores: [{name: a, prefix: p/.lock, limit: 1}]}", "ends in `.lock`"),
        ("{semaphores: [{name: a, prefix: p, limit: 1, slots: 2}]}", "slots: 2 is more than the limit, 1"),
        (
            "{semaphores: [{name: a, prefix: p, limit: 1}, {name: a, prefix: q, limit: 1}]}",
            "config.semaphores[1].name: `a` is the name of config.semaphores[0]",
        ),
        (
            "{semaphores: [{name: a-b, prefix: p, limit: 1}], locks: [{name: a.b, key: q}]}",
            "config.locks[0].name: `a.b` is the name of config.semaphores[0], or differs",
        ),
        (
            "{semaphores: [{name: a, prefix: p, limit: 1}, {name: b, prefix: p/, limit: 1}]}",
            "config.semaphores[1].prefix: `p/` is already used by config.semaphores[0]",
        ),
        (
            "{semaphores: [{name: a, prefix: p/q/r, limit: 1}, {name: b, prefix: p, limit: 1}]}",
            "config.semaphores[0]: `p/q/r` lies below `p`, the prefix of config.semaphores[1]",
        ),
    ];
    let taken = [
        "{consul: {address: 'https://consul:8501/eu/'}, locks: [{name: a, key: p/.lock}]}",
        "{consul: {address: 'unix:///run/consul.sock'}, locks: [{name: a, key: p}]}",
        "{consul: {address: 'a:8500, https://b:8501'}, locks: [{name: a, key: p}]}",
        "{consul: {address: [a:8500, 'unix:///run/consul.sock']}, locks: [{name: a, key: p}]}",
        "{consul: {address: '[::1]:8500'}, locks: [{name: a, key: p}, {name: b, key: p/q}]}",
        "{consul: {address: 'consul:8500', max_wait: 10m}, session: {ttl: 24h, lock_delay: 60s}, locks: [{name: a, key: p/...}]}",
        "{consul: {address: consul}, semaphores: [{name: a, prefix: p/a/, limit: 2, slots: 2}, {name: b, prefix: p/ab, limit: 1}]}",
    ];
    let whole = |config: &str| {
        let mut config = yaml(config);
        if config.get("semaphores").or(config.get("locks")).is_none() {
            config["locks"] = json!([{"name": "a", "key": "k"}]);
        }
        config
    };
    let of = |config: &str| to_render(&chart(), &json!({"mode": "sidecar", "config": whole(config)}));
    let check = |config: &str| slotkeeper_check(&whole(config).to_string());
    let jobs: Vec<Value> = faults.iter().map(|(config, _)| of(config)).chain(taken.map(of)).collect();
    let answers = helm(&jobs);
    for ((config, said), answer) in faults.iter().zip(&answers) {
        let refused = rendered(answer).err().unwrap_or_else(|| panic!("not refused: {config}"));
        assert!(refused.contains(said), "{config}: {refused}");
        assert_eq!(check(config).0, Some(78), "{config} is refused by the chart alone");
    }
    for (config, answer) in taken.iter().zip(&answers[faults.len()..]) {
        assert!(rendered(answer).is_ok(), "{config}: {answer}");
        let (code, said) = check(config);
        assert_eq!(code, Some(0), "{config}: {said}");
    }
}

/// What the chart takes slotkeeper takes, to the millisecond, and what the chart refuses slotkeeper refuses.
#[test]
fn the_chart_and_slotkeeper_agree_how_long_stopping_may_take() {
    let attempts = |pairs: Vec<(String, u64)>| -> Vec<Result<Rendered, String>> {
        let values = pairs.iter().map(|(ttl, kill_after)| {
            yaml(&format!("{{killAfter: {kill_after}ms, config: {{session: {{ttl: {ttl}}}}}}}"))
        });
        let jobs: Vec<_> = values.map(|values| to_render(&chart(), &values)).collect();
        helm(&jobs).iter().map(rendered).collect()
    };
    let number = |said: &str, before: &str, after: &str| -> u64 {
        let (_, rest) = said.split_once(before).unwrap_or_else(|| panic!("no {before} in {said}"));
        rest.split_once(after).unwrap().0.parse().unwrap()
    };
    let beyond = attempts(vec![("45s".to_owned(), 93_600_000)]).remove(0).unwrap_err();
    assert!(
        beyond.contains("at most 26200ms") && !beyond.contains("at least"),
        "no TTL allows 26 h: {beyond}"
    );
    let ttls = ["10s", "17s3ms", "29999ms", "30s", "45s500ms", "10m"];
    let far_too_long = attempts(ttls.map(|ttl| (ttl.to_owned(), 36_000_000)).into());
    let bounds: Vec<_> =
        far_too_long.iter().map(|one| number(one.as_ref().unwrap_err(), "at most ", "ms")).collect();
    let pairs = ttls.iter().zip(&bounds);
    for (taken, bound) in
        attempts(pairs.clone().map(|(ttl, bound)| ((*ttl).into(), *bound)).collect()).iter().zip(&bounds)
    {
        let taken = taken.as_ref().unwrap();
        assert!(takes(taken, *bound) && !takes(taken, bound + 1), "{bound} ms: {}", taken.config());
    }
    let refused = attempts(pairs.map(|(ttl, bound)| ((*ttl).into(), bound + 1)).collect());
    let shortest: Vec<_> =
        refused.iter().map(|one| number(one.as_ref().unwrap_err(), "ttl of at least ", "s")).collect();
    let pairs = shortest.iter().zip(&bounds);
    for (taken, (ttl, bound)) in
        attempts(pairs.clone().map(|(ttl, bound)| (format!("{ttl}s"), bound + 1)).collect())
            .iter()
            .zip(pairs.clone())
    {
        assert!(takes(taken.as_ref().unwrap(), bound + 1), "{bound} ms and one more under {ttl} s");
    }
    let shorter = attempts(pairs.map(|(ttl, bound)| (format!("{}s", ttl - 1), bound + 1)).collect());
    assert!(shorter.iter().all(Result::is_err), "{shortest:?} are not the shortest");
}

/// Whether `slotkeeper run` takes the configuration with that many milliseconds for stopping. It is to listen at an address that is
/// not this machine's, so that it ends in any case.
fn takes(rendered: &Rendered, kill_after: u64) -> bool {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(rendered.config().as_bytes()).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["run", "--config"]).arg(file.path()).args(["--kill-after", &format!("{kill_after}ms")]);
    let output =
        command.args(["--", "true"]).env("SLOTKEEPER_HTTP_LISTEN", "192.0.2.1:9377").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let listened = said.contains("cannot listen at http.listen 192.0.2.1:9377");
    assert!(listened || (output.status.code() == Some(64) && said.contains("--kill-after")), "{said}");
    listened
}

#[test]
fn the_chart_has_the_version_of_the_crate() {
    let text = std::fs::read_to_string(chart().join("Chart.yaml")).unwrap();
    assert_eq!(yaml(&text)["appVersion"], env!("CARGO_PKG_VERSION"));
}

/// Compares a generated file with what it should be; with SLOTKEEPER_WRITE_GENERATED set it is written instead.
pub(crate) fn assert_current(path: &str, wanted: &str) {
    let path = repository(path);
    if std::env::var_os("SLOTKEEPER_WRITE_GENERATED").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, wanted).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == wanted,
        "{} is old; write it anew with: SLOTKEEPER_WRITE_GENERATED=1 cargo test --test chart generated",
        path.display()
    );
}

/// Values are refused by the same words as the configuration itself: its schema is a part of the values' schema.
#[test]
fn the_generated_part_of_the_schema_is_current() {
    let read = |path: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(repository(path)).unwrap()).unwrap()
    };
    let mut schema = read("charts/slotkeeper/values.schema.json");
    schema["properties"]["config"] = read("config/slotkeeper.schema.json");
    let wanted = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
    assert_current("charts/slotkeeper/values.schema.json", &wanted);
}

/// The chart's copy of [`max_kill_after`], which is linear in pieces.
#[test]
fn the_generated_table_of_the_time_to_stop_is_current() {
    const HEAD: &str = "\
# Generated: the maximum time to stop under a TTL, in milliseconds. From each `from` on it is TTL * slope / 30 - less, rounded down.
";
    let longest = |ttl: u64| u64::try_from(max_kill_after(Duration::from_millis(ttl)).as_millis()).unwrap();
    let mut pieces: Vec<(u64, u64, u64)> = Vec::new();
    // Each term is a number of thirtieths of the TTL, or the same for each TTL. So nothing is rounded at multiples of 30 ms.
    for ttl in (9_990..86_400_000).step_by(30) {
        let slope = longest(ttl + 30) - longest(ttl);
        if pieces.last().is_none_or(|(_, last, _)| *last != slope) {
            pieces.push((ttl.max(10_000), slope, ttl * slope / 30 - longest(ttl)));
        }
    }
    let rows = pieces
        .iter()
        .map(|(from, slope, less)| format!("- {{from: {from}, slope: {slope}, less: {less}}}\n"));
    assert_current("charts/slotkeeper/files/timing.yaml", &format!("{HEAD}{}", rows.collect::<String>()));

    // Every millisecond where the pieces meet, then a step with which every remainder of 30 occurs.
    for ttl in (10_000..100_000).chain((100_000..=86_400_000).step_by(997)) {
        let (_, slope, less) = pieces.iter().rfind(|(from, ..)| *from <= ttl).unwrap();
        assert_eq!(ttl * slope / 30 - less, longest(ttl), "a TTL of {ttl} ms");
    }
}

#[test]
fn every_value_has_a_schema_and_a_row_in_the_readme() {
    let read = |path: &str| std::fs::read_to_string(chart().join(path)).unwrap();
    let values = yaml(&read("values.yaml"));
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let readme = read("README.md");
    let in_schema = schema["properties"].as_object().unwrap().keys();
    // What Helm sets, what the condition of a dependency reads, and what is refused with its reason.
    for key in in_schema.filter(|key| !["global", "enabled", "gate"].contains(&key.as_str())) {
        assert!(values.get(key).is_some(), "{key} is not in values.yaml");
    }
    for key in values.as_object().unwrap().keys() {
        assert!(schema["properties"].get(key).is_some(), "{key} is not in values.schema.json");
        let row = readme.lines().any(|line| line.starts_with(&format!("| `{key}")));
        assert!(row, "{key} has no row in the chart's README");
    }
}

#[test]
fn the_pods_grace_is_longer_than_all_that_has_to_end_in_it() {
    let grace = |name: &str| matrix()[name].pod()["spec"]["terminationGracePeriodSeconds"].as_u64();
    // The workload's 30 s, the drain's 25 s, and 5 s between the two.
    assert_eq!(grace("sidecar"), Some(60));
    // And the 5 s for which a sidecar that sees nothing holds.
    assert_eq!(grace("sidecar-unfenced"), Some(65));
    // Stopping a command that has lost its slot, 12 s, outlasts what it needs by itself; the drain's are 90 s.
    assert_eq!(grace("wrapper"), Some(107));
}

#[test]
fn waiting_is_bounded_where_a_bound_is_set() {
    let semaphores = &yaml(matrix()["wrapper"].config())["semaphores"];
    assert_eq!(semaphores[0]["wait"], "1h30m");
    assert_eq!(semaphores[1].get("wait"), None, "not required, so that nobody waits for it");
    assert_eq!(yaml(matrix()["wrapper"].config())["locks"][0]["wait"], "5m", "what is written stands");
    let waiter = &matrix()["sidecar"].pod()["spec"]["initContainers"][1];
    assert_eq!(waiter["args"], json!(["wait", "--timeout", "30m"]));
}

#[test]
fn the_fence_acts_so_early_that_the_pods_grace_fits() {
    let pods = ["sidecar", "sidecar-slow-fence"].map(|name| &matrix()[name].pod()["spec"]["containers"][0]);
    let fence = |path: &str, period: u64, timeout: u64, threshold: u64| {
        json!({"httpGet": {"path": path, "port": 9377}, "periodSeconds": period, "timeoutSeconds": timeout,
               "failureThreshold": threshold})
    };
    // 1 s and 1 s and the grace of 60 s, but for a tenth of 2m.
    assert_eq!(pods[0]["livenessProbe"], fence("/readyz?lease_left=50s", 1, 1, 1));
    // Four time-outs of 10 s, which last longer than the periods, and 60 s, but for a tenth of 170.5 s.
    assert_eq!(pods[1]["livenessProbe"], fence("/readyz?lease_left=82950ms", 5, 10, 3));
    // The least TTL that is taken, and one of which a tenth is enough.
    for (ttl, left) in [("104s", "51600ms"), ("10m", "2s")] {
        let rendered = render(&format!("{{mode: sidecar, config: {{session: {{ttl: {ttl}}}}}}}"));
        let path = &rendered.pod()["spec"]["containers"][0]["livenessProbe"]["httpGet"]["path"];
        assert_eq!(*path, format!("/readyz?lease_left={left}"), "{ttl}");
    }
}

#[test]
fn the_sidecar_shares_the_process_namespace() {
    let pod = |name: &str| matrix()[name].pod()["spec"].clone();
    let config = |name: &str| yaml(matrix()[name].config());
    assert_eq!(pod("sidecar")["shareProcessNamespace"], true);
    assert_eq!(config("sidecar")["workload"], json!({"volume": "/run/slotkeeper"}));
    assert_eq!(config("sidecar")["drain"], Value::Null);
    for name in ["sidecar-unfenced", "on-demand", "wrapper"] {
        assert_eq!(pod(name)["shareProcessNamespace"], Value::Null, "{name}");
        assert_eq!(config(name)["workload"], Value::Null, "{name}");
    }
    assert_eq!(config("sidecar-unfenced")["drain"], json!({"hold": "5s"}));
    // Whatever begins again waits behind the gate again.
    render("{mode: sidecar, workload: {container: {restartPolicyRules: [{action: RestartAllContainers}]}}}");
    let shares = |container: &Value| {
        let mounts = container["volumeMounts"].as_array().into_iter().flatten();
        mounts.filter(|mount| mount["name"] == "slotkeeper-run").count() == 1
    };
    let stops = pod("sidecar-stops");
    let shared = ["initContainers", "containers"].map(|list| -> Vec<_> {
        stops[list].as_array().unwrap().iter().filter(|one| shares(one)).map(|one| &one["name"]).collect()
    });
    assert_eq!(json!(shared), json!([["slotkeeper", "fetch"], ["import"]]), "but not another sidecar");
}

#[test]
fn what_ends_the_workload_runs_as_its_user() {
    let pod = &matrix()["sidecar-stops"].pod()["spec"];
    let sidecar = &pod["initContainers"][0]["securityContext"];
    assert_eq!((&sidecar["runAsUser"], &sidecar["runAsGroup"]), (&json!(1000), &json!(100)));
    let wanted = json!({"volume": "/run/slotkeeper", "stop": true, "kill_after": "30s"});
    assert_eq!(yaml(matrix()["sidecar-stops"].config())["workload"], wanted);
    assert_eq!(pod["containers"][0]["livenessProbe"], json!({"tcpSocket": {"port": 80}}), "their own");
    let by_pod = render(
        "{mode: sidecar, processes: {stop: true}, workload: {pod: {securityContext: {runAsUser: 7}}}}",
    );
    let by_pod = &by_pod.pod()["spec"];
    assert_eq!(by_pod["initContainers"][0]["securityContext"]["runAsUser"], 7);
    assert!(by_pod["containers"][0]["livenessProbe"]["httpGet"].is_object(), "the fence, too");
    assert_eq!(matrix()["sidecar"].pod()["spec"]["initContainers"][0]["securityContext"]["runAsUser"], 65532);
}

/// Two handlers in one probe are refused by Kubernetes, and one of theirs says more of their workload than ours.
#[test]
fn a_wrapped_workload_keeps_its_own_probes() {
    let container = |name: &str| matrix()[name].pod()["spec"]["containers"][0].clone();
    let own = container("wrapper");
    assert_eq!(
        own["livenessProbe"],
        json!({"exec": {"command": ["/bin/import", "--alive"]}, "periodSeconds": 30})
    );
    assert_eq!(own["readinessProbe"], json!({"tcpSocket": {"port": "http"}}));
    let ours = container("defaults");
    assert_eq!(ours["livenessProbe"]["httpGet"]["path"], "/livez");
    assert_eq!(ours["readinessProbe"]["httpGet"]["path"], "/readyz");
}

/// `kubectl describe` says why a container has ended, by the file where slotkeeper writes it or by the log's end.
#[test]
fn the_end_of_a_container_is_explained() {
    let variable = |container: &Value| -> Option<String> {
        let variables = environment(container, &|path| format!("<{path}>"));
        variables.into_iter().find(|(name, _)| name == "SLOTKEEPER_TERMINATION_MESSAGE").map(|(_, path)| path)
    };
    let own: Vec<_> =
        matrix().values().filter(|rendered| rendered.find("Job", "").is_some()).flat_map(ours).collect();
    assert!(own.len() > 10);
    for container in own {
        assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError", "{container}");
        let runs = container["name"] != "slotkeeper-install";
        assert_eq!(variable(container).as_deref(), runs.then_some("/dev/termination-log"), "{container}");
    }
    let wrapped = |fields: &str| {
        let container = format!("{{image: a, command: [a], {fields}}}");
        let rendered = render(&format!(
            "{{config: {{locks: [{{name: a, key: b}}]}}, workload: {{container: {container}}}}}"
        ));
        rendered.pod()["spec"]["containers"][0].clone()
    };
    let container = wrapped("");
    assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError");
    assert_eq!(variable(&container).as_deref(), Some("/dev/termination-log"));
    let container = wrapped("terminationMessagePath: /tmp/why, terminationMessagePolicy: File");
    assert_eq!(container["terminationMessagePolicy"], "File");
    assert_eq!(variable(&container).as_deref(), Some("/tmp/why"));
    let container = wrapped("env: [{name: SLOTKEEPER_TERMINATION_MESSAGE, value: ''}]");
    assert_eq!(variable(&container).as_deref(), Some(""), "theirs goes before ours");
}

/// The init containers with slotkeeper's image.
fn ours(rendered: &Rendered) -> impl Iterator<Item = &Value> {
    let containers = rendered.pod()["spec"]["initContainers"].as_array().unwrap();
    containers.iter().filter(|container| container["name"].as_str().unwrap().starts_with("slotkeeper"))
}

/// Each readiness probe that fails is an event: none is asked before anything can answer, and a waiting sidecar seldom.
#[test]
fn a_pod_that_waits_makes_few_events() {
    for (name, period) in [("defaults", 5), ("sidecar", 10), ("on-demand", 10)] {
        let probe = &agent(&matrix()[name].pod()["spec"])["readinessProbe"];
        let expected = json!({"httpGet": {"path": "/readyz", "port": "slotkeeper"},
            "initialDelaySeconds": 1, "periodSeconds": period});
        assert_eq!(*probe, expected, "{name}");
    }
}

/// An image volume, no init container and no emptyDir; where the cluster has none, that is said when it is installed.
#[test]
fn the_binary_comes_from_an_image_volume_where_there_are_some() {
    let values =
        yaml("{wrapper: {binary: image}, image: {repository: mirror/slotkeeper, pullPolicy: Always}}");
    let at = |version: &str| {
        let mut job = to_render(&chart(), &values);
        job["kubernetes"] = version.into();
        rendered(&helm(&[job])[0])
    };
    let since = ["1.35", "1.36", "1.37"];
    let taken = at(since[0]).unwrap();
    let validate = json!({"do": "validate", "manifests": taken.manifests, "versions": since});
    assert_eq!(helm(&[validate])[0]["faults"], json!([]));
    let pod = taken.pod();
    let reference = concat!("mirror/slotkeeper:", env!("CARGO_PKG_VERSION"));
    let image = json!({"reference": reference, "pullPolicy": "Always"});
    assert_eq!(pod["spec"]["volumes"][1], json!({"name": "slotkeeper-bin", "image": image}));
    assert_eq!(pod["spec"]["initContainers"], Value::Null);
    let refused = at("1.34").unwrap_err();
    assert!(refused.contains("wrapper.binary: Kubernetes v1.34.0 has no image volumes"), "{refused}");
}

#[test]
fn the_workloads_own_variables_stand() {
    let container = &matrix()["wrapper"].pod()["spec"]["containers"][0];
    let variables: BTreeMap<_, _> = environment(container, &|path| format!("<{path}>")).into_iter().collect();
    assert_eq!(variables["SLOTKEEPER_HTTP_LISTEN"], "[::]:9377");
    assert_eq!((variables["POD_IP"].as_str(), variables["HOST_IP"].as_str()), ("127.0.0.9", "127.0.0.8"));
}

/// On the node's network the agent is at the node's address alone: another one may have the node's loopback.
#[test]
fn on_the_nodes_network_not_all_addresses_are_the_pods() {
    let spec = render("{mode: sidecar, workload: {pod: {hostNetwork: true}}}").pod()["spec"].clone();
    for container in spec["initContainers"].as_array().unwrap() {
        let variables: BTreeMap<_, _> =
            environment(container, &|path| format!("<{path}>")).into_iter().collect();
        assert_eq!(variables["SLOTKEEPER_HTTP_LISTEN"], "[<status.podIP>]:9377");
    }
}

/// A name of ours in `extraEnv` is theirs, once. Theirs can name what ours take from the pod, and ours can name theirs.
#[test]
fn extra_env_takes_precedence() {
    let values = "{mode: sidecar, consul: {login: {authMethod: pods}}, extraEnv: [{name: SLOTKEEPER_POD_NAME, value: \
                  import-7}, {name: SLOTKEEPER_HTTP_LISTEN, value: '127.0.0.1:9377'}, {name: WHERE, value: \
                  $(SLOTKEEPER_POD_NAMESPACE)}]}";
    for container in render(values).pod()["spec"]["initContainers"].as_array().unwrap() {
        let listed = environment(container, &|path| format!("<{path}>"));
        let variables: BTreeMap<_, _> = listed.iter().cloned().collect();
        assert_eq!(variables.len(), listed.len(), "a name is there twice: {listed:?}");
        assert_eq!(variables["SLOTKEEPER_HTTP_LISTEN"], "127.0.0.1:9377");
        if container["name"] == "slotkeeper" {
            assert_eq!(variables["SLOTKEEPER_CONSUL_LOGIN_META"], "pod=<metadata.namespace>/import-7");
            assert_eq!(variables["WHERE"], "<metadata.namespace>");
        }
    }
}

/// The PodMonitor goes on finding it: name and instance are as they were.
#[test]
fn a_workload_has_its_own_name() {
    const COMPONENT: &str = "app.kubernetes.io/component";
    let labels = |rendered: &Rendered| rendered.pod()["metadata"]["labels"].clone();
    let named = render("{workload: {name: import}, podMonitor: {enabled: true}}");
    let job = named.find("Job", "").unwrap();
    assert!(
        job["metadata"]["name"].as_str().unwrap().starts_with("demo-import-"),
        "{}",
        job["metadata"]["name"]
    );
    assert_eq!(
        (&job["metadata"]["labels"][COMPONENT], &labels(&named)[COMPONENT]),
        (&json!("import"), &json!("import"))
    );
    let selected = &named.find("PodMonitor", "").unwrap()["spec"]["selector"]["matchLabels"];
    assert!(selected.as_object().unwrap().iter().all(|(label, value)| &labels(&named)[label] == value));
    // One that the release is called by is not said twice.
    let cron = render("{workload: {name: demo, kind: CronJob, cronJob: {schedule: '0 3 * * *'}}}");
    assert_eq!(cron.find("CronJob", "").unwrap()["metadata"]["name"], "demo");
    assert_eq!(labels(&matrix()["defaults"])[COMPONENT], "workload");
    assert_eq!(
        labels(&matrix()["network-policy"])[COMPONENT],
        "import",
        "what is written for the pods stands"
    );
}

/// What Kubernetes wants a string is one, whatever it looks like.
#[test]
fn a_name_that_looks_like_a_number_is_a_name() {
    let numbers = &matrix()["numbers"];
    let job = numbers.find("Job", "").unwrap();
    assert!(job["metadata"]["name"].as_str().unwrap().starts_with("123-"));
    let spec = &numbers.pod()["spec"];
    assert_eq!(spec["serviceAccountName"], "1234");
    assert_eq!(spec["initContainers"][0]["image"], "789:1e3");
    let sources = &spec["volumes"][0]["projected"]["sources"];
    let names = ["configMap", "secret", "configMap", "secret"].iter().zip(sources.as_array().unwrap());
    let names: Vec<_> = names.map(|(kind, source)| &source[*kind]["name"]).collect();
    assert_eq!(json!(names), json!(["123", "12345", "0x10", "1e5"]));
    let mut to_install = to_render(&chart(), &json!({}));
    to_install["release"] = "1234".into();
    let validate =
        |manifests: &[Value]| json!({"do": "validate", "manifests": manifests, "versions": VERSIONS});
    let installed = rendered(&helm(&[to_install])[0]).unwrap();
    assert_eq!(helm(&[validate(&installed.manifests)])[0]["faults"], json!([]));
    for manifest in numbers.manifests.iter().chain(&installed.manifests) {
        let metadata = &manifest["metadata"];
        let labels = metadata["labels"].as_object().unwrap().values();
        assert!(labels.chain([&metadata["name"]]).all(Value::is_string), "{metadata}");
    }
}

/// The example's command is the example's alone.
#[test]
fn an_image_runs_what_it_runs_by_itself() {
    let container = &matrix()["sidecar-entrypoint"].pod()["spec"]["containers"][0];
    assert_eq!((&container["image"], &container["command"]), (&json!("import:7"), &Value::Null));
    assert_eq!(matrix()["sidecar"].pod()["spec"]["containers"][0]["image"], "busybox:1.37");
}

#[test]
fn slotkeepers_containers_have_no_more_rights_than_they_need() {
    for (name, rendered) in matrix().iter().filter(|(name, _)| *name != "no-workload") {
        let pod = &rendered.pod()["spec"];
        let ours = pod["initContainers"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|container| container["name"].as_str().unwrap().starts_with("slotkeeper"));
        for container in ours {
            let context = &container["securityContext"];
            for (field, wanted) in [
                ("runAsNonRoot", json!(true)),
                ("readOnlyRootFilesystem", json!(true)),
                ("allowPrivilegeEscalation", json!(false)),
                ("capabilities", json!({"drop": ["ALL"]})),
                ("seccompProfile", json!({"type": "RuntimeDefault"})),
            ] {
                assert_eq!(context[field], wanted, "{name}: {field} of {}", container["name"]);
            }
            assert_eq!(
                container["livenessProbe"],
                Value::Null,
                "{name}: its SIGTERM would give the slot back"
            );
            // The kubelet adds the containers' limits up, and the workload has none: it would be evicted at the sum of ours.
            assert_eq!(container["resources"]["limits"], json!({"memory": "32Mi"}), "{name}");
        }
        assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        assert_eq!(pod["restartPolicy"], "Never", "{name}");
    }
}

#[test]
fn the_notes_fit_the_mode() {
    for (name, said) in [
        ("wrapper", "the command gets SIGTERM and after 12s SIGKILL"),
        ("sidecar", "killed by its liveness probe within 62 s"),
        ("sidecar-unfenced", "WARNING: fence.enabled is false"),
        ("sidecar-stops", "the sidecar ends the workload: SIGTERM and after 30 s SIGKILL"),
        ("on-demand", "the client of the lease gets an error"),
    ] {
        let notes = &matrix()[name].notes;
        assert!(notes.contains(said), "{name}: {notes}");
    }
    for name in ["defaults", "cron-job"] {
        let made = matrix()[name].find("Job", "").or(matrix()[name].find("CronJob", "")).unwrap();
        let (kind, named) = (made["kind"].as_str().unwrap(), made["metadata"]["name"].as_str().unwrap());
        assert!(matrix()[name].notes.contains(&format!("{kind} {named} runs")), "{}", matrix()[name].notes);
    }
}

/// Its commands can be pasted, but for the pod's name.
#[test]
fn the_notes_name_the_configured_slots() {
    for (name, key) in [
        ("defaults", "service/example"),
        ("wrapper", "service/warehouse/writers"),
        ("on-demand", "service/licences"),
    ] {
        let notes = &matrix()[name].notes;
        assert!(notes.contains(&format!("slotkeeper sessions {key}\n")), "{name}: {notes}");
    }
    let lock = render("{mode: sidecar, config: {locks: [{name: a, key: service/migration}]}}");
    assert!(lock.notes.contains("/slotkeeper sessions service/migration\n"), "{}", lock.notes);
}

/// Our volumes alone keep no node from being emptied; the workload's own are for it to name.
#[test]
fn slotkeepers_empty_dirs_block_no_autoscaler() {
    const VOLUMES: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
    for (name, rendered) in matrix().iter().filter(|(name, _)| *name != "no-workload") {
        let pod = rendered.pod();
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let ours = volumes.iter().filter(|volume| {
            volume["emptyDir"].is_object() && volume["name"].as_str().unwrap().starts_with("slotkeeper")
        });
        let ours: Vec<_> = ours.map(|volume| volume["name"].as_str().unwrap()).collect();
        assert_eq!(pod["metadata"]["annotations"][VOLUMES], ours.join(","), "{name}");
    }
    let none = render("wrapper: {binary: image}");
    assert_eq!(none.pod()["metadata"]["annotations"].get(VOLUMES), None);
    let both = render(&format!("workload: {{podAnnotations: {{{VOLUMES}: scratch}}}}"));
    assert_eq!(both.pod()["metadata"]["annotations"][VOLUMES], "slotkeeper-bin,scratch");
}

#[test]
fn monitoring_alone_is_monitoring_alone() {
    let rendered = &matrix()["no-workload"];
    let kinds: Vec<_> = rendered.manifests.iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds, ["PodMonitor"]);
    assert_eq!(rendered.notes.trim().lines().count(), 1, "{}", rendered.notes);
    // Pods that are made by hand need the configuration.
    let by_hand = render("{workload: {enabled: false}, config: {locks: [{name: a, key: b}]}}");
    let kinds: Vec<_> = by_hand.manifests.iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds, ["ConfigMap"]);
}

/// Whoever forgets to write slots does not share one with all others who do.
#[test]
fn the_example_has_a_slot_of_its_own_only_where_nothing_else_is_asked_for() {
    assert!(matrix()["defaults"].config().contains("service/example"));
    let own = render("config: {locks: [{name: a, key: b}]}");
    assert!(!own.config().contains("service/example"), "{}", own.config());
}
