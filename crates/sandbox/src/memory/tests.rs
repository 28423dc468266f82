use super::*;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A shell that leads a process group, runs `first` and then waits.
struct Waiting(Child);

impl Waiting {
    fn new(first: &str) -> Waiting {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("{first} echo x; read -r line")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.process_group(0).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "x\n");
        Waiting(child)
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        signal(self.id(), Signal::KILL);
        let _ = self.0.wait();
    }
}

fn row(process: u32, parent: u32, group: u32, threads: u64) -> Row {
    Row { process, parent, group, threads, memory: None }
}

fn watch(members: Members, most_mb: u64, most_threads: Option<u64>) -> Watch {
    Watch::new(members, Some(most_mb), None, most_threads)
}

/// Measures immediately, with all current processes.
fn measured(watch: &mut Watch) -> Option<Excess> {
    TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).taken = None;
    let start = Instant::now();
    watch.next = start;
    let excess = watch.exceeds();
    let is_due = excess == Some(Excess::Threads) || watch.next >= start + OFTEN;
    assert!(is_due && watch.next <= Instant::now() + AT_LEAST);
    excess
}

#[test]
fn a_process_is_read_from_its_files() {
    let shell = Waiting::new("");
    let (found, started) = stat(shell.id()).unwrap();
    let (own, own_started) = stat(std::process::id()).unwrap();
    assert_eq!((found.process, found.parent, found.group, found.threads), (shell.id(), own.process, shell.id(), 1));
    assert!(found.memory.is_none() && started >= own_started && own_started > 0 && own.threads >= 2);
    assert!(stat(u32::MAX).is_none() && memory(u32::MAX, false).is_none() && memory(u32::MAX, true).is_none());
    let lines = |file: &str, names: &[&str]| {
        let text = fs::read_to_string(format!("/proc/{}/{file}", shell.id())).unwrap();
        let of = |name: &&str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).unwrap_or("0 kB");
            line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
        };
        names.iter().map(of).sum::<u64>()
    };
    let resident = lines("status", &["RssAnon", "VmSwap", "VmPTE", "HugetlbPages"]);
    assert!(resident > 0);
    assert_eq!(memory(shell.id(), false), Some(resident));
    if Path::new(&format!("/proc/{}/smaps_rollup", shell.id())).exists() {
        let share = lines("smaps_rollup", &["Pss_Anon", "SwapPss"]) + lines("status", &["VmPTE", "HugetlbPages"]);
        assert_eq!(memory(shell.id(), true), Some(share));
    }
}

#[test]
fn sockets_are_counted() {
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "read -r line"]).stdin(std::os::fd::OwnedFd::from(one)).stderr(Stdio::null());
    shell.stdout(std::os::fd::OwnedFd::from(other.try_clone().unwrap()));
    let shell = Waiting(shell.process_group(0).spawn().unwrap());
    assert_eq!(sockets(shell.id()), 2);
    assert_eq!((sockets(Waiting::new("").id()), sockets(u32::MAX)), (0, 0));
    assert_eq!(shared_memory(&[shell.id(), u32::MAX]), 0);
}

/// Only the sandbox's `/tmp` is counted, not other file systems.
#[test]
fn files_are_counted_only_in_the_sandboxs_tmp() {
    let tmp = rustix::fs::statvfs("/tmp").unwrap();
    let (size, own) = (tmp.f_blocks * tmp.f_frsize, std::process::id());
    assert!(files(&[u32::MAX, own], size) > 0);
    assert_eq!([files(&[own], size + 1), files(&[own], size - 1), files(&[], size)], [0, 0, 0]);
}

#[test]
fn a_program_is_a_group_or_a_tree_of_processes() {
    let rows = vec![row(5, 4, 9, 1), row(4, 2, 9, 1), row(3, 1, 7, 1), row(2, 1, 8, 1), row(1, 0, 7, 1)];
    let mut table = Table { rows, older: HashSet::new(), taken: None };
    for (members, expected) in [
        (Members::Group(9), &[4, 5][..]),
        (Members::Group(7), &[1, 3]),
        (Members::Group(6), &[]),
        (Members::Tree(1), &[1, 2, 3, 4, 5]),
        (Members::Tree(2), &[2, 4, 5]),
        (Members::Tree(5), &[5]),
        (Members::Tree(6), &[6]),
    ] {
        assert_eq!(table.processes(members), expected.iter().copied().collect());
    }
    // While the table is fresh it is reused, without the memory that was read with it.
    table.rows[0].memory = Some(3);
    table.taken = Some((Instant::now() + Duration::from_secs(60), Duration::ZERO));
    let (rows, lost) = table.members(Members::Group(9), false);
    assert_eq!(rows.iter().map(|row| (row.process, row.memory)).collect::<Vec<_>>(), [(5, None), (4, None)]);
    assert!(!lost && table.rows.len() == 5);
    let (rows, _) = table.members(Members::Group(9), true);
    assert!(rows.iter().all(|row| row.group == 9) && !table.rows.iter().any(|row| (1..=5).contains(&row.process)));
}

/// A new table contains the memory of the members, and excludes processes that are older than this process.
#[test]
fn a_new_table_has_the_running_processes() {
    let (shell, other) = (Waiting::new(""), Waiting::new(""));
    let mut table = Table { rows: Vec::new(), older: HashSet::new(), taken: None };
    let (rows, _) = table.members(Members::Group(shell.id()), true);
    let [found] = &rows[..] else { panic!("{} rows", rows.len()) };
    assert_eq!((found.process, found.group), (shell.id(), shell.id()));
    assert!(found.memory.is_some_and(|bytes| bytes > 0) && table.older.contains(&1));
    let others = |process| table.rows.iter().find(|row| row.process == process).map(|row| row.memory);
    assert_eq!((others(other.id()), others(1)), (Some(None), None));
    // The newest process comes first.
    let place = |process| table.rows.iter().position(|row| row.process == process).unwrap();
    assert!(place(other.id()) < place(shell.id()) || other.id() < shell.id());
    assert!(table.taken.is_some());
}

#[test]
fn threads_and_groups_are_those_of_the_program_alone() {
    let found = [row(7, 1, 7, 4), row(8, 7, 7, 2), row(9, 8, 9, 1)];
    let of = |members| watch(members, 1, None);
    assert_eq!(of(Members::Group(7)).threads(&found), 3);
    assert_eq!(of(Members::Tree(7)).threads(&found), 7);
    assert_eq!(of(Members::Group(7)).groups(&found), HashSet::from([7]));
    assert_eq!(of(Members::Tree(7)).groups(&found), HashSet::from([9]));
    assert_eq!(of(Members::Tree(6)).groups(&found), HashSet::new());
}

/// Three measurements in a row must exceed the limit; a measurement below it resets the count.
#[test]
fn memory_above_the_limit_counts_at_the_third_measurement() {
    let shell = Waiting::new("");
    for members in [Members::Group(shell.id()), Members::Tree(shell.id())] {
        let mut watch = watch(members, 0, None);
        let first: Vec<_> = (0..2).map(|_| (measured(&mut watch), watch.suspicion)).collect();
        assert_eq!(first, [(None, 4), (None, 8)]);
        watch.most = Some(1 << 40);
        assert_eq!((measured(&mut watch), watch.suspicion), (None, 0));
        watch.most = Some(0);
        let then: Vec<_> = (0..3).map(|_| measured(&mut watch)).collect();
        assert_eq!(then, [None, None, Some(Excess::Memory)]);
        // Between two measurements nothing is measured.
        watch.next = Instant::now() + Duration::from_secs(600);
        assert_eq!((watch.exceeds(), watch.suspicion), (None, 12));
    }
    // The shell stays below a limit of 64 MiB.
    let mut roomy = watch(Members::Group(shell.id()), 64, None);
    assert_eq!(((0..4).map(|_| measured(&mut roomy)).collect::<Vec<_>>(), roomy.most), (vec![None; 4], Some(64 << 20)));
    let with_tmp = Watch::new(Members::Tree(1), Some(1), Some(2), Some(3));
    assert_eq!((with_tmp.most, with_tmp.tmp, with_tmp.most_threads), (Some(1 << 20), Some(2 << 20), Some(3)));
    assert!(with_tmp.next > Instant::now() - OFTEN && with_tmp.shared_at.is_none());
}

#[test]
fn threads_above_the_limit_count_at_the_second_measurement() {
    let shell = Waiting::new("sleep 1000 >/dev/null & sleep 1000 >/dev/null &");
    let excess = |most: Option<u64>| {
        let mut watch = watch(Members::Group(shell.id()), 1 << 20, most);
        [measured(&mut watch), measured(&mut watch)]
    };
    assert_eq!(excess(Some(1)), [None, Some(Excess::Threads)]);
    assert_eq!((excess(Some(2)), excess(None)), ([None; 2], [None; 2]));
    let mut watch = watch(Members::Group(shell.id()), 1 << 20, Some(1));
    assert_eq!(measured(&mut watch), None);
    watch.most_threads = Some(2);
    assert_eq!(measured(&mut watch), None);
    watch.most_threads = Some(1);
    assert_eq!([measured(&mut watch), measured(&mut watch)], [None, Some(Excess::Threads)], "twice in a row");
}

#[test]
fn stopped_processes_continue_afterwards() {
    let shell = Waiting::new("");
    let until = |stopped: bool| {
        let state = || fs::read_to_string(format!("/proc/{}/stat", shell.id())).unwrap().contains(") T ");
        testing::wait_until("it is stopped or continues", || state() == stopped);
    };
    let mut groups = Stopped::default();
    groups.stop();
    assert!(groups.done.is_empty());
    groups.groups.insert(shell.id());
    groups.stop();
    assert_eq!(groups.done, HashSet::from([shell.id()]));
    until(true);
    drop(groups);
    until(false);
}

/// A parent and its child share one memory until the child executes another program; here the child waits for a pipe
/// before that.
#[test]
fn the_memory_of_a_parent_that_waits_in_vfork_counts_once() {
    if !testing::installed(&["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "import os, sys, time
x = b'x' * (200 << 20)
# Another child, which shares nothing in the end.
more = int(sys.argv[1])
if more and os.fork() == 0:
    y = b'y' * (more << 20)
    open('ready', 'w').close()
    time.sleep(100)
while more and not os.path.exists('ready'): time.sleep(0.01)
os.mkfifo('pipe')
os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, 'pipe', os.O_RDONLY, 0)])
";
    for (more, most_mb, expected) in [(0, 300, [None; 3]), (200, 300, [None, None, Some(Excess::Memory)])] {
        let dir = dir.path().join(more.to_string());
        fs::create_dir(&dir).unwrap();
        let mut python = Command::new("python3");
        python.args(["-I", "-c", script, &more.to_string()]).current_dir(&dir).process_group(0);
        let child = python.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let python = Waiting(child);
        testing::wait_until("the program waits", || !waits(python.id()).is_empty());
        let mut watch = watch(Members::Group(python.id()), most_mb, None);
        let found: Vec<Option<Excess>> = (0..3).map(|_| measured(&mut watch)).collect();
        assert_eq!(found, expected, "{more} MiB in another child");
        let peak = watch.peak() >> 20;
        assert!((200..240 + more).contains(&peak) && peak >= 200 + more, "{more}: {peak}");
    }
}
