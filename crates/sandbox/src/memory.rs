//! Watches the total memory and threads of a program's processes, where no kernel limit applies to exactly this
//! program.
//!
//! The kernel limits address space per process (`RLIMIT_AS`), and some programs need much more address space than
//! memory (V8). So the resident memory of all processes is added up: private pages, swapped pages, page tables, the
//! files of `/tmp` if `/tmp` is in memory, and the most that their sockets can hold. A shared-memory object is counted
//! once and with its full size, even for pages that no process has touched, since a page is in the resident set only of
//! processes that touched it. Pages of files are not counted, as the kernel can drop them.

use rustix::process::{Pid, Signal};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

/// The shortest time between two measurements. If a measurement takes long, the pause is 20 times its duration.
const OFTEN: Duration = Duration::from_millis(10);
/// The longest time between two measurements.
const AT_LEAST: Duration = Duration::from_millis(50);
/// The maximum number of times that a measurement is repeated, with the processes stopped, because some ended during
/// it: another process may have taken over their memory.
const TRIES: usize = 3;
/// The program counts as over its limit once `suspicion` reaches this value, as it does after three measurements in a
/// row above the limit.
const SURE: u32 = 12;
/// The time between two measurements of file descriptors and shared memory.
const SELDOM: Duration = Duration::from_millis(50);
/// The maximum number of bytes that a socket buffers by default on Linux: twice `wmem_max`.
const SOCKET_BYTES: u64 = 2 * 212_992;
/// The bytes counted for a file of `/tmp` in addition to its contents.
const FILE_BYTES: u64 = 1024;

/// The processes that belong to a program.
#[derive(Clone, Copy)]
pub enum Members {
    /// The processes of this process group, which none of them can leave.
    Group(u32),
    /// The process with this id and all its descendants. In a process namespace, orphaned processes are also
    /// descendants.
    Tree(u32),
}

/// The limit that a program exceeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Excess {
    Memory,
    Threads,
}

/// Watches the memory and threads of one program.
pub struct Watch {
    members: Members,
    /// The program's memory limit in bytes; `None` if a cgroup applies the limit.
    most: Option<u64>,
    /// The program's measured peak memory, in bytes.
    peak: u64,
    /// The limit for the threads of all the program's processes together; `None` if threads are not watched.
    most_threads: Option<u64>,
    /// Whether the last measurement found too many threads.
    crowded: bool,
    /// The nice value of the program's threads.
    nice: i32,
    /// The size of the program's `/tmp`, if it is kept in memory.
    tmp: Option<u64>,
    next: Instant,
    suspicion: u32,
    /// Bytes of sockets and shared memory at the last measurement.
    shared: u64,
    shared_at: Option<Instant>,
}

impl Watch {
    pub fn new(members: Members, most_mb: Option<u64>, tmp_mb: Option<u64>, most_threads: Option<u64>) -> Watch {
        let [most, tmp] = [most_mb, tmp_mb].map(|mb| mb.map(|mb| mb << 20));
        let next = Instant::now() + OFTEN;
        let (peak, suspicion, shared, shared_at, crowded, nice) = (0, 0, 0, None, false, 0);
        Watch { members, most, peak, most_threads, crowded, nice, tmp, next, suspicion, shared, shared_at }
    }

    /// The program's measured peak memory, in bytes; 0 if the program ended before the first measurement.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// The limit that the program exceeds, if any. Measures only when the next measurement is due.
    pub fn exceeds(&mut self) -> Option<Excess> {
        let start = Instant::now();
        if start < self.next || self.most.is_none() && self.most_threads.is_none() {
            return None;
        }
        let most = self.most.unwrap_or(u64::MAX);
        let table = || TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (mut rows, mut most_seen): (Vec<Row>, u64) = (Vec::new(), 0);
        // Stopped processes continue when this guard is dropped, after the decision.
        let mut stopped = Stopped::default();
        for attempt in 0..TRIES {
            let (found, mut lost) = table().members(self.members, attempt > 0);
            stopped.groups.extend(self.groups(&found));
            if attempt == 0 {
                self.yields(&found);
                // Two measurements in a row must find too many threads, since one table may list both a thread that
                // ended and its successor.
                let crowded = self.most_threads.is_some_and(|most| self.threads(&found) > most);
                if std::mem::replace(&mut self.crowded, crowded) && crowded {
                    return Some(Excess::Threads);
                }
                if self.most.is_none() {
                    self.next = due(start);
                    return None;
                }
            }
            let memories: Vec<Option<u64>> =
                found.iter().map(|row| row.memory.or_else(|| memory(row.process, false))).collect();
            // A process without memory has ended or is about to. A child that the table does not list yet may have
            // taken over its memory.
            lost |= memories.iter().any(|bytes| bytes.is_none_or(|bytes| bytes == 0));
            let sum = memories.into_iter().flatten().sum::<u64>();
            if attempt == 0 || sum > most_seen {
                (rows, most_seen) = (found, sum);
            }
            if !lost || most_seen > most {
                break;
            }
            stopped.stop();
        }
        let processes: Vec<u32> = rows.iter().map(|row| row.process).collect();
        if self.shared_at.is_none_or(|at| start - at >= SELDOM) {
            let sockets = processes.iter().map(|&process| sockets(process)).sum::<u64>();
            self.shared = sockets * SOCKET_BYTES + shared_memory(&processes);
            self.shared_at = Some(start);
        }
        let other = self.shared + self.tmp.map_or(0, |size| files(&processes, size));
        // Memory shared by several processes was counted once for each.
        let held = if other + most_seen > most {
            held_together(&rows).map(|sum| other + sum)
        } else {
            Some(other + most_seen)
        };
        self.peak = self.peak.max(held.unwrap_or(0));
        // A child that is about to execute another program briefly holds its parent's memory, and processes that have
        // ended cannot be measured again. Both states are brief, unless a program causes them on purpose.
        self.suspicion = match held {
            Some(held) if held <= most => 0,
            Some(_) => self.suspicion + SURE / 3,
            None => self.suspicion + SURE / 12,
        };
        self.next = due(start);
        (self.suspicion >= SURE).then_some(Excess::Memory)
    }

    /// Raises the nice value of the threads in a process group with the number of running threads, so that each program
    /// gets a share of the cores regardless of its number of threads. (Programs with their own session, as with
    /// bubblewrap, get their share from the kernel's autogroups.)
    fn yields(&mut self, found: &[Row]) {
        let Members::Group(holder) = self.members else { return };
        let own = || found.iter().filter(|row| row.process != holder);
        if self.nice == 0 && own().map(|row| row.threads).sum::<u64>() <= 2 {
            return;
        }
        let threads: Vec<u32> = own().flat_map(|row| threads_of(row.process)).collect();
        let running = own()
            .map(|row| row.process)
            .flat_map(|process| threads_of(process).into_iter().filter(move |thread| is_running(process, *thread)));
        // Each step of the nice value changes a thread's weight by a quarter.
        let level = libm::log(running.count().max(1) as f64) / libm::log(1.25);
        self.nice = self.nice.max((level.ceil() as i32).min(19));
        if self.nice > 0 {
            for thread in threads.into_iter().filter_map(|thread| Pid::from_raw(thread.cast_signed())) {
                // This fails if the thread has ended or belongs to another user.
                let _ = rustix::process::setpriority_process(Some(thread), self.nice);
            }
        }
    }

    /// The number of threads of these processes, excluding the shell that leads the group.
    fn threads(&self, found: &[Row]) -> u64 {
        let holder = match self.members {
            Members::Group(group) => Some(group),
            Members::Tree(_) => None,
        };
        found.iter().filter(|row| Some(row.process) != holder).map(|row| row.threads).sum()
    }

    /// The process groups that contain only processes of the program, which cannot create or join another. The root of
    /// a tree is bubblewrap, whose group is left out because other sandboxes share it.
    fn groups(&self, found: &[Row]) -> HashSet<u32> {
        match self.members {
            Members::Group(group) => HashSet::from([group]),
            Members::Tree(root) => {
                let shared = found.iter().find(|row| row.process == root).map(|row| row.group);
                match shared {
                    Some(shared) => found.iter().map(|row| row.group).filter(|group| *group != shared).collect(),
                    None => HashSet::new(),
                }
            }
        }
    }
}

fn threads_of(process: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a thread runs or waits for a core.
fn is_running(process: u32, thread: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('R'))
}

/// The time of the next measurement, after a measurement that began at `start`.
fn due(start: Instant) -> Instant {
    Instant::now() + OFTEN.max(20 * start.elapsed()).min(AT_LEAST)
}

/// Process groups that are stopped (SIGSTOP) until this guard is dropped. This freezes a program that forks and exits
/// faster than it can be measured. The signal is sent to the whole group, since the kernel restarts a fork that it
/// interrupts.
#[derive(Default)]
struct Stopped {
    groups: HashSet<u32>,
    /// Process groups that were already sent the signal.
    done: HashSet<u32>,
}

impl Stopped {
    fn stop(&mut self) {
        for &group in self.groups.difference(&self.done) {
            signal(group, Signal::STOP);
        }
        self.done.extend(&self.groups);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.done.iter().for_each(|&group| signal(group, Signal::CONT));
    }
}

fn signal(group: u32, signal: Signal) {
    if let Some(group) = Pid::from_raw(group.cast_signed()) {
        // This fails if the group has no process left.
        let _ = rustix::process::kill_process_group(group, signal);
    }
}

/// A recent snapshot of this machine's processes, shared by all running programs.
struct Table {
    rows: Vec<Row>,
    /// PIDs of processes that started before this process and therefore belong to no program.
    older: HashSet<u32>,
    taken: Option<(Instant, Duration)>,
}

#[derive(Clone)]
struct Row {
    process: u32,
    parent: u32,
    group: u32,
    threads: u64,
    /// Memory of the process in bytes, if it was read together with the table.
    memory: Option<u64>,
}

static TABLE: LazyLock<Mutex<Table>> =
    LazyLock::new(|| Mutex::new(Table { rows: Vec::new(), older: HashSet::new(), taken: None }));

impl Table {
    /// The program's processes, newest first, and whether some ended before they could be assigned to a program.
    fn members(&mut self, of: Members, anew: bool) -> (Vec<Row>, bool) {
        let fresh = |(at, took): (Instant, Duration)| at.elapsed() < (OFTEN / 2).max(20 * took).min(AT_LEAST);
        let anew = anew || !self.taken.is_some_and(fresh);
        let lost = anew && self.take(of);
        let members = self.processes(of);
        let mut rows: Vec<Row> = self.rows.iter().filter(|row| members.contains(&row.process)).cloned().collect();
        if !anew {
            for row in &mut rows {
                row.memory = None;
            }
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

    /// Reads the process table, and immediately the memory of these members, since they may be short-lived. Returns
    /// whether some ended before they could be assigned.
    fn take(&mut self, of: Members) -> bool {
        let start = Instant::now();
        let own = stat(std::process::id()).map_or(0, |(_, started)| started);
        // The PIDs may have been reused by now.
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

/// Reads a process's row of the table and its start time.
fn stat(process: u32) -> Option<(Row, u64)> {
    let text = fs::read(format!("/proc/{process}/stat")).ok()?;
    // The process's name may contain any character, so fields are read after the last `)`.
    let text = String::from_utf8_lossy(&text);
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |i: usize| fields.get(i)?.parse().ok();
    let threads = fields.get(17)?.parse().ok()?;
    Some((Row { process, parent: number(1)?, group: number(2)?, threads, memory: None }, fields.get(19)?.parse().ok()?))
}

/// The memory of a process in bytes; with `exact`, its proportional share of shared pages, if that is known. `None` if
/// the process is gone.
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
    match exact.then(|| sum("smaps_rollup", &["Pss_Anon", "SwapPss"])).flatten() {
        Some(share) if share > 0 => Some(share + tables()),
        _ => sum("status", &["RssAnon", "VmSwap", "VmPTE", "HugetlbPages"]),
    }
}

/// The bytes that these processes hold. Memory shared by several processes is counted once: each process counts its
/// proportional share of a page. A parent that waits in `vfork` counts once together with its child, which uses the
/// parent's memory until it executes another program.
fn held_together(rows: &[Row]) -> Option<u64> {
    let waiting = || -> Vec<HashSet<(u32, u64)>> { rows.iter().map(|row| waits(row.process)).collect() };
    let before = waiting();
    let memories: Vec<u64> = rows.iter().map(|row| memory(row.process, true)).collect::<Option<_>>()?;
    let mut held: u64 = memories.iter().sum();
    for (at, (before, after)) in before.iter().zip(waiting()).enumerate() {
        // If a thread waited in `vfork` throughout, one child of its process uses the parent's memory, which was
        // counted twice. Other children of the same size may be mistaken for that child, but not more of them than
        // there are waiting threads.
        let own = memories[at];
        let child_bytes = |(row, bytes): (&Row, &u64)| {
            (row.parent == rows[at].process && *bytes <= own + own / 64).then_some((*bytes).min(own))
        };
        let mut children: Vec<u64> = rows.iter().zip(&memories).filter_map(child_bytes).collect();
        children.sort_unstable_by(|a, b| b.cmp(a));
        held -= children.iter().take(before.intersection(&after).count()).sum::<u64>();
    }
    Some(held)
}

/// The threads of a process that wait in `vfork`, each with the number of its waits so far.
fn waits(process: u32) -> HashSet<(u32, u64)> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let wait = |thread: u32| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{process}/task/{thread}/{file}")).ok();
        let status = read("status")?;
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        // The name of the kernel's function depends on its version.
        let is_wait = field("State")?.starts_with('D')
            && ["kernel_clone", "_do_fork", "do_fork", "wait_for_vfork_done"].contains(&read("wchan")?.trim());
        is_wait.then_some((thread, field("voluntary_ctxt_switches")?.parse().ok()?))
    };
    threads.filter_map(|entry| wait(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The bytes of memory that these processes share with their children. Each shared mapping is counted once.
fn shared_memory(processes: &[u32]) -> u64 {
    let mut pieces: HashMap<(String, String), u64> = HashMap::new();
    for process in processes {
        let maps = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
        for line in String::from_utf8_lossy(&maps).lines() {
            // 7f0000000000-7f0009600000 rw-s 00000000 00:01 1234   /dev/zero (deleted)
            let mut fields = line.split_whitespace();
            let [Some(range), Some(mode), Some(offset), Some(device), Some(inode)] = [(); 5].map(|()| fields.next())
            else {
                continue;
            };
            let anonymous = fields.next().is_some_and(|path| path == "/dev/zero" || path.starts_with("/memfd:"));
            let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
            if mode.ends_with('s')
                && anonymous
                && let Some((from, to)) = range.split_once('-').and_then(|(a, b)| number(a).zip(number(b)))
            {
                let size = pieces.entry((device.to_owned(), inode.to_owned())).or_default();
                *size = (*size).max(number(offset).unwrap_or(0).saturating_add(to.saturating_sub(from)));
            }
        }
    }
    pieces.into_values().fold(0, u64::saturating_add)
}

/// The number of open sockets of the process; 0 if that is not visible.
fn sockets(process: u32) -> u64 {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let is_socket =
        |path: &Path| fs::read_link(path).is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
    entries.filter(|entry| is_socket(&entry.path())).count() as u64
}

/// The bytes that the files of the program's `/tmp` use. That file system is recognised by its `size`, since a sandbox
/// that is still starting sees the machine's own `/tmp`.
fn files(processes: &[u32], size: u64) -> u64 {
    let mut tmps = processes.iter().filter_map(|process| rustix::fs::statvfs(format!("/proc/{process}/root/tmp")).ok());
    match tmps.find(|tmp| tmp.f_blocks * tmp.f_frsize == size) {
        Some(tmp) => (tmp.f_blocks - tmp.f_bfree) * tmp.f_frsize + (tmp.f_files - tmp.f_ffree) * FILE_BYTES,
        None => 0,
    }
}

#[cfg(test)]
mod tests;
