//! Runs a program that nobody trusts: in namespaces of its own (bubblewrap), with limits, and to its end.
//!
//! The program has no network, sees `/usr` read-only and nothing else of the machine, writes into a `/tmp` of its own
//! that is memory of bounded size, and gets no variable of our environment. Processor time, memory, processes, files
//! and output are limited (util-linux's `prlimit`); when its wall time is over, or it has ended, every process that
//! it has started is killed with its process namespace. We are not root in there: root's processes are not counted,
//! so as root the whole is started as the user 65534. Knows no language and no test.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where the directory of a job is seen.
pub(super) const JOB: &str = "/job";
/// Of standard error, so much is kept.
const STDERR_BYTES: usize = 4_000;
/// A judge's verdicts are shorter.
const JUDGE_BYTES: usize = 1 << 20;
/// How often a running program is looked at.
const POLL: Duration = Duration::from_millis(2);

/// What a program may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub wall: Duration,
    /// Address space of each process, in MiB.
    pub memory_mb: u64,
    /// Processes and threads.
    pub processes: u64,
    /// Standard output, in bytes.
    pub output: usize,
    /// What fits into `/tmp`, and the most that one file holds, in MiB.
    pub disk_mb: u64,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With this exit code; 128 and more for signals.
    Exit(i32),
    TimedOut,
    TooMuchOutput,
    /// Nobody waits for it any more.
    Stopped,
}

/// What became of a program.
#[derive(Debug)]
pub(super) struct Outcome {
    pub end: End,
    pub stdout: Vec<u8>,
    /// Its beginning.
    pub stderr: String,
}

/// Checks that programs can be isolated here, and that each of `programs` can be run; else says what to do.
pub(super) fn check(job: &Path, programs: &[&str]) -> Result<(), String> {
    let limits = Limits { wall: Duration::from_secs(20), memory_mb: 1024, processes: 32, output: 1 << 16, disk_mb: 1 };
    let script = r#"for program do command -v "$program" >/dev/null || { echo "$program"; exit 3; }; done"#;
    let words: Vec<String> =
        ["/bin/sh", "-c", script, "sh"].iter().chain(programs).map(|word| (*word).to_owned()).collect();
    let outcome = run(job, &words, b"", limits, &AtomicBool::new(false));
    match outcome {
        Ok(Outcome { end: End::Exit(0), .. }) => Ok(()),
        Ok(Outcome { end: End::Exit(3), stdout, .. }) => Err(format!(
            "`{}` is not installed under /usr, all that programs can see of this machine",
            String::from_utf8_lossy(&stdout).trim()
        )),
        Ok(outcome) => Err(format!(
            "bubblewrap cannot isolate programs here ({:?}: {}). It needs user namespaces: on the host, \
             `sysctl -w kernel.unprivileged_userns_clone=1` (with AppArmor also \
             kernel.apparmor_restrict_unprivileged_userns=0); \
             in a container, allow them (Docker: --security-opt seccomp=unconfined \
             --security-opt systempaths=unconfined)",
            outcome.end,
            outcome.stderr.trim()
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(
            "bubblewrap is not installed, and nothing is run without it: install it (Debian: apt install bubblewrap)"
                .to_owned(),
        ),
        Err(error) => Err(format!("cannot start bubblewrap: {error}")),
    }
}

/// Runs `words` with `stdin`; the directory `job` is seen, read-only, as [`JOB`].
pub(super) fn run(
    job: &Path,
    words: &[String],
    stdin: &[u8],
    limits: Limits,
    stop: &AtomicBool,
) -> std::io::Result<Outcome> {
    let deadline = Instant::now() + limits.wall;
    let mut child = command(job, words, limits).spawn()?;
    let (mut input, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let stderr = child.stderr.take().expect("piped");
    let too_much = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A program need not read its input.
        scope.spawn(move || drop(input.write_all(stdin)));
        let stdout = scope.spawn(|| read(stdout, limits.output, &too_much));
        // Of standard error the rest is thrown away.
        let stderr = scope.spawn(|| read(stderr, STDERR_BYTES, &AtomicBool::new(false)));
        let end = wait(&mut child, deadline, &too_much, stop)?;
        let stdout = stdout.join().unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned();
        // It may have ended before all that it wrote was read.
        let end = if too_much.load(Ordering::Relaxed) { End::TooMuchOutput } else { end };
        Ok(Outcome { end, stdout, stderr })
    })
}

/// Runs a program and its judge, each in a sandbox of its own: what one writes the other reads. Over when the judge is;
/// the outcome is the judge's, who speaks through standard error.
pub(super) fn run_judged(
    program: (&Path, &[String]),
    judge: (&Path, &[String]),
    limits: Limits,
    stop: &AtomicBool,
) -> std::io::Result<Outcome> {
    let deadline = Instant::now() + limits.wall;
    let mut running = command(program.0, program.1, limits).spawn()?;
    let (calls, replies) = (running.stdin.take().expect("piped"), running.stdout.take().expect("piped"));
    let program_words = running.stderr.take().expect("piped");
    // Its own limits are none of the program's; its command is dropped, so that a pipe ends when its writer does.
    let judge_limits = Limits { memory_mb: 2048, output: JUDGE_BYTES, ..limits };
    let judge = command(judge.0, judge.1, judge_limits).stdin(replies).stdout(calls).spawn();
    let outcome = judge.and_then(|mut judge| {
        let verdict = judge.stderr.take().expect("piped");
        let too_much = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let verdict = scope.spawn(|| read(verdict, JUDGE_BYTES, &too_much));
            let words = scope.spawn(|| read(program_words, STDERR_BYTES, &AtomicBool::new(false)));
            let end = wait(&mut judge, deadline, &too_much, stop);
            // The program's end closes what the other thread reads.
            running.kill()?;
            running.wait()?;
            let stdout = verdict.join().unwrap_or_default();
            let stderr = String::from_utf8_lossy(&words.join().unwrap_or_default()).into_owned();
            Ok(Outcome { end: end?, stdout, stderr })
        })
    });
    // A judge that could not be started leaves nobody behind.
    running.kill()?;
    running.wait()?;
    outcome
}

/// Bubblewrap's command line, with all three streams piped.
fn command(job: &Path, words: &[String], limits: Limits) -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--unshare-user", "--disable-userns", "--uid", "65534", "--gid", "65534"]);
    command.args(["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]);
    for (name, value) in
        [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8")]
    {
        command.args(["--setenv", name, value]);
    }
    command.args(["--ro-bind", "/usr", "/usr"]);
    for directory in ["bin", "sbin", "lib", "lib64"] {
        // Where they are no links into /usr, they are a part of the system, too.
        match Path::new("/").join(directory).read_link() {
            Ok(target) => command.arg("--symlink").arg(target).arg(format!("/{directory}")),
            Err(_) => command.args(["--ro-bind-try".to_owned(), format!("/{directory}"), format!("/{directory}")]),
        };
    }
    for file in ["/etc/alternatives", "/etc/ld.so.cache"] {
        command.args(["--ro-bind-try", file, file]);
    }
    let disk = (limits.disk_mb << 20).to_string();
    command.args(["--proc", "/proc", "--dev", "/dev", "--size", "4096", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]);
    command.args(["--perms", "1777", "--size", &disk, "--tmpfs", "/tmp"]);
    command.arg("--ro-bind").arg(job).args([JOB, "--remount-ro", "/", "--chdir", "/tmp", "--"]);
    command.args(["/usr/bin/prlimit", "--core=0", "--nofile=256", &format!("--fsize={disk}")]);
    command.arg(format!("--cpu={}", limits.wall.as_secs() + 1));
    command.args([format!("--as={}", limits.memory_mb << 20), format!("--nproc={}", limits.processes)]);
    command.arg("--").args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    as_nobody(&mut command);
    command
}

/// Root's processes are counted by no limit.
fn as_nobody(command: &mut Command) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::process::CommandExt::uid(command, 65534);
        std::os::unix::process::CommandExt::gid(command, 65534);
    }
}

/// The first bytes of a stream, which is read to its end; whether there were more.
fn read(mut stream: impl Read, most: usize, more: &AtomicBool) -> Vec<u8> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1 << 16]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return kept,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return kept,
            Ok(n) => {
                let room = (most - kept.len()).min(n);
                kept.extend(&buffer[..room]);
                if room < n {
                    more.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Waits for the program's end, or ends it: bubblewrap takes its namespace with it.
fn wait(child: &mut Child, deadline: Instant, too_much: &AtomicBool, stop: &AtomicBool) -> std::io::Result<End> {
    let end = loop {
        if let Some(status) = child.try_wait()? {
            use std::os::unix::process::ExitStatusExt;
            return Ok(End::Exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())));
        }
        match () {
            () if too_much.load(Ordering::Relaxed) => break End::TooMuchOutput,
            () if stop.load(Ordering::Relaxed) => break End::Stopped,
            () if Instant::now() >= deadline => break End::TimedOut,
            () => std::thread::sleep(POLL),
        }
    };
    child.kill()?;
    child.wait()?;
    Ok(end)
}
