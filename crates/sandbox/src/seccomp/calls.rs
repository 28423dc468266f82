//! The lists of system calls that the seccomp filters allow or refuse.

macro_rules! calls {
    ($($call:ident)*) => { &[$(libc::$call),*] };
}

/// System calls that every program may make.
pub const ALLOWED: &[i64] = calls! {
    // Files.
    SYS_read SYS_write SYS_close SYS_fstat SYS_lseek SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_preadv
    SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_dup SYS_dup3 SYS_sendfile SYS_flock SYS_fsync SYS_fdatasync
    SYS_truncate SYS_ftruncate SYS_getcwd SYS_chdir SYS_fchdir SYS_umask SYS_statfs SYS_fstatfs SYS_fadvise64
    SYS_readahead SYS_openat SYS_openat2 SYS_mkdirat SYS_mknodat SYS_unlinkat SYS_renameat2 SYS_linkat SYS_symlinkat
    SYS_readlinkat SYS_faccessat SYS_faccessat2 SYS_newfstatat SYS_statx SYS_splice SYS_tee
    SYS_sync_file_range SYS_copy_file_range SYS_fallocate SYS_pipe2 SYS_getdents64 SYS_close_range SYS_getxattr
    SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr
    // Memory.
    SYS_mmap SYS_mprotect SYS_munmap SYS_brk SYS_mremap SYS_msync SYS_mincore SYS_madvise SYS_mlock SYS_mlock2
    SYS_munlock SYS_mlockall SYS_munlockall SYS_membarrier SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect
    // Signals to itself.
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending SYS_rt_sigtimedwait SYS_rt_sigsuspend
    SYS_sigaltstack SYS_restart_syscall SYS_signalfd4
    // Time.
    SYS_nanosleep SYS_getitimer SYS_setitimer SYS_gettimeofday SYS_times SYS_timer_create SYS_timer_settime
    SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep
    SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime
    // Waiting.
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_ppoll SYS_pselect6 SYS_eventfd2 SYS_futex
    SYS_set_robust_list SYS_get_robust_list SYS_rseq
    // Processes.
    SYS_sched_yield SYS_getpid SYS_getppid SYS_gettid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid
    SYS_getresgid SYS_getgroups SYS_getpgid SYS_getsid SYS_capget SYS_exit SYS_exit_group SYS_wait4 SYS_waitid
    SYS_execve SYS_execveat SYS_set_tid_address SYS_getrlimit SYS_setrlimit SYS_getrusage SYS_getpriority
    SYS_sched_getparam SYS_sched_getscheduler SYS_sched_get_priority_max SYS_sched_get_priority_min
    SYS_sched_rr_get_interval SYS_sched_getaffinity SYS_uname SYS_sysinfo SYS_getrandom SYS_getcpu
    // Pairs of sockets.
    SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg SYS_shutdown SYS_getsockname
    SYS_getpeername SYS_setsockopt SYS_getsockopt
};

/// Allowed system calls that exist only on x86-64.
#[cfg(target_arch = "x86_64")]
pub const ALLOWED_OLD: &[i64] = calls! {
    SYS_open SYS_creat SYS_stat SYS_lstat SYS_poll SYS_access SYS_pipe SYS_select SYS_dup2 SYS_pause SYS_alarm
    SYS_fork SYS_vfork SYS_getdents SYS_rename SYS_renameat SYS_mkdir SYS_rmdir SYS_link SYS_unlink SYS_symlink
    SYS_readlink SYS_mknod SYS_getpgrp SYS_time SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_signalfd
    SYS_arch_prctl
};
#[cfg(not(target_arch = "x86_64"))]
pub const ALLOWED_OLD: &[i64] = &[];

/// Allowed system calls that older libc headers lack, with the same number on every architecture: `futex_waitv`,
/// `map_shadow_stack`, `futex_wake`, `futex_wait`, `futex_requeue` and `mseal`.
pub const ALLOWED_NEW: &[i64] = &[449, 453, 454, 455, 456, 462];

/// System calls that are allowed only in a process namespace, where other processes cannot be reached. None of them
/// creates a second process group, so one signal stops all processes at once.
pub const OF_NAMESPACE: &[i64] = calls! {
    SYS_kill SYS_tkill SYS_tgkill SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_pidfd_open SYS_pidfd_send_signal
    SYS_prlimit64 SYS_setpriority SYS_sched_setaffinity SYS_sched_setscheduler
    SYS_sched_setparam SYS_connect SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_fchmod SYS_fchmodat SYS_fchown
    SYS_fchownat SYS_utimensat SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch
};
#[cfg(target_arch = "x86_64")]
pub const OF_NAMESPACE_OLD: &[i64] = calls! {
    SYS_chmod SYS_chown SYS_lchown SYS_utime SYS_utimes SYS_futimesat SYS_inotify_init
};
#[cfg(not(target_arch = "x86_64"))]
pub const OF_NAMESPACE_OLD: &[i64] = &[];

/// System calls that fail with EPERM in a sandbox without namespaces, because programs expect this error from them.
/// System calls that are on no list fail with ENOSYS.
pub const REFUSED: &[i64] = calls! {
    // Sockets and other ways to talk to processes.
    SYS_socket SYS_connect SYS_bind SYS_shmget SYS_shmat SYS_shmctl SYS_msgget SYS_msgsnd SYS_msgrcv SYS_msgctl
    SYS_semget SYS_semop SYS_semtimedop SYS_semctl SYS_mq_open SYS_mq_unlink SYS_io_uring_setup SYS_io_uring_enter
    SYS_io_uring_register SYS_keyctl SYS_add_key SYS_request_key
    // Other processes.
    SYS_tkill SYS_tgkill SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_pidfd_open SYS_pidfd_send_signal
    SYS_pidfd_getfd SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_kcmp SYS_setsid
    SYS_setpriority SYS_ioprio_set SYS_sched_setaffinity SYS_sched_setscheduler SYS_sched_setparam SYS_sched_setattr
    SYS_migrate_pages SYS_move_pages
    // Namespaces, mounts, the kernel.
    SYS_unshare SYS_setns SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_open_tree SYS_move_mount SYS_fsopen
    SYS_fsconfig SYS_fsmount SYS_fspick SYS_mount_setattr SYS_name_to_handle_at SYS_open_by_handle_at SYS_bpf
    SYS_perf_event_open SYS_userfaultfd
    // Landlock does not cover a file's mode, owner, times and attributes.
    SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_utimensat SYS_setxattr SYS_lsetxattr SYS_fsetxattr
    SYS_removexattr SYS_lremovexattr SYS_fremovexattr
    // Landlock does not cover watching, which reveals who uses which file, and when.
    SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch SYS_fanotify_init SYS_fanotify_mark
};
#[cfg(target_arch = "x86_64")]
pub const REFUSED_OLD: &[i64] = calls! {
    SYS_chmod SYS_chown SYS_lchown SYS_utime SYS_utimes SYS_futimesat SYS_inotify_init
};
#[cfg(not(target_arch = "x86_64"))]
pub const REFUSED_OLD: &[i64] = &[];
/// Refused system calls that older libc headers lack: `fchmodat2`, `setxattrat` and `removexattrat`.
pub const REFUSED_NEW: &[i64] = &[452, 463, 466];
