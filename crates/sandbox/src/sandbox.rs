//! Runs an untrusted program in separate namespaces (bubblewrap), with limits, until it ends.
//!
//! The program has no network, sees only `/usr` read-only, writes to a private `/tmp` in memory of bounded size, and
//! inherits no environment variable and no file descriptor but its standard streams. It can make only the system calls
//! that `seccomp` allows. Processor time, address space, processes, files and output are limited (util-linux's
//! `prlimit`). A cgroup limits the total memory of its processes, if possible (`cgroup`); otherwise that memory is
//! watched (`memory`). When its wall time is over, when it has ended, or when this process ends, all its processes are
//! killed with their process namespace. The kernel does not limit the number of root's processes, so if this process is
//! root, the sandbox runs as another user (`user`). Isolation without bubblewrap is in `confined`. This file does not
//! depend on languages or tests.

use super::cgroup::{Cgroup, Cgroups, Roots};
use super::confined;
use super::group::Group;
use super::memory::{Members, Watch};
use super::place::{self, Place};
use super::running::{End, Limits, Running, read};
use super::user::User;
use serde::Deserialize;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The path at which the program sees the directory of its job.
pub(super) const JOB: &str = "/job";
/// The `PATH` in which programs are looked up.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The shortest time limit for a trial program. Only a program that hangs reaches it, however busy the machine is.
pub(super) const TRIAL_TIMEOUT: Duration = Duration::from_secs(300);
/// The number of bytes of standard error that are kept.
const STDERR_BYTES: usize = 4_000;
/// The maximum number of bytes that the tests' process may write as its verdicts.
const JUDGE_BYTES: usize = 1 << 20;

/// The result of running a program.
#[derive(Debug)]
pub(super) struct Outcome {
    pub end: End,
    pub stdout: Vec<u8>,
    /// The beginning of the program's standard error.
    pub stderr: String,
}

impl Outcome {
    /// Describes to the user how a program failed.
    pub fn words(&self) -> String {
        let last = self.stderr.trim().lines().next_back().unwrap_or_default();
        match &self.end {
            End::Exit(code) if last.is_empty() => format!("exit code {code}"),
            End::Exit(code) => format!("exit code {code}: {last}"),
            End::TimedOut => "timed out".to_owned(),
            End::TooMuchOutput => "too much output".to_owned(),
            End::TooMuchMemory(most) => format!("used more than {most} MiB of memory"),
            End::TooManyProcesses(most) => format!("more than {most} processes and threads"),
            End::Stopped => "stopped".to_owned(),
        }
    }
}

/// How programs are isolated from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Separate namespaces, by bubblewrap.
    Bubblewrap,
    /// Landlock and seccomp, without namespaces; see `confined`.
    Landlock,
    /// No isolation (`unsafe_no_sandbox`). The program only has limits and a private directory, and its process group
    /// is killed at the end.
    #[serde(skip)]
    Nothing,
}

/// Runs programs with one kind of isolation.
pub(super) struct Sandbox {
    pub isolation: Isolation,
    bwrap: String,
    place: std::result::Result<Arc<Place>, String>,
    /// The process group of all bubblewrap processes, so that they are killed even if this process is killed.
    group: Mutex<Option<Group>>,
    /// The directory for cgroups of programs, or the reason why there is none.
    pub cgroups: Result<Cgroups, &'static str>,
    /// The peak memory, in bytes, of all processes of one program together; compilers and judges are excluded.
    pub peak: AtomicU64,
    /// A flag that is set once results are not needed any longer. Running programs are then stopped.
    pub stop: Arc<AtomicBool>,
}

impl Sandbox {
    /// Creates a sandbox without checking that it works.
    pub fn with(bwrap: &str, isolation: Isolation) -> Sandbox {
        let place = Place::current().map_err(|error| error.to_string());
        let (cgroups, peak) = (Err("not searched for"), AtomicU64::new(0));
        Sandbox { isolation, bwrap: found(bwrap), place, group: Mutex::default(), cgroups, peak, stop: Arc::default() }
    }

    /// The isolation and the way in which memory is limited, as a training run records them.
    pub fn name(&self) -> String {
        let isolation = match self.isolation {
            Isolation::Bubblewrap => "bubblewrap and seccomp",
            Isolation::Landlock => "landlock and seccomp",
            Isolation::Nothing => return "none (unsafe_no_sandbox)".to_owned(),
        };
        match self.cgroups {
            Ok(_) => format!("{isolation}, memory limited by a cgroup"),
            Err(why) => format!("{isolation}, memory watched ({why})"),
        }
    }

    /// Finds the best isolation that works with this `bwrap` (or only tries the isolation in `asked`) and in which each
    /// of `programs` can run. If none works, the result is [`Isolation::Nothing`] if that is allowed, otherwise an
    /// error with a remedy.
    pub fn find(
        bwrap: &str,
        asked: Option<Isolation>,
        unsafe_no_sandbox: bool,
        programs: &[&str],
    ) -> Result<Sandbox, String> {
        let cgroups = Cgroups::find(&Roots::this_process());
        let mut refusals = Vec::new();
        for isolation in [Isolation::Bubblewrap, Isolation::Landlock] {
            if asked.is_none_or(|asked| asked == isolation) {
                match Sandbox::with(bwrap, isolation).that_works(cgroups.clone()) {
                    Ok(sandbox) => return sandbox.check(programs).map(|()| sandbox),
                    Err(refusal) => refusals.push(refusal),
                }
            }
        }
        if unsafe_no_sandbox {
            let sandbox = Sandbox::with(bwrap, Isolation::Nothing).that_works(cgroups)?;
            return sandbox.check(programs).map(|()| sandbox);
        }
        Err(format!(
            "{}. Only if all programs may do everything that you may do, set `unsafe_no_sandbox = true` in the \
             reward's table: it runs them without isolation",
            refusals.join(". ")
        ))
    }

    /// This sandbox with `cgroups` if it works with them, otherwise with watched memory.
    pub fn that_works(mut self, cgroups: Result<Cgroups, &'static str>) -> Result<Sandbox, String> {
        self.cgroups = cgroups;
        if self.cgroups.is_ok() {
            match self.check(&[]) {
                Ok(()) => return Ok(self),
                Err(_) => self.cgroups = Err("programs do not start in a cgroup"),
            }
        }
        self.check(&[]).map(|()| self)
    }

    /// Checks that programs are still isolated, and that each of `programs` can run.
    pub fn check(&self, programs: &[&str]) -> Result<(), String> {
        self.check_within(TRIAL_TIMEOUT, programs)
    }

    fn check_within(&self, timeout: Duration, programs: &[&str]) -> Result<(), String> {
        let limits = Limits {
            wall: timeout,
            memory_mb: 1024,
            resident_mb: 1024,
            processes: 32,
            output: 1 << 16,
            disk_mb: 1,
            compiles: false,
        };
        let script = r#"for program do command -v "$program" >/dev/null || { echo "$program"; exit 3; }; done"#;
        let words: Vec<String> =
            ["/bin/sh", "-c", script, "sh"].iter().chain(programs).map(|word| (*word).to_owned()).collect();
        let never = Sandbox { cgroups: self.cgroups.clone(), ..Sandbox::with(&self.bwrap, self.isolation) };
        let outcome = place::directory().and_then(|job| never.run(job.path(), &words, b"", limits));
        match (outcome, self.isolation) {
            (Ok(Outcome { end: End::Exit(0), .. }), _) => Ok(()),
            (Ok(Outcome { end: End::Exit(3), stdout, .. }), _) => Err(format!(
                "`{}` is not installed under /usr, the only part of this machine that programs can see",
                String::from_utf8_lossy(&stdout).trim()
            )),
            (Ok(Outcome { end: End::TimedOut, .. }), _) => Err(format!(
                "a trial program did not end within {} s ({}): the machine is too busy, or programs hang here",
                timeout.as_secs_f64(),
                self.name()
            )),
            (Err(error), Isolation::Landlock) => Err(format!(
                "landlock and seccomp cannot isolate programs here; they need Linux 6.2 or newer ({error})"
            )),
            (outcome, Isolation::Landlock | Isolation::Nothing) => {
                Err(format!("Programs cannot be run here (is util-linux's prlimit installed?): {outcome:?}"))
            }
            (Err(error), _) if error.kind() == std::io::ErrorKind::NotFound => {
                Err("bubblewrap is not installed, and nothing is run without it: install it (apt install bubblewrap)"
                    .to_owned())
            }
            (Err(error), _) => Err(format!("cannot start bubblewrap: {error}")),
            (Ok(outcome), _) => Err(format!(
                "bubblewrap cannot isolate programs here ({:?}: {}). It needs user namespaces: on the host, \
                 `sysctl -w kernel.unprivileged_userns_clone=1` (with AppArmor also \
                 kernel.apparmor_restrict_unprivileged_userns=0); in a container, allow them (Docker: --security-opt \
                 seccomp=unconfined --security-opt systempaths=unconfined)",
                outcome.end,
                outcome.stderr.trim()
            )),
        }
    }

    /// A failure of bubblewrap itself looks like a failure of the program. Returns an error unless bubblewrap still
    /// works.
    pub fn still_works(&self, outcome: &Outcome) -> std::io::Result<()> {
        if outcome.stderr.contains("bwrap:") { self.check(&[]).map_err(std::io::Error::other) } else { Ok(()) }
    }

    /// Runs the command `words` with `stdin` as its input; the directory `job` is visible, read-only, at [`JOB`].
    pub fn run(&self, job: &Path, words: &[String], stdin: &[u8], limits: Limits) -> std::io::Result<Outcome> {
        let deadline = Instant::now() + limits.wall;
        let mut child = self.start(job, words, limits, None)?;
        let (mut input, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let stderr = child.stderr.take().expect("piped");
        let too_much = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Writing may fail, since a program need not read its input.
            scope.spawn(move || drop(input.write_all(stdin)));
            let stdout = scope.spawn(|| read(stdout, limits.output, &too_much));
            // Standard error beyond this limit is dropped.
            let stderr = scope.spawn(|| read(stderr, STDERR_BYTES, &AtomicBool::new(false)));
            let end = child.wait(deadline, &too_much, &self.stop, None)?;
            if !limits.compiles {
                self.peak.fetch_max(child.peak, Ordering::Relaxed);
            }
            let stdout = stdout.join().unwrap_or_default();
            let stderr = String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned();
            // The program may have ended before all of its output was read.
            let end = if too_much.load(Ordering::Relaxed) { End::TooMuchOutput } else { end };
            Ok(Outcome { end, stdout, stderr })
        })
    }

    /// Runs a program and the process of its tests in separate sandboxes; each reads the other's output.
    /// Ends when the tests' process ends, and returns its outcome. That process reports its verdicts on standard error.
    pub fn run_judged(
        &self,
        program: (&Path, &[String]),
        judge: (&Path, &[String]),
        limits: Limits,
    ) -> std::io::Result<Outcome> {
        let deadline = Instant::now() + limits.wall;
        let mut running = self.start(program.0, program.1, limits, None)?;
        let (calls, replies) = (running.stdin.take().expect("piped"), running.stdout.take().expect("piped"));
        let program_words = running.stderr.take().expect("piped");
        // The judge has limits of its own.
        let judge_limits = Limits { memory_mb: 2048, resident_mb: 2048, output: JUDGE_BYTES, ..limits };
        let mut judge = self.start(judge.0, judge.1, judge_limits, Some((replies.into(), calls.into())))?;
        let verdict = judge.stderr.take().expect("piped");
        let too_much = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let verdict = scope.spawn(|| read(verdict, JUDGE_BYTES, &too_much));
            let words = scope.spawn(|| read(program_words, STDERR_BYTES, &AtomicBool::new(false)));
            let end = judge.wait(deadline, &too_much, &self.stop, Some(&mut running));
            // Ending the program closes the pipe from which the other thread reads.
            running.end();
            self.peak.fetch_max(running.peak, Ordering::Relaxed);
            let stdout = verdict.join().unwrap_or_default();
            let stderr = String::from_utf8_lossy(&words.join().unwrap_or_default()).into_owned();
            Ok(Outcome { end: end?, stdout, stderr })
        })
    }

    /// Starts the command `words` with piped streams; standard input and output are `streams` if given.
    fn start(
        &self,
        job: &Path,
        words: &[String],
        limits: Limits,
        streams: Option<(Stdio, Stdio)>,
    ) -> std::io::Result<Running> {
        let (stdin, stdout) = streams.unwrap_or_else(|| (Stdio::piped(), Stdio::piped()));
        // Other libraries or the parent process may have left descriptors open.
        close_fds::set_fds_cloexec_threadsafe(3, &[]);
        let user = User::new();
        let cgroup = match &self.cgroups {
            Ok(cgroups) => Some(cgroups.cgroup(limits.resident_mb, limits.processes)?),
            Err(_) => None,
        };
        let first = |program: &str| cgroup.as_ref().map_or_else(|| Command::new(program), |own| own.command(program));
        // Watches the limits that the kernel does not apply to exactly this program.
        let most_mb = cgroup.is_none().then_some(limits.resident_mb);
        if self.isolation == Isolation::Bubblewrap {
            let mut command = self.isolated(first("/bin/sh"), job, words, limits)?;
            command.stdin(stdin).stdout(stdout).stderr(Stdio::piped());
            user.start(&mut command);
            let child = {
                let mut group = self.group.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if !group.as_mut().is_some_and(Group::is_there) {
                    *group = Some(Group::new()?);
                }
                command.process_group(group.as_ref().map_or(0, Group::id)).spawn()?
            };
            let watch = Watch::new(Members::Tree(child.id()), most_mb, Some(limits.disk_mb), None);
            return Running::admitted(child, None, watch, limits, cgroup, None, user);
        }
        let directory = place::directory()?;
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777))?;
        let mut command = plain_command(first("prlimit"), job, directory.path(), words, limits, &user);
        command.stdin(stdin).stdout(stdout).stderr(Stdio::piped());
        user.start(&mut command);
        let group = Group::new()?;
        command.process_group(group.id());
        let child = match self.isolation {
            Isolation::Nothing => command.spawn()?,
            _ => {
                let gate = cgroup.as_ref().and_then(Cgroup::gate);
                let tmp = limits.compiles.then_some(directory.path());
                confined::spawn(&mut command, job, gate, tmp, group.id())?
            }
        };
        let watch = Watch::new(Members::Group(group.id().cast_unsigned()), most_mb, None, Some(limits.processes));
        Running::admitted(child, Some(group), watch, limits, cgroup, Some(directory), user)
    }

    /// The bubblewrap command line that runs `words`. `command` must be a shell.
    fn isolated(&self, mut command: Command, job: &Path, words: &[String], limits: Limits) -> std::io::Result<Command> {
        if !Path::new(&self.bwrap).exists() {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let place = self.place.as_ref().map_err(|error| std::io::Error::other(error.clone()))?;
        // A shell opens the filter for bubblewrap. If it cannot, it reports the error under bubblewrap's name.
        command
            .args(["-c", r#"filter=$1; shift; unset PWD OLDPWD; exec "$@" 9<"$filter""#, "bwrap"])
            .arg(place.filter());
        command.arg(&self.bwrap).args(["--seccomp", "9"]);
        // Process 1 in the sandbox is bubblewrap, whose environment programs can read. `--clearenv` empties only their
        // own environment.
        command.env_clear();
        command.args(["--unshare-all", "--unshare-user", "--disable-userns", "--uid", "65534", "--gid", "65534"]);
        command.args(["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]);
        for (name, value) in [("PATH", PATH), ("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8")] {
            command.args(["--setenv", name, value]);
        }
        command.args(["--ro-bind", "/usr", "/usr"]);
        for directory in ["bin", "sbin", "lib", "lib64"] {
            // Directories that are not links into /usr also belong to the system.
            match Path::new("/").join(directory).read_link() {
                Ok(target) => command.arg("--symlink").arg(target).arg(format!("/{directory}")),
                Err(_) => command.args(["--ro-bind-try".to_owned(), format!("/{directory}"), format!("/{directory}")]),
            };
        }
        for file in ["/etc/alternatives", "/etc/ld.so.cache"] {
            command.args(["--ro-bind-try", file, file]);
        }
        let disk = (limits.disk_mb << 20).to_string();
        command.args([
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--size",
            "4096",
            "--tmpfs",
            "/dev/shm",
            "--remount-ro",
            "/dev",
        ]);
        command.args(["--perms", "1777", "--size", &disk, "--tmpfs", "/tmp"]);
        command.arg("--ro-bind").arg(job).args([JOB, "--remount-ro", "/", "--chdir", "/tmp", "--"]);
        command.args(["/usr/bin/prlimit", &format!("--nproc={}", limits.processes)]).args(prlimits(limits));
        command.arg("--").args(words);
        Ok(command)
    }
}

/// The path of a program, found with the PATH of this process, which the program does not inherit. If it is not found,
/// its name.
fn found(program: &str) -> String {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&paths).map(|directory| directory.join(program));
    match places
        .find(|place| !program.contains('/') && place.is_file())
        .map(|place| place.into_os_string().into_string())
    {
        Some(Ok(place)) => place,
        _ => program.to_owned(),
    }
}

/// The arguments of util-linux's `prlimit`, without the limit on the number of processes.
fn prlimits(limits: Limits) -> [String; 5] {
    let (disk, memory, cpu) = (limits.disk_mb << 20, limits.memory_mb << 20, limits.wall.as_secs() + 1);
    // With a core limit of 0, the kernel still pipes core dumps to a configured program; with a limit of 1 byte it does
    // not.
    [("core", 1), ("nofile", 256), ("fsize", disk), ("cpu", cpu), ("as", memory)]
        .map(|(name, n)| format!("--{name}={n}"))
}

/// A command line without bubblewrap. `command` must be `prlimit`. The sandbox's two directories (the job's, and
/// `/tmp`) are replaced by their real paths.
fn plain_command(
    mut command: Command,
    job: &Path,
    tmp: &Path,
    words: &[String],
    limits: Limits,
    user: &User,
) -> Command {
    let place = |path: &Path| format!("{}/", path.display());
    command.arg(format!("--nproc={}", user.limit(limits.processes))).args(prlimits(limits)).arg("--");
    // The sandbox's paths are all replaced at once, since a real path may contain one of them.
    let real = |word: &String| {
        let parts: Vec<String> = word.split("/job/").map(|part| part.replace("/tmp/", &place(tmp))).collect();
        parts.join(&place(job))
    };
    command.args(words.iter().map(real)).current_dir(tmp).env_clear();
    command.envs([("PATH", PATH), ("LANG", "C.UTF-8")]).env("HOME", tmp).env("TMPDIR", tmp);
    // Node exits if its OpenSSL configuration exists but is not readable.
    command.env("OPENSSL_CONF", "/dev/null");
    command
}

#[cfg(test)]
mod tests;
