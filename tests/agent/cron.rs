//! docs/cron.md: its commands, and its crontab under Debian's cron, in namespaces in which a script takes the place of a mail server.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::page::Page;
use crate::process::BINARY;
use crate::wait_for;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// What gives cron a /etc with its own files, a mail server, and a PATH with the commands. `crontab` checks the syntax. cron starts
/// what is marked `@reboot` at once.
const SET_UP: &str = "\
mount -t tmpfs tmpfs /var/spool
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /var/spool/cron/crontabs
mount -t overlay -o lowerdir=$HERE/etc:$CRON/etc:/etc overlay /etc
mount -t overlay -o lowerdir=$HERE/sbin:/usr/sbin overlay /usr/sbin
mount -t overlay -o lowerdir=$HERE/bin:/usr/local/bin overlay /usr/local/bin
\"$CRON/usr/bin/crontab\" -n \"$HERE/crontab\"
sed -E 's/^([^ =#]+ +){5}/@reboot /' \"$HERE/crontab\" > /var/spool/cron/crontabs/root
chmod 600 /var/spool/cron/crontabs/root
exec \"$CRON/usr/sbin/cron\" -f
";

#[test]
fn the_commands_of_the_page() {
    Page::read("docs/cron.md").assert_runs(&Consul::start().address());
}

fn page() -> String {
    fs::read_to_string(Path::new(REPOSITORY).join("docs/cron.md")).unwrap()
}

/// What is between two texts of the page.
fn between(text: &str, before: &str, after: &str) -> String {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before:?}"));
    let (inner, _) = rest.split_once(after).unwrap();
    inner.to_owned()
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A running cron, in mount and PID namespaces of its own. It ends with this value, and all that it has started.
struct Cron {
    child: Child,
    folder: TempDir,
}

impl Cron {
    /// Starts one with that crontab, whose jobs begin at once. `commands` are scripts on its PATH.
    fn start(crontab: &str, commands: &[(&str, &str)]) -> Self {
        let package = std::env::var_os("CRON_DIR")
            .map_or_else(|| Path::new(REPOSITORY).join(".tools/cron"), PathBuf::from);
        let there = package.join("usr/sbin/cron").exists();
        assert!(there, "no {}: run scripts/cron, which gets it", package.display());
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["bin", "sbin", "etc", "mails"] {
            fs::create_dir(path(name)).unwrap();
        }
        symlink(BINARY, path("bin/slotkeeper")).unwrap();
        for (name, text) in commands {
            script(&path("bin").join(name), text);
        }
        // A mail appears when it is complete.
        let mails = path("mails").display().to_string();
        let sendmail = format!(
            "#!/bin/sh\nmail=$(mktemp {mails}/.XXXXXX)\ncat > \"$mail\"\nmv \"$mail\" {mails}/\"${{mail##*.}}\"\n"
        );
        script(&path("sbin/sendmail"), &sendmail);
        fs::write(path("crontab"), crontab).unwrap();
        // The group of the package's crontab.
        let groups = fs::read_to_string("/etc/group").unwrap();
        fs::write(path("etc/group"), format!("{groups}crontab:x:4711:\n")).unwrap();
        let child = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", SET_UP])
            .env("HERE", folder.path())
            .env("CRON", fs::canonicalize(package).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(path("errors")).unwrap())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.folder.path().join("errors")).unwrap()
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn assert_running(&mut self) {
        assert!(!self.has_ended(), "cron ended; it needs root: {}", self.errors());
    }

    /// The mails so far, in no order.
    fn mails(&self) -> Vec<String> {
        let files = fs::read_dir(self.folder.path().join("mails")).unwrap().map(|file| file.unwrap().path());
        let sent = files.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'));
        sent.map(|path| fs::read_to_string(path).unwrap()).collect()
    }
}

impl Drop for Cron {
    fn drop(&mut self) {
        // cron is the first process of its namespace, and --kill-child ends it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The crontab of the page, with a Consul of the test.
fn crontab(consul: &Consul) -> String {
    let crontab = between(&page(), "```crontab\n", "```");
    assert!(crontab.contains("CONSUL_HTTP_ADDR=127.0.0.1:8500\n"));
    crontab.replace("127.0.0.1:8500", &consul.address())
}

#[test]
fn the_crontab_runs_its_jobs_on_slots_and_mails_failures_alone() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    // Another host makes the report.
    let mut other = Command::new(BINARY)
        .args(["run", "service/report", "--quiet", "--name", "report of another host", "--", "sleep", "600"])
        .env("CONSUL_HTTP_ADDR", consul.address())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the other report", || {
        operator.key("service/report/.lock").is_some_and(|pair| pair.session.is_some())
    });
    let done = tempfile::tempdir().unwrap();
    let at = done.path().display();
    let job = |name: &str| format!("#!/bin/sh\necho \"slot $SLOTKEEPER_SLOT\" > {at}/{name}\n");
    let commands = [("backup", &*job("backup")), ("index", &*job("index")), ("report", &*job("report"))];
    // The page's job says when it has skipped. One without --quiet is mailed.
    let (skips, loud) = ("slotkeeper run service/report --try --quiet -- report", "--try -- report");
    let crontab = crontab(&consul);
    assert!(crontab.contains(skips), "{crontab}");
    let crontab = crontab.replace(skips, &format!("{skips}; echo $? > {at}/skipped"));
    let crontab = format!("{crontab}*/5 * * * * slotkeeper run service/report {loud}\n");
    let mut cron = Cron::start(&crontab, &commands);
    let said = |name: &str| fs::read_to_string(done.path().join(name)).unwrap_or_default();
    wait_for("all jobs to have ended", || {
        cron.assert_running();
        ["backup", "index", "skipped"].iter().all(|name| said(name).ends_with('\n'))
            && !cron.mails().is_empty()
    });
    wait_for("the slots to be released", || {
        ["service/backup", "service/index"].iter().all(|prefix| operator.holders(prefix).is_empty())
    });
    assert_eq!(["backup", "index", "skipped"].map(said), ["slot 0\n", "slot 0\n", "75\n"]);
    assert_eq!(said("report"), "", "the other host makes it");
    let mails = cron.mails();
    assert_eq!(mails.len(), 1, "{mails:?}");
    for part in [
        "To: ops@example.org\n",
        "Subject: Cron <root@",
        "> slotkeeper run service/report --try -- report",
        "\nslotkeeper: service/report: the lock is held by report of another host on ",
    ] {
        assert!(mails[0].contains(part), "no {part:?} in {}", mails[0]);
    }
    kill_process(Pid::from_child(&other), Signal::TERM).unwrap();
    other.wait().unwrap();
}

/// The page says that a mail's headers have the crontab's variables, and that cron's own PATH lacks /usr/local/bin.
#[test]
fn what_the_page_says_of_cron_is_so() {
    let crontab =
        "MAILTO=ops@example.org\nHINT=sesame\n0 1 * * * slotkeeper --version; echo $PATH a\\%b; exit 3\n";
    let mut cron = Cron::start(crontab, &[]);
    wait_for("the mail", || {
        cron.assert_running();
        !cron.mails().is_empty()
    });
    let mail = cron.mails().remove(0);
    for part in ["X-Cron-Env: <HINT=sesame>", "slotkeeper: not found", "\n/usr/bin:/bin a%b\n"] {
        assert!(mail.contains(part), "no {part:?} in {mail}");
    }
}

#[test]
fn crontab_refuses_a_line_that_cron_would_not_run() {
    let mut cron = Cron::start("61 1 * * * true\n", &[]);
    wait_for("crontab to refuse it", || cron.has_ended());
    assert!(cron.errors().contains("bad minute"), "{}", cron.errors());
}
