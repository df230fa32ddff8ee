//! Control groups for tests: made where the system lets them be made, and a skip that says why where it does not. A group
//! is made within the test's own, so that what limits that holds on.

use super::commands::stderr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A control group of this test's own, gone with it.
pub struct Group {
    folder: PathBuf,
    /// The file with its limit.
    pub limit: PathBuf,
}

impl Group {
    /// One with this limit, or why there is none.
    fn new(name: &str, bytes: u64) -> Result<Self, String> {
        let said =
            |what: &str, path: &Path, error: std::io::Error| format!("{what} {}: {error}", path.display());
        let groups = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let find = |wanted: &dyn Fn(&str, &str) -> bool| {
            groups.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':');
                let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
                wanted(number, controllers).then(|| path.trim_start_matches('/').to_owned())
            })
        };
        let (own, file) = if let Some(path) = find(&|_, names| names.split(',').any(|name| name == "memory"))
        {
            (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes")
        } else if let Some(path) = find(&|number, names| number == "0" && names.is_empty()) {
            (Path::new("/sys/fs/cgroup").join(path), "memory.max")
        } else {
            return Err("no hierarchy counts memory".to_owned());
        };
        let folder = own.join(format!("plimsoll-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|error| said("cannot make the group", &folder, error))?;
        let group = Self { limit: folder.join(file), folder };
        // In version 2 the file is there only where the group above hands the controller on.
        std::fs::write(&group.limit, bytes.to_string())
            .map_err(|error| said("cannot write", &group.limit, error))?;
        Ok(group)
    }

    /// Runs a command in it.
    pub fn run(&self, command: &str) -> Output {
        let members = self.folder.join("cgroup.procs");
        let joined = format!("echo $$ > '{}' || exit 99; exec {command}", members.display());
        Command::new("sh").args(["-c", &joined]).stdin(Stdio::null()).output().unwrap()
    }

    /// Whether a process can be in it: a group with others below it, or a sandbox, may refuse.
    fn check(self) -> Result<Self, String> {
        match self.run("true") {
            output if output.status.success() => Ok(self),
            output => Err(format!("cannot enter {}: {}", self.folder.display(), stderr(&output).trim())),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last of its processes may not be gone yet from the kernel's books.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        println!("{} stays", self.folder.display());
    }
}

/// A group of so many bytes, or nothing, with a word about it.
pub fn group(name: &str, bytes: u64) -> Option<Group> {
    match Group::new(name, bytes).and_then(Group::check) {
        Ok(group) => Some(group),
        Err(why) => {
            println!("SKIPPED, nothing was tested: no control group can be made here: {why}");
            None
        }
    }
}
