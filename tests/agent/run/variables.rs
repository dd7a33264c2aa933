//! The variables of the flags of `run`.

use std::process::Command;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::BINARY;
use crate::run::job::bare;

#[test]
fn variables_take_the_place_of_flags_and_do_not_reach_the_command() {
    let consul = Consul::start();
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(BINARY);
        bare(&mut command);
        command.arg("run").args(arguments).args(["--", "sh", "-c", "env"]).envs(variables.iter().copied());
        let ended = command.env("CONSUL_HTTP_ADDR", consul.address()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    };
    let variables = [
        ("SLOTKEEPER_LIMIT", "3"),
        ("SLOTKEEPER_SLOTS", "2"),
        ("SLOTKEEPER_TIMEOUT", "10s"),
        ("SLOTKEEPER_KILL_AFTER", "2s"),
        ("SLOTKEEPER_STOP_AFTER", "4s"),
        ("SLOTKEEPER_SHELL", ""),
        ("SLOTKEEPER_SESSION_TTL", "20s"),
    ];
    let (code, said, log) = run(&["p/one"], &variables);
    assert_eq!((code, log.as_str()), (Some(0), ""), "{said}");
    let record = Operator::at(&consul.address()).lock("p/one").unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record.value).unwrap();
    assert_eq!(record["Limit"], 3);
    assert!(said.lines().any(|line| line.starts_with("SLOTKEEPER_SLOT=")), "{said}");
    let inherited = said.lines().filter(|line| {
        variables
            .iter()
            .any(|(name, _)| line.split('=').next() == Some(name) && *name != "SLOTKEEPER_SESSION_TTL")
    });
    assert_eq!(inherited.collect::<Vec<_>>(), Vec::<&str>::new());

    let (code, _, log) = run(&["p/two"], &[("SLOTKEEPER_LIMIT", "many")]);
    assert!(
        code == Some(78) && log.contains("SLOTKEEPER_LIMIT: `many`: write a whole number"),
        "{code:?} {log}"
    );
    let (code, _, log) = run(&["p/two", "--slots", "2"], &[]);
    assert!(code == Some(64) && log.contains("--slots is for a semaphore; pass --limit N"), "{code:?} {log}");
    let (code, ..) = run(&["p/two", "--slots", "2"], &[("SLOTKEEPER_LIMIT", "2")]);
    assert_eq!(code, Some(0));
}
