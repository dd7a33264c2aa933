//! The control endpoints at a loopback address, for who bears the token.

use std::os::unix::fs::PermissionsExt;

use crate::consul::Consul;
use crate::http::{Reply, request};
use crate::process::{Agent, Home};
use slotkeeper::internals::log_events;

const CONFIG: &str = "semaphores: [{name: s, prefix: service/s, limit: 1}]\n\
                      control: {listen: '127.0.0.1:0', token_file: '$HOME/run/control.token'}\n";

fn ask(agent: &Agent, line: &str, token: &str) -> Reply {
    let headers = format!("Authorization: Bearer {token}\r\nContent-Length: 0\r\n");
    request(&agent.control_address(), line, &headers)
}

#[test]
fn the_agent_makes_a_token_and_keeps_it_to_itself() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(&consul.address(), CONFIG);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let address = agent.control_address();
    let file = home.path("run/control.token");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    assert!(!agent.log().contains(&token) && agent.log().contains("run/control.token"), "{}", agent.log());

    for line in ["POST /v1/drain", "GET /v1/status", "GET /readyz"] {
        let refused = ask(&agent, line, "0123456789abcdef");
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")), "{line}");
        assert!(refused.body.contains(r#""code":"unauthorized""#), "{}", refused.body);
    }
    let document = request(&address, "GET /v1/openapi.json", "");
    assert_eq!((document.status, document.header("content-type")), (200, Some("application/json")));
    assert_eq!(ask(&agent, "GET /readyz", &token).status, 200);
    assert_eq!(ask(&agent, "GET /v1/leases/none", &token).status, 404);
    // The agent's own, which it takes up again.
    agent.signal(rustix::process::Signal::KILL);
    agent.ended();
    let mut agent = Agent::start(&home);
    assert_eq!(ask(&agent, "POST /v1/drain", &token).status, 202);
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), token);
}

#[test]
fn a_token_that_others_may_read_is_refused_before_anything_is_held() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(&consul.address(), CONFIG);
    std::fs::create_dir(home.path("run")).unwrap();
    let file = home.path("run/control.token");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut agent = Agent::spawn(&home, &[], &[]);
    assert_eq!(agent.ended().code(), Some(1));
    let log = agent.log();
    assert!(
        log.contains("other users may read or write the token's file") && log.contains("chmod it to 600"),
        "{log}"
    );
    assert!(!log.contains("0123456789abcdef") && !log.contains(log_events::SESSION_CREATED), "{log}");
}
