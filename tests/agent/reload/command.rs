//! `slotkeeper reload`: by SIGHUP to the process that answers at `http.listen`, and at the control endpoints.

use std::fs;
use std::process::{Command, Output};

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use super::names;
use crate::consul::{Consul, Newer};
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home};
use crate::run::job::{Job, bare};
use crate::support::authority::Authority;
use crate::support::consul::Setup;
use crate::support::life::MEEK;
use crate::support::ports::Ports;
use crate::wait_for;

const ONE: &str = "semaphores: [{name: a, prefix: p/a, limit: 1}]";
const OTHER: &str = "semaphores: [{name: b, prefix: p/b, limit: 1}]";

/// Runs the command for an agent that listens there, and returns its exit code and output.
fn reload_at(program: &[&str], listen: &str, home: &Home, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program[0]);
    bare(&mut command);
    command.args(&program[1..]).env("SLOTKEEPER_HTTP_LISTEN", listen);
    command.args(["reload", "--config"]).arg(home.path("config.yaml")).args(arguments);
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

fn reload(agent: &Agent, home: &Home) -> (Option<i32>, String) {
    reload_at(&[BINARY], agent.address(), home, &[])
}

/// Configures an agent that does not watch its files.
fn configure(home: &Home, consul: &str, rest: &str) {
    home.configure(consul, &format!("reload: {{watch: false}}\n{rest}"));
}

/// By a signal, and at both kinds of control addresses.
#[test]
fn reload_reports_the_changes_or_the_fault() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let port = Ports::reserve();
    for control in [
        String::new(),
        "control: {listen: 'unix:$HOME/control.sock'}\n".to_owned(),
        format!("control: {{listen: '{}', token_file: '$HOME/token'}}\n", port.addr(0)),
    ] {
        let home = Home::new();
        configure(&home, &consul.address(), &format!("{control}{ONE}"));
        let mut agent = Agent::start(&home);
        agent.await_ready();
        configure(&home, &consul.address(), &format!("{control}{OTHER}\nsession: {{ttl: 90s}}"));
        let (code, said) = reload(&agent, &home);
        let expected = "configuration reloaded\nadded: b\nremoved: a\nnot changed: session.ttl takes effect only at a restart\n";
        assert_eq!((code, said.as_str()), (Some(0), expected), "{}", agent.log());
        wait_for("a to be released", || operator.holders("p/a").is_empty() && names(&agent) == ["b held"]);

        // The command reports a faulty file itself, without a request to the agent.
        configure(&home, &consul.address(), &format!("{control}{ONE}\nlogg: {{}}"));
        let (code, said) = reload(&agent, &home);
        assert!(
            code == Some(78) && said.contains("the request was not sent") && said.contains("logg"),
            "{code:?} {said}"
        );
        assert_eq!(
            (names(&agent), agent.log().matches(log_events::RELOAD_FAILED).count()),
            (vec!["b held".to_owned()], 0)
        );
        assert_eq!(agent.terminate(), Some(0));
    }
}

/// The old slot would be gone, and the new one could not be acquired beside the others.
#[test]
fn a_member_of_a_group_keeps_its_slot_if_its_prefix_changes() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let of = |b: &str| {
        let a = "{name: a, prefix: p/a, limit: 1}";
        format!("acquire: together\nsemaphores: [{a}, {{name: b, prefix: {b}, limit: 1}}]")
    };
    configure(&home, &consul.address(), &of("p/b"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    configure(&home, &consul.address(), &of("p/other"));
    let (code, said) = reload(&agent, &home);
    let expected = "configuration reloaded\n\
                    not changed: semaphores: b: prefix cannot change under `acquire: together`; restart the agent\n";
    assert_eq!((code, said.as_str()), (Some(0), expected), "{}", agent.log());
    assert!(agent.is_ready() && names(&agent) == ["a held", "b held"], "{}", agent.log());
    assert_eq!(agent.status()["semaphores"][1]["prefix"], "p/b");
    assert!(operator.holders("p/b") == [agent.session()] && operator.keys("p/other").is_empty());
    // One with another name is another entry, and the reason is true at once.
    configure(&home, &consul.address(), &of("p/other").replace("name: b", "name: c"));
    let (_, said) = reload(&agent, &home);
    assert!(
        said.contains("removed: b\npending: c: it cannot be acquired together with slots that"),
        "{said}"
    );
    assert_eq!(agent.terminate(), Some(0));
    // A restart takes it over.
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!(operator.holders("p/other"), [agent.session()]);
    assert_eq!(agent.terminate(), Some(0));
}

/// Without `acquire` the slots of the start are a group, and the agent does not release them for an entry that is added.
#[test]
fn an_entry_that_is_added_later_is_acquired_independently_until_a_restart() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let of = |more: &str| {
        format!("semaphores: [{{name: a, prefix: p/a, limit: 1}}, {{name: b, prefix: p/b, limit: 1}}{more}]")
    };
    let c = ", {name: c, prefix: p/c, limit: 1}";
    configure(&home, &consul.address(), &of(""));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let granted = |prefix| operator.lock(prefix).unwrap().modify_index;
    assert_eq!(granted("p/a"), granted("p/b"), "one transaction");
    configure(&home, &consul.address(), &of(c));
    assert_eq!(reload(&agent, &home), (Some(0), "configuration reloaded\nadded: c\n".to_owned()));
    wait_for("c", || names(&agent) == ["a held", "b held", "c held"] && agent.is_ready());
    let warned = format!("{} name=c", log_events::ENTRY_NOT_IN_GROUP);
    assert_eq!(agent.log().matches(&warned).count(), 1, "{}", agent.log());
    // Another priority for one member alone would give the group different places in its queues.
    configure(&home, &consul.address(), &of(c).replace("p/b, limit: 1", "p/b, limit: 1, priority: 3"));
    let (_, said) = reload(&agent, &home);
    assert!(said.contains("not changed: semaphores: b: priority cannot change under"), "{said}");
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_reload_that_the_agent_refuses_exits_with_78() {
    let authority = Authority::new();
    let consul = Consul::start_with(Setup { https: true, config: authority.server(), ..Setup::default() });
    for control in ["", "control: {listen: 'unix:$HOME/control.sock'}\n"] {
        let home = Home::new();
        let file = home.path("ca.pem");
        fs::copy(authority.file("consul-agent-ca.pem"), &file).unwrap();
        configure(&home, &format!("https://{}", consul.https_addr()), &format!("{control}{ONE}"));
        let config = fs::read_to_string(home.path("config.yaml")).unwrap();
        let tls =
            format!("consul: {{tls: {{ca_file: '{}', server_name: server.dc1.consul}}, ", file.display());
        fs::write(home.path("config.yaml"), config.replace("consul: {", &tls)).unwrap();
        let mut agent = Agent::start(&home);
        agent.await_ready();
        fs::write(&file, "no certificate").unwrap();
        let (code, said) = reload(&agent, &home);
        assert!(code == Some(78) && said.contains("it contains no PEM certificate"), "{code:?} {said}");
        assert_eq!(agent.metric("slotkeeper_config_last_reload_successful"), 0.0);
        fs::copy(authority.file("consul-agent-ca.pem"), &file).unwrap();
        assert_eq!(reload(&agent, &home), (Some(0), "configuration reloaded\n".to_owned()));
        assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    }
}

#[test]
fn reload_fails_without_an_agent_that_answers() {
    let consul = Consul::start();
    let home = Home::new();
    let port = Ports::reserve();
    let at = |listen: &str, arguments: &[&str]| reload_at(&[BINARY], listen, &home, arguments);
    configure(&home, &consul.address(), &format!("control: {{listen: 'unix:$HOME/c'}}\n{ONE}"));
    let nowhere = port.addr(0).to_string();
    let (code, said) = at(&nowhere, &[]);
    let both =
        ["no agent listens at control.listen, unix:", &format!("no agent answers at http://{nowhere}/")];
    assert!(code == Some(1) && both.iter().all(|one| said.contains(one)), "{code:?} {said}");
    configure(&home, &consul.address(), ONE);
    let (code, said) = at("off", &[]);
    assert!(code == Some(1) && said.contains("without control.listen or http.listen"), "{code:?} {said}");
    let (code, said) = at(&consul.addr().to_string(), &[]);
    assert!(code == Some(1) && said.contains("not from a slotkeeper agent"), "{code:?} {said}");

    let mut agent = Agent::start(&home);
    agent.await_ready();
    agent.signal(Signal::STOP);
    let (code, said) = at(agent.address(), &["--timeout", "300ms"]);
    assert!(code == Some(1) && said.contains("no response within 0.3 s"), "{code:?} {said}");
    agent.signal(Signal::CONT);
    // Where processes have other numbers, none is signalled.
    let apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", BINARY];
    let (code, said) = reload_at(&apart, agent.address(), &home, &[]);
    assert!(code == Some(1) && said.contains("it runs in another container"), "{code:?} {said}");
    assert_eq!(super::reloaded(&agent), 0);

    // Of two agents it reloads the one that listens there.
    let other = Home::new();
    configure(&other, &consul.address(), OTHER);
    let mut second = Agent::start(&other);
    second.await_ready();
    assert_eq!(reload(&second, &other).0, Some(0));
    assert_eq!((super::reloaded(&agent), super::reloaded(&second)), (0, 1));
    assert_eq!(second.terminate(), Some(0));
    assert_eq!(reload(&agent, &home).0, Some(0));
    // With the configuration of another one, it is not signalled.
    let (code, said) = reload_at(&[BINARY], agent.address(), &other, &[]);
    let its = format!("its configuration is {}; name it by --config", home.path("config.yaml").display());
    assert!(code == Some(1) && said.contains(&its), "{code:?} {said}");
    assert_eq!(super::reloaded(&agent), 1);
    // The agent alone sees its configuration on a file system that does not answer.
    super::stuck::pipe(&home.path("config.yaml"));
    let [from, to] = [&other, &home].map(|home| home.path("config.yaml").display().to_string());
    let script = format!("mount --bind {from} {to} && exec \"$0\" \"$@\"");
    let apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script, BINARY];
    let (code, said) = reload_at(&apart, agent.address(), &home, &["--timeout", "300ms"]);
    assert!(code == Some(1) && said.contains("has not answered SIGHUP within 300ms"), "{code:?} {said}");
    agent.signal(Signal::KILL);
    agent.ended();
    let (code, said) = reload(&agent, &other);
    assert!(code == Some(1) && said.contains("no agent answers at"), "{code:?} {said}");
}

/// A signal is for the command, and the command keeps its slots until it ends.
#[test]
fn under_a_command_no_reload_releases_anything() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let both = "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: c, prefix: p/c, limit: 1}]";
    let fewer = "semaphores: [{name: c, prefix: p/c, limit: 1}, {name: d, prefix: p/d, limit: 1}]";
    let socket = "control: {listen: 'unix:$HOME/control.sock'}\n";
    let port = Ports::reserve();
    let listen = port.addr(0).to_string();
    let reload = |home: &Home| reload_at(&[BINARY], &listen, home, &[]);
    let start = |home: &Home| {
        let folder = tempfile::tempdir().unwrap();
        let life = folder.path().join("life").display().to_string();
        let mut command = Command::new(BINARY);
        bare(&mut command);
        command.env("SLOTKEEPER_HTTP_LISTEN", &listen);
        command.args(["run", "--verbose", "--config"]).arg(home.path("config.yaml"));
        command.args(["--", "sh", "-c", MEEK, &life]);
        let job = Job::spawn(command, folder);
        job.await_life();
        job
    };
    let assert_kept = |job: &mut Job| {
        wait_for("d", || operator.lock("p/d").is_some_and(|_| !operator.holders("p/d").is_empty()));
        let beats = job.life().beats();
        wait_for("the command's life", || job.life().beats() > beats);
        assert_eq!(
            (operator.holders("p/a"), operator.holders("p/c")),
            (operator.holders("p/c"), operator.holders("p/d"))
        );
        job.signal(Signal::TERM);
        assert_eq!(job.code(), Some(143), "{}", job.log());
        for prefix in ["p/a", "p/c", "p/d"] {
            operator.assert_nothing_left(prefix);
        }
    };

    // By a changed file; a signal is refused.
    let home = Home::new();
    home.configure(&consul.address(), both);
    let mut job = start(&home);
    let (code, said) = reload(&home);
    assert!(code == Some(1) && said.contains("passes SIGHUP on to the command"), "{code:?} {said}");
    home.configure(&consul.address(), fewer);
    assert_kept(&mut job);

    // By a request.
    let home = Home::new();
    configure(&home, &consul.address(), &format!("{socket}{both}"));
    let mut job = start(&home);
    configure(&home, &consul.address(), &format!("{socket}{fewer}"));
    let (code, said) = reload(&home);
    let kept = "added: d\ndeferred: d: required: true takes effect at the next start\ndeferred: a: no longer configured so";
    assert!(code == Some(0) && said.contains(kept), "{code:?} {said}");
    assert_kept(&mut job);
}
