//! Reads the limits on the memory of this process: limits of its control groups (cgroup v1 and v2), from its own group
//! up to the root, and resource limits (`ulimit -v`, `ulimit -d`). Limits above the machine's memory are ignored.
//!
//! A batch system or systemd may limit a parent of the process's group, and that limit applies to all processes below
//! the parent. Therefore the limits and the current usage of every visible group on the path are read.

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// A limit on the memory of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit in bytes.
    pub bytes: u64,
    /// Bytes that count towards this limit and that the system cannot reclaim: memory of this process, or of its whole
    /// control group.
    pub used: u64,
    /// The file that sets the limit, or the name of the resource limit.
    pub source: String,
}

impl MemoryLimit {
    /// The number of bytes that may still be allocated.
    pub fn left(&self) -> u64 {
        self.bytes.saturating_sub(self.used)
    }
}

impl fmt::Display for MemoryLimit {
    /// Formats the limit, for example as `60.0 MiB by /sys/fs/cgroup/memory/job/memory.limit_in_bytes`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB by {}", self.bytes as f64 / f64::from(1 << 20), self.source)
    }
}

/// The limits on the memory of this process that are below the machine's memory, the lowest first.
pub fn memory_limits() -> Vec<MemoryLimit> {
    limits_of(Path::new("/"))
}

/// The limits, with `/proc` and the mounted control groups read below the directory `root`.
fn limits_of(root: &Path) -> Vec<MemoryLimit> {
    let text = |path: &str| String::from_utf8_lossy(&fs::read(root.join(path)).unwrap_or_default()).into_owned();
    let kib = |text: &str, key: &str| field(text, key).and_then(|kib| kib.checked_mul(1024));
    let status = text("proc/self/status");
    let resident = kib(&status, "VmRSS:").unwrap_or(0);
    let mut limits = Vec::new();
    for (version, directory, is_lowest) in groups(&text("proc/self/cgroup"), &text("proc/self/mountinfo")) {
        limits.extend(version.limits(root, &directory, is_lowest, resident));
    }
    let resources = text("proc/self/limits");
    for (name, key, size) in [
        ("RLIMIT_AS (ulimit -v)", "Max address space", "VmSize:"),
        ("RLIMIT_DATA (ulimit -d)", "Max data size", "VmData:"),
    ] {
        if let Some(bytes) = field(&resources, key) {
            let used = kib(&status, size).unwrap_or(resident);
            limits.push(MemoryLimit { bytes, used, source: name.to_owned() });
        }
    }
    // In cgroup v1, a group without a limit reports a number near 2^63.
    let physical = kib(&text("proc/meminfo"), "MemTotal:").unwrap_or(1 << 60);
    limits.retain(|limit| limit.bytes < physical);
    limits.sort_by(|a, b| (a.bytes, &a.source).cmp(&(b.bytes, &b.source)));
    limits
}

/// The version of a cgroup hierarchy, which determines the names of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    /// The limits that the control group in `directory` sets for a process with `resident` bytes. `is_lowest` is true
    /// for the process's own group, or for the visible group nearest to it.
    fn limits(self, root: &Path, directory: &Path, is_lowest: bool, resident: u64) -> Vec<MemoryLimit> {
        let text = |name: &str| {
            let path = root.join(directory.strip_prefix("/").unwrap_or(directory)).join(name);
            fs::read_to_string(path).unwrap_or_default()
        };
        let number = |name: &str| text(name).trim().parse::<u64>().ok();
        let stat = text("memory.stat");
        let (usage, caches) = match self {
            Version::V1 => ("memory.usage_in_bytes", ["total_inactive_file ", "total_active_file "]),
            Version::V2 => ("memory.current", ["inactive_file ", "active_file "]),
        };
        // The file cache counts towards the usage of the group, but the system evicts it when programs need memory.
        let cache: u64 = caches.iter().filter_map(|key| field(&stat, key)).sum();
        let used = number(usage).unwrap_or(0).saturating_sub(cache).max(resident);
        let limit = |bytes: u64, name: &str| {
            let source = directory.join(name).display().to_string();
            MemoryLimit { bytes, used, source }
        };
        let limit_in = |name: &str| number(name).map(|bytes| limit(bytes, name));
        match self {
            // A group above `memory.high` is throttled more and more, but not killed.
            Version::V2 => limit_in("memory.max").into_iter().chain(limit_in("memory.high")).collect(),
            Version::V1 => {
                // Before Linux 5.11, the usage of a group may not count towards its parent.
                let counts = is_lowest || number("memory.use_hierarchy") != Some(0);
                let own = limit_in("memory.limit_in_bytes").filter(|_| counts);
                // The kernel's lowest limit on the path, including groups that are not visible here.
                let whole = field(&stat, "hierarchical_memory_limit ").filter(|_| is_lowest);
                let above = whole.filter(|&bytes| own.as_ref().is_none_or(|own| bytes < own.bytes));
                let above = above.map(|bytes| limit(bytes, "memory.stat (hierarchical_memory_limit)"));
                own.into_iter().chain(above).collect()
            }
        }
    }
}

/// The directories of the control groups that limit the memory of a process, according to its `cgroup` and `mountinfo`
/// files, and whether each directory is the lowest on the path.
fn groups(own: &str, mounts: &str) -> Vec<(Version, PathBuf, bool)> {
    let mut found = Vec::new();
    for line in own.lines() {
        // 0::/user.slice/session-1.scope     4:memory:/slurm/uid_1000/job_7
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let version = match controllers {
            "" => Version::V2,
            names if names.split(',').any(|name| name == "memory") => Version::V1,
            _ => continue,
        };
        let path = Path::new(path.strip_suffix(" (deleted)").unwrap_or(path));
        for (root, point) in mounts.lines().filter_map(|line| mounted(line, version)) {
            let Some(below) = below(path, &root) else { continue };
            // An empty path would append a slash.
            let directory = if below.as_os_str().is_empty() { point } else { point.join(&below) };
            let on_path = directory.ancestors().take(below.components().count() + 1);
            found.extend(on_path.enumerate().map(|(up, group)| (version, group.to_owned(), up == 0)));
        }
    }
    found
}

/// The root within the hierarchy and the mount point, if a line of `mountinfo` describes the mount of a hierarchy that
/// can limit memory.
fn mounted(line: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    // 35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1).unwrap_or_default());
    let is_its = match version {
        Version::V2 => kind == "cgroup2",
        Version::V1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    is_its.then(|| (PathBuf::from(unescaped(root)), PathBuf::from(unescaped(point))))
}

/// The path of the group `own` relative to a mount point at which `root` is mounted. The path is empty if only the
/// mounted group itself is known to contain `own`. `None` if the mount exposes different groups.
fn below(own: &Path, root: &Path) -> Option<PathBuf> {
    let leaves = |path: &Path| path.components().any(|part| part == Component::ParentDir);
    if let Ok(below) = own.strip_prefix(root)
        && !leaves(below)
    {
        return Some(below.to_owned());
    }
    // Both paths are relative to the root of the process's cgroup namespace, and `/..` is the parent of that root. The
    // names of the groups above the root are unknown here.
    let is_above = root.components().all(|part| matches!(part, Component::RootDir | Component::ParentDir));
    match (leaves(own), leaves(root)) {
        (false, true) if is_above => Some(PathBuf::new()),
        // Some container runtimes mount the process's own group under another name.
        (false, false) => Some(PathBuf::new()),
        _ => None,
    }
}

/// Replaces the escapes that the kernel uses in its tables of mounts.
fn unescaped(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The first number after `key`, in a line that begins with `key`.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests;
