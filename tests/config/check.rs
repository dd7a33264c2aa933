//! `slotkeeper check`: every fault with its place, and the exit code.

use crate::{slotkeeper, stderr, stdout};

const GOOD: &str = "semaphores: [{name: a, prefix: b, limit: 1}]\n";

/// The outage that the default TTL tolerates.
const TOLERATES: &str = "tolerates 31 s without Consul, a command under `run` 26 s";

/// The faults of `text` by `check`, without the name of standard input.
fn faults(text: &str) -> Vec<String> {
    let output = slotkeeper(&["check", "-"], text);
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    let name = "<stdin>";
    stderr(&output).lines().map(|line| line.strip_prefix(name).unwrap_or(line).to_owned()).collect()
}

/// Asserts that there are as many faults as `expected`, and that each begins with the expected text.
fn assert_faults(text: &str, expected: &[&str]) {
    let faults = faults(text);
    let matching = faults.iter().zip(expected).filter(|(fault, start)| fault.starts_with(**start)).count();
    assert!(matching == expected.len() && faults.len() == expected.len(), "{faults:#?}");
}

#[test]
fn one_run_reports_every_fault_with_its_line() {
    let text = "\
consul:
  address: ftp://consul
  tokn_file: /x
session:
  ttl: 5s
  lock_delay: 2m
  watch_grace: 15
semaphores:
  - name: a
    prefix: /batch
    limit: 0
  - name: a
    prefix: jobs/b
    limit: 2
    slots: 3
    wait: soon
    on_lost: panic
  - prefix: jobs/b/c
    limit: many
    required: yes
acquire: togther
http: {listen: example:9377}
hooks:
  on_lost: rm -rf
drain: {timeout: 0s}
";
    assert_faults(
        text,
        &[
            ":2:12: consul.address: unknown scheme `ftp`; write",
            ":3:3: consul.tokn_file: unknown key; did you mean `token_file`?",
            ":5:8: session.ttl: 5s is out of bounds; write 10s to 24h",
            ":6:15: session.lock_delay: 2m is out of bounds; write 0s to 1m",
            ":7:16: session.watch_grace: `15` has no unit; write 15s",
            ":10:13: semaphores[0].prefix: begins with a slash",
            ":11:12: semaphores[0].limit: 0 is out of bounds; write 1 to 5000",
            ":12:11: semaphores[1].name: `a` is the name of semaphores[0] already",
            ":15:12: semaphores[1].slots: 3 is more than the limit, 2",
            ":16:11: semaphores[1].wait: `soon` is not a duration",
            ":17:14: semaphores[1].on_lost: unknown value `panic`, expected `reacquire` or `exit`",
            ":18:5: semaphores[2].name: missing",
            ":18:13: semaphores[2].prefix: lies below `jobs/b`, the prefix of semaphores[1]",
            ":19:12: semaphores[2].limit: found string \"many\", expected a whole number",
            ":20:15: semaphores[2].required: found string \"yes\", expected true or false",
            ":21:10: acquire: unknown value `togther`",
            ":22:16: http.listen: `example:9377` is not an IP address",
            ":24:12: hooks.on_lost: found string \"rm -rf\", expected a list such as [command, argument]",
            ":25:18: drain.timeout: 0s is out of bounds; write 1ms to 24h",
        ],
    );
}

#[test]
fn all_files_are_checked_and_one_bad_file_fails_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("good.yaml"), GOOD).unwrap();
    std::fs::write(path("bad.yaml"), "semaphores: []\n").unwrap();
    std::fs::write(path("binary.yaml"), b"\xff\xfe").unwrap();
    std::fs::write(path("large.yaml"), "#".repeat(2 << 20)).unwrap();
    let files = ["missing.yaml", "bad.yaml", "binary.yaml", "large.yaml", "good.yaml"].map(path);
    let mut args = vec!["check"];
    args.extend(files.iter().map(String::as_str));
    let output = slotkeeper(&args, "");
    assert_eq!(output.status.code(), Some(78));
    assert_eq!(stdout(&output), format!("{}: ok (1 semaphore; {TOLERATES})\n", path("good.yaml")));
    let said = stderr(&output);
    let expected = [
        format!("{}: cannot be opened: No such file", path("missing.yaml")),
        format!("{}:1:1: semaphores: nothing to hold", path("bad.yaml")),
        format!("{}: is not UTF-8", path("binary.yaml")),
        format!("{}: is larger than", path("large.yaml")),
    ];
    assert_eq!(said.lines().count(), expected.len(), "{said}");
    assert!(said.lines().zip(&expected).all(|(line, start)| line.starts_with(start)), "{said}");
}

#[test]
fn a_ttl_shorter_than_an_election_has_a_warning() {
    let checked = |ttl: &str| {
        let text = format!("session: {{ttl: {ttl}}}\n{GOOD}");
        let output = slotkeeper(&["check", "-"], &text);
        assert_eq!(output.status.code(), Some(0));
        (stdout(&output), stderr(&output))
    };
    let (said, warned) = checked("30s");
    assert!(
        said.contains("tolerates 18 s") && warned.starts_with("-: session.ttl: with a TTL of 30s"),
        "{said}{warned}"
    );
    assert_eq!(checked("33s").1, "");
}

#[test]
fn a_valid_file_is_ok_with_its_number_of_semaphores() {
    let output = slotkeeper(
        &["check", "-"],
        "semaphores: [{name: a, prefix: b, limit: 1}, {name: c, prefix: d, limit: 2}]",
    );
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert_eq!(stdout(&output), format!("-: ok (2 semaphores; {TOLERATES})\n"));
}

#[test]
fn a_warning_is_reported_and_is_no_fault() {
    let text = "session: {node_checks: [serfHealth]}\nsemaphores: [{name: a, prefix: b, limit: 1, required: false}]\n";
    let output = slotkeeper(&["check", "-"], text);
    assert_eq!(output.status.code(), Some(0));
    let said = stderr(&output);
    assert!(
        said.contains("<stdin>:1:11: session.node_checks: a failing check ends the session at once"),
        "{said}"
    );
    assert!(
        said.contains("prune_delay of at least 45s") && said.contains("readiness waits for no slot"),
        "{said}"
    );
}

#[test]
fn a_file_that_is_not_yaml_has_a_fault_with_its_line() {
    assert_faults(
        "semaphores:\n  - name: [a\n",
        &[":3:1: not a YAML document: did not find expected ',' or ']', while parsing"],
    );
    assert_faults("a: 1\n---\nb: 2\n", &[": not a YAML document: "]);
    assert_faults("just text\n", &[":1:1: found string"]);
    assert_faults("", &[":1:1: semaphores: nothing to hold"]);
}

#[test]
fn duplicate_keys_and_tags_are_faults_at_their_own_line() {
    assert_faults(
        "semaphores:\n- name: a\n  prefix: b\n  limit: 1\n  limit: 2\n  body: !secret x\n",
        &[":5:3: semaphores[0].limit: duplicate key; remove one", ":6:9: semaphores[0].body: has a YAML tag"],
    );
}

#[test]
fn an_entry_of_the_wrong_type_hides_no_other_fault() {
    assert_faults(
        "semaphores:\n- a\n-\n- {name: b, prefix: c, limit: -1}\nlog: loud\nhooks: {on_lost: [sleep, 5]}\n",
        &[
            ":2:3: semaphores[0]: found string \"a\", expected a mapping",
            ":3:2: semaphores[1]: is empty",
            ":4:31: semaphores[2].limit: -1 is out of bounds",
            ":5:6: log: found string \"loud\", expected a mapping",
            ":6:26: hooks.on_lost[1]: found integer `5`, expected a string",
        ],
    );
}

#[test]
fn a_login_needs_a_method_and_a_bearer_token() {
    assert_faults(
        &format!("{GOOD}consul: {{login: {{auth_method: '', metta: {{}}}}, token: t}}\n"),
        &[
            ":2:1: consul: has more than one of `token`, `token_file` and `login`; keep one",
            ":2:10: consul.login.bearer_token_file: missing; write the path of the bearer token's file",
            ":2:31: consul.login.auth_method: is empty",
            ":2:35: consul.login.metta: unknown key; did you mean `meta`?",
        ],
    );
}

#[test]
fn a_token_is_never_shown() {
    let said = faults("consul: {token: 271828182845, address: 'http://271828182845@x:1'}\n").join("\n");
    assert!(said.contains("consul.token: reads as a number") && !said.contains("271828182845"), "{said}");
}

#[test]
fn thousands_of_faults_are_cut_short() {
    let text = format!("{GOOD}{}", (0..3000).map(|key| format!("key{key}: x\n")).collect::<String>());
    let faults = faults(&text);
    assert_eq!(faults.len(), 101);
    assert_eq!(faults[100], ": and 2900 more errors; fix these first");
}

#[test]
fn check_without_a_file_is_a_usage_error() {
    assert_eq!(slotkeeper(&["check"], "").status.code(), Some(64));
}

#[test]
fn completions_are_written_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = slotkeeper(&["completions", shell], "");
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("slotkeeper") && stdout(&output).contains("check"), "{shell}");
    }
    assert_eq!(slotkeeper(&["completions", "cmd"], "").status.code(), Some(64));
}
