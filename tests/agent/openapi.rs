//! The control address against its own document: every operation, asked as the document allows and as it does not.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::consul::Consul;
use crate::process::{Agent, Home};
use slotkeeper_test_seed as seed;

/// What may be asked for by name: slots enough that nothing has to be waited for, and a bound on leases that is reached.
const CONFIG: &str = "session: {ttl: 10s}\n\
                      semaphores: [{name: s, prefix: service/s, limit: 1000, required: false, mode: on_demand}]\n\
                      locks: [{name: l, key: service/l, mode: on_demand}]\n\
                      control: {listen: '127.0.0.1:0', token_file: '$HOME/control.token', max_leases: 60}\n";

/// schemathesis's own configuration. 429 and 410 are answers to what is well asked: a bound was reached, and a lease that was got a while
/// before has ended.
const CHECKS: &str = "[checks]\n\
                      positive_data_acceptance.expected-statuses = \
                      [\"2xx\", \"401\", \"403\", \"404\", \"409\", \"410\", \"429\"]\n";

#[test]
fn the_document_says_what_is_served() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(&consul.address(), CONFIG);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    // By any name, and by the one that there is: first what is asked in a row, while there are leases to be had. For a lock
    // all but the first would wait, for up to an hour: tests/agent/control.rs asks for locks.
    for (name, phases) in [("", "coverage,fuzzing,stateful"), ("s", "stateful"), ("s", "coverage,fuzzing")] {
        let named = format!("[parameters]\n\"path.name\" = \"{name}\"\n");
        let parameters = if name.is_empty() { "" } else { &named };
        std::fs::write(home.path("schemathesis.toml"), format!("{CHECKS}{parameters}")).unwrap();
        let output = check(&home, &agent.control_address(), phases);
        let said = String::from_utf8_lossy(&output.stdout);
        let faults = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{faults}");
        assert!(said.contains("No issues found"), "{said}{faults}");
    }
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
}

fn check(home: &Home, address: &str, phases: &str) -> Output {
    let token = std::fs::read_to_string(home.path("control.token")).unwrap();
    Command::new(binary())
        .args(["run", &format!("http://{address}/v1/openapi.json")])
        .args(["--header", &format!("Authorization: Bearer {}", token.trim())])
        .args([
            "--phases",
            phases,
            "--checks",
            "all",
            "--warnings",
            "off",
            "--no-color",
            "--generation-database",
            "none",
        ])
        .args(["--seed", &seed::base().to_string(), "--max-examples", "20"])
        // It finds out what the lock is called, and waits for it until the lease that it had before runs out.
        .args(["--request-timeout", "40", "--max-response-time", "30"])
        // How fast it makes its requests up says nothing of what is served.
        .args(["--suppress-health-check", "too_slow"])
        // It ends the agent, and with it the rest of the test.
        .args(["--exclude-path", "/v1/drain"])
        // It has no end: tests/agent/events.rs asks for it.
        .args(["--exclude-path", "/v1/events"])
        .current_dir(home.path(""))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.path(""))
        .output()
        .unwrap()
}

/// The schemathesis to run.
fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("SCHEMATHESIS_BIN") {
        return named.into();
    }
    let cached = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/schemathesis/bin/schemathesis");
    assert!(
        cached.is_file(),
        "no schemathesis in SCHEMATHESIS_BIN or in .tools/: run scripts/schemathesis, which gets one"
    );
    cached
}
