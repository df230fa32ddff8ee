//! What Linux's control groups leave of the machine's memory: a process in a container dies at its group's limit, and
//! `/proc/meminfo` knows nothing of it.
//!
//! A limit holds for a group and everything below it, so every group from the process's own up to the root of its
//! hierarchy is looked at, in version 1 and 2 of the interface. What a group still has is its limit less its usage, and
//! more by the file cache in that usage: the kernel drops clean pages of files before it kills anybody.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// The most that is read of a file: the kernel's are far smaller.
const MOST: u64 = 1 << 20;

/// What a group leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Version of the interface.
    pub version: u8,
    /// Bytes below the limit.
    pub available: u64,
    /// The limit.
    pub limit: u64,
    /// The file with the limit.
    pub file: PathBuf,
}

/// The group of this process that leaves least. `root` is `/`, and another folder in tests.
pub(crate) fn tightest(root: &Path) -> Option<Room> {
    let groups = text(&root.join("proc/self/cgroup"))?;
    let mounts = text(&root.join("proc/self/mountinfo"))?;
    let places = places(&groups, &mounts);
    places.iter().flat_map(|place| climb(root, place)).min_by_key(|room| room.available)
}

/// A hierarchy: where it is mounted, and the way from there to the process's group.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    version: u8,
    mount: PathBuf,
    group: PathBuf,
}

/// The hierarchies that count memory, of the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn places(groups: &str, mounts: &str) -> Vec<Place> {
    let mut found = Vec::new();
    for (version, mounted, mount) in mounts.lines().filter_map(mount) {
        let own = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let this = match version {
                1 => controllers.split(',').any(|name| name == "memory"),
                _ => number == "0" && controllers.is_empty(),
            };
            this.then_some(path)
        });
        let Some(own) = own else { continue };
        // A container may see its group mounted as the root, and its path from the root of the machine; or be elsewhere
        // than the mount shows. Then the mount is all that can be seen.
        let group = Path::new(own).strip_prefix(&mounted).unwrap_or(Path::new(""));
        let plain = group.components().all(|part| matches!(part, Component::Normal(_)));
        let group = if plain { group.to_owned() } else { PathBuf::new() };
        found.push(Place { version, mount, group });
    }
    found
}

/// Version, root and mount point of a line of `mountinfo` that mounts a hierarchy that counts memory.
fn mount(line: &str) -> Option<(u8, PathBuf, PathBuf)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let version = match (kind.next()?, kind.nth(1)) {
        ("cgroup2", _) => 2,
        ("cgroup", Some(options)) if options.split(',').any(|name| name == "memory") => 1,
        _ => return None,
    };
    let mut place = place.split(' ').skip(3);
    Some((version, unescape(place.next()?), unescape(place.next()?)))
}

/// A path of `mountinfo`, where spaces and the like are written in octal.
fn unescape(text: &str) -> PathBuf {
    let names = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    PathBuf::from(names.iter().fold(text.to_owned(), |text, (code, is)| text.replace(code, is)))
}

/// What every group from the process's own up leaves, where it limits anything.
fn climb(root: &Path, place: &Place) -> Vec<Room> {
    let mount = root.join(place.mount.strip_prefix("/").unwrap_or(&place.mount));
    let groups = place.group.ancestors().map(|group| mount.join(group));
    groups.filter_map(|group| room(place.version, &group, root)).collect()
}

/// What a group leaves by the files in its folder.
fn room(version: u8, group: &Path, root: &Path) -> Option<Room> {
    let (limits, usage): (&[&str], _) = match version {
        1 => (&["memory.limit_in_bytes"], "memory.usage_in_bytes"),
        // Over `high` a group is slowed down until it hardly runs, which is no room either.
        _ => (&["memory.max", "memory.high"], "memory.current"),
    };
    let read = |name: &str| text(&group.join(name));
    let (limit, name) = limits
        .iter()
        .filter_map(|name| Some((amount(&read(name)?)?, *name)))
        .min_by_key(|(limit, _)| *limit)?;
    // A limit whose usage cannot be read is a limit all the same.
    let used = read(usage).and_then(|text| amount(&text)).unwrap_or(0);
    let cache = read("memory.stat").map_or(0, |text| droppable(version, &text)).min(used);
    let available = limit.saturating_sub(used.saturating_sub(cache));
    let file = group.join(name);
    let file = file.strip_prefix(root).map_or(file.clone(), |path| Path::new("/").join(path));
    Some(Room { version, available, limit, file })
}

/// Clean pages of files in a group's usage, of the text of its `memory.stat`.
fn droppable(version: u8, stat: &str) -> u64 {
    // Version 1 tells a group's own pages, and with `total_` those of the groups below, which its usage has too.
    let (prefix, dirty) = match version {
        1 => ("total_", ["total_dirty", "total_writeback"]),
        _ => ("", ["file_dirty", "file_writeback"]),
    };
    let of = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(amount).unwrap_or(0)
    };
    let files = of(&format!("{prefix}inactive_file")).saturating_add(of(&format!("{prefix}active_file")));
    files.saturating_sub(dirty.into_iter().map(of).fold(0, u64::saturating_add))
}

/// A number of bytes. `None` of everything else: `max` is no limit, nor is what no number of bytes can be.
fn amount(text: &str) -> Option<u64> {
    let text = text.trim();
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A file's text, as far as a kernel's may go.
fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
