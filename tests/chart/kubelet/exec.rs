//! A command in a running container, as `kubectl exec` runs it.

use std::process::{Command, Output};

use rustix::process::Pid;

use super::Pod;

impl Pod {
    /// Runs a command as the container's first process is: with its root, user, groups and environment.
    pub(crate) fn exec(&self, container: &str, argv: &[&str]) -> Output {
        let pid = Pid::as_raw(self.view(container).pid);
        let proc = |name: &str| format!("/proc/{pid}/{name}");
        let status = std::fs::read_to_string(proc("status")).unwrap();
        let ids = |key: &str| -> Vec<&str> {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_ascii_whitespace().collect()
        };
        let environment = std::fs::read_to_string(proc("environ")).unwrap();
        Command::new("/usr/bin/nsenter")
            .args(["--target", &pid.to_string(), "--mount", "--pid", "--net"])
            .args(["/usr/bin/setpriv", "--no-new-privs", "/usr/sbin/chroot"])
            .arg(format!("--userspec={}:{}", ids("Uid:")[0], ids("Gid:")[0]))
            .arg(format!("--groups={}", ids("Groups:").join(",")))
            .arg(std::fs::read_link(proc("root")).unwrap())
            .args(argv)
            .env_clear()
            .envs(environment.split_terminator('\0').map(|variable| variable.split_once('=').unwrap()))
            .output()
            .unwrap()
    }
}
