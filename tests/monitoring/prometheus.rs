//! A real Prometheus, and its promtool.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http;
use crate::support::ports::Ports;
use crate::wait_for;

/// One that scrapes every second, and evaluates its rules as often. It is killed with this value.
pub(crate) struct Prometheus {
    child: Child,
    ports: Ports,
    folder: TempDir,
}

impl Prometheus {
    pub(crate) fn start(rules: &str) -> Self {
        let (ports, folder) = (Ports::reserve(), tempfile::tempdir().unwrap());
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("rules.yaml"), rules).unwrap();
        std::fs::write(path("targets.json"), "[]").unwrap();
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [path("rules.yaml")],
            "scrape_configs": [{
                "job_name": "slotkeeper",
                "file_sd_configs": [{"files": [path("targets.json")], "refresh_interval": "1s"}],
            }],
        });
        std::fs::write(path("prometheus.yaml"), config.to_string()).unwrap();
        let log = File::create(path("log")).unwrap();
        let child = Command::new(tool("prometheus"))
            .arg(format!("--config.file={}", path("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address={}", ports.addr(0)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut prometheus = Self { child, ports, folder };
        wait_for("Prometheus to be ready", || prometheus.is_ready());
        prometheus
    }

    fn is_ready(&mut self) -> bool {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "Prometheus ended:\n{}", self.log());
        let address = self.ports.addr(0);
        std::net::TcpStream::connect(address).is_ok()
            && http::request(&address.to_string(), "GET /-/ready", "").status == 200
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// What it scrapes from now on, in a namespace.
    pub(crate) fn scrape(&self, agents: &[String]) {
        let targets = json!([{"targets": agents, "labels": {"namespace": "test"}}]);
        let (new, file) = (self.folder.path().join("new"), self.folder.path().join("targets.json"));
        std::fs::write(&new, targets.to_string()).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let form: Vec<_> =
            parameters.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        // Asked as a form: an expression may be longer than a line of a request.
        let (line, form) = match form.is_empty() {
            true => (format!("GET {path}"), String::new()),
            false => (format!("POST {path}"), form.join("&")),
        };
        let headers =
            format!("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n", form.len());
        let reply = http::request_with(&self.ports.addr(0).to_string(), &line, &headers, &form);
        let body: Value = serde_json::from_str(&unchunked(&reply)).unwrap();
        assert_eq!(body["status"], "success", "{parameters:?}: {body}");
        assert!(body["warnings"].is_null(), "{parameters:?}: {body}");
        body["data"].clone()
    }

    /// The series that an expression gives now.
    pub(crate) fn query(&self, expr: &str) -> Vec<Value> {
        let data = self.ask("/api/v1/query", &[("query", expr)]);
        assert_eq!(data["resultType"], "vector", "{expr}");
        data["result"].as_array().unwrap().clone()
    }

    /// The series that an expression has given every second since then.
    pub(crate) fn range(&self, expr: &str, since: std::time::SystemTime) -> Vec<Value> {
        let unix = |time: std::time::SystemTime| {
            time.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64().to_string()
        };
        #[allow(clippy::disallowed_methods, reason = "the dates of Prometheus' samples")]
        let now = std::time::SystemTime::now();
        let parameters = [("query", expr), ("start", &unix(since)), ("end", &unix(now)), ("step", "1")];
        let data = self.ask("/api/v1/query_range", &parameters);
        assert_eq!(data["resultType"], "matrix", "{expr}");
        data["result"].as_array().unwrap().clone()
    }

    /// The names of the alerts that fire.
    pub(crate) fn firing(&self) -> Vec<String> {
        let alerts = self.ask("/api/v1/alerts", &[]);
        let firing = alerts["alerts"].as_array().unwrap().iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    /// All rules as it has them.
    pub(crate) fn rules(&self) -> Vec<Value> {
        let rules = self.ask("/api/v1/rules", &[]);
        let groups = rules["groups"].as_array().unwrap().iter();
        groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    }

    /// What it scrapes, as it went last.
    pub(crate) fn targets(&self) -> Vec<Value> {
        self.ask("/api/v1/targets", &[])["activeTargets"].as_array().unwrap().clone()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("Prometheus:\n{}", self.log());
        }
    }
}

/// Runs promtool, with what it reads from standard input; it has to succeed, and gives what it printed.
pub(crate) fn promtool(arguments: &[&str], input: Stdio) -> String {
    let output = Command::new(tool("promtool")).args(arguments).stdin(input).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    said
}

fn tool(name: &str) -> PathBuf {
    let named = std::env::var_os("PROMETHEUS_DIR").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = named.into_iter().chain(std::env::split_paths(&path));
    let folders = folders.chain([crate::repository(".tools/prometheus")]);
    folders.map(|folder| folder.join(name)).find(|candidate| candidate.is_file()).unwrap_or_else(|| {
        panic!("no {name} in PROMETHEUS_DIR, on the PATH or in .tools/prometheus: run scripts/prometheus, which gets one")
    })
}

fn escaped(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric();
    text.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).into() } else { format!("%{byte:02X}") })
        .collect()
}

/// The body, which comes in chunks where it is long.
fn unchunked(reply: &http::Reply) -> String {
    if reply.header("transfer-encoding").is_none() {
        return reply.body.clone();
    }
    let (mut rest, mut body) = (reply.body.as_str(), String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        body.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    body
}
