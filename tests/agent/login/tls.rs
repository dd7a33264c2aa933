//! TLS, as the whole binary has it.

use super::fortress::{BOTH, Fortress};
use crate::process::{Agent, Home};
use crate::support::authority::Authority;
use crate::wait_for;

#[test]
fn an_untrusted_server_is_reported_and_no_token_is_created() {
    let fortress = Fortress::start();
    let other = Authority::new();
    let authority = other.file("consul-agent-ca.pem");
    let plain = fortress.url().replace("https://", "http://");
    for (arguments, said) in [
        (["--ca-file", authority.to_str().unwrap()], "invalid peer certificate"),
        (["--tls-server-name", "server.dc2.consul"], "invalid peer certificate"),
        (["--http-addr", &plain], "cannot log in by pods"),
    ] {
        let home = Home::new();
        fortress.configure(&home, BOTH);
        let mut agent = Agent::start_with(&home, &arguments, &[]);
        wait_for(&format!("`{said}`"), || agent.log().contains(said));
        assert!(!agent.is_ready());
        assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    }
    assert_eq!(fortress.accessors(), [""; 0]);
}
