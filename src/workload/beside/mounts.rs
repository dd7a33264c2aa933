//! What a process has mounted, by `/proc/<pid>/mountinfo`, which every user may read (proc(5)).

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// A volume: a file system, and the folder in it that is the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Volume {
    device: String,
    folder: String,
}

/// The mounts of one process, as text.
#[derive(Clone, Debug, Default)]
pub(super) struct Mounts(String);

struct Mount<'t> {
    id: u64,
    device: &'t str,
    folder: &'t str,
    at: &'t str,
}

impl Mounts {
    /// Those of one of its threads that lives: of a first one that has ended none are shown. `None` where none are shown at all, as of
    /// one that has ended, or has a root that is no mount.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        let process = format!("/proc/{}", pid.as_raw_nonzero());
        let threads = fs::read_dir(format!("{process}/task")).into_iter().flatten().flatten();
        let folders = std::iter::once(PathBuf::from(&process)).chain(threads.map(|thread| thread.path()));
        // A path may hold what is not UTF-8.
        let texts = folders.filter_map(|folder| fs::read(folder.join("mountinfo")).ok());
        let mut shown = texts.map(|text| Self(String::from_utf8_lossy(&text).into_owned()));
        shown.find(|mounts| mounts.root().is_some())
    }

    /// The volume on which `path` lies. None where that is the root itself.
    pub(super) fn volume(&self, path: &Path) -> Option<Volume> {
        let holds = |mount: &Mount<'_>| mount.at != "/" && path.starts_with(unescaped(mount.at));
        // Of several at one place the last one is what is seen.
        let mount = self.all().filter(holds).max_by_key(|mount| mount.at.len())?;
        Some(Volume { device: mount.device.to_owned(), folder: mount.folder.to_owned() })
    }

    /// What its root is mounted by: another mount in every container.
    pub(super) fn root(&self) -> Option<u64> {
        self.all().filter(|mount| mount.at == "/").last().map(|mount| mount.id)
    }

    /// Whether the volume, or a folder of it, is mounted anywhere.
    pub(super) fn have(&self, volume: &Volume) -> bool {
        self.all().any(|mount| {
            let below = mount.folder.strip_prefix(volume.folder.trim_end_matches('/'));
            mount.device == volume.device
                && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    fn all(&self) -> impl Iterator<Item = Mount<'_>> {
        self.0.lines().filter_map(|line| {
            let mut fields = line.split(' ');
            let (id, _parent) = (fields.next()?.parse().ok()?, fields.next()?);
            Some(Mount { id, device: fields.next()?, folder: fields.next()?, at: fields.next()? })
        })
    }
}

/// Blanks and the like stand there in octal.
fn unescaped(path: &str) -> String {
    let mut text = path.to_owned();
    for (code, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(code, plain);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &str = "\
700 650 0:90 / / ro,relatime - overlay overlay rw
701 700 0:91 / /proc rw - proc proc rw
702 700 254:1 /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/slotkeeper-run /run/slotkeeper rw - ext4 /dev/vda1 rw
703 700 0:95 / /with\\040blank rw - tmpfs tmpfs rw";
    const WORKLOAD: &str = "\
800 650 0:92 / / rw,relatime - overlay overlay rw
802 800 254:1 /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/slotkeeper-run /run/slotkeeper ro - ext4 /dev/vda1 rw";

    fn of(text: &str) -> Mounts {
        Mounts(text.to_owned())
    }

    #[test]
    fn who_has_the_volume_is_told_from_who_has_another() {
        let volume = of(AGENT).volume(Path::new("/run/slotkeeper")).unwrap();
        assert!(of(AGENT).have(&volume) && of(WORKLOAD).have(&volume));
        assert_eq!((of(AGENT).root(), of(WORKLOAD).root()), (Some(700), Some(800)));
        for (other, has) in [
            (WORKLOAD.replace("pods/u/", "pods/other/"), false),
            (WORKLOAD.replace("slotkeeper-run ", "slotkeeper-running "), false),
            (WORKLOAD.replace("254:1", "254:2"), false),
            (WORKLOAD.replace("slotkeeper-run ", "slotkeeper-run/sub "), true),
            ("".to_owned(), false),
            ("x y z".to_owned(), false),
        ] {
            assert_eq!(of(&other).have(&volume), has, "{other}");
        }
    }

    #[test]
    fn a_folder_is_on_the_volume_that_is_mounted_above_it() {
        let at = |path: &str| of(AGENT).volume(Path::new(path));
        assert_eq!(at("/run/slotkeeper/deeper"), at("/run/slotkeeper"));
        assert_eq!(at("/with blank/x").unwrap().device, "0:95");
        assert_eq!(at("/run/slotkeepers"), None);
        assert_eq!(at("/"), None);
    }

    #[test]
    fn a_volume_that_is_a_file_system_of_its_own() {
        let memory = "810 800 0:95 / /run/slotkeeper ro - tmpfs tmpfs rw";
        assert!(of(memory).have(&of(AGENT).volume(Path::new("/with blank")).unwrap()));
    }
}
