//! A page of docs/, whose commands are run as they stand: in one shell, from top to bottom.
//!
//! In the page's source
//! - a block ```` ```sh ```` is run; a block ```` ```text ```` right after it is what it prints, in this order and perhaps with more in
//!   between, where `…` stands for anything in a line;
//! - a block ```` ```sh not-run=WHY ```` is left out, and counted by the page's test;
//! - a block ```` ```yaml ```` that begins with `# NAME.yaml` is that file;
//! - `<!-- run: COMMANDS -->`, on a line of its own, is run too, and a reader does not see it. It may only wait until the commands
//!   before it have had their effect: `until …; do …; done`, or `wait …`. What a reader must have is a block on the page.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::process::{BINARY, is_running};
use crate::support::ports::Ports;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// How long all of the page may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long what a step has left running may take for ending, once it is told to.
const GRACE: Duration = Duration::from_secs(30);

/// A shell with a process group to itself. What is left of that ends with the value.
struct Shell(Child);

impl Shell {
    /// Its exit code, once it has ended. It is left to be reaped: until then nobody else can have its group's number.
    fn code(&self) -> Option<i32> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = waitid(WaitId::Pid(self.group()), options).unwrap()?;
        Some(ended.exit_status().unwrap_or(-1))
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Whether any process of its group still runs.
    fn is_alive(&self) -> bool {
        let group = self.0.id().to_string();
        let runs = |stat: String| {
            // After the name: state, parent, process group.
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            let state = fields.next()?;
            Some(state != "Z" && fields.nth(1)? == group)
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|one| std::fs::read_to_string(one.path().join("stat")).ok())
            .any(|stat| runs(stat).unwrap_or_default())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = kill_process_group(self.group(), Signal::TERM);
        within(GRACE, || !self.is_alive());
        let _ = kill_process_group(self.group(), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// A part of a page that counts.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// Commands, and the lines that they print, as far as the page says.
    Run { commands: String, prints: Vec<String> },
    /// Commands that no test can run, and why.
    NotRun { why: String },
    /// A file.
    File { name: String, text: String },
}

/// A page.
pub(crate) struct Page(Vec<Part>);

/// What came of a page's commands.
pub(crate) struct Told {
    /// Whether all went well.
    pub(crate) went_well: bool,
    /// All that was said, and how it ended.
    pub(crate) said: String,
    /// What each part printed.
    printed: Vec<String>,
}

impl Page {
    /// Reads one of the repository.
    pub(crate) fn read(path: &str) -> Self {
        Self::of(&std::fs::read_to_string(Path::new(REPOSITORY).join(path)).unwrap())
    }

    fn of(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(commands) = line.strip_prefix("<!-- run: ") {
                let commands = commands.strip_suffix(" -->").expect("the comment ends in its line");
                let waits = commands.starts_with("until ") && commands.ends_with("; done");
                assert!(waits || commands.starts_with("wait "), "a reader does not see {commands:?}");
                parts.push(Part::Run { commands: commands.to_owned(), prints: Vec::new() });
            }
            let Some(info) = line.strip_prefix("```") else { continue };
            let block: Vec<_> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            let text = block.join("\n");
            match info.split_once(' ').unwrap_or((info, "")) {
                ("sh", "") => parts.push(Part::Run { commands: text, prints: Vec::new() }),
                ("sh", why) => {
                    let why = why.strip_prefix("not-run=").unwrap_or_else(|| panic!("what is {info:?}?"));
                    parts.push(Part::NotRun { why: why.to_owned() });
                }
                ("text", "") => {
                    if let Some(Part::Run { prints, .. }) = parts.last_mut() {
                        prints.extend(block.into_iter().map(str::to_owned));
                    }
                }
                ("promql" | "hcl" | "ini" | "json" | "crontab", "") => {}
                // tests/clients/main.rs has these.
                ("python" | "go" | "ts", "") => {}
                ("yaml", "") => {
                    let name = block.first().and_then(|line| line.strip_prefix("# "));
                    if let Some(name) = name.filter(|name| name.ends_with(".yaml") && !name.contains(' ')) {
                        parts.push(Part::File { name: name.to_owned(), text: text.clone() });
                    }
                }
                other => panic!("what is {other:?}?"),
            }
        }
        Self(parts)
    }

    /// Why each block is left out that is.
    pub(crate) fn not_run(&self) -> Vec<&str> {
        let parts = self.0.iter();
        let why = parts.filter_map(|part| match part {
            Part::NotRun { why } => Some(why.as_str()),
            Part::Run { .. } | Part::File { .. } => None,
        });
        why.collect()
    }

    /// Runs its commands against the Consul there.
    pub(crate) fn run(&self, consul: &str) -> Told {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let ports = Ports::reserve();
        tools(folder.path(), &ports);
        let here = |text: &str| {
            let text = text.replace("localhost:8500", consul).replace("/run/slotkeeper", &path("run"));
            let port = |n| ports.addr(n).to_string();
            text.replace("127.0.0.1:9377", &port(0))
                .replace("localhost:9377", &port(0))
                .replace("127.0.0.1:9378", &port(1))
        };
        let mut script = String::new();
        for (n, part) in self.0.iter().enumerate() {
            match part {
                Part::Run { commands, .. } => {
                    script.push_str(&format!(
                        "exec >> {} 2>&1\n{}\n",
                        path(&format!("said-{n}")),
                        here(commands)
                    ));
                }
                Part::File { name, text } => {
                    script.push_str(&format!(
                        "cat > {name} <<'END OF THE FILE'\n{}\nEND OF THE FILE\n",
                        here(text)
                    ));
                }
                Part::NotRun { .. } => {}
            }
        }
        // Files, and no pipes: those would be open as long as anything that a step has started runs.
        let trace = path("trace");
        let child = Command::new("bash")
            .args(["-euc", &format!("exec 9> {trace}; BASH_XTRACEFD=9; set -x\n{script}")])
            .current_dir(folder.path())
            .env_clear()
            .env("PATH", format!("{}:{}", path("bin"), std::env::var("PATH").unwrap_or_default()))
            .env("HOME", folder.path())
            .env("CONSUL_HTTP_ADDR", consul)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(path("errors")).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        let shell = Shell(child);
        let code = within(PATIENCE, || shell.code().is_some()).then(|| shell.code()).flatten();
        drop(shell);
        let text =
            |file: &str| String::from_utf8_lossy(&std::fs::read(path(file)).unwrap_or_default()).into_owned();
        let printed: Vec<_> = (0..self.0.len()).map(|n| text(&format!("said-{n}"))).collect();
        let end = code.map_or_else(|| "not in time".to_owned(), |code| code.to_string());
        let said = format!("{}\n{}{}\nended: {end}", printed.concat(), text("trace"), text("errors"));
        Told { went_well: code == Some(0), said, printed }
    }

    /// Asserts that its commands go well, and print what it says.
    pub(crate) fn assert_runs(&self, consul: &str) {
        let told = self.run(consul);
        assert!(told.went_well, "{}", told.said);
        for (part, printed) in self.0.iter().zip(&told.printed) {
            let Part::Run { commands, prints } = part else { continue };
            let mut lines = printed.lines();
            for expected in prints {
                let is_there = lines.any(|line| is_like(expected, line));
                assert!(is_there, "no {expected:?} in this order, of\n{commands}\nwhich printed\n{printed}");
            }
        }
    }
}

/// Whether a line is as the page has it; `…` is anything, and so is how many blanks there are.
fn is_like(expected: &str, line: &str) -> bool {
    let blanks = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (expected, line) = (blanks(expected), blanks(line));
    let mut pieces = expected.split('…');
    let Some(mut rest) = line.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let mut pieces: Vec<_> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        let Some((_, after)) = rest.split_once(piece) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// What a reader has on the `PATH`, and in the folder. Where no other agent is meant, the commands that ask one ask the page's own.
fn tools(folder: &Path, ports: &Ports) {
    std::os::unix::fs::symlink(format!("{REPOSITORY}/examples"), folder.join("examples")).unwrap();
    std::os::unix::fs::symlink(format!("{REPOSITORY}/clients"), folder.join("clients")).unwrap();
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(crate::support::consul::binary(), bin.join("consul")).unwrap();
    let script = format!(
        "#!/bin/sh\ncase $1 in agent | wait | probe | reload | status)\n\
         export SLOTKEEPER_HTTP_LISTEN=${{SLOTKEEPER_HTTP_LISTEN:-{}}} ;; esac\nexec {BINARY} \"$@\"\n",
        ports.addr(0)
    );
    let slotkeeper = bin.join("slotkeeper");
    std::fs::write(&slotkeeper, script).unwrap();
    std::fs::set_permissions(&slotkeeper, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Waits until the condition holds, or so long: whether it does.
#[allow(clippy::disallowed_methods, reason = "a test has no lease, and blocks nobody")]
fn within(patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + patience;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test has no lease")]
fn a_failing_step_is_reported_at_once_and_leaves_no_process() {
    let before = Instant::now();
    let page = Page::of("```sh\nsleep 600 & echo \"left: $!\"; false; echo 'never said'\n```\n");
    let Told { went_well, said, .. } = page.run("localhost:1");
    assert!(!went_well && said.contains("ended: 1") && !said.contains("\nnever said"), "{said}");
    assert!(before.elapsed() < PATIENCE / 2, "it was waited for what the step has left running");
    let left = said.lines().find_map(|line| line.strip_prefix("left: ")).unwrap();
    assert!(within(GRACE, || !is_running(left)), "{left} runs on");
}

#[test]
#[should_panic(expected = "a reader does not see \"slotkeeper dev &\"")]
fn a_comment_may_not_hide_a_set_up() {
    Page::of("<!-- run: slotkeeper dev & -->\n");
}

#[test]
fn what_a_page_prints_is_compared_line_by_line() {
    for (expected, line, like) in [
        ("a  b", "a b", true),
        ("a b", "a bc", false),
        ("a…c", "a b c", true),
        ("…", "", true),
        ("a … c … e", "a b c d e", true),
        ("a…", "ba", false),
        ("…a", "ab", false),
    ] {
        assert_eq!(is_like(expected, line), like, "{expected:?} {line:?}");
    }
}
