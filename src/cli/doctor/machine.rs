//! The checks of this machine: files, folders, hooks, ports. They open and bind, and leave nothing behind.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::super::Exit;
use super::super::start::cannot_listen;
use super::check::{Check, Found, fail};
use crate::config::{Config, Listen};
use crate::control::token_of_file;
use crate::files::{self, FileError};
use crate::workload::exec;
use slotkeeper_serve::listen;

/// Checks what the configuration names.
pub(super) fn examine(job: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |name: &str, found: Found| checks.push(Check::new(name, found));
    let readiness = job.readiness.as_deref().map(|file| ("readiness.file", file, files::beside(file)));
    let state = job.session.state_file.as_deref().map(|file| ("session.state_file", file, file.to_owned()));
    for (key, file, lock) in state.into_iter().chain(readiness) {
        let special = files::refuse_special(file).or_else(|error| fail(Exit::Config, error));
        add(key, special.and_then(|()| own(file, &lock)));
    }
    if let Some(workload) = &job.workload {
        let volume = workload.volume.display();
        let read = fs::read_dir(&workload.volume).map(|_| format!("{volume} is a folder"));
        let missing = |error| fail(Exit::Config, format!("{volume}: {error}; mount the volume there"));
        add("workload.volume", read.or_else(missing));
    }
    for (key, command) in job.hooks.commands() {
        let program = command.first().map_or("", String::as_str);
        let why = exec::foreseen_failure(program.as_ref()).map(|(_, why)| {
            format!("{why}; install it, correct the path, or make it executable for this user")
        });
        let found =
            why.map_or_else(|| Ok(format!("{program} can be executed")), |why| fail(Exit::Config, why));
        add(&format!("hooks.{key}"), found);
    }
    if let Some(address) = job.http.listen {
        add("http.listen", free("http.listen", address, "SLOTKEEPER_HTTP_LISTEN"));
    }
    match job.control.as_ref().map(|control| (&control.listen, &control.token_file)) {
        Some((Listen::Tcp(address), file)) => {
            add("control.listen", free("control.listen", *address, "SLOTKEEPER_CONTROL_LISTEN"));
            let read = || token_of_file(file).map(|_| format!("{} is readable", file.display()));
            let read = || read().or_else(|error| fail(Exit::Config, format!("{error:#}")));
            add("control.token_file", if file.exists() { read() } else { own(file, &files::beside(file)) });
        }
        Some((Listen::Unix(path), _)) if path.is_file() => {
            let why = FileError::misplaced(path, "it exists and is not a socket");
            add("control.listen", fail(Exit::Config, why));
        }
        Some((Listen::Unix(path), _)) => add("control.listen", own(path, &files::beside(path))),
        None => {}
    }
    checks
}

fn free(key: &str, address: SocketAddr, variable: &str) -> Found {
    let taken = |error| fail(Exit::Failed, cannot_listen(key, address, variable, error));
    listen(address).map(|_| format!("{address} is free")).or_else(taken)
}

/// A file that the agent makes, with its folders if they are missing, and the file that it locks for it.
fn own(file: &Path, lock: &Path) -> Found {
    files::check_unlocked(lock, file).or_else(|error| fail(Exit::Failed, error))?;
    let folder = file.ancestors().skip(1).find(|folder| folder.exists()).unwrap_or(Path::new("."));
    let (shown, parent) = (file.display(), folder.display());
    let may = accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    let may = may.map(|()| format!("{shown} can be written"));
    let why = "make it writable for this user, or choose another path";
    may.or_else(|error| fail(Exit::Failed, format!("cannot write {shown}: {parent}: {error}; {why}")))
}
