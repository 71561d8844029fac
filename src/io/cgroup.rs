//! The memory limit of the cgroup that this process runs in.

use std::fs;
use std::path::{Path, PathBuf};

/// The mount point of cgroups, with one directory per controller in version 1.
const ROOT: &str = "/sys/fs/cgroup";

/// Larger limits are the way in which version 1 says that there is none.
const BYTES_MAX: u64 = 1 << 60;

/// Returns the lowest memory limit of this process's cgroup and those above it, in bytes. `None` if there is none or it cannot
/// be read.
pub fn memory_limit() -> Option<u64> {
    limit_below(Path::new(ROOT), &fs::read_to_string("/proc/self/cgroup").ok()?)
}

/// Each line of `membership` is `ID:CONTROLLERS:PATH` (cgroups(7)).
fn limit_below(root: &Path, membership: &str) -> Option<u64> {
    let limits = membership.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (mount, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        lowest(&mount, path, file)
    });
    limits.min()
}

/// A container may see the path of its host, of which only the root exists here.
fn lowest(mount: &Path, path: &str, file: &str) -> Option<u64> {
    let group = PathBuf::from(path.trim_start_matches('/'));
    let limit = |group: &Path| {
        let text = fs::read_to_string(mount.join(group).join(file)).ok()?;
        text.trim().parse().ok().filter(|&bytes| bytes < BYTES_MAX)
    };
    group.ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn the_lowest_limit_counts() {
        let root = env::temp_dir().join(format!("beanring-cgroup-{}", process::id()));
        let write = |path: &str, text: &str| {
            let file = root.join(path);
            fs::create_dir_all(file.parent().expect("a directory")).expect("it is created");
            fs::write(file, text).expect("it is written");
        };
        write("a/memory.max", "300\n");
        write("a/b/memory.max", "max\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/c/memory.limit_in_bytes", "200\n");
        for (membership, expected) in [
            ("0::/\n", None),
            ("0::/a\n", Some(300)),
            ("0::/a/b\n", Some(300)),
            ("0::/of/the/host\n", None),
            ("4:memory:/\n0::/\n", None),
            ("4:cpu,memory:/c\n0::/a\n", Some(200)),
            ("4:cpu:/c\n", None),
            ("nonsense\n", None),
        ] {
            assert_eq!(limit_below(&root, membership), expected, "{membership}");
        }
        fs::remove_dir_all(&root).expect("it is removed");
    }
}
