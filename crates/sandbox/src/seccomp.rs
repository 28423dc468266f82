//! The seccomp filters that decide which system calls programs may make.
//!
//! A call that is not listed fails with ENOSYS, as on an older kernel, so libraries fall back to older calls. Calls
//! that newer kernels add, and those of other calling conventions (x32), are therefore refused too. Programs have only
//! sockets within the machine (`AF_UNIX`; without namespaces only socket pairs). They cannot access other processes'
//! memory, keys, memory that counts in no process's resident set (`memfd_create`), io_uring or bpf.

mod calls;

use self::calls::{
    ALLOWED, ALLOWED_NEW, ALLOWED_OLD, OF_NAMESPACE, OF_NAMESPACE_OLD, REFUSED, REFUSED_NEW, REFUSED_OLD,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::io::{Error, Result};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Made<T> = std::result::Result<T, String>;

/// The filters for a program without a process namespace, which may signal only process group `group`.
pub fn in_group(group: i32) -> Result<[BpfProgram; 2]> {
    let group = u64::from(group.cast_unsigned());
    let filters = || {
        let mut allowed = common()?;
        allowed.insert(libc::SYS_setpgid, vec![is(1, group)?]);
        // These calls are still needed: the other filter is installed next, and root then changes its user.
        allowed.extend(always(&[&[libc::SYS_seccomp, libc::SYS_setgroups, libc::SYS_setgid, libc::SYS_setuid]]));
        // Signals may go only to the program's own group, since any other process id may belong to another program.
        allowed.insert(libc::SYS_kill, vec![is(0, 0)?]);
        allowed.insert(libc::SYS_prlimit64, vec![is(0, 0)?]);
        // The second filter refuses the same calls with the error that programs expect.
        let mut refused = always(&[REFUSED, REFUSED_OLD, REFUSED_NEW, &[libc::SYS_seccomp]]);
        for (call, argument, value) in
            [(libc::SYS_setpgid, 1, group), (libc::SYS_kill, 0, 0), (libc::SYS_prlimit64, 0, 0)]
        {
            refused.insert(call, vec![rule(argument, SeccompCmpOp::Ne, value)?]);
        }
        Ok([only(allowed)?, compiled(refused, SeccompAction::Allow, errno(libc::EPERM))?])
    };
    filters().map_err(|error: String| Error::other(format!("seccomp: {error}")))
}

/// The filter for a program in separate namespaces, in the binary form that bubblewrap reads.
pub fn in_namespace() -> Result<Vec<u8>> {
    let filter = || {
        let mut allowed = common()?;
        allowed.extend(always(&[OF_NAMESPACE, OF_NAMESPACE_OLD]));
        allowed.insert(libc::SYS_socket, vec![is(0, UNIX)?]);
        only(allowed)
    };
    let filter = filter().map_err(|error: String| Error::other(format!("seccomp: {error}")))?;
    let bytes = |of: &seccompiler::sock_filter| {
        let [code, rest] = [of.code.to_ne_bytes(), [of.jt, of.jf]];
        [code, rest].concat().into_iter().chain(of.k.to_ne_bytes())
    };
    Ok(filter.iter().flat_map(bytes).collect())
}

fn always(calls: &[&[i64]]) -> Rules {
    calls.concat().into_iter().map(|call| (call, vec![])).collect()
}

fn common() -> Made<Rules> {
    let mut allowed = always(&[ALLOWED, ALLOWED_OLD, ALLOWED_NEW]);
    let one_of = |argument, values: &[u64]| values.iter().map(|&value| is(argument, value)).collect::<Made<Vec<_>>>();
    // Each of these calls has commands that change any named process, or cause a signal to it.
    allowed.insert(libc::SYS_fcntl, one_of(1, FCNTL)?);
    allowed.insert(libc::SYS_ioctl, one_of(1, IOCTL)?);
    allowed.insert(libc::SYS_prctl, one_of(0, PRCTL)?);
    allowed.insert(libc::SYS_socketpair, vec![is(0, UNIX)?]);
    // New namespaces are refused. So is CLONE_PARENT, with which this process would become the parent of the new
    // process.
    let refused = CLONE_REFUSED.iter().fold(0, |all, flag| all | u64::from(flag.cast_unsigned()));
    allowed.insert(libc::SYS_clone, vec![rule(0, SeccompCmpOp::MaskedEq(refused), 0)?]);
    Ok(allowed)
}

fn is(argument: u8, value: u64) -> Made<SeccompRule> {
    rule(argument, SeccompCmpOp::Eq, value)
}

/// A rule on one argument. Only the lower 32 bits are compared, since the kernel reads only these bits of such
/// arguments.
fn rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Made<SeccompRule> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value);
    SeccompRule::new(vec![condition.map_err(|e| e.to_string())?]).map_err(|e| e.to_string())
}

fn errno(error: i32) -> SeccompAction {
    SeccompAction::Errno(error.cast_unsigned())
}

fn only(allowed: Rules) -> Made<BpfProgram> {
    compiled(allowed, errno(libc::ENOSYS), SeccompAction::Allow)
}

/// Compiles rules to a BPF program. System calls of a different architecture (32 bits) kill the process.
fn compiled(rules: Rules, otherwise: SeccompAction, action: SeccompAction) -> Made<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into().map_err(|e: seccompiler::BackendError| e.to_string())?;
    let filter = SeccompFilter::new(rules, otherwise, action, arch).map_err(|e| e.to_string())?;
    filter.try_into().map_err(|e: seccompiler::BackendError| e.to_string())
}

const UNIX: u64 = libc::AF_UNIX as u64;

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

/// The allowed commands of `fcntl`: descriptors, their flags and locks, pipe sizes, seals. Left out are F_SETOWN,
/// F_SETOWN_EX and F_SETSIG, which can send any signal to any process, and leases and notifications.
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

/// The allowed commands of `ioctl`: whether a stream is a terminal, how much can be read, non-blocking mode,
/// close-on-exec. Left out are FIOSETOWN, SIOCSPGRP, TIOCSPGRP (signals), TIOCSTI (typing for the user) and FIOASYNC.
// These are c_ulong in glibc, and c_int in musl.
#[allow(clippy::unnecessary_cast)]
const IOCTL: &[u64] = &[
    libc::TCGETS as u64,
    libc::TIOCGWINSZ as u64,
    libc::FIONREAD as u64,
    libc::FIONBIO as u64,
    libc::FIOCLEX as u64,
    libc::FIONCLEX as u64,
];

/// The allowed commands of `prctl`: those that concern only the caller and cannot hide memory from being measured. Left
/// out is PR_SCHED_CORE.
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
    // PR_SET_VMA, which names memory.
    0x5356_4d41,
];
