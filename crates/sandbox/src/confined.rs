//! Isolates programs where user namespaces are not allowed: landlock for files, seccomp for system calls.
//!
//! Both apply to a thread and all its children. So a new thread confines itself, starts the program, and ends. The
//! program may read and execute files in the system's directories and in the directory of its job. It cannot write
//! files (except in one directory, if given), open sockets, send signals to processes outside of its process group, or
//! leave that group. Killing the group therefore ends all of its processes. This is weaker than namespaces: the program
//! sees that other processes and files exist (but not their contents), and shares the machine's process ids.

use super::seccomp;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use std::io::{Error, Result};
use std::path::Path;
use std::process::{Child, Command};

/// Starts `command` confined to process group `group`. It may read the directory `job` and the file `gate`, and write
/// into `tmp`.
pub fn spawn(command: &mut Command, job: &Path, gate: Option<&Path>, tmp: Option<&Path>, group: i32) -> Result<Child> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            confine(job, gate, tmp, group)?;
            command.spawn()
        });
        thread.join().unwrap_or_else(|_| Err(Error::other("the thread that starts a program panicked")))
    })
}

/// Confines this thread and all processes that it starts, permanently.
fn confine(job: &Path, gate: Option<&Path>, tmp: Option<&Path>, group: i32) -> Result<()> {
    files(job, gate, tmp).map_err(|error| Error::other(format!("landlock: {error}")))?;
    for filter in seccomp::in_group(group)? {
        seccompiler::apply_filter(&filter).map_err(|error| Error::other(format!("seccomp: {error}")))?;
    }
    Ok(())
}

fn files(job: &Path, gate: Option<&Path>, tmp: Option<&Path>) -> std::result::Result<(), landlock::RulesetError> {
    // ABI V3 needs Linux 6.2. An older kernel, which would not restrict some accesses, is an error.
    let abi = ABI::V3;
    let system = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache"];
    let devices = ["/dev/null", "/dev/zero", "/dev/urandom"];
    let read = AccessFs::from_read(abi);
    let write: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::WriteFile;
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))?
        // Since Linux 6.12 landlock itself refuses signals to outside processes. On older kernels seccomp refuses the
        // system calls that cause signals.
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::from_all(ABI::V6))?
        .set_compatibility(CompatLevel::HardRequirement)
        .create()?
        .add_rules(landlock::path_beneath_rules(system, read))?
        .add_rules(landlock::path_beneath_rules([job], read))?
        .add_rules(landlock::path_beneath_rules(gate, AccessFs::ReadFile))?
        .add_rules(landlock::path_beneath_rules(devices, write))?
        .add_rules(landlock::path_beneath_rules(tmp, AccessFs::from_all(abi)))?
        .restrict_self()?;
    Ok(())
}
