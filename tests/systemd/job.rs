//! Commands that systemd starts by `slotkeeper run`.

use crate::unit::{Host, PREFIX};
use crate::wait_for;

/// A machine with the example's timer and service, whose command is this script.
fn with_timer(script: &str) -> Host {
    let host = Host::boot();
    install_timer(&host, script, PREFIX);
    host
}

/// Installs the example's timer, which fires at once, and its service with another prefix.
pub(crate) fn install_timer(host: &Host, script: &str, prefix: &str) {
    let service = include_str!("../../packaging/systemd/examples/nightly-import.service");
    host.write(
        "/etc/systemd/system/nightly-import.service",
        &service.replace("service/warehouse/imports", prefix),
    );
    let timer = include_str!("../../packaging/systemd/examples/nightly-import.timer");
    host.write("/etc/systemd/system/nightly-import.timer", timer);
    host.install("/usr/local/bin/import", script);
    let now = "[Timer]\nOnCalendar=\nOnActiveSec=0\nRandomizedDelaySec=0\nAccuracySec=1ms\n";
    host.drop_in("nightly-import.timer", now);
    let consul = format!("[Service]\nEnvironment=CONSUL_HTTP_ADDR={}\n", host.address());
    host.drop_in("nightly-import.service", &consul);
}

#[test]
fn a_timer_runs_its_job_on_a_slot() {
    let host = with_timer(
        "#!/bin/sh\necho \"$* ${SLOTKEEPER_FENCING_TOKEN:-none} ${NOTIFY_SOCKET:-none}\" >> /run/job\n",
    );
    host.systemctl(&["start", "nightly-import.timer"]);
    wait_for("the job", || host.read("/run/job").ends_with('\n'));
    host.await_property("nightly-import", "ActiveState", "inactive");
    let said = host.read("/run/job");
    let words: Vec<_> = said.split_ascii_whitespace().collect();
    assert_eq!((words[0], words[2]), ("--full", "none"), "{said}");
    assert!(words[1].parse::<u64>().is_ok(), "{said}");
    assert_eq!(host.property("nightly-import", "Result"), "success");
    host.operator.assert_nothing_left(PREFIX);

    // Without a slot it does not run, and has not failed.
    host.configure("first", "", "");
    host.operator.delete(&format!("{PREFIX}/.lock"));
    host.systemctl(&["start", "slotkeeper@first"]);
    let run = format!(
        "[Service]\nExecStart=\nExecStart=/usr/bin/slotkeeper run {PREFIX} -n 1 --try -- /usr/local/bin/import\n"
    );
    host.write("/etc/systemd/system/nightly-import.service.d/try.conf", &run);
    host.systemctl(&["daemon-reload"]);
    host.systemctl(&["start", "nightly-import"]);
    assert_eq!(host.property("nightly-import", "ExecMainStatus"), "75");
    assert_eq!(host.property("nightly-import", "Result"), "success");
    assert_eq!(host.read("/run/job"), said);
}

#[test]
fn a_stopped_job_has_its_slot_until_it_has_ended() {
    let host = with_timer(
        "#!/bin/sh\ntrap 'echo term >> /run/job; sleep 1; echo end >> /run/job; exit 0' TERM\necho begin >> /run/job\n\
         while :; do sleep 0.05; done\n",
    );
    host.systemctl(&["start", "nightly-import.timer"]);
    wait_for("the job", || host.read("/run/job") == "begin\n");
    host.systemctl(&["stop", "--no-block", "nightly-import"]);
    wait_for("SIGTERM", || host.read("/run/job") == "begin\nterm\n");
    assert_eq!(host.operator.holders(PREFIX).len(), 1);
    host.await_property("nightly-import", "ActiveState", "inactive");
    assert_eq!(host.read("/run/job"), "begin\nterm\nend\n");
    assert_eq!(host.property("nightly-import", "Result"), "success");
    host.operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_service_starts_its_command_on_a_slot_and_again_after_a_loss() {
    let host = Host::boot();
    let unit = include_str!("../../packaging/systemd/examples/loader.service");
    host.write("/etc/systemd/system/loader.service", &unit.replace("service/warehouse/loaders", PREFIX));
    host.install(
        "/usr/local/bin/loader",
        "#!/bin/sh\necho \"$SLOTKEEPER_FENCING_TOKEN\" >> /run/loader\nexec sleep infinity\n",
    );
    host.drop_in(
        "loader.service",
        &format!("[Service]\nEnvironment=CONSUL_HTTP_ADDR={}\nRestartSec=100ms\n", host.address()),
    );
    host.configure("first", "", "");
    host.systemctl(&["start", "slotkeeper@first"]);
    host.systemctl(&["start", "--no-block", "loader"]);
    host.await_waiter();
    let waiting = format!("waiting for {PREFIX}: 1st of 1 in the queue, held by ");
    wait_for("the position in the queue", || host.property("loader", "StatusText").starts_with(&waiting));
    assert_eq!(host.property("loader", "ActiveState"), "activating");
    host.systemctl(&["stop", "slotkeeper@first"]);
    host.await_property("loader", "ActiveState", "active");
    wait_for("its command", || host.read("/run/loader").lines().count() == 1);
    let session = host.operator.holders(PREFIX).remove(0);
    host.operator.destroy(&session);
    wait_for("its command again", || host.read("/run/loader").lines().count() == 2);
    assert!(host.journal("loader").contains("status=80"));
    let tokens = host.read("/run/loader");
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    host.await_property("loader", "ActiveState", "active");
    host.systemctl(&["stop", "loader"]);
    host.operator.assert_nothing_left(PREFIX);
}
