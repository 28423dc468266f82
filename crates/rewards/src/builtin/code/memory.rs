//! What the processes of a program use together, looked at again and again.
//!
//! Address space is limited per process (`RLIMIT_AS`), and some need much more of it than memory (V8). So the resident
//! memory of all is added: private and shared pages, what is swapped, page tables, the files of `/tmp` where that is
//! memory, and the most that their sockets can hold. Pages of files are not counted, as the kernel can drop them.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

/// As often as this, or as one looks with a tenth of the time.
const OFTEN: Duration = Duration::from_millis(5);
/// Descriptors are looked at less often.
const SELDOM: Duration = Duration::from_millis(50);
/// The most that Linux lets a socket hold by default: twice `wmem_max`.
const SOCKET_BYTES: u64 = 2 * 212_992;
/// A file of `/tmp` without its contents.
const FILE_BYTES: u64 = 1024;

/// Which processes are a program's.
#[derive(Clone, Copy)]
pub enum Members {
    /// Those of this process group, which none can leave.
    Group(u32),
    /// This one, and all that descend from it: in a namespace orphans do, too.
    Tree(u32),
}

/// Watches a program.
pub struct Watch {
    members: Members,
    most: u64,
    /// The size of its `/tmp`, if that is memory.
    tmp: Option<u64>,
    next: Instant,
    sockets: u64,
    sockets_at: Option<Instant>,
}

impl Watch {
    pub fn new(members: Members, most_mb: u64, tmp_mb: Option<u64>) -> Watch {
        let (most, tmp) = (most_mb << 20, tmp_mb.map(|mb| mb << 20));
        Watch { members, most, tmp, next: Instant::now() + OFTEN, sockets: 0, sockets_at: None }
    }

    /// Whether it uses more than it may; looks only if it is time to.
    pub fn exceeds(&mut self) -> bool {
        let start = Instant::now();
        if start < self.next {
            return false;
        }
        let processes = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).members(self.members);
        if self.sockets_at.is_none_or(|at| start - at >= SELDOM) {
            self.sockets = processes.iter().map(|&process| sockets(process)).sum::<u64>() * SOCKET_BYTES;
            self.sockets_at = Some(start);
        }
        let other = self.sockets + self.tmp.map_or(0, |size| files(&processes, size));
        let used = |exact| other + processes.iter().map(|&process| memory(process, exact)).sum::<u64>();
        // What processes share was counted for each of them.
        let exceeds = used(false) > self.most && used(true) > self.most;
        self.next = Instant::now() + OFTEN.max(10 * start.elapsed());
        exceeds
    }
}

/// The processes of this machine, as of a moment ago: one table for all programs that run at once.
struct Table {
    rows: Vec<Row>,
    /// Those that started before we did, so that they are no program's.
    older: HashSet<u32>,
    taken: Option<(Instant, Duration)>,
}

struct Row {
    process: u32,
    parent: u32,
    group: u32,
}

static TABLE: LazyLock<Mutex<Table>> =
    LazyLock::new(|| Mutex::new(Table { rows: Vec::new(), older: HashSet::new(), taken: None }));

impl Table {
    fn members(&mut self, of: Members) -> Vec<u32> {
        let fresh = |(at, took): (Instant, Duration)| at.elapsed() < (OFTEN / 2).max(10 * took);
        if !self.taken.is_some_and(fresh) {
            self.take();
        }
        match of {
            Members::Group(group) => self.rows.iter().filter(|row| row.group == group).map(|row| row.process).collect(),
            Members::Tree(root) => {
                let mut tree = vec![root];
                let mut next = 0;
                while let Some(&parent) = tree.get(next) {
                    tree.extend(self.rows.iter().filter(|row| row.parent == parent).map(|row| row.process));
                    next += 1;
                }
                tree
            }
        }
    }

    fn take(&mut self) {
        let start = Instant::now();
        let own = stat(std::process::id()).map_or(0, |(_, started)| started);
        // A number may be another's by now.
        if self.taken.is_none_or(|(at, _)| at.elapsed() > Duration::from_secs(1)) {
            self.older.clear();
        }
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        let listed: HashSet<u32> = processes.iter().copied().collect();
        self.older.retain(|process| listed.contains(process));
        self.rows.clear();
        for process in processes {
            if !self.older.contains(&process)
                && let Some((row, started)) = stat(process)
            {
                match started < own {
                    true => drop(self.older.insert(process)),
                    false => self.rows.push(row),
                }
            }
        }
        self.taken = Some((Instant::now(), start.elapsed()));
    }
}

/// Of a process, and when it started.
fn stat(process: u32) -> Option<(Row, u64)> {
    let text = fs::read(format!("/proc/{process}/stat")).ok()?;
    // Its name may hold anything.
    let text = String::from_utf8_lossy(&text);
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |i: usize| fields.get(i)?.parse().ok();
    Some((Row { process, parent: number(1)?, group: number(2)? }, fields.get(19)?.parse().ok()?))
}

/// The bytes of a process, its share of what it shares if `exact` and if that can be known; 0 if it has ended.
fn memory(process: u32, exact: bool) -> u64 {
    let sum = |file: &str, names: &[&str]| {
        let text = fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
        let of = |line: &str| {
            let (name, rest) = line.split_once(':')?;
            names.contains(&name).then(|| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).flatten()
        };
        Some(text.lines().filter_map(of).sum::<u64>() << 10)
    };
    let tables = || sum("status", &["VmPTE"]).unwrap_or(0);
    match exact.then(|| sum("smaps_rollup", &["Pss_Anon", "Pss_Shmem", "SwapPss"])).flatten() {
        Some(share) if share > 0 => share + tables(),
        _ => sum("status", &["RssAnon", "RssShmem", "VmSwap", "VmPTE"]).unwrap_or(0),
    }
}

/// How many sockets it has; none where that cannot be seen.
fn sockets(process: u32) -> u64 {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let is_socket =
        |path: &Path| fs::read_link(path).is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
    entries.filter(|entry| is_socket(&entry.path())).count() as u64
}

/// What the files of `/tmp` use there; it is known by its size, as a sandbox that is still made has ours.
fn files(processes: &[u32], size: u64) -> u64 {
    let mut tmps = processes.iter().filter_map(|process| rustix::fs::statvfs(format!("/proc/{process}/root/tmp")).ok());
    match tmps.find(|tmp| tmp.f_blocks * tmp.f_frsize == size) {
        Some(tmp) => (tmp.f_blocks - tmp.f_bfree) * tmp.f_frsize + (tmp.f_files - tmp.f_ffree) * FILE_BYTES,
        None => 0,
    }
}
