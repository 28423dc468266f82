//! Tests with a tree of ordinary files in place of cgroups. The kernel's part (limits, kills) is not tested.

use super::*;
use crate::judge::tests::{escapes::isolations, judge_in, scored_by};
use crate::place::directory;
use crate::running::{End, Limits};
use crate::sandbox::{Isolation, Outcome, Sandbox};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;
use testing::installed;

/// A directory that looks as if a cgroup tree were mounted there, in which this process is in `/parent/own`.
struct Tree {
    directory: TempDir,
    roots: Roots,
}

impl Tree {
    fn new() -> Tree {
        let directory = directory().unwrap();
        let mount = directory.path().join("a tree");
        let (parent, own) = (mount.join("parent"), mount.join("parent/own"));
        fs::create_dir_all(&own).unwrap();
        fs::write(parent.join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        for (name, text) in [("memory.max", "max\n"), ("cpu.max", "max 100000\n"), ("cpuset.cpus", "\n")] {
            fs::write(own.join(name), text).unwrap();
        }
        let mounts = format!(
            "23 1 0:21 / /proc rw - proc proc rw\n31 23 0:28 / {} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",
            mount.display().to_string().replace(' ', "\\040")
        );
        let own = "4:memory:/elsewhere\n0::/parent/own\n".to_owned();
        Tree { directory, roots: Roots { own, mounts, make, remove } }
    }

    fn parent(&self) -> PathBuf {
        self.directory.path().join("a tree/parent")
    }

    fn cgroups(&self) -> Cgroups {
        Cgroups::find(&self.roots).unwrap()
    }

    fn sandbox(&self, isolation: Isolation) -> Sandbox {
        let mut sandbox = Sandbox::with("bwrap", isolation);
        sandbox.cgroups = Ok(self.cgroups());
        sandbox
    }

    /// The names of the existing cgroups.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.parent()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| name.starts_with("lockstep"));
        names.sort();
        names
    }

    /// The contents of a file in each removed cgroup, without trial cgroups.
    fn ended(&self, file: &str) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path().join("a tree")).unwrap().map(|entry| entry.unwrap().path());
        let ended: Vec<PathBuf> = entries.filter(|path| !path.ends_with("parent")).collect();
        let text = |path: &PathBuf, file: &str| fs::read_to_string(path.join(file)).unwrap();
        let real = ended.iter().filter(|path| text(path, "memory.max") != (64 << 20).to_string());
        real.map(|path| text(path, file)).collect()
    }
}

/// Creates a directory with the files that the kernel creates in a cgroup.
fn make(path: &Path) -> Result<()> {
    fs::create_dir(path)?;
    for (name, text) in [
        ("cgroup.kill", ""),
        ("cgroup.procs", ""),
        ("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"),
        ("memory.max", "max\n"),
        ("memory.oom.group", "0\n"),
        ("memory.peak", "0\n"),
        ("memory.swap.max", "max\n"),
        ("pids.max", "max\n"),
    ] {
        fs::write(path.join(name), text)?;
        // Programs of any user write into these files in place of the kernel.
        fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o666))?;
    }
    Ok(())
}

/// Moves the directory away, so that its files can still be read.
fn remove(path: &Path) -> Result<()> {
    fs::rename(path, path.parent().unwrap().with_file_name(path.file_name().unwrap()))
}

const LIMITS: Limits = Limits {
    wall: Duration::from_secs(600),
    memory_mb: 1024,
    resident_mb: 300,
    processes: 20,
    output: 1 << 16,
    disk_mb: 1,
    compiles: false,
};

/// Runs a shell script. The first line of its input is the directory of the cgroups.
fn run(sandbox: &Sandbox, tree: &Tree, limits: Limits, script: &str) -> Outcome {
    let words = ["/bin/sh", "-c", script].map(str::to_owned);
    let input = format!("{}\n", tree.parent().display());
    sandbox.run(directory().unwrap().path(), &words, input.as_bytes(), limits).unwrap()
}

/// The program reads its limits and its PID from its cgroup.
#[test]
fn a_program_is_in_its_cgroup_before_it_runs() {
    let tree = Tree::new();
    let sandbox = tree.sandbox(Isolation::Nothing);
    let script = "read -r parent; cd \"$parent\"/lockstep-code-*
cat cgroup.procs; echo \" $$\"
for file in memory.max memory.swap.max memory.oom.group pids.max; do cat $file; echo; done
echo 104857600 >memory.peak";
    let outcome = run(&sandbox, &tree, LIMITS, script);
    assert_eq!(outcome.end, End::Exit(0), "{}", outcome.stderr);
    let text = String::from_utf8(outcome.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (inside, own) = lines[0].split_once(' ').unwrap();
    assert!(inside == own && own.parse::<u32>().is_ok(), "{text}");
    assert_eq!(lines[1..], [&(300 << 20).to_string(), "0", "1", "28"]);
    assert_eq!(sandbox.peak.load(Ordering::Relaxed), 100 << 20, "the peak that the kernel measured");
    assert_eq!(
        (tree.ended("cgroup.kill"), tree.names()),
        (vec!["1".to_owned()], vec![]),
        "the cgroup must be killed and removed"
    );
    // The line that opens the gate is not passed to the program, and no program waits forever.
    let outcome = run(&sandbox, &tree, LIMITS, "cat; echo end");
    assert_eq!(String::from_utf8(outcome.stdout).unwrap(), format!("{}\nend\n", tree.parent().display()));
}

/// Moving a process may take arbitrarily long; here it takes until the written PID is read.
#[test]
fn a_program_waits_until_it_has_been_moved() {
    let tree = Tree::new();
    let mut sandbox = Sandbox::with("bwrap", Isolation::Nothing);
    let make = |path: &Path| {
        make(path)?;
        fs::remove_file(path.join("cgroup.procs"))?;
        Ok(rustix::fs::mkfifoat(rustix::fs::CWD, path.join("cgroup.procs"), 0o600.into())?)
    };
    sandbox.cgroups = Ok(Cgroups { make, ..tree.cgroups() });
    std::thread::scope(|scope| {
        // The program gets its input later. The path is quoted, since the sandbox has its own `/tmp/`.
        let parent = tree.parent().display().to_string().replace("/tmp/", "/t''mp/");
        let script = format!("cd '{parent}'/lockstep-code-*; echo $$ >memory.peak; echo $$");
        let outcome = {
            let (sandbox, tree) = (&sandbox, &tree);
            scope.spawn(move || run(sandbox, tree, LIMITS, &script))
        };
        testing::wait_until("the program has a cgroup", || !tree.names().is_empty());
        std::thread::sleep(Duration::from_millis(500));
        let cgroup = tree.parent().join(&tree.names()[0]);
        let before = fs::read_to_string(cgroup.join("memory.peak")).unwrap();
        let moved = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
        let outcome = outcome.join().unwrap();
        assert_eq!(before, "0\n", "it ran");
        assert_eq!((outcome.end, outcome.stdout), (End::Exit(0), format!("{moved}\n").into_bytes()));
    });
}

#[test]
fn a_kill_for_memory_is_reported_as_the_memory_limit() {
    let tree = Tree::new();
    let sandbox = tree.sandbox(Isolation::Nothing);
    let killed = |events: &str, how: &str| {
        let script = format!("read -r parent; cd \"$parent\"/lockstep-code-*; printf '{events}' >memory.events; {how}");
        run(&sandbox, &tree, LIMITS, &script)
    };
    let outcome = killed("max 9\\noom 1\\noom_kill 1\\n", "kill -9 $$");
    assert_eq!(outcome.end, End::TooMuchMemory(300));
    assert_eq!(outcome.words(), "used more than 300 MiB of memory");
    assert_eq!(killed("oom_kill 1\\n", "exit 0").end, End::TooMuchMemory(300), "the kernel may kill only one process");
    assert_eq!(killed("oom 0\\noom_kill 0\\n", "kill -9 $$").end, End::Exit(137));
    // The kernel killed the process because the whole machine ran out of memory.
    assert_eq!(killed("oom 0\\noom_kill 1\\n", "kill -9 $$").end, End::Exit(137));
    assert_eq!(killed("", "exit 3").end, End::Exit(3));
}

/// The score of one Python program without isolation, the reason of its failure, and its measured peak in MiB.
fn scored(sandbox: Sandbox, source: &str, tests: Value) -> (Option<f64>, String, f64) {
    let mut judge = judge_in(sandbox, json!({"language": "python", "unsafe_no_sandbox": true}));
    let (scores, failures) = scored_by(&mut judge, &[("q", source, json!({"tests": tests}))]);
    (scores.values[0], failures[0].clone(), judge.peak_bytes() as f64 / f64::from(1 << 20))
}

/// For programs and for functions, the message is the same as with watched memory. The measured memory is reported.
#[test]
fn a_judge_names_the_limit_and_reports_the_measured_memory() {
    if !installed(&["prlimit", "python3"]) {
        return;
    }
    let tree = Tree::new();
    let ends = "import glob, os
def f(parent):
    for cgroup in glob.glob(parent + '/lockstep-code-*'):
        if open(cgroup + '/cgroup.procs').read() == str(os.getpid()):
            open(cgroup + '/memory.peak', 'w').write(str(512 << 20))
            open(cgroup + '/memory.events', 'w').write('oom 1\\noom_kill 1\\n')
            os.kill(os.getpid(), 9)
";
    let parent = tree.parent().display().to_string();
    let whole = (format!("{ends}f(input())"), json!([{"input": parent, "output": "8"}]));
    let function = (ends.to_owned(), json!([format!("assert f({parent:?}) == 8")]));
    for (source, tests) in [whole, function] {
        let message = "test 1: used more than 512 MiB of memory".to_owned();
        assert_eq!(scored(tree.sandbox(Isolation::Nothing), &source, tests), (Some(0.0), message, 512.0));
    }
}

/// The peak of watched memory is measured too.
#[test]
fn watched_memory_is_reported() {
    if !installed(&["prlimit", "python3"]) {
        return;
    }
    let source = "import time\nx = b'x' * (100 << 20)\ntime.sleep(1)\nprint(8)";
    let tests = json!([{"input": "", "output": "8"}]);
    let (value, failure, peak) = scored(Sandbox::with("bwrap", Isolation::Nothing), source, tests);
    assert_eq!(value, Some(1.0), "{failure}");
    assert!((100.0..200.0).contains(&peak), "{peak}");
}

/// In each isolation, programs wait at the gate whichever user they run as, and the other limits hold.
#[test]
fn programs_of_each_isolation_start_in_cgroups() {
    if !installed(&["python3"]) {
        return;
    }
    for isolation in isolations() {
        let tree = Tree::new();
        let kind: Isolation = serde_json::from_value(isolation.into()).unwrap();
        let sandbox = Sandbox::with("bwrap", kind).that_works(Ok(tree.cgroups())).unwrap();
        assert_eq!(sandbox.name(), format!("{isolation} and seccomp, memory limited by a cgroup"));
        let outcome = run(&sandbox, &tree, LIMITS, "read -r parent; env; ls \"$parent\" && exit 1; exit 0");
        assert_eq!(outcome.end, End::Exit(0), "{isolation}: the tree is hidden");
        let environment = String::from_utf8(outcome.stdout).unwrap();
        assert!(!environment.contains("gate"), "{isolation}: {environment}");
        let limits = Limits { processes: 5, ..LIMITS };
        let script = "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; wait";
        let end = run(&sandbox, &tree, limits, script).end;
        if isolation == "landlock" {
            assert_eq!(end, End::TooManyProcesses(5));
        } else {
            assert_eq!(end, End::Exit(2), "the kernel must refuse a sixth process");
        }
        let options = json!({"language": "python", "isolation": isolation});
        let row = json!({"tests": ["assert f(2) == 4"]});
        let (scores, failures) = scored_by(&mut judge_in(sandbox, options), &[("q", "def f(x): return 2 * x", row)]);
        assert_eq!(scores.values, [Some(1.0)], "{isolation}: {failures:?}");
        // The program and its judge each have a cgroup.
        let most = tree.ended("memory.max");
        assert!([512, 2048].iter().all(|mb: &u64| most.contains(&(mb << 20).to_string())), "{isolation}: {most:?}");
        assert!(tree.ended("cgroup.procs").iter().all(|process| process.parse::<u32>().is_ok()));
        assert_eq!(tree.names(), [""; 0], "{isolation}: a cgroup is left");
    }
}

#[test]
fn cgroups_of_a_killed_process_are_removed() {
    let tree = Tree::new();
    let left = ["lockstep-code-1-0", "lockstep-code-2-0", "lockstep-code-3", "lockstep-code-x-1", "lockstep.scope"];
    for name in left {
        make(&tree.parent().join(name)).unwrap();
    }
    // This cgroup is in use.
    let lock = locked(&tree.parent().join(left[1])).unwrap();
    assert!(locked(&tree.parent().join(left[1])).is_none());
    tree.cgroups();
    assert_eq!(tree.names(), left[1..], "cgroups in use and other directories must stay");
    assert_eq!(tree.ended("cgroup.kill"), ["1"]);
    drop(lock);
    // A process that another test is starting also holds the lock, until it executes its program.
    testing::wait_until("the unused cgroup is removed", || {
        tree.cgroups();
        tree.names() == left[2..]
    });
    // The cgroup of a program stays while in use. A name that already exists is skipped.
    let first = tree.cgroups().cgroup(1, 1).unwrap();
    let next: u64 = first.path.to_str().unwrap().rsplit_once('-').unwrap().1.parse().unwrap();
    for ahead in 1..20 {
        let name = format!("{PREFIX}{}-{}", std::process::id(), next + ahead);
        let _ = fs::create_dir(tree.parent().join(name));
    }
    let second = Cgroups { make, remove, parent: tree.parent() }.cgroup(1, 1).unwrap();
    assert!(first.path.exists() && second.path.exists() && first.path != second.path);
}

/// Each case breaks one condition, and has a part of the reason that a run records.
#[test]
fn memory_is_watched_if_a_condition_for_cgroups_is_missing() {
    type Change = fn(&mut Tree);
    fn own(tree: &Tree, name: &str, text: &str) {
        fs::write(tree.parent().join("own").join(name), text).unwrap();
    }
    let cases: [(&str, Change); 17] = [
        ("is not in a cgroup v2", |tree| tree.roots.own.clear()),
        ("is not in a cgroup v2", |tree| tree.roots.own = "4:memory:/parent/own\n".to_owned()),
        ("no cgroup v2 is mounted", |tree| tree.roots.mounts.clear()),
        ("no cgroup v2 is mounted", |tree| tree.roots.mounts = tree.roots.mounts.replace("- cgroup2", "- cgroup")),
        ("not visible", |tree| tree.roots.own = "0::/\n".to_owned()),
        ("not visible", |tree| tree.roots.own = "0::/../other\n".to_owned()),
        ("not visible", |tree| tree.roots.mounts = tree.roots.mounts.replace("0:28 / ", "0:28 /other ")),
        ("memory controller", |tree| fs::remove_file(tree.parent().join("cgroup.subtree_control")).unwrap()),
        ("memory controller", |tree| fs::write(tree.parent().join("cgroup.subtree_control"), "cpu pids").unwrap()),
        ("has a limit", |tree| own(tree, "memory.max", "17179869184\n")),
        ("has a limit", |tree| own(tree, "memory.high", "17179869184\n")),
        ("has a limit", |tree| own(tree, "cpu.max", "50000 100000\n")),
        ("has a limit", |tree| own(tree, "cpuset.cpus", "0-3\n")),
        ("cannot be moved", |tree| tree.roots.make = |_| Err(ErrorKind::PermissionDenied.into())),
        ("cannot be moved", |tree| tree.roots.make = |path| make_without(path, "memory.max")),
        ("cannot be moved", |tree| tree.roots.make = |path| make_without(path, "cgroup.procs")),
        ("cannot be moved", |tree| tree.roots.remove = |_| Err(ErrorKind::ResourceBusy.into())),
    ];
    for (word, change) in cases {
        let mut tree = Tree::new();
        change(&mut tree);
        let why = Cgroups::find(&tree.roots).unwrap_err();
        assert!(why.contains(word), "{word}: {why}");
    }
    for isolation in isolations() {
        let sandbox = |cgroups| {
            let kind = serde_json::from_value(isolation.into()).unwrap();
            Sandbox::with("bwrap", kind).that_works(cgroups).unwrap()
        };
        assert_eq!(sandbox(Err("why")).name(), format!("{isolation} and seccomp, memory watched (why)"));
        // The parent of the cgroups has vanished, or programs cannot wait in it.
        let cgroups = Tree::new().cgroups();
        let watched = sandbox(Ok(cgroups));
        assert!(watched.name().ends_with("memory watched (programs do not start in a cgroup)"), "{}", watched.name());
    }
}

/// Creates a cgroup without one of its files.
fn make_without(path: &Path, name: &str) -> Result<()> {
    make(path)?;
    fs::remove_file(path.join(name))
}

/// A cgroup that can no longer be created is not a failure of a program.
#[test]
fn a_program_without_its_cgroup_is_not_scored_0() {
    let tree = Tree::new();
    let sandbox = tree.sandbox(Isolation::Nothing);
    fs::remove_dir_all(tree.parent()).unwrap();
    let words = ["/bin/true".to_owned()];
    assert!(sandbox.run(directory().unwrap().path(), &words, b"", LIMITS).is_err());
}

/// The search for cgroups on this machine leaves nothing behind, whatever it finds.
#[test]
fn the_search_on_this_machine_leaves_no_cgroup() {
    if let Ok(cgroups) = Cgroups::find(&Roots::this_process()) {
        let cgroup = cgroups.cgroup(64, 8).unwrap();
        let path = cgroup.path.clone();
        drop(cgroup);
        assert!(!path.exists());
    }
}
