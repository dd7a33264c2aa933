//! The files of an agent where the umask is odd, and where somebody else has been in their folder before.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::process::{Agent, BINARY, Home};
use crate::wait_for;

/// All files that there are, in a folder of their own.
const CONFIG: &str = "semaphores: [{name: s, prefix: service/s, limit: 1}]\n\
                      readiness: {file: '$HOME/run/ready'}\n\
                      session: {state_file: '$HOME/run/state'}\n\
                      control: {listen: 'unix:$HOME/run/control'}\n";
/// A user who is neither root nor, as a rule, whoever runs the tests.
const SOMEBODY: u32 = 54_321;

/// A home whose files all lie in `run`, and something beside it that must stay as it is.
struct Scene {
    consul: Consul,
    home: Home,
}

impl Scene {
    fn new(config: &str) -> Self {
        let (consul, home) = (Consul::start(), Home::new());
        home.configure(&consul.address(), "");
        let head = fs::read_to_string(home.path("config.yaml")).unwrap();
        // Its readiness file lies elsewhere.
        let head: String = head
            .lines()
            .filter(|line| !line.starts_with("readiness"))
            .map(|line| format!("{line}\n"))
            .collect();
        let config = config.replace("$HOME", &home.path("").display().to_string());
        fs::write(home.path("config.yaml"), head + &config).unwrap();
        fs::write(home.path("precious"), "precious").unwrap();
        Self { consul, home }
    }

    /// Where the files lie, made beforehand.
    fn run(&self) -> PathBuf {
        let run = self.home.path("run");
        fs::create_dir(&run).unwrap();
        run
    }

    /// An agent that a shell becomes, after `prepare` in the folder of the files.
    fn agent(&self, prepare: &str) -> Agent {
        let script =
            format!("{prepare} exec {BINARY} agent --config {}", self.home.path("config.yaml").display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(self.home.path("")).stdin(Stdio::null());
        Agent::of(command, &self.home)
    }

    fn held(&self, prepare: &str) -> Agent {
        let mut agent = self.agent(prepare);
        agent.await_served();
        wait_for("readiness", || agent.is_ready());
        wait_for("the readiness file", || is_file(&self.home.path("run/ready")));
        agent
    }

    /// One that does not start, with that exit code, and says why.
    fn refused(&self, code: i32, why: &[&str]) {
        let mut agent = self.agent("");
        assert_eq!(agent.ended().code(), Some(code), "{}", agent.log());
        let log = agent.log();
        assert!(
            why.iter().all(|why| log.contains(why)) && !log.contains(log_events::SESSION_CREATED),
            "{log}"
        );
        self.assert_untouched();
    }

    fn assert_untouched(&self) {
        assert_eq!(fs::read_to_string(self.home.path("precious")).unwrap(), "precious");
        assert_eq!(mode(&self.home.path("precious")) & 0o777, 0o644);
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode()
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_file())
}

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
}

/// Gives it to somebody else, which needs root.
fn give_away(path: &Path) {
    lchown(path, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
}

#[test]
fn every_file_has_its_mode_whatever_the_umask_is() {
    for (umask, folder) in [("000", 0o755), ("027", 0o750), ("077", 0o700)] {
        let scene = Scene::new(CONFIG);
        let mut agent = scene.held(&format!("umask {umask};"));
        let run = scene.home.path("run");
        wait_for("the state file", || is_file(&run.join("state")));
        for (name, expected) in [
            ("", folder),
            ("ready", 0o644),
            ("state", 0o600),
            ("control", 0o660),
            ("ready.lock", 0o600),
            ("control.lock", 0o600),
        ] {
            let found = mode(&run.join(name)) & 0o777;
            assert_eq!(found, expected, "{name:?} has {found:o} under the umask {umask}");
        }
        // A file that is just being written lies beside the one that it replaces.
        wait_for("nothing to lie beside them", || fs::read_dir(&run).unwrap().count() == 5);
        assert_eq!(agent.terminate(), Some(0));
    }
}

#[test]
fn a_token_file_has_its_mode_whatever_the_umask_is() {
    let scene = Scene::new(
        "control: {listen: '127.0.0.1:0', token_file: '$HOME/run/token'}\nreadiness: {file: '$HOME/run/ready'}\n\
         semaphores: [{name: s, prefix: service/s, limit: 1}]\n",
    );
    let mut agent = scene.held("umask 000;");
    assert_eq!(mode(&scene.home.path("run/token")) & 0o777, 0o600);
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn links_in_place_of_temporary_files_are_not_followed() {
    let scene = Scene::new(CONFIG);
    let run = scene.run();
    // The names under which files are written before they are moved: the shell's process is the agent's.
    let plant =
        "for name in ready state; do ln -s ../precious run/.$name.$$; done; ln -s ../precious run/.$$;";
    let mut agent = scene.held(plant);
    wait_for("the state file", || is_file(&run.join("state")));
    assert!(mode(&run.join("control")) & 0o170_000 == 0o140_000, "the socket is one");
    assert_eq!(agent.terminate(), Some(0));
    scene.assert_untouched();
}

#[test]
fn a_hard_link_in_place_of_a_file_is_replaced() {
    let scene = Scene::new(CONFIG);
    let run = scene.run();
    for name in ["ready", "state", "ready.lock"] {
        fs::hard_link(scene.home.path("precious"), run.join(name)).unwrap();
    }
    let mut agent = scene.held("");
    wait_for("the state file", || {
        fs::metadata(run.join("state")).unwrap().permissions().mode() & 0o777 == 0o600
    });
    assert_eq!(agent.terminate(), Some(0));
    scene.assert_untouched();
}

/// A device that takes everything and gives nothing, as /dev/null is, made in a folder of the test's own: root can.
fn device(path: &Path) {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 3)).unwrap();
}

#[test]
fn only_a_regular_file_is_replaced_or_deleted() {
    type Plant<'a> = &'a dyn Fn(&Path, &Path);
    let plants: [(Plant<'_>, &str); 4] = [
        (&|path, _| device(path), "it is a device"),
        (&|path, _| pipe(path), "it is a pipe"),
        (&|path, _| fs::create_dir(path).unwrap(), "it is a folder"),
        (&|path, precious| symlink(precious, path).unwrap(), "it is a symbolic link"),
    ];
    for name in ["ready", "state", "control"] {
        for (plant, why) in plants {
            let scene = Scene::new(CONFIG);
            let path = scene.run().join(name);
            plant(&path, &scene.home.path("precious"));
            let before = fs::symlink_metadata(&path).unwrap();
            let why = if name == "control" { "it exists and is not a socket" } else { why };
            scene.refused(78, &["cannot use", name, why]);
            let after = fs::symlink_metadata(&path).unwrap();
            assert_eq!((after.ino(), after.mode()), (before.ino(), before.mode()), "{name}: {why}");
        }
    }
}

#[test]
fn a_device_that_takes_the_place_of_a_file_stays() {
    let scene = Scene::new(CONFIG);
    let run = scene.run();
    let mut agent = scene.held("");
    wait_for("the state file", || is_file(&run.join("state")));
    for name in ["ready", "state"] {
        fs::remove_file(run.join(name)).unwrap();
        device(&run.join(name));
    }
    agent.terminate();
    for name in ["ready", "state"] {
        assert!(fs::symlink_metadata(run.join(name)).unwrap().file_type().is_char_device(), "{name}");
    }
}

#[test]
fn no_copy_of_the_binary_replaces_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    device(&path);
    let done = Command::new(BINARY).arg("install").arg(&path).output().unwrap();
    assert_eq!(done.status.code(), Some(78), "{done:?}");
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_char_device());
}

#[test]
fn an_irregular_lock_file_is_refused() {
    for (plant, why) in [
        (
            &(|lock: &Path, precious: &Path| symlink(precious, lock).unwrap()) as &dyn Fn(&Path, &Path),
            "symbolic link",
        ),
        (&|lock, _| pipe(lock), "pipe"),
        (&|lock, _| fs::create_dir(lock).unwrap(), "folder"),
    ] {
        let scene = Scene::new(CONFIG);
        plant(&scene.run().join("ready.lock"), &scene.home.path("precious"));
        scene.refused(78, &["cannot use", "ready.lock", why]);
    }
}

#[test]
fn a_folder_that_is_another_users_link_is_refused() {
    let scene = Scene::new(CONFIG);
    let elsewhere = scene.home.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, scene.home.path("run")).unwrap();
    give_away(&scene.home.path("run"));
    scene.refused(1, &["cannot create the folder", "is a symbolic link of user 54321"]);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn the_own_users_link_to_a_folder_is_followed() {
    let scene = Scene::new(CONFIG);
    fs::create_dir(scene.home.path("elsewhere")).unwrap();
    symlink(scene.home.path("elsewhere"), scene.home.path("run")).unwrap();
    assert_eq!(scene.held("").terminate(), Some(0));
}

#[test]
fn a_state_file_of_another_user_is_not_used() {
    let session = "5e550000-0000-4000-8000-000000000000";
    let saved = format!(r#"{{"session":"{session}","prefixes":{{"service/s":7}}}}"#);
    for (spoil, why) in [
        (&give_away as &dyn Fn(&Path), "it belongs to user 54321"),
        (
            &|state| fs::set_permissions(state, Permissions::from_mode(0o602)).unwrap(),
            "every user may write to it",
        ),
    ] {
        let scene = Scene::new(CONFIG);
        let state = scene.run().join("state");
        fs::write(&state, &saved).unwrap();
        fs::set_permissions(&state, Permissions::from_mode(0o600)).unwrap();
        spoil(&state);
        let mut agent = scene.held("");
        let log = agent.log();
        assert!(log.contains(why) && log.contains(log_events::STATE_FILE_IGNORED), "{log}");
        assert_ne!(agent.session(), session);
        wait_for("a state file of our own", || {
            fs::read_to_string(&state).is_ok_and(|text| !text.contains(session))
        });
        assert_eq!(agent.terminate(), Some(0));
        drop(scene.consul);
    }
}
