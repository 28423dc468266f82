//! Isolation where user namespaces are not allowed: landlock for files, seccomp for the rest.
//!
//! Both bind a thread and what it starts, so a thread of ours confines itself, starts the program and ends. The
//! program may read and run the system's directories and its job, write nothing (or into one directory), open no
//! socket, send no signal but to its own process group, and not leave that group, whose end is therefore its end. The
//! group is made by a process that only waits. Less than namespaces: it sees that other processes and files exist
//! (not what is in them), and shares the machine's process numbers.

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Starts `command` confined, in the process group of the second child, which waits until it is killed. It may read
/// `job`, and write into `tmp`.
pub fn spawn(command: &mut Command, job: &Path, tmp: Option<&Path>) -> Result<(Child, Child)> {
    let mut leader = Command::new("/usr/bin/cat");
    leader.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).env_clear();
    let mut leader = leader.spawn()?;
    let group = leader.id().cast_signed();
    command.process_group(group);
    let spawned = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            confine(job, tmp, group)?;
            command.spawn()
        });
        thread.join().unwrap_or_else(|_| Err(Error::other("the thread that starts a program panicked")))
    });
    match spawned {
        Ok(child) => Ok((child, leader)),
        Err(error) => {
            leader.kill()?;
            leader.wait()?;
            Err(error)
        }
    }
}

/// Confines this thread and what it starts, for good.
fn confine(job: &Path, tmp: Option<&Path>, group: i32) -> Result<()> {
    files(job, tmp).map_err(|error| Error::other(format!("landlock: {error}")))?;
    let seccomp = |error: String| Error::other(format!("seccomp: {error}"));
    for filter in [filter(group), unknown()] {
        seccompiler::apply_filter(&filter.map_err(seccomp)?).map_err(|error| seccomp(error.to_string()))?;
    }
    Ok(())
}

fn files(job: &Path, tmp: Option<&Path>) -> std::result::Result<(), landlock::RulesetError> {
    // Since Linux 6.2: what an older kernel would leave open is an error.
    let abi = ABI::V3;
    let system = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache"];
    let devices = ["/dev/null", "/dev/zero", "/dev/urandom"];
    let read = AccessFs::from_read(abi);
    let write: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::WriteFile;
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))?
        // Since Linux 6.12 landlock itself refuses signals to processes outside; seccomp refuses what causes them.
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::from_all(ABI::V6))?
        .set_compatibility(CompatLevel::HardRequirement)
        .create()?
        .add_rules(landlock::path_beneath_rules(system, read))?
        .add_rules(landlock::path_beneath_rules([job], read))?
        .add_rules(landlock::path_beneath_rules(devices, write))?
        .add_rules(landlock::path_beneath_rules(tmp, AccessFs::from_all(abi)))?
        .restrict_self()?;
    Ok(())
}

type Filter = std::result::Result<BpfProgram, String>;

/// Refuses system calls that reach beyond the program's files and process group.
fn filter(group: i32) -> Filter {
    let group = u64::from(group.cast_unsigned());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|&call| (call, vec![])).collect();
    let unless = |argument, is| condition(argument, SeccompCmpOp::Ne, is);
    rules.insert(libc::SYS_setpgid, vec![unless(1, group)?]);
    // To its group, itself included; of one process nobody knows whose it is.
    rules.insert(libc::SYS_kill, vec![unless(0, 0)?]);
    rules.insert(libc::SYS_prlimit64, vec![unless(0, 0)?]);
    let has = |flag: &i32| {
        let flag = u64::from(flag.cast_unsigned());
        condition(0, SeccompCmpOp::MaskedEq(flag), flag)
    };
    rules.insert(libc::SYS_clone, CLONE_REFUSED.iter().map(has).collect::<std::result::Result<_, _>>()?);
    // Each has commands that have signals sent to, or change, any process that is named: only known ones are allowed.
    rules.insert(libc::SYS_fcntl, vec![none_of(1, FCNTL)?]);
    rules.insert(libc::SYS_ioctl, vec![none_of(1, IOCTL)?]);
    rules.insert(libc::SYS_prctl, vec![none_of(0, PRCTL)?]);
    compiled(rules, libc::EPERM)
}

/// What an argument is none of. The kernel, too, looks at the lower 32 bits of these arguments alone.
fn none_of(argument: u8, values: &[u64]) -> std::result::Result<SeccompRule, String> {
    let isnt = |&value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value);
    let conditions: std::result::Result<Vec<_>, _> = values.iter().map(isnt).collect();
    SeccompRule::new(conditions.map_err(|e| e.to_string())?).map_err(|e| e.to_string())
}

/// A call whose flags cannot be looked at does not exist: callers fall back to the older one.
fn unknown() -> Filter {
    compiled(BTreeMap::from([(libc::SYS_clone3, vec![])]), libc::ENOSYS)
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> std::result::Result<SeccompRule, String> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value);
    SeccompRule::new(vec![condition.map_err(|e| e.to_string())?]).map_err(|e| e.to_string())
}

fn compiled(rules: BTreeMap<i64, Vec<SeccompRule>>, error: i32) -> Filter {
    let arch = std::env::consts::ARCH.try_into().map_err(|e: seccompiler::BackendError| e.to_string())?;
    let refuse = SeccompAction::Errno(error.cast_unsigned());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(|e| e.to_string())?;
    filter.try_into().map_err(|e: seccompiler::BackendError| e.to_string())
}

/// Namespaces, and a sibling in the place of a child, whose parent would be this process.
const CLONE_REFUSED: &[i32] = &[
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_PARENT,
];

/// Descriptors, their flags and locks, pipes' sizes, seals. Not F_SETOWN, F_SETOWN_EX and F_SETSIG, by which any
/// process gets any signal, nor leases and notifications.
const FCNTL: &[u64] = &[
    libc::F_DUPFD as u64,
    libc::F_GETFD as u64,
    libc::F_SETFD as u64,
    libc::F_GETFL as u64,
    libc::F_SETFL as u64,
    libc::F_GETLK as u64,
    libc::F_SETLK as u64,
    libc::F_SETLKW as u64,
    libc::F_GETOWN as u64,
    libc::F_OFD_GETLK as u64,
    libc::F_OFD_SETLK as u64,
    libc::F_OFD_SETLKW as u64,
    libc::F_DUPFD_CLOEXEC as u64,
    libc::F_SETPIPE_SZ as u64,
    libc::F_GETPIPE_SZ as u64,
    libc::F_ADD_SEALS as u64,
    libc::F_GET_SEALS as u64,
];

/// Whether a stream is a terminal, what can be read from it, whether it blocks, and closing on exec. Not FIOSETOWN,
/// SIOCSPGRP, TIOCSPGRP (signals), TIOCSTI (typing for the user) and FIOASYNC.
const IOCTL: &[u64] = &[libc::TCGETS, libc::TIOCGWINSZ, libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX];

/// What concerns the caller alone and can be no way to hide from who counts its memory. Not PR_SCHED_CORE.
const PRCTL: &[u64] = &[
    libc::PR_SET_PDEATHSIG as u64,
    libc::PR_GET_PDEATHSIG as u64,
    libc::PR_GET_DUMPABLE as u64,
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_GET_SECCOMP as u64,
    libc::PR_CAPBSET_READ as u64,
    libc::PR_SET_TIMERSLACK as u64,
    libc::PR_GET_TIMERSLACK as u64,
    libc::PR_SET_NO_NEW_PRIVS as u64,
    libc::PR_GET_NO_NEW_PRIVS as u64,
    libc::PR_SET_THP_DISABLE as u64,
    libc::PR_GET_THP_DISABLE as u64,
    // PR_SET_VMA: names of memory.
    0x5356_4d41,
];

/// `fchmodat2`, `setxattrat` and `removexattrat`, the same number on every architecture.
const NEWER: [i64; 3] = [452, 463, 466];

const REFUSED: &[i64] = &[
    NEWER[0],
    NEWER[1],
    NEWER[2],
    // Sockets and other ways to talk to processes.
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Other processes.
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pidfd_getfd,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_setsid,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Namespaces, mounts, the kernel.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // What landlock does not cover: a file's mode, owner, times and attributes.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];
