//! `run` with tokens that Consul does not know, or that lack a right.

use super::{READER, ROOT, STRANGER, denying, make_keys_only, put_acl};
use crate::http::request_with;
use crate::run::job::Job;
use crate::run::permanent::{assert_ends, quiet};
use crate::wait_for;
use slotkeeper::internals::log_events;

const PREFIX: [&str; 3] = ["service/s", "-n", "1"];
const UNKNOWN: &str = "deadbea7-0000-4000-8000-000000000000";
const SESSIONS: &str = "5e551057-0000-4000-8000-000000000000";

#[test]
fn a_token_that_cannot_do_ends_the_wait() {
    let consul = denying();
    let rules = r#"{"Name":"sessions","Rules":"session_prefix \"\" { policy = \"write\" } key_prefix \"\" { policy = \"read\" }"}"#;
    put_acl(&consul, "policy", rules);
    put_acl(&consul, "token", &format!(r#"{{"SecretID":"{SESSIONS}","Policies":[{{"Name":"sessions"}}]}}"#));
    make_keys_only(&consul);
    let jobs = [
        (UNKNOWN, "Consul does not know this token: ACL not found"),
        // `.lock` is read beside the creation of the session, and it may do neither.
        (STRANGER, "Permission denied; the token that was given lacks this right; the token needs `"),
        (super::KEYS_ONLY, r#"the token needs `session "slotkeeper" { policy = "write" }`"#),
        (READER, r#"the token needs `key_prefix "service/s/" { policy = "write" }`"#),
        (SESSIONS, r#"the token needs `key_prefix "service/s/" { policy = "write" }`"#),
    ]
    .map(|(token, said)| (quiet(&consul.address(), &[&PREFIX[..], &["--token", token]].concat()), said));
    for (job, said) in jobs {
        assert_ends(job, 77, said);
    }
    let at_once = [&PREFIX[..], &["--token", UNKNOWN, "--timeout", "0s"]].concat();
    assert_ends(quiet(&consul.address(), &at_once), 77, "Consul does not know this token");
}

#[test]
fn a_lock_that_cannot_be_read_ends_the_wait_with_its_rule() {
    let consul = denying();
    put_acl(&consul, "policy", r#"{"Name":"no_keys","Rules":"session_prefix \"\" { policy = \"write\" }"}"#);
    put_acl(&consul, "token", &format!(r#"{{"SecretID":"{SESSIONS}","Policies":[{{"Name":"no_keys"}}]}}"#));
    let job = quiet(&consul.address(), &["service/s", "--token", SESSIONS]);
    assert_ends(job, 77, r#"the token needs `key_prefix "service/s/" { policy = "read" }`"#);
}

#[test]
fn a_token_that_consul_learns_of_in_time_does_not_end_the_wait() {
    let consul = denying();
    let mut job = Job::start(&consul.address(), &[&PREFIX[..], &["--token", UNKNOWN]].concat(), &["true"]);
    wait_for("the refusal", || job.log().contains(log_events::SESSION_REQUEST_FAILED));
    put_acl(&consul, "token", &format!(r#"{{"SecretID":"{UNKNOWN}","Policies":[{{"Name":"worker"}}]}}"#));
    assert_eq!(job.code(), Some(0), "{}", job.log());
}

#[test]
fn a_token_that_is_deleted_later_fails_renewals_alone() {
    let consul = denying();
    let accessor = "acce5502-0000-4000-8000-000000000000";
    let token =
        format!(r#"{{"SecretID":"{UNKNOWN}","AccessorID":"{accessor}","Policies":[{{"Name":"worker"}}]}}"#);
    put_acl(&consul, "token", &token);
    let wait = "until [ -e \"$0\" ]; do sleep 0.05; done";
    let arguments = [&PREFIX[..], &["--token", UNKNOWN, "--ttl", "20s"]].concat();
    let mut job = Job::start(&consul.address(), &arguments, &["sh", "-c", wait, "$HOME/go"]);
    wait_for("the command", || job.log().contains(log_events::COMMAND_STARTED));
    let headers = format!("X-Consul-Token: {ROOT}\r\n");
    let reply = request_with(&consul.address(), &format!("DELETE /v1/acl/token/{accessor}"), &headers, "");
    assert_eq!(reply.status, 200, "{}", reply.body);
    wait_for("a failed renewal", || job.log().contains(log_events::SESSION_REQUEST_FAILED));
    assert!(job.is_running(), "{}", job.log());
    std::fs::write(job.path("go"), "").unwrap();
    assert_eq!(job.code(), Some(0), "{}", job.log());
}
