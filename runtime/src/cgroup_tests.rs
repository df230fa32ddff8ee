//! Hierarchies in folders, as kernels and containers show them.
#![allow(clippy::unwrap_used)]

use super::*;

/// A root folder with these files, which goes with it.
struct Root(PathBuf);

impl Root {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("plimsoll-cgroup-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Self(root)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const V2: (&str, &str) =
    ("proc/self/mountinfo", "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
const V1: (&str, &str) = (
    "proc/self/mountinfo",
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
     34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
     35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
     41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
);

#[test]
fn the_tightest_group_on_the_way_up_decides() {
    let root = Root::new(
        "v2",
        &[
            V2,
            ("proc/self/cgroup", "0::/work.slice/job.scope\n"),
            ("sys/fs/cgroup/work.slice/job.scope/memory.max", "max\n"),
            ("sys/fs/cgroup/work.slice/job.scope/memory.high", "6000\n"),
            ("sys/fs/cgroup/work.slice/job.scope/memory.current", "1000\n"),
            ("sys/fs/cgroup/work.slice/memory.max", "8000\n"),
            ("sys/fs/cgroup/work.slice/memory.high", "max\n"),
            ("sys/fs/cgroup/work.slice/memory.current", "7000\n"),
            (
                "sys/fs/cgroup/work.slice/memory.stat",
                "anon 5000\nfile 2000\ninactive_file 900\nactive_file 700\nfile_dirty 60\nfile_writeback 40\n",
            ),
        ],
    );
    // 8,000 less 7,000 used, of which 1,500 are clean pages of files.
    let room = tightest(&root.0).unwrap();
    assert_eq!((room.available, room.limit, room.version), (2500, 8000, 2));
    assert_eq!(room.file, Path::new("/sys/fs/cgroup/work.slice/memory.max"));
    // The group's own `high` is the tighter one once the parent has room.
    std::fs::write(root.0.join("sys/fs/cgroup/work.slice/memory.max"), "80000").unwrap();
    let room = tightest(&root.0).unwrap();
    assert_eq!((room.available, room.file.file_name().unwrap().to_str()), (5000, Some("memory.high")));
}

#[test]
fn version_1_has_other_names_and_counts_what_is_below() {
    let group = "sys/fs/cgroup/memory/outer/inner";
    let file = |name: &str| format!("{group}/{name}");
    let root = Root::new(
        "v1",
        &[
            V1,
            ("proc/self/cgroup", "9:name=systemd:/\n4:memory:/outer/inner\n1:cpu:/\n0::/\n"),
            (&file("memory.limit_in_bytes"), "10000\n"),
            (&file("memory.usage_in_bytes"), "9000\n"),
            (
                &file("memory.stat"),
                "inactive_file 1\nactive_file 1\ndirty 1\nhierarchical_memory_limit 10000\n\
                 total_inactive_file 2000\ntotal_active_file 500\ntotal_dirty 100\ntotal_writeback 0\n",
            ),
            ("sys/fs/cgroup/memory/outer/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/outer/memory.usage_in_bytes", "9000\n"),
        ],
    );
    let room = tightest(&root.0).unwrap();
    assert_eq!((room.available, room.limit, room.version), (3400, 10_000, 1));
    assert_eq!(room.file, Path::new("/").join(file("memory.limit_in_bytes")));
}

#[test]
fn a_container_sees_its_group_as_the_root() {
    // The path in `cgroup` is the machine's, the mount shows the container's group.
    let mounts = "29 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
    let files = |path: &'static str| {
        [
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", path),
            ("sys/fs/cgroup/memory.max", "500"),
            ("sys/fs/cgroup/memory.current", "200"),
            ("sys/fs/cgroup/sub/memory.max", "300"),
            ("sys/fs/cgroup/sub/memory.current", "100"),
        ]
    };
    for (path, available) in [
        ("0::/docker/abc\n", 300),
        ("0::/docker/abc/sub\n", 200),
        // Its own namespace, or a process that was moved out of what is mounted.
        ("0::/\n", 300),
        ("0::/../other\n", 300),
        ("0::/docker/abc/../../sub\n", 300),
    ] {
        let root = Root::new("container", &files(path));
        assert_eq!(tightest(&root.0).map(|room| room.available), Some(available), "{path}");
    }
}

#[test]
fn what_is_no_limit_limits_nothing() {
    let with = |max: &str, current: &str, stat: &str| {
        let root = Root::new(
            "hostile",
            &[
                V2,
                ("proc/self/cgroup", "0::/g\n"),
                ("sys/fs/cgroup/g/memory.max", max),
                ("sys/fs/cgroup/g/memory.current", current),
                ("sys/fs/cgroup/g/memory.stat", stat),
            ],
        );
        tightest(&root.0).map(|room| room.available)
    };
    for text in ["max", "", "\n", "-1", "+1", "1 2", "lots", "0x10", "1e9", "99999999999999999999999", "１"]
    {
        assert_eq!(with(text, "10", ""), None, "{text:?}");
    }
    assert_eq!(with("0", "0", ""), Some(0));
    // More in use than the limit, or than can be told, leaves what can be told for sure.
    assert_eq!(with("100", "200", ""), Some(0));
    for text in ["", "-5", "junk", "99999999999999999999999"] {
        assert_eq!(with("100", text, ""), Some(100), "{text:?}");
    }
    let most = u64::MAX.to_string();
    assert_eq!(with(&most, &most, ""), Some(0));
    // Cache beyond the usage is not believed; nor are other words.
    let stat = |bytes: &str| format!("inactive_file {bytes}\nactive_file {bytes}\nfile_dirty 0\n");
    assert_eq!(with("100", "90", &stat(&most)), Some(100));
    assert_eq!(with("100", "90", &stat("20")), Some(50));
    for text in ["-20", "twenty", "", "99999999999999999999999"] {
        assert_eq!(with("100", "90", &stat(text)), Some(10), "{text:?}");
    }
    assert_eq!(with("100", "90", "inactive_file\nactive_filex 50\n"), Some(10));
    assert_eq!(with("100", "90", "inactive_file 10\nactive_file 10\nfile_dirty 30\n"), Some(10));
}

#[test]
fn texts_that_are_none_have_no_places() {
    for (groups, mounts) in [
        ("", ""),
        ("0::/g", "junk"),
        ("0::/g", "29 23 0:26 / /sys/fs/cgroup rw\n"),
        ("0::/g", "29 - cgroup2 cgroup2 rw\n"),
        ("0:/g", "29 23 0:26 / /c rw - cgroup2 cgroup2 rw\n"),
        ("1:cpu:/g", "29 23 0:26 / /c rw - cgroup2 cgroup2 rw\n"),
        ("1:memory:/g", "29 23 0:26 / /c rw - cgroup cgroup rw,cpu\n"),
    ] {
        assert_eq!(places(groups, mounts), [], "{groups:?} {mounts:?}");
    }
    // A colon belongs to the path, and spaces are written in octal.
    let found = places("0::/a:b c", "29 23 0:26 / /x\\040y rw - cgroup2 cgroup2 rw\n");
    assert_eq!(found, [Place { version: 2, mount: "/x y".into(), group: "a:b c".into() }]);
    assert_eq!(tightest(Path::new("/nowhere/at/all")), None);
}

#[test]
#[cfg(target_os = "linux")]
fn this_machine_is_read_without_a_fault() {
    if let Some(room) = tightest(Path::new("/")) {
        assert!(room.available <= room.limit && room.file.starts_with("/"), "{room:?}");
    }
}
