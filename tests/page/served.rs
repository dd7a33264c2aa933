//! How the page is served.

use crate::consul::Consul;
use crate::http::request;
use crate::process::{Agent, Home};

const ONE: &str = "semaphores: [{name: writers, prefix: service/writers, limit: 1}]";

const POLICY: &str = "default-src 'none'; style-src SUM; script-src SUM; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

#[test]
fn the_page_is_served_by_a_strict_policy_and_only_there() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(
        &consul.address(),
        &format!("{ONE}\ncontrol: {{listen: '127.0.0.1:0', token_file: '$HOME/token'}}"),
    );
    let agent = Agent::start(&home);
    let page = agent.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    let sum = |word: &str| word.trim_end_matches(';').starts_with("'sha256-");
    let words = policy.split(' ').map(|word| if sum(word) { "SUM;" } else { word });
    assert_eq!(words.collect::<Vec<_>>().join(" "), POLICY);
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    assert_eq!(page.header("cache-control"), Some("no-store"));
    // Nothing that begins at the root, or elsewhere: it may be served below a path of a proxy's.
    let outside = ["src=\"/", "href=\"/", "EventSource(\"/", "https://", "innerHTML"];
    assert!(!outside.iter().any(|outside| page.body.contains(outside)));
    assert_eq!(request(agent.address(), "HEAD /", "").status, 200);
    assert_eq!(request(agent.address(), "POST /", "Content-Length: 0\r\n").status, 405);
    let nowhere = agent.get("/index.html");
    assert_eq!((nowhere.status, nowhere.header("content-type")), (404, Some("application/json")));
    let token = std::fs::read_to_string(home.path("token")).unwrap();
    let bearer = format!("Authorization: Bearer {}\r\n", token.trim());
    assert_eq!(request(&agent.control_address(), "GET /", &bearer).status, 404);
    assert_eq!(request(&agent.control_address(), "HEAD /v1/events", &bearer).status, 200);
    assert_eq!(request(&agent.control_address(), "HEAD /v1/events", "").status, 401);
}
