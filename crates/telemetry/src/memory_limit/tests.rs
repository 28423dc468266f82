use super::*;

const V2: &str = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:16 - cgroup cgroup rw,memory\n\
    36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n";
const NONE_V1: &str = "9223372036854771712\n";

/// A process with 1 MiB of resident memory, 8 MiB of address space and 4 MiB of data, on a machine with 1 GiB of
/// memory.
const MACHINE: [(&str, &str); 3] = [
    ("/proc/meminfo", "MemTotal:        1048576 kB\nMemFree: 1 kB\n"),
    ("/proc/self/status", "Name:\tx\nVmSize:\t    8192 kB\nVmRSS:\t    1024 kB\nVmData:\t    4096 kB\n"),
    (
        "/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max data size             unlimited            unlimited            bytes     \n\
         Max address space         unlimited            unlimited            bytes     \n",
    ),
];

/// A case: its name, the content of `cgroup` and `mountinfo`, further files, and the expected limits as strings
/// `bytes/used source`, the lowest first.
type Row<'a> = (&'a str, &'a str, &'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);

const USED: &str = "1048576";

const ROWS: &[Row<'_>] = &[
    ("no control groups", "", "", &[], &[]),
    (
        "v2: the root of a container's namespace",
        "0::/\n",
        V2,
        &[("/sys/fs/cgroup/memory.max", "60000000\n")],
        &["60000000/1048576 /sys/fs/cgroup/memory.max"],
    ),
    (
        "v2: the process's own group is limited",
        "0::/a/b\n",
        V2,
        &[("/sys/fs/cgroup/a/b/memory.max", "5000000\n"), ("/sys/fs/cgroup/a/memory.max", "max\n")],
        &["5000000/1048576 /sys/fs/cgroup/a/b/memory.max"],
    ),
    (
        "v2: a parent group is limited (Slurm)",
        "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
        V2,
        &[
            ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max", "70000000\n"),
            ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/memory.max", "max\n"),
        ],
        &["70000000/1048576 /sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max"],
    ),
    (
        "v2: the lowest of several limits is first",
        "0::/a/b/c\n",
        V2,
        &[
            ("/sys/fs/cgroup/a/b/c/memory.max", "9000000\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "7000000\n"),
            ("/sys/fs/cgroup/a/memory.max", "8000000\n"),
        ],
        &[
            "7000000/1048576 /sys/fs/cgroup/a/b/memory.max",
            "8000000/1048576 /sys/fs/cgroup/a/memory.max",
            "9000000/1048576 /sys/fs/cgroup/a/b/c/memory.max",
        ],
    ),
    (
        "v2: a sibling group does not count",
        "0::/a/b\n",
        V2,
        &[("/sys/fs/cgroup/a/other/memory.max", "1\n"), ("/sys/fs/cgroup/b/memory.max", "1\n")],
        &[],
    ),
    (
        "v2: memory.high (systemd's MemoryHigh)",
        "0::/a\n",
        V2,
        &[("/sys/fs/cgroup/a/memory.high", "4000000\n"), ("/sys/fs/cgroup/a/memory.max", "6000000\n")],
        &["4000000/1048576 /sys/fs/cgroup/a/memory.high", "6000000/1048576 /sys/fs/cgroup/a/memory.max"],
    ),
    (
        "v2: a limit of 0",
        "0::/a\n",
        V2,
        &[("/sys/fs/cgroup/a/memory.max", "0\n")],
        &["0/1048576 /sys/fs/cgroup/a/memory.max"],
    ),
    (
        "v2: a limit above the machine's memory is ignored",
        "0::/a\n",
        V2,
        &[("/sys/fs/cgroup/a/memory.max", "1073741825\n"), ("/sys/fs/cgroup/a/memory.high", "1073741824\n")],
        &[],
    ),
    (
        "v2: memory of other processes counts, the file cache does not",
        "0::/a/b\n",
        V2,
        &[
            ("/sys/fs/cgroup/a/memory.max", "90000000\n"),
            ("/sys/fs/cgroup/a/memory.current", "50000000\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 1\nfile 20000000\ninactive_file 7000000\nactive_file 3000000\n"),
        ],
        &["90000000/40000000 /sys/fs/cgroup/a/memory.max"],
    ),
    (
        "v2: the file cache is larger than the usage",
        "0::/a\n",
        V2,
        &[
            ("/sys/fs/cgroup/a/memory.max", "90000000\n"),
            ("/sys/fs/cgroup/a/memory.current", "5\n"),
            ("/sys/fs/cgroup/a/memory.stat", "inactive_file 7\nactive_file 3\n"),
        ],
        &["90000000/1048576 /sys/fs/cgroup/a/memory.max"],
    ),
    (
        "v2: the path is the host's, and the container mounts its own part of it",
        "0::/kubepods/pod1/box\n",
        "9 8 0:28 /kubepods/pod1/box /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
        &[("/sys/fs/cgroup/memory.max", "3000000\n")],
        &["3000000/1048576 /sys/fs/cgroup/memory.max"],
    ),
    (
        "v2: the group is below the mounted part",
        "0::/pods/box/job/step\n",
        "9 8 0:28 /pods/box /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
        &[("/sys/fs/cgroup/job/memory.max", "3000000\n"), ("/sys/fs/cgroup/job/step/memory.max", "4000000\n")],
        &["3000000/1048576 /sys/fs/cgroup/job/memory.max", "4000000/1048576 /sys/fs/cgroup/job/step/memory.max"],
    ),
    (
        "v2: the mounted group is above the namespace",
        "0::/\n",
        "9 8 0:28 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
        &[("/sys/fs/cgroup/memory.max", "3000000\n")],
        &["3000000/1048576 /sys/fs/cgroup/memory.max"],
    ),
    (
        "v2: the process was moved out of the mounted namespace",
        "0::/../other\n",
        V2,
        &[("/sys/fs/cgroup/memory.max", "3000000\n")],
        &[],
    ),
    (
        "v2: the mounted group is a sibling of the namespace",
        "0::/\n",
        "9 8 0:28 /../sibling /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
        &[("/sys/fs/cgroup/memory.max", "3000000\n")],
        &[],
    ),
    (
        "v2: the container runtime hides the path",
        "0::/\n",
        "9 8 0:28 /machine/box /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
        &[("/sys/fs/cgroup/memory.max", "3000000\n")],
        &["3000000/1048576 /sys/fs/cgroup/memory.max"],
    ),
    (
        "v2: the mount point has a space and a backslash",
        "0::/a:b/c d\n",
        "9 8 0:28 / /mnt/my\\040groups\\134x rw - cgroup2 none rw\n",
        &[("/mnt/my groups\\x/a:b/memory.max", "3000000\n")],
        &["3000000/1048576 /mnt/my groups\\x/a:b/memory.max"],
    ),
    (
        "v2: the process's own group was deleted",
        "0::/a/gone (deleted)\n",
        V2,
        &[("/sys/fs/cgroup/a/memory.max", "3000000\n")],
        &["3000000/1048576 /sys/fs/cgroup/a/memory.max"],
    ),
    (
        "v1: the process's own group is limited",
        "5:cpu,cpuacct:/x\n4:memory:/job\n",
        V1,
        &[("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "60000000\n")],
        &["60000000/1048576 /sys/fs/cgroup/memory/job/memory.limit_in_bytes"],
    ),
    (
        "v1: a parent group is limited (Slurm)",
        "4:memory:/slurm/uid_7/job_8/step_0\n",
        V1,
        &[
            ("/sys/fs/cgroup/memory/slurm/uid_7/job_8/memory.limit_in_bytes", "60000000\n"),
            ("/sys/fs/cgroup/memory/slurm/uid_7/job_8/memory.use_hierarchy", "1\n"),
            ("/sys/fs/cgroup/memory/slurm/uid_7/job_8/step_0/memory.limit_in_bytes", NONE_V1),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", NONE_V1),
        ],
        &["60000000/1048576 /sys/fs/cgroup/memory/slurm/uid_7/job_8/memory.limit_in_bytes"],
    ),
    (
        "v1: a parent group does not count its children",
        "4:memory:/a/b\n",
        V1,
        &[
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "60000000\n"),
            ("/sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n"),
            ("/sys/fs/cgroup/memory/a/b/memory.use_hierarchy", "0\n"),
            ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "70000000\n"),
        ],
        &["70000000/1048576 /sys/fs/cgroup/memory/a/b/memory.limit_in_bytes"],
    ),
    (
        "v1: the limited group is not visible",
        "4:memory:/docker/box\n",
        "9 8 0:32 /docker/box /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        &[
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", NONE_V1),
            ("/sys/fs/cgroup/memory/memory.stat", "cache 1\nhierarchical_memory_limit 4000000\ntotal_cache 2\n"),
        ],
        &["4000000/1048576 /sys/fs/cgroup/memory/memory.stat (hierarchical_memory_limit)"],
    ),
    (
        "v1: usage excludes the file cache and includes child groups",
        "4:memory:/a\n",
        V1,
        &[
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "90000000\n"),
            ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "50000000\n"),
            (
                "/sys/fs/cgroup/memory/a/memory.stat",
                "inactive_file 1\nactive_file 1\ntotal_inactive_file 8000000\ntotal_active_file 2000000\n",
            ),
        ],
        &["90000000/40000000 /sys/fs/cgroup/memory/a/memory.limit_in_bytes"],
    ),
    (
        "v1: memory shares a hierarchy with another controller",
        "3:cpu,memory:/a\n",
        "9 8 0:32 / /cgroups rw - cgroup none rw,cpu,memory\n",
        &[("/cgroups/a/memory.limit_in_bytes", "60000000\n")],
        &["60000000/1048576 /cgroups/a/memory.limit_in_bytes"],
    ),
    (
        "hybrid: v1 controls memory, and v2 does not",
        "4:memory:/job\n1:name=systemd:/\n0::/user.slice\n",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        &[
            ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "60000000\n"),
            ("/sys/fs/cgroup/unified/user.slice/cgroup.procs", "1\n"),
        ],
        &["60000000/1048576 /sys/fs/cgroup/memory/job/memory.limit_in_bytes"],
    ),
    (
        "one hierarchy is mounted twice",
        "0::/a/b\n",
        "9 8 0:28 /a /mnt/a rw - cgroup2 none rw\n31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        &[("/mnt/a/b/memory.max", "5000000\n"), ("/sys/fs/cgroup/a/memory.max", "4000000\n")],
        &["4000000/1048576 /sys/fs/cgroup/a/memory.max", "5000000/1048576 /mnt/a/b/memory.max"],
    ),
    (
        "ulimit -v and -d count mapped memory",
        "",
        "",
        &[(
            "/proc/self/limits",
            "Max data size             50000000             unlimited            bytes     \n\
             Max address space         40000000             60000000             bytes     \n",
        )],
        &["40000000/8388608 RLIMIT_AS (ulimit -v)", "50000000/4194304 RLIMIT_DATA (ulimit -d)"],
    ),
    (
        "invalid files are ignored",
        "0::/a\nnot a line\n4:memory\n",
        "half a line\n31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n9 8 - cgroup2\n",
        &[("/sys/fs/cgroup/a/memory.max", "many\n"), ("/sys/fs/cgroup/a/memory.high", "-5\n")],
        &[],
    ),
];

#[test]
fn memory_limits_of_all_groups_up_to_the_root_are_read() {
    let mut wrong = Vec::new();
    for (name, own, mounts, files, expected) in ROWS {
        let root = tempfile::tempdir().unwrap();
        let process = [("/proc/self/cgroup", *own), ("/proc/self/mountinfo", *mounts)];
        for (path, text) in MACHINE.iter().chain(&process).chain(*files) {
            let path = root.path().join(&path[1..]);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let text = |limit: &MemoryLimit| format!("{}/{} {}", limit.bytes, limit.used, limit.source);
        let found: Vec<String> = limits_of(root.path()).iter().map(text).collect();
        if found != *expected {
            wrong.push(format!("{name}: {found:#?}, expected {expected:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
    assert!(ROWS.len() >= 20 && ROWS.iter().filter(|row| row.4.iter().any(|limit| limit.contains(USED))).count() > 15);
}

#[test]
fn a_limit_reports_the_memory_left_and_its_source() {
    let limit = MemoryLimit { bytes: 60 << 20, used: 20 << 20, source: "/x/memory.max".to_owned() };
    assert_eq!((limit.left(), limit.to_string()), (40 << 20, "60.0 MiB by /x/memory.max".to_owned()));
    assert_eq!(MemoryLimit { used: 61 << 20, ..limit }.left(), 0);
}

#[test]
fn limits_are_reported_if_the_machines_memory_is_unknown() {
    let root = tempfile::tempdir().unwrap();
    let files = [
        ("proc/self/cgroup", "0::/a/b\n"),
        ("proc/self/mountinfo", V2),
        ("sys/fs/cgroup/a/memory.max", "9223372036854771712\n"),
        ("sys/fs/cgroup/a/b/memory.max", "5000\n"),
    ];
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let source = "/sys/fs/cgroup/a/b/memory.max".to_owned();
    assert_eq!(limits_of(root.path()), [MemoryLimit { bytes: 5000, used: 0, source }]);
}
