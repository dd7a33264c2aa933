//! What `docs/consul-acl.md` has an operator do.

use std::path::Path;
use std::process::Command;

use super::fortress::{Fortress, POLICY, ROOT};
use crate::process::{Agent, Home};
use crate::support::consul::binary;
use crate::support::jwt::Issuer;
use crate::support::kubernetes::Kubernetes;

const PAGE: &str = include_str!("../../../docs/consul-acl.md");

#[test]
fn the_commands_make_what_an_agent_of_the_page_logs_in_by() {
    let fortress = Fortress::start();
    let (kubernetes, issuer, home) = (Kubernetes::start(), Issuer::new(), Home::new());
    let own = home.path("bin");
    std::fs::create_dir(&own).unwrap();
    std::os::unix::fs::symlink(std::fs::canonicalize(binary()).unwrap(), own.join("consul")).unwrap();
    let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap());
    let commands: Vec<&str> =
        PAGE.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(commands.len(), 2);
    // The fixture has these names already.
    let commands = commands
        .concat()
        .replace("-name slotkeeper", "-name page")
        .replace("-bind-name slotkeeper", "-bind-name page");
    let commands = commands.replace("-policy-name slotkeeper", "-policy-name page");
    let output = Command::new("sh")
        .args(["-euc", &commands])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .env_clear()
        .env("PATH", path)
        .envs(fortress.certificates())
        .envs([("CONSUL_HTTP_ADDR", fortress.url()), ("CONSUL_HTTP_TOKEN", ROOT.into())])
        .envs([("KUBERNETES_URL", kubernetes.url()), ("REVIEWER_JWT", issuer.jwt("kubernetes", 3600))])
        .env("KUBERNETES_CA", fortress.authority_file())
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));

    let bearer = issuer.jwt("kubernetes", 3600);
    kubernetes.know(&bearer);
    std::fs::write(home.path("jwt"), bearer).unwrap();
    let login =
        format!("login: {{auth_method: kubernetes, bearer_token_file: {}}}", home.path("jwt").display());
    let prefix = POLICY.split("key_prefix \"").nth(1).unwrap().split("/\"").next().unwrap();
    let rest = format!("semaphores: [{{name: s, prefix: {prefix}, limit: 1}}]\n");
    fortress.configure_as(&home, &login, &rest);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = fortress.operator().session(&agent.session()).unwrap();
    assert_eq!(session.node, "slotkeeper");
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn its_configuration_is_valid() {
    let yaml = PAGE.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let text = format!("{yaml}semaphores: [{{name: s, prefix: p, limit: 1}}]\n");
    let none = slotkeeper::internals::config::Overrides::default();
    let loaded = slotkeeper::internals::config::parse(
        "page",
        &text,
        &none,
        &slotkeeper::internals::config::Environment::default(),
    );
    assert_eq!(loaded.unwrap().warnings, [""; 0]);
}
