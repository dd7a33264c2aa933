//! The binary brought into another container, around its command.

use crate::consul::Consul;
use crate::operator::Operator;
use crate::podman::{Container, IMAGE, Volume, workload};
use crate::wait_for;

/// What an init container does, then the workload's image with `slotkeeper run` around a line of its shell.
fn run(consul: &Consul, shared: &Volume, line: &str) -> Container {
    let install = Container::start(*IMAGE, &[&shared.at("/run/slotkeeper")], &["install", "/run/slotkeeper"]);
    assert_eq!(install.ended(), 0, "{}", install.log());
    let address = format!("--http-addr={}", consul.address());
    // Another user than the one who brought it, as it mostly is.
    let (user, entrypoint) = ("--user=1000:1000", "--entrypoint=/shared/slotkeeper");
    // Of a wait, which a busy machine may make of it, nothing is to be said in the command's log.
    let options = [user, entrypoint, "--env=SLOTKEEPER_LOG_LEVEL=error", &shared.at("/shared:ro")];
    let arguments = ["run", &address, "service/s", "-n", "1", "--", "sh", "-c", line];
    Container::start(workload(), &options, &arguments)
}

#[test]
fn it_runs_a_command_of_another_image_and_gives_its_exit_code() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let shared = Volume::new();
    let workload = run(&consul, &shared, "echo user $(id -u) slot $SLOTKEEPER_SLOT; exit 7");
    assert_eq!(workload.ended(), 7);
    assert_eq!(workload.log().trim(), "user 1000 slot 0");
    operator.assert_nothing_left("service/s");
}

#[test]
fn as_the_first_process_it_reaps_and_passes_signals_on() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let shared = Volume::new();
    // The orphan outlives its parent; its number is free once another one has reaped it.
    let line = r#"
        trap 'echo told; exit 7' TERM
        orphan=$( (sleep 0.3 > /dev/null & echo $!) )
        while [ -e /proc/$orphan ]; do sleep 0.1; done
        echo reaped
        sleep 600 & wait"#;
    let workload = run(&consul, &shared, line);
    wait_for("the command", || workload.log().contains("reaped"));
    assert_eq!(workload.process("NSpid").split_whitespace().last(), Some("1"));
    assert_eq!(operator.holders("service/s").len(), 1);
    assert_eq!(workload.stop(), 7);
    assert!(workload.log().contains("told"));
    operator.assert_nothing_left("service/s");
}
