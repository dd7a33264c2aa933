//! Of the documented policy every rule is needed, and none of them more weakly.

use super::fortress::{Fortress, LOCK, POLICY, SEMAPHORE};
use crate::process::{Agent, Home};
use crate::wait_for;

#[test]
fn each_rule_is_needed_as_it_stands() {
    let fortress = Fortress::start();
    let rules: Vec<&str> = POLICY.lines().filter(|line| line.contains("policy =")).collect();
    assert_eq!(rules.len(), 4, "{rules:?}");
    // What an agent wants for which it is needed, and what it says that lacks it, or has the right to read alone.
    let about = |rule: &str| match rule.split_once(' ').unwrap().0 {
        "key_prefix" => (SEMAPHORE, ["Consul denied to write under service/warehouse/writers/"; 2]),
        "key" => (
            LOCK,
            [
                "cannot read service/nightly/leader",
                r#"the token needs `key "service/nightly/leader" { policy = "write" }`"#,
            ],
        ),
        "session" => (SEMAPHORE, ["the token needs `session \"slotkeeper\" { policy = \"write\" }`"; 2]),
        "node" => (SEMAPHORE, ["the token needs `node \"slotkeeper\" { policy = \"write\" }`"; 2]),
        other => panic!("no rule that is known: {other}"),
    };
    // That of the node comes last in the file: it is missed as long as nobody has registered the node.
    for rule in rules.into_iter().rev() {
        let mut agents = Vec::new();
        let (config, said) = about(rule);
        let weaker = rule.replace("\"write\"", "\"read\"");
        for (instead, said) in ["", &weaker].into_iter().zip(said) {
            let home = Home::new();
            let token = fortress.token_of(&POLICY.replace(rule, instead));
            fortress.configure_as(&home, &format!("token: {token}"), config);
            agents.push((Agent::start(&home), home, said));
        }
        for (agent, _home, said) in &agents {
            wait_for(&format!("`{said}` in the log"), || agent.log().contains(said));
            assert!(!agent.is_ready(), "{said}");
        }
    }
}
