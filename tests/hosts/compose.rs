//! examples/compose/compose.yaml: checked by the parser of the Compose specification and by promtool, then run by podman-compose,
//! with the binary under test in local images. Grafana cannot be had here; what it reads is compared.

use std::ffi::OsStr;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::consul;
use crate::{http, wait_for};

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");
const BINARY: &str = env!("CARGO_BIN_EXE_slotkeeper");

fn path(name: &str) -> PathBuf {
    Path::new(REPOSITORY).join(name)
}

/// The folder of scripts/compose.
fn tools() -> PathBuf {
    let folder = std::env::var_os("COMPOSE_DIR").map_or_else(|| path(".tools/compose"), PathBuf::from);
    assert!(
        folder.join("podman-compose").exists(),
        "no {}: run scripts/compose, which makes it",
        folder.display()
    );
    folder
}

/// The folder of scripts/prometheus.
fn prometheus() -> PathBuf {
    let folder = std::env::var_os("PROMETHEUS_DIR").map_or_else(|| path(".tools/prometheus"), PathBuf::from);
    assert!(
        folder.join("promtool").exists(),
        "no {}/promtool: run scripts/prometheus, which gets it",
        folder.display()
    );
    folder
}

/// A command with podman's settings.
fn command(program: impl AsRef<OsStr>) -> Command {
    let storage = path(".tools/containers/storage.conf");
    assert!(storage.exists(), "no {}: run scripts/rust-image, which makes it", storage.display());
    let mut command = Command::new(program);
    command.env("CONTAINERS_CONF", tools().join("containers.conf")).env("CONTAINERS_STORAGE_CONF", storage);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn podman(arguments: &[&str]) -> String {
    let output = command("podman").args(arguments).output().expect("podman starts");
    assert!(output.status.success(), "podman {arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The file as the specification's parser understands it, with all paths resolved.
fn project() -> Value {
    let output = Command::new(tools().join("compose-spec"))
        .args(["-format", "json", "compose.yaml"])
        .current_dir(path("examples/compose"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// Where a service finds a config.
fn target<'a>(project: &'a Value, service: &str, config: &str) -> &'a str {
    let configs = project["services"][service]["configs"].as_array().unwrap();
    text(&configs.iter().find(|entry| entry["source"] == config).unwrap()["target"])
}

/// The file or folder of this repository that a service mounts there.
fn mounted(project: &Value, service: &str, target: &str) -> PathBuf {
    let volumes = project["services"][service]["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["target"] == target).unwrap();
    assert_eq!(volume["type"], "bind");
    PathBuf::from(text(&volume["source"]))
}

#[test]
fn prometheus_accepts_its_configuration() {
    let project = project();
    let rules = mounted(&project, "prometheus", "/etc/prometheus/slotkeeper.yaml");
    assert_eq!(rules, path("charts/slotkeeper/rules/slotkeeper.yaml"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prometheus.yml");
    let content = text(&project["configs"]["prometheus"]["content"]);
    fs::write(&file, content.replace("/etc/prometheus/slotkeeper.yaml", rules.to_str().unwrap())).unwrap();
    let output =
        Command::new(prometheus().join("promtool")).args(["check", "config"]).arg(file).output().unwrap();
    assert!(output.status.success() && said(&output).contains("1 rule files found"), "{}", said(&output));
}

#[test]
fn grafana_is_given_the_dashboard_and_its_data_source() {
    let project = project();
    let yaml =
        |name: &str| -> Value { serde_yaml::from_str(text(&project["configs"][name]["content"])).unwrap() };
    let dashboards = &yaml("dashboards")["providers"][0]["options"]["path"];
    let folder = mounted(&project, "grafana", text(dashboards));
    assert_eq!(folder, path("charts/slotkeeper/dashboards"));
    let home =
        text(&project["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]);
    let (at, file) = home.rsplit_once('/').unwrap();
    assert_eq!(at, text(dashboards));
    let dashboard: Value = serde_json::from_slice(&fs::read(folder.join(file)).unwrap()).unwrap();
    // The dashboard's variable takes the default data source of this type.
    let variable = &dashboard["templating"]["list"][0];
    let source = yaml("datasources")["datasources"][0].clone();
    assert_eq!((&variable["type"], &variable["query"]), (&json!("datasource"), &source["type"]));
    assert_eq!(source["isDefault"], true);
    assert_eq!(source["url"], "http://prometheus:9090");
    for (config, kind) in [("datasources", "datasources"), ("dashboards", "dashboards")] {
        assert!(
            target(&project, "grafana", config).starts_with(&format!("/etc/grafana/provisioning/{kind}/"))
        );
    }
}

#[test]
fn a_service_has_longer_to_end_than_its_slotkeeper() {
    let project = project();
    for service in ["agent", "worker"] {
        // drain.timeout is 25s by default, --stop-after of the worker 20s.
        assert_eq!(project["services"][service]["stop_grace_period"], "30s");
    }
    let entrypoint = project["services"]["worker"]["entrypoint"].to_string();
    assert!(entrypoint.contains(r#""--stop-after","20s""#), "{entrypoint}");
}

/// The services in containers of this machine. They are removed with this value.
struct Stack {
    name: String,
    project: Value,
    folder: TempDir,
}

impl Stack {
    /// Writes the file with what podman-compose and this machine do not have replaced: the images, the files of `configs`,
    /// and the healthchecks, which podman runs by systemd alone.
    fn new() -> Self {
        let name = format!("slotkeeper-test-{:08x}", fastrand::u32(..));
        let stack = Self { name, project: project(), folder: tempfile::tempdir().unwrap() };
        let mut file = stack.project.clone();
        let own = stack.image();
        let services = file["services"].as_object_mut().unwrap();
        services.remove("grafana");
        for (name, service) in services.iter_mut() {
            let mut volumes = service["volumes"].as_array().cloned().unwrap_or_default();
            let mut mount = |source: &Path, target: &str| {
                volumes.push(json!({"type": "bind", "source": source, "target": target, "read_only": true}));
            };
            for config in service["configs"].as_array().into_iter().flatten() {
                let file = stack.folder.path().join(text(&config["source"]));
                fs::write(&file, text(&stack.project["configs"][text(&config["source"])]["content"]))
                    .unwrap();
                mount(&file, text(&config["target"]));
            }
            let base = format!("localhost/{}", base());
            let (image, entrypoint) = match name.as_str() {
                "consul" => {
                    mount(&fs::canonicalize(consul::binary()).unwrap(), "/usr/local/bin/consul");
                    (base, Some(json!(["consul"])))
                }
                "prometheus" => {
                    mount(&fs::canonicalize(prometheus()).unwrap(), "/opt/prometheus");
                    // As in the official image.
                    let flags = ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/tmp"];
                    (base, Some(json!(["/opt/prometheus/prometheus", flags[0], flags[1]])))
                }
                "agent" | "install" => (own.clone(), None),
                "gated" | "worker" => (base, None),
                other => panic!("which image is that of {other}?"),
            };
            // They end soon, need no network, and are not to disturb it when they end.
            if ["gated", "install"].contains(&name.as_str()) {
                service["network_mode"] = json!("none");
                service.as_object_mut().unwrap().remove("networks");
            }
            // A worker's command lasts as long as the test.
            if name == "worker" {
                let command = service["command"].to_string();
                assert!(command.contains("sleep 15"), "{command}");
                service["command"] = serde_json::from_str(&command.replace("sleep 15", "sleep 600")).unwrap();
            }
            service["image"] = json!(image);
            service["pull_policy"] = json!("never");
            if let Some(entrypoint) = entrypoint {
                service["entrypoint"] = entrypoint;
            }
            service["volumes"] = json!(volumes);
            for field in ["build", "configs", "ports", "healthcheck"] {
                service.as_object_mut().unwrap().remove(field);
            }
        }
        file["name"] = json!(stack.name);
        for kind in ["volumes", "networks"] {
            for (name, entry) in file[kind].as_object_mut().unwrap() {
                *entry = json!({"name": format!("{}_{name}", stack.name)});
            }
        }
        file.as_object_mut().unwrap().remove("configs");
        // podman-compose would take what is left of `$$` for variables of its own.
        fs::write(stack.file(), file.to_string().replace('$', "$$")).unwrap();
        stack
    }

    /// Builds an image as the Dockerfile's: the binary, its folder and its user, on a base that has what a test binary needs.
    fn image(&self) -> String {
        let context = self.folder.path().join("image");
        fs::create_dir(&context).unwrap();
        fs::copy(BINARY, context.join("slotkeeper")).unwrap();
        let dockerfile = format!(
            "FROM localhost/{}\nCOPY slotkeeper /slotkeeper\n\
             RUN mkdir /run/slotkeeper && chown 65532:65532 /run/slotkeeper\n\
             USER 65532:65532\nENTRYPOINT [\"/slotkeeper\"]\n",
            base()
        );
        fs::write(context.join("Dockerfile"), dockerfile).unwrap();
        let name = format!("localhost/{}", self.name);
        podman(&[
            "build",
            "--quiet",
            "--network=none",
            "--pull=never",
            "--tag",
            &name,
            context.to_str().unwrap(),
        ]);
        name
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("compose.json")
    }

    fn compose(&self, arguments: &[&str]) -> Output {
        command(tools().join("podman-compose"))
            .arg("--project-name")
            .arg(&self.name)
            .arg("--file")
            .arg(self.file())
            // A pod would give all containers one address.
            .arg("--in-pod=false")
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Starts services. This podman does not know the conditions of `depends_on`, which the test waits for. The name server of
    /// its networks may fail when several containers come or go at once, so they are started one after the other.
    fn up(&self, services: &[&str]) {
        let output = self.compose(&[&["up", "--no-start", "--no-deps"], services].concat());
        assert!(output.status.success(), "{services:?}: {}", said(&output));
        for service in services {
            let replicas = self.project["services"][service]["scale"].as_u64().unwrap_or(1);
            for number in 1..=replicas {
                podman(&["start", &self.container(service, number)]);
            }
        }
    }

    fn container(&self, service: &str, number: u64) -> String {
        format!("{}_{service}_{number}", self.name)
    }

    fn exec(&self, service: &str, words: &[&str]) -> Output {
        command("podman").arg("exec").arg(self.container(service, 1)).args(words).output().unwrap()
    }

    /// Waits until a service's own healthcheck says that it is healthy.
    fn await_healthy(&self, service: &str) {
        let test = self.project["services"][service]["healthcheck"]["test"].as_array().unwrap();
        assert_eq!(test[0], "CMD");
        let words: Vec<_> = test[1..].iter().map(text).collect();
        wait_for(&format!("{service} to be healthy"), || self.exec(service, &words).status.success());
    }

    fn log(&self, service: &str, number: u64) -> String {
        said(&command("podman").arg("logs").arg(self.container(service, number)).output().unwrap())
    }

    fn address(&self, service: &str, port: u16) -> SocketAddr {
        let format = "--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
        let address = podman(&["inspect", format, &self.container(service, 1)]);
        SocketAddr::new(address.parse().unwrap(), port)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for service in ["consul", "agent", "worker", "prometheus"] {
                eprintln!("log of {service}:\n{}", self.log(service, 1));
            }
        }
        self.compose(&["down", "--volumes", "--timeout", "0"]);
        let _ = command("podman").args(["image", "rm", "--force", &self.name]).output();
    }
}

/// The image of scripts/rust-image, which has a shell and a C library.
fn base() -> &'static str {
    let dockerfile = include_str!("../../Dockerfile");
    dockerfile.lines().find_map(|line| line.strip_prefix("ARG RUST=")).unwrap()
}

#[test]
fn clients_contend_and_prometheus_sees_them() {
    let stack = Stack::new();
    let services: Vec<_> = stack.project["services"].as_object().unwrap().keys().collect();
    assert_eq!(services, ["agent", "consul", "gated", "grafana", "install", "prometheus", "worker"]);
    stack.up(&["consul", "install"]);
    stack.await_healthy("consul");
    stack.up(&["agent"]);
    stack.await_healthy("agent");
    wait_for("the binary to be installed", || {
        podman(&["inspect", "--format={{.State.Status}} {{.State.ExitCode}}", &stack.container("install", 1)])
            == "exited 0"
    });
    stack.up(&["gated", "worker", "prometheus"]);
    wait_for("the gated service", || stack.log("gated", 1).contains("the agent holds its slot"));

    // The agent and one of three workers hold a slot each.
    // While containers join the network, a request in it may get lost.
    let inspect = || -> Option<[usize; 2]> {
        let words = ["/slotkeeper", "inspect", "service/warehouse/writers", "--output", "json"];
        let found: Value = serde_json::from_slice(&stack.exec("agent", &words).stdout).ok()?;
        Some(["holders", "queue"].map(|list| found[list].as_array().unwrap().len()))
    };
    wait_for("the workers to contend", || inspect() == Some([2, 2]));
    wait_for("an import", || (1..=3).any(|n| stack.log("worker", n).contains("importing on slot ")));

    let prometheus = stack.address("prometheus", 9090);
    let query = |expression: &str| -> Option<String> {
        // It may not listen yet.
        TcpStream::connect(prometheus).ok()?;
        let reply =
            http::request(&prometheus.to_string(), &format!("GET /api/v1/query?query={expression}"), "");
        let answer: Value = serde_json::from_str(&reply.body).ok()?;
        Some(answer["data"]["result"][0]["value"][1].as_str()?.to_owned())
    };
    wait_for("Prometheus to scrape the agent and all workers", || query("sum(up)").as_deref() == Some("4"));
    wait_for("the holders in Prometheus", || query("sum(slotkeeper_slot_held)").as_deref() == Some("2"));

    // Nothing waits for a TTL when a worker is stopped.
    let holder = (1..=3).find(|&n| stack.log("worker", n).contains("importing on slot ")).unwrap();
    podman(&["stop", "--time=30", &stack.container("worker", holder)]);
    wait_for("the next worker", || {
        (1..=3).filter(|&n| stack.log("worker", n).contains("importing on slot ")).count() > 1
    });
}
