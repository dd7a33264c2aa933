//! One container as a process: with a root of its own, its volumes mounted, its user, and a process-number space.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::environment::{environment, expand};
use super::probe::{Probe, Verdict};
use super::{FIRST_BACKOFF, View, below, list, text, volumes};
use crate::BINARY;

pub(super) struct Container {
    spec: Value,
    pod_folder: PathBuf,
    context: Context,
    facts: BTreeMap<String, String>,
    exits: Vec<i32>,
    run: Option<Run>,
    is_init: bool,
    /// The first process of the space that it shares with the pod's others.
    pause: Option<Pid>,
    /// When one that has ended starts again.
    again_at: Option<Instant>,
}

/// Who it runs as.
struct Context {
    user: u64,
    group: u64,
    /// Beside it: that of the volumes.
    volumes_group: Option<u64>,
    read_only: bool,
}

/// One run of it.
struct Run {
    /// What waits for the first process and ends as it does.
    child: Child,
    first: Option<Pid>,
    /// While the hook `postStart` runs nothing is asked.
    hook_ends: Instant,
    /// What else is in there goes with the first process.
    mounts: Option<Mounts>,
    startup: Option<Probe>,
    liveness: Option<Probe>,
    readiness: Option<Probe>,
    ready: bool,
    asked_to_end: bool,
    kill_at: Option<Instant>,
}

impl Container {
    pub(super) fn new(
        spec: Value,
        pod: &Value,
        facts: &BTreeMap<String, String>,
        folder: &Path,
        is_init: bool,
        pause: Option<Pid>,
    ) -> Self {
        let context = Context::of(&spec, pod);
        let (facts, pod_folder) = (facts.clone(), folder.to_owned());
        Self {
            spec,
            pod_folder,
            context,
            facts,
            exits: Vec::new(),
            run: None,
            is_init,
            pause,
            again_at: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        text(&self.spec["name"], "a container's name")
    }

    /// A native sidecar.
    pub(super) fn restarts(&self) -> bool {
        self.is_init && self.spec["restartPolicy"] == "Always"
    }

    /// Whether it has a restart policy of its own.
    pub(super) fn has_policy(&self) -> bool {
        self.spec["restartPolicy"].is_string()
    }

    /// Whether it starts again after it has ended with this code; of others than sidecars, by a word of its own.
    fn starts_again_after(&self, code: i32) -> bool {
        self.spec["restartPolicy"] == "Always" || self.spec["restartPolicy"] == "OnFailure" && code != 0
    }

    /// As a kubelet does that has just begun and has asked no startup probe yet.
    pub(super) fn take_for_started(&mut self) {
        if let Some(run) = &mut self.run {
            run.startup = None;
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// It runs, and its startup probe has passed where it has one.
    pub(super) fn has_started(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.startup.is_none())
    }

    /// The code of its last run, where it is over.
    pub(super) fn exit(&self) -> Option<i32> {
        self.exits.last().copied().filter(|_| self.run.is_none() && self.again_at.is_none())
    }

    pub(super) fn view(&self) -> View {
        let run = self.run.as_ref();
        View {
            pid: run.and_then(|run| run.first),
            exits: self.exits.clone(),
            ready: run.is_some_and(|run| run.ready),
        }
    }

    /// SIGTERM, once, and SIGKILL at `deadline`.
    pub(super) fn terminate(&mut self, deadline: Instant) {
        if let Some(run) = &mut self.run {
            run.terminate(deadline);
        }
    }

    /// Reaps, kills and probes; whether it does not live by its liveness probe. `grace` is the pod's.
    pub(super) fn tick(&mut self, grace: Duration) -> bool {
        let Some(run) = &mut self.run else { return false };
        if let Some(status) = run.child.try_wait().unwrap() {
            let code = status.code().expect("its shell was not killed");
            self.exits.push(code);
            self.run = None;
            let backoff = if self.exits.len() == 1 { FIRST_BACKOFF } else { 10 * FIRST_BACKOFF };
            self.again_at = self.starts_again_after(code).then(|| Instant::now() + backoff);
            return false;
        }
        run.tick(grace)
    }

    /// Starts it again when it is time, unless its pod ends.
    pub(super) fn start_again(&mut self, ending: bool) {
        self.again_at = self.again_at.filter(|_| !ending);
        if self.again_at.is_some_and(|at| Instant::now() >= at) {
            self.start();
        }
    }

    pub(super) fn start(&mut self) {
        self.again_at = None;
        let field = |path: &str| self.facts.get(path).unwrap_or_else(|| panic!("no field {path}")).clone();
        let mut variables = environment(&self.spec, &field);
        let words = |key: &str| {
            list(&self.spec, key).iter().map(|word| expand(text(word, key), &variables)).collect()
        };
        let (mut argv, arguments): (Vec<String>, Vec<String>) = (words("command"), words("args"));
        let is_ours = is_ours(text(&self.spec["image"], "an image"));
        if argv.is_empty() {
            assert!(is_ours, "what the image of {} runs is not known", self.name());
            argv.push("/slotkeeper".into());
        }
        argv.extend(arguments);
        variables.insert(0, ("HOSTNAME".into(), self.facts["metadata.name"].clone()));
        if !is_ours {
            variables.insert(0, ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()));
        }
        let folder = self.pod_folder.join(format!("containers/{}-{}", self.name(), self.exits.len()));
        let script = self.script(&folder, is_ours);
        let script_file = folder.join("start");
        std::fs::write(&script_file, script).unwrap();
        let path = log(&self.pod_folder, self.name());
        let log: File = OpenOptions::new().create(true).append(true).open(path).unwrap();
        let mut command = Command::new("/usr/bin/setpriv");
        command.args(["--pdeathsig", "KILL"]);
        // How many generations lie between this one and the container's first process.
        let generations = match self.pause {
            Some(pause) => {
                let space = format!("--pid=/proc/{}/ns/pid", pause.as_raw_nonzero());
                command.args(["/usr/bin/nsenter", &space, "--no-fork", "/usr/bin/unshare", "--mount"]);
                1
            }
            None => {
                // A space around the container's own, whose first process ends with this one, and all in it with that: the
                // container's own first process could not, since a change of user takes that setting away.
                command.args(["/usr/bin/unshare", "--pid", "--fork", "--kill-child"]);
                command.args(["/usr/bin/unshare", "--mount", "--pid"]);
                2
            }
        };
        let mut child = command
            // Its child is the first process of the container; of a signal that ends it, it makes 128 and the number.
            .args(["/bin/sh", "-c", "/bin/sh \"$@\"; exit $?", "sh"])
            .arg(&script_file)
            .args(&argv)
            .env_clear()
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("setpriv and unshare (package util-linux), as root");
        let first = descendant(&mut child, generations, &argv);
        let mounts = first.and_then(Mounts::of);
        let hook = &self.spec["lifecycle"]["postStart"];
        assert!(hook.is_null() || hook["sleep"].is_object(), "only sleep is known: {hook}");
        let hook = Duration::from_secs(hook["sleep"]["seconds"].as_u64().unwrap_or_default());
        let probe = |name: &str| Probe::of(&self.spec, name, &self.facts["status.podIP"]);
        let readiness = probe("readinessProbe");
        self.run = Some(Run {
            child,
            first,
            hook_ends: Instant::now() + hook,
            mounts,
            startup: probe("startupProbe"),
            liveness: probe("livenessProbe"),
            ready: readiness.is_none(),
            readiness,
            asked_to_end: false,
            kill_at: None,
        });
    }

    /// What makes the container around its first process, which it becomes. Its mounts are its own.
    fn script(&self, folder: &Path, is_ours: bool) -> String {
        let root = folder.join("root");
        std::fs::create_dir_all(&root).unwrap();
        open_to_all(folder);
        let mut mounts: BTreeMap<String, (String, bool)> = BTreeMap::new();
        // Our image has nothing but the binary; here it is not static and needs what it is linked with.
        let parts: &[&str] = if is_ours { &["/lib", "/lib64"] } else { &["/usr", "/bin", "/lib", "/lib64"] };
        for part in parts {
            mounts.insert((*part).to_owned(), ((*part).to_owned(), true));
        }
        mounts.insert("/dev".into(), ("/dev".into(), false));
        if is_ours {
            std::fs::write(root.join("slotkeeper"), "").unwrap();
            mounts.insert("/slotkeeper".into(), (BINARY.into(), true));
        }
        for mount in list(&self.spec, "volumeMounts") {
            let volume = volumes::place(&self.pod_folder, text(&mount["name"], "a mount's volume"));
            assert!(volume.is_dir(), "the pod has no volume for {mount}");
            let read_only = mount["readOnly"] == true || !writable(&volume);
            let path = text(&mount["mountPath"], "a mount's path").to_owned();
            mounts.insert(path, (volume.display().to_string(), read_only));
        }
        let root_text = root.display();
        let mut script = format!("set -e\nmount=/usr/bin/mount\n$mount --bind '{root_text}' '{root_text}'\n");
        for (path, (from, read_only)) in mounts {
            let at = below(&root, &path);
            if !at.exists() {
                std::fs::create_dir_all(&at).unwrap();
            }
            let options = if read_only { "bind,ro" } else { "rbind" };
            writeln!(script, "$mount -o {options} '{from}' '{}'", at.display()).unwrap();
        }
        std::fs::create_dir_all(root.join("proc")).unwrap();
        writeln!(script, "$mount -t proc proc '{root_text}/proc'").unwrap();
        if self.context.read_only {
            writeln!(script, "$mount -o remount,bind,ro '{root_text}'").unwrap();
        }
        let Context { user, group, volumes_group, .. } = self.context;
        let groups = volumes_group.map_or(String::new(), |group| group.to_string());
        writeln!(
            script,
            "exec /usr/bin/setpriv --no-new-privs /usr/sbin/chroot --userspec={user}:{group} --groups='{groups}' \
             '{root_text}' \"$@\""
        )
        .unwrap();
        script
    }
}

impl Context {
    /// The container's own word goes before the pod's.
    fn of(container: &Value, pod: &Value) -> Self {
        let (own, pods) = (&container["securityContext"], &pod["securityContext"]);
        let either = |key: &str| if own[key].is_null() { &pods[key] } else { &own[key] };
        let of_image = if is_ours(text(&container["image"], "an image")) { 65532 } else { 0 };
        let user = either("runAsUser").as_u64().unwrap_or(of_image);
        // Whoever is not root has no capabilities and gets none: that is what dropping them comes to.
        assert_ne!(user, 0, "{} would run as root", container["name"]);
        assert_eq!(own["allowPrivilegeEscalation"], false, "{}", container["name"]);
        Self {
            user,
            group: either("runAsGroup").as_u64().unwrap_or(user),
            volumes_group: pods["fsGroup"].as_u64(),
            read_only: own["readOnlyRootFilesystem"] == true,
        }
    }
}

impl Run {
    fn terminate(&mut self, deadline: Instant) {
        if !self.asked_to_end {
            self.asked_to_end = true;
            self.send(Signal::TERM);
        }
        self.kill_at = Some(self.kill_at.map_or(deadline, |at| at.min(deadline)));
    }

    fn tick(&mut self, grace: Duration) -> bool {
        if self.kill_at.is_some_and(|at| Instant::now() >= at) {
            self.send(Signal::KILL);
        }
        if self.asked_to_end || Instant::now() < self.hook_ends {
            return false;
        }
        if let Some(startup) = &mut self.startup {
            match startup.tick() {
                Verdict::Open => {}
                Verdict::Passed => self.startup = None,
                Verdict::Failed => self.terminate(Instant::now() + grace),
            }
            return false;
        }
        if let Some(probe) = &mut self.readiness {
            match probe.tick() {
                Verdict::Open => {}
                verdict @ (Verdict::Passed | Verdict::Failed) => self.ready = verdict == Verdict::Passed,
            }
        }
        self.liveness.as_mut().is_some_and(|probe| probe.tick() == Verdict::Failed)
    }

    fn send(&self, signal: Signal) {
        if let Some(first) = self.first {
            // It may have ended a moment ago.
            let _ = kill_process(first, signal);
        }
    }
}

/// Whatever runs on beyond its pod's thread was started by a test that has failed.
impl Drop for Run {
    fn drop(&mut self) {
        self.send(Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
        // In a space that it shares, what it has started goes on; the runtime ends that.
        let Some(own) = &self.mounts else { return };
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let name = process.file_name().into_string().unwrap_or_default();
            if own.are_of(&name)
                && let Some(pid) = name.parse().ok().and_then(Pid::from_raw)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// A mount namespace. While it is open no other one gets its number.
struct Mounts {
    number: PathBuf,
    _open: File,
}

impl Mounts {
    fn of(process: Pid) -> Option<Self> {
        let path = format!("/proc/{}/ns/mnt", process.as_raw_nonzero());
        let open = File::open(&path).ok()?;
        Some(Self { number: std::fs::read_link(path).ok()?, _open: open })
    }

    fn are_of(&self, process: &str) -> bool {
        std::fs::read_link(format!("/proc/{process}/ns/mnt")).is_ok_and(|number| number == self.number)
    }
}

/// Waits until the descendant in that generation is what it shall be: before that it could not be told anything. `None` where it
/// has ended by then.
pub(super) fn descendant(child: &mut Child, generations: usize, argv: &[String]) -> Option<Pid> {
    let wanted: String = argv.iter().map(|word| format!("{word}\0")).collect();
    loop {
        let found = (0..generations).try_fold(child.id(), |pid, _| child_of(pid));
        if let Some(pid) = found {
            let is = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if is == wanted.as_bytes() {
                return Pid::from_raw(i32::try_from(pid).unwrap());
            }
        }
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_ascii_whitespace().next()?.parse().ok()
}

/// Whether the image is slotkeeper's own.
pub(super) fn is_ours(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap();
    name.split([':', '@']).next() == Some("slotkeeper")
}

/// ConfigMaps and Secrets are mounted read-only, whatever the mount says.
fn writable(volume: &Path) -> bool {
    volume.metadata().unwrap().permissions().mode() & 0o002 != 0
}

pub(super) fn open_to_all(folder: &Path) {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}

pub(super) fn log(pod: &Path, container: &str) -> PathBuf {
    pod.join(format!("{container}.log"))
}
