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

/// As often as this, or as one looks with a twentieth of the time.
const OFTEN: Duration = Duration::from_millis(10);
/// But never less often.
const AT_LEAST: Duration = Duration::from_millis(50);
/// How often one looks once more if processes ended while they were looked at: their memory may be another's by then.
const TRIES: usize = 10;
/// What three looks in a row that find too much add up to.
const SURE: u32 = 12;
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
    suspicion: u32,
    sockets: u64,
    sockets_at: Option<Instant>,
}

impl Watch {
    pub fn new(members: Members, most_mb: u64, tmp_mb: Option<u64>) -> Watch {
        let (most, tmp) = (most_mb << 20, tmp_mb.map(|mb| mb << 20));
        Watch { members, most, tmp, next: Instant::now() + OFTEN, suspicion: 0, sockets: 0, sockets_at: None }
    }

    /// Whether it uses more than it may; looks only if it is time to.
    pub fn exceeds(&mut self) -> bool {
        let start = Instant::now();
        if start < self.next {
            return false;
        }
        let table = || TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (mut processes, mut most_seen) = (Vec::new(), 0);
        for attempt in 0..TRIES {
            let (found, mut lost) = table().members(self.members, attempt > 0);
            let memories: Vec<Option<u64>> =
                found.iter().map(|row| row.memory.or_else(|| memory(row.process, false))).collect();
            lost |= memories.contains(&None);
            let sum = memories.into_iter().flatten().sum::<u64>();
            if attempt == 0 || sum > most_seen {
                (processes, most_seen) = (found.into_iter().map(|row| row.process).collect(), sum);
            }
            if !lost || most_seen > self.most {
                break;
            }
        }
        if self.sockets_at.is_none_or(|at| start - at >= SELDOM) {
            self.sockets = processes.iter().map(|&process| sockets(process)).sum::<u64>() * SOCKET_BYTES;
            self.sockets_at = Some(start);
        }
        let other = self.sockets + self.tmp.map_or(0, |size| files(&processes, size));
        // What processes share was counted for each of them.
        let shares: Option<Vec<u64>> = match other + most_seen > self.most {
            true => processes.iter().map(|&process| memory(process, true)).collect(),
            false => Some(Vec::new()),
        };
        // A child that is about to run another program has its parent's memory for a moment, and what is gone by now
        // cannot be counted any better: neither lasts, but for those that want it to.
        self.suspicion = match shares.map(|shares| other + shares.into_iter().sum::<u64>() > self.most) {
            Some(false) => 0,
            Some(true) => self.suspicion + SURE / 3,
            None => self.suspicion + SURE / 12,
        };
        self.next = Instant::now() + OFTEN.max(20 * start.elapsed()).min(AT_LEAST);
        self.suspicion >= SURE
    }
}

/// The processes of this machine, as of a moment ago: one table for all programs that run at once.
struct Table {
    rows: Vec<Row>,
    /// Those that started before we did, so that they are no program's.
    older: HashSet<u32>,
    taken: Option<(Instant, Duration)>,
}

#[derive(Clone)]
struct Row {
    process: u32,
    parent: u32,
    group: u32,
    /// If it was read with the table.
    memory: Option<u64>,
}

static TABLE: LazyLock<Mutex<Table>> =
    LazyLock::new(|| Mutex::new(Table { rows: Vec::new(), older: HashSet::new(), taken: None }));

impl Table {
    /// The newest first; and whether some ended before it was known whose they were.
    fn members(&mut self, of: Members, anew: bool) -> (Vec<Row>, bool) {
        let fresh = |(at, took): (Instant, Duration)| at.elapsed() < (OFTEN / 2).max(20 * took).min(AT_LEAST);
        let anew = anew || !self.taken.is_some_and(fresh);
        let lost = anew && self.take(of);
        let members = self.processes(of);
        let mut rows: Vec<Row> = self.rows.iter().filter(|row| members.contains(&row.process)).cloned().collect();
        if !anew {
            rows.iter_mut().for_each(|row| row.memory = None);
        }
        (rows, lost)
    }

    fn processes(&self, of: Members) -> HashSet<u32> {
        match of {
            Members::Group(group) => self.rows.iter().filter(|row| row.group == group).map(|row| row.process).collect(),
            Members::Tree(root) => {
                let mut tree = vec![root];
                let mut next = 0;
                while let Some(&parent) = tree.get(next) {
                    tree.extend(self.rows.iter().filter(|row| row.parent == parent).map(|row| row.process));
                    next += 1;
                }
                tree.into_iter().collect()
            }
        }
    }

    /// Reads the memory of these members at once, as they may live for a moment only.
    fn take(&mut self, of: Members) -> bool {
        let start = Instant::now();
        let own = stat(std::process::id()).map_or(0, |(_, started)| started);
        // A number may be another's by now.
        if self.taken.is_none_or(|(at, _)| at.elapsed() > Duration::from_secs(1)) {
            self.older.clear();
        }
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut processes: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        processes.reverse();
        let known = self.processes(of);
        let mut lost = false;
        let listed: HashSet<u32> = processes.iter().copied().collect();
        self.older.retain(|process| listed.contains(process));
        self.rows.clear();
        for process in processes {
            if self.older.contains(&process) {
                continue;
            }
            match stat(process) {
                Some((_, started)) if started < own => drop(self.older.insert(process)),
                Some((mut row, _)) => {
                    let is_member = match of {
                        Members::Group(group) => row.group == group,
                        Members::Tree(_) => known.contains(&row.parent),
                    };
                    row.memory = is_member.then(|| memory(process, false)).flatten();
                    self.rows.push(row);
                }
                None => lost = true,
            }
        }
        self.taken = Some((Instant::now(), start.elapsed()));
        lost
    }
}

/// Of a process, and when it started.
fn stat(process: u32) -> Option<(Row, u64)> {
    let text = fs::read(format!("/proc/{process}/stat")).ok()?;
    // Its name may hold anything.
    let text = String::from_utf8_lossy(&text);
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |i: usize| fields.get(i)?.parse().ok();
    Some((Row { process, parent: number(1)?, group: number(2)?, memory: None }, fields.get(19)?.parse().ok()?))
}

/// The bytes of a process, its share of what it shares if `exact` and if that can be known; none if it is gone.
fn memory(process: u32, exact: bool) -> Option<u64> {
    let sum = |file: &str, names: &[&str]| {
        let text = fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
        let of = |line: &str| {
            let (name, rest) = line.split_once(':')?;
            names.contains(&name).then(|| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).flatten()
        };
        Some(text.lines().filter_map(of).sum::<u64>() << 10)
    };
    let tables = || sum("status", &["VmPTE", "HugetlbPages"]).unwrap_or(0);
    match exact.then(|| sum("smaps_rollup", &["Pss_Anon", "Pss_Shmem", "SwapPss"])).flatten() {
        Some(share) if share > 0 => Some(share + tables()),
        _ => sum("status", &["RssAnon", "RssShmem", "VmSwap", "VmPTE", "HugetlbPages"]),
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
