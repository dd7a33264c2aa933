//! A pod's volumes, as folders.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::container::is_ours;
use super::{Node, list, text};
use crate::BINARY;

/// Where a volume lies.
pub(super) fn place(pod: &Path, volume: &str) -> PathBuf {
    pod.join("volumes").join(volume)
}

/// Makes all volumes of the pod.
pub(super) fn make(spec: &Value, node: &Node, pod: &Path) {
    let group = spec["securityContext"]["fsGroup"].as_u64().map(number);
    let user = only_user(spec);
    for volume in list(spec, "volumes") {
        let folder = place(pod, text(&volume["name"], "a volume's name"));
        std::fs::create_dir_all(&folder).unwrap();
        if volume["projected"].is_object() {
            swap(&volume["projected"], node, &folder, user, group);
            set(&folder, 0o755, group);
        } else if volume["emptyDir"].is_object() {
            // New files get the group of the folder.
            set(&folder, if group.is_some() { 0o2777 } else { 0o777 }, group);
        } else if volume["image"].is_object() {
            // Read-only; all that our image has.
            assert!(is_ours(text(&volume["image"]["reference"], "an image")), "{volume}");
            let binary = folder.join("slotkeeper");
            std::fs::copy(BINARY, &binary).unwrap();
            set(&binary, 0o755, None);
            set(&folder, 0o755, None);
        } else {
            panic!("no volume of this kind is known: {volume}");
        }
    }
}

/// Brings the objects of all volumes up to date.
pub(super) fn update(spec: &Value, node: &Node, pod: &Path) {
    let group = spec["securityContext"]["fsGroup"].as_u64().map(number);
    for volume in list(spec, "volumes").iter().filter(|volume| volume["projected"].is_object()) {
        let folder = place(pod, text(&volume["name"], "a volume's name"));
        swap(&volume["projected"], node, &folder, only_user(spec), group);
    }
}

/// Writes what a volume projects into a new folder, and then has the link `..data` lead there: its files change all at once.
fn swap(projected: &Value, node: &Node, volume: &Path, user: Option<u32>, group: Option<u32>) {
    let (data, next) = (volume.join("..data"), volume.join("..data_tmp"));
    let before = std::fs::read_link(&data).ok();
    let version = format!("..{}", fastrand::u64(..));
    let folder = volume.join(&version);
    std::fs::create_dir(&folder).unwrap();
    for source in list(projected, "sources") {
        project(&source, node, &folder, mode(projected), user, group);
    }
    set(&folder, 0o755, group);
    symlink(&version, &next).unwrap();
    std::fs::rename(&next, &data).unwrap();
    for file in std::fs::read_dir(&folder).unwrap() {
        let name = file.unwrap().file_name();
        if volume.join(&name).symlink_metadata().is_err() {
            symlink(Path::new("..data").join(&name), volume.join(&name)).unwrap();
        }
    }
    if let Some(before) = before {
        std::fs::remove_dir_all(volume.join(before)).unwrap();
    }
}

fn project(source: &Value, node: &Node, folder: &Path, mode: u32, user: Option<u32>, group: Option<u32>) {
    let write = |path: &Value, content: &str, mode: u32| {
        let path = folder.join(text(path, "a path"));
        std::fs::write(&path, content).unwrap();
        // What has a group is readable for it.
        set(&path, group.map_or(mode, |_| mode | 0o440), group);
        path
    };
    let token = &source["serviceAccountToken"];
    if token.is_object() {
        assert!(token["expirationSeconds"].as_u64().is_some_and(|seconds| seconds >= 600), "{token}");
        // Its owner's alone where an owner or a group is known, whatever the volume's mode is.
        let mode = if user.or(group).is_some() { 0o600 } else { mode };
        chown(write(&token["path"], &node.token, mode), user, None).unwrap();
        return;
    }
    let (kind, object) = ["ConfigMap", "Secret"]
        .into_iter()
        .map(|kind| (kind, &source[if kind == "Secret" { "secret" } else { "configMap" }]))
        .find(|(_, object)| object.is_object())
        .unwrap_or_else(|| panic!("no source of this kind is known: {source}"));
    let name = text(&object["name"], "an object's name");
    let data = node.objects.get(&(kind.to_owned(), name.to_owned()));
    let data = data.unwrap_or_else(|| panic!("there is no {kind} {name}"));
    for item in list(object, "items") {
        let key = text(&item["key"], "a key");
        let content = data.get(key).unwrap_or_else(|| panic!("the {kind} {name} has no key {key}"));
        write(&item["path"], content, mode);
    }
}

/// The user that all containers run as, where that is one and the same and written down.
fn only_user(spec: &Value) -> Option<u32> {
    let of_pod = spec["securityContext"]["runAsUser"].as_u64();
    let containers = ["initContainers", "containers"].iter().flat_map(|key| list(spec, key));
    let users: BTreeSet<_> =
        containers.map(|one| one["securityContext"]["runAsUser"].as_u64().or(of_pod)).collect();
    let first = users.first().copied().flatten();
    first.filter(|_| users.len() == 1).map(number)
}

fn number(id: u64) -> u32 {
    u32::try_from(id).unwrap()
}

fn mode(volume: &Value) -> u32 {
    volume["defaultMode"].as_u64().map_or(0o644, number)
}

fn set(path: &Path, mode: u32, group: Option<u32>) {
    chown(path, Some(0), group.or(Some(0))).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
