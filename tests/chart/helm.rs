//! The Helm engine and Kubernetes' schemas, by way of `helm.py`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// The release that the tests install.
pub(crate) const RELEASE: &str = "demo";

/// Kubernetes' versions whose schemas manifests have to fit: from the oldest that the chart takes on.
pub(crate) const VERSIONS: [&str; 9] =
    ["1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37"];

/// The one whose cluster takes what is rendered, unless a test says otherwise.
const NEWEST: &str = VERSIONS[VERSIONS.len() - 1];

/// A path of this repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The chart's folder.
pub(crate) fn chart() -> PathBuf {
    repository("charts/slotkeeper")
}

/// What Helm would have installed.
#[derive(Clone, Debug)]
pub(crate) struct Rendered {
    pub(crate) manifests: Vec<Value>,
    /// What it would install at other times, such as for `helm test`.
    pub(crate) hooks: Vec<Value>,
    pub(crate) notes: String,
}

impl Rendered {
    /// The one manifest of this kind and, where there are several, this name.
    pub(crate) fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        let named = |manifest: &&Value| name.is_empty() || manifest["metadata"]["name"] == name;
        self.manifests.iter().filter(|manifest| manifest["kind"] == kind).find(named)
    }

    /// The workload's pod template.
    pub(crate) fn pod(&self) -> &Value {
        let job = self.find("Job", "").map(|job| &job["spec"]);
        let cron = self.find("CronJob", "").map(|cron| &cron["spec"]["jobTemplate"]["spec"]);
        &job.or(cron).expect("a Job or a CronJob")["template"]
    }

    /// The configuration in its ConfigMap.
    pub(crate) fn config(&self) -> &str {
        let maps = self.manifests.iter().filter(|manifest| manifest["kind"] == "ConfigMap");
        let files = maps.filter_map(|map| map["data"]["slotkeeper.yaml"].as_str());
        let files: Vec<_> = files.collect();
        assert_eq!(files.len(), 1, "one configuration");
        files[0]
    }
}

/// The Python that has the Helm engine.
pub(crate) fn python() -> PathBuf {
    let cached = repository(".tools/helm/bin/python");
    std::env::var_os("HELM_PYTHON").map_or(cached, PathBuf::from)
}

/// Does all these jobs in one process, since starting it costs most.
pub(crate) fn helm(jobs: &[Value]) -> Vec<Value> {
    let python = python();
    let mut child = Command::new(&python)
        .arg(repository("tests/chart/helm.py"))
        .env("HELM_DRIVER", "memory")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("no Helm engine in {} ({error}): run scripts/helm, which gets one", python.display())
        });
    child.stdin.take().unwrap().write_all(json!(jobs).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "helm.py: {out}{}", String::from_utf8_lossy(&output.stderr));
    // The engine may have had something to say before.
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

/// A job for [`helm`].
pub(crate) fn to_render(chart: &Path, values: &Value) -> Value {
    let mut values = values.clone();
    // What everybody has to say; in another chart that is its own affair.
    if chart == self::chart() && values["image"].get("repository").is_none() {
        values["image"]["repository"] = "slotkeeper".into();
    }
    json!({"do": "render", "chart": chart, "release": RELEASE, "values": values, "kubernetes": NEWEST})
}

/// The answer to [`to_render`], or why the engine refused.
pub(crate) fn rendered(answer: &Value) -> Result<Rendered, String> {
    if let Some(refused) = answer["refused"].as_str() {
        return Err(refused.to_owned());
    }
    let list = |key: &str| answer[key].as_array().unwrap().clone();
    let notes = answer["notes"].as_str().unwrap().to_owned();
    Ok(Rendered { manifests: list("manifests"), hooks: list("hooks"), notes })
}

/// Renders this repository's chart with values in YAML.
pub(crate) fn render(values: &str) -> Rendered {
    let answers = helm(&[to_render(&chart(), &yaml(values))]);
    rendered(&answers[0]).unwrap_or_else(|refused| panic!("{refused}\n{values}"))
}

/// YAML as JSON; an empty document is an empty map.
pub(crate) fn yaml(text: &str) -> Value {
    match serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}")) {
        Value::Null => json!({}),
        value @ (Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => value,
    }
}
