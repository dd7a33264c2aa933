//! A real browser, driven by `driver.mjs`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// One with pages of an agent. It ends with this value.
pub(crate) struct Browser {
    child: Child,
    steps: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    address: String,
}

impl Browser {
    /// Opens the page that an agent serves at this address.
    pub(crate) fn open(address: &str) -> Self {
        let node = std::env::var_os("NODE_BIN").unwrap_or_else(|| "node".into());
        let mut child = Command::new(node)
            .arg(repository("tests/page/driver.mjs"))
            .arg(tools())
            .arg(chromium())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node starts: scripts/node gets one");
        let (steps, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Self { child, steps, answers, address: address.to_owned() };
        browser.open_another();
        browser
    }

    /// Opens the same once more, in a tab before the others.
    pub(crate) fn open_another(&mut self) {
        let url = format!("http://{}/", self.address);
        self.step(json!({"step": "open", "url": url}));
    }

    /// Brings a tab to the front, by the order in which they were opened. What is asked is asked of that one.
    pub(crate) fn bring_to_front(&mut self, tab: usize) {
        self.step(json!({"step": "front", "tab": tab}));
    }

    /// What stands on all the tabs.
    pub(crate) fn titles(&mut self) -> Vec<String> {
        serde_json::from_value(self.step(json!({"step": "titles"}))).unwrap()
    }

    /// How many events the page has been told.
    pub(crate) fn told(&mut self) -> u64 {
        self.step(json!({"step": "told"})).as_u64().unwrap()
    }

    /// Marks elements that are there now, as `[data-marked]`.
    pub(crate) fn mark(&mut self, selector: &str) {
        self.step(json!({"step": "mark", "selector": selector}));
    }

    /// The machine sleeps for an hour, and the page's clock with it.
    pub(crate) fn sleep(&mut self) {
        self.step(json!({"step": "sleep"}));
    }

    /// The browser is in this time zone from now on.
    pub(crate) fn set_zone(&mut self, zone: &str) {
        self.step(json!({"step": "zone", "zone": zone}));
    }

    /// A day passes at once.
    pub(crate) fn wait_a_day(&mut self) {
        self.step(json!({"step": "tomorrow"}));
    }

    /// Clicks the only button with this accessible name.
    pub(crate) fn click(&mut self, button: &str) {
        self.step(json!({"step": "click", "button": button}));
    }

    /// Presses a key.
    pub(crate) fn press(&mut self, key: &str) {
        self.step(json!({"step": "press", "key": key}));
    }

    /// Role and accessible name of the element that the keyboard is on.
    pub(crate) fn focused(&mut self) -> String {
        self.step(json!({"step": "focus"}))["name"].as_str().unwrap().to_owned()
    }

    /// The selected text of the field that the keyboard is on.
    pub(crate) fn selected(&mut self) -> String {
        self.step(json!({"step": "focus"}))["selected"].as_str().unwrap().to_owned()
    }

    /// What was copied last.
    pub(crate) fn clipboard(&mut self) -> String {
        self.step(json!({"step": "clipboard"})).as_str().unwrap().to_owned()
    }

    /// When the page asked for its events, in milliseconds by its own clock.
    pub(crate) fn asked(&mut self) -> Vec<f64> {
        serde_json::from_value(self.step(json!({"step": "asked"}))).unwrap()
    }

    /// How many requests for events the browser has sent.
    pub(crate) fn requests(&mut self) -> usize {
        let seen = self.step(json!({"step": "seen"}));
        let requests = seen["requests"].as_array().unwrap().iter();
        requests.filter(|url| url.as_str().unwrap().ends_with("/v1/events")).count()
    }

    fn step(&mut self, step: Value) -> Value {
        writeln!(self.steps.as_mut().unwrap(), "{step}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("the browser ended: see what it says above"));
        assert!(answer["error"].is_null(), "{step}: {}", answer["error"].as_str().unwrap_or_default());
        answer["ok"].clone()
    }

    /// Waits until a reader sees all of these.
    pub(crate) fn await_texts(&mut self, texts: &[&str]) {
        self.step(json!({"step": "wait", "texts": texts, "gone": []}));
    }

    /// Waits until a reader sees nothing of that any more.
    pub(crate) fn await_gone(&mut self, text: &str) {
        self.step(json!({"step": "wait", "texts": [], "gone": [text]}));
    }

    /// What a reader sees.
    pub(crate) fn text(&mut self) -> String {
        self.step(json!({"step": "text"})).as_str().unwrap().to_owned()
    }

    /// What each of these elements says.
    pub(crate) fn texts(&mut self, selector: &str) -> Vec<String> {
        serde_json::from_value(self.step(json!({"step": "texts", "selector": selector}))).unwrap()
    }

    /// How many elements there are.
    pub(crate) fn count(&mut self, selector: &str) -> u64 {
        self.step(json!({"step": "count", "selector": selector})).as_u64().unwrap()
    }

    /// What the first such element says of itself.
    pub(crate) fn attribute(&mut self, selector: &str, name: &str) -> String {
        let step = json!({"step": "attribute", "selector": selector, "name": name});
        self.step(step).as_str().unwrap_or_default().to_owned()
    }

    /// Takes pictures on a phone and on a desk, in light and in the dark, and has an accessibility checker look at each.
    pub(crate) fn assert_accessible(&mut self, name: &str) {
        let folder = repository("target/page");
        std::fs::create_dir_all(&folder).unwrap();
        let found = self.step(json!({"step": "look", "name": name, "folder": folder}));
        assert_eq!(found, json!([]), "see {}/{name}-*.png", folder.display());
        eprintln!("pictures: {}/{name}-*.png", folder.display());
    }

    /// Nothing went wrong in it, but for what has `expected` in it; it was never loaded again, and asked nobody for anything
    /// but the agent for its events.
    pub(crate) fn assert_quiet(&mut self, expected: &[&str]) {
        let seen = self.step(json!({"step": "seen"}));
        let faults = seen["faults"].as_array().unwrap().iter().filter_map(Value::as_str);
        let faults: Vec<_> =
            faults.filter(|fault| !expected.iter().any(|expected| fault.contains(expected))).collect();
        assert!(faults.is_empty(), "{faults:?}");
        let (page, events) =
            (format!("http://{}/", self.address), format!("http://{}/v1/events", self.address));
        let requests = seen["requests"].as_array().unwrap().iter();
        let mut requests: Vec<_> = requests.filter_map(Value::as_str).collect();
        assert_eq!(requests.iter().filter(|url| **url == page).count(), 1, "{requests:?}");
        requests.retain(|url| *url != page && *url != events);
        assert!(requests.is_empty(), "{requests:?}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // At the end of its steps it closes the browser.
        drop(self.steps.take());
        let _ = self.child.wait();
    }
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The folder that has playwright-core and axe-core.
fn tools() -> PathBuf {
    let folder =
        std::env::var_os("PLAYWRIGHT_DIR").map_or_else(|| repository(".tools/browser"), PathBuf::from);
    assert!(
        folder.join("node_modules/playwright-core").is_dir(),
        "no playwright-core in PLAYWRIGHT_DIR or in .tools/: run scripts/browser, which gets it"
    );
    folder
}

/// The browser's binary.
fn chromium() -> PathBuf {
    let named = std::env::var_os("CHROMIUM_BIN").unwrap_or_else(|| "chromium".into());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(&named)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("no {named:?} on the PATH: run scripts/browser, which gets one"))
}
