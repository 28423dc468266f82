//! Starts a learner and its workers as child processes, restarts killed ones, and never leaves a process behind. It
//! knows only command lines, exit codes and stop requests, and saves nothing. The caller maps signals to requests.
//!
//! Each child's standard input is a pipe that only the supervisor could write to. When the supervisor ends for any
//! reason, the kernel closes the pipe, and [`watch_parent`] notices this in the child. (`PR_SET_PDEATHSIG` is not used:
//! it fires when the *thread* that started the child ends, and so would kill healthy workers.)

use crate::error::{Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The interval at which the children are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The environment variable that tells a child that its standard input is the supervisor's pipe.
pub const SUPERVISED: &str = "LOCKSTEP_SUPERVISED";

/// The exit code of a worker that the learner has expelled. Such a worker is not started again.
pub const EXPELLED: u8 = 4;

/// A stop request, with the number of the signal that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Save the work, then end.
    Stop(i32),
    /// End at once.
    AtOnce(i32),
}

/// The signals of a crash: an abort (which a failed allocation causes, too), a fault, a resource limit. A restarted
/// process would crash again. (SIGKILL is not a crash: a user or the out-of-memory killer sent it.)
const CRASHES: [Signal; 9] = [
    Signal::ABORT,
    Signal::SEGV,
    Signal::BUS,
    Signal::ILL,
    Signal::FPE,
    Signal::SYS,
    Signal::TRAP,
    Signal::XCPU,
    Signal::XFSZ,
];

/// A process that the supervisor keeps running.
pub struct Role<'a> {
    /// The name of the process in messages.
    pub name: String,
    /// Builds the command line. The argument is the number of earlier starts; a learner resumes if it is not 0.
    pub command: Box<dyn FnMut(u32) -> Command + 'a>,
}

/// Limits for restarting children and for waiting.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// If a child fails and is restarted this many times within `window`, the run ends.
    pub restarts: u32,
    /// The same limit for a child that was ended by an external signal. It is higher, since a user may have sent the
    /// signal.
    pub kills: u32,
    /// The period in which restarts are counted.
    pub window: Duration,
    /// The maximum time that workers may take to end after the learner has ended.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { restarts: 10, kills: 100, window: Duration::from_secs(60), grace: Duration::from_secs(30) }
    }
}

struct Running<'a> {
    role: Role<'a>,
    child: Option<Child>,
    starts: u32,
    restarted: Vec<Instant>,
    /// True if the process ended by itself and need not be restarted.
    done: bool,
    expelled: bool,
}

impl Running<'_> {
    fn new(role: Role<'_>) -> Running<'_> {
        Running { role, child: None, starts: 0, restarted: Vec::new(), done: false, expelled: false }
    }

    fn start(&mut self) -> Result<()> {
        let mut command = (self.role.command)(self.starts);
        self.starts += 1;
        command.stdin(Stdio::piped()).env(SUPERVISED, "1");
        let child = command.spawn();
        self.child = Some(child.map_err(|e| Error::Failed(format!("cannot start {}: {e}", self.role.name)))?);
        Ok(())
    }

    /// The exit status, returned once when the process has ended.
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let status = child.try_wait().map_err(|e| Error::Failed(format!("cannot wait for {}: {e}", self.role.name)))?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    /// Sends the signal of a stop request, and SIGCONT, so that a stopped process receives it.
    fn stop(&self, signal: Signal) {
        for signal in [signal, Signal::CONT] {
            if let Some(child) = &self.child {
                // The child may have ended in the meantime.
                let _ = kill_process(Pid::from_child(child), signal);
            }
        }
    }

    fn close_pipe(&mut self) {
        if let Some(child) = &mut self.child {
            child.stdin = None;
        }
    }

    fn restart(&mut self, limits: &Limits, status: ExitStatus, report: &mut dyn FnMut(&str)) -> Result<()> {
        let now = Instant::now();
        self.restarted.retain(|at| now.duration_since(*at) < limits.window);
        let name = &self.role.name;
        let most = if status.signal().is_some() && !is_crash(status) { limits.kills } else { limits.restarts };
        if self.restarted.len() as u32 >= most {
            let seconds = limits.window.as_secs();
            let often = format!("{} times in {seconds} s", self.restarted.len());
            return Err(Error::Failed(format!(
                "{name} was restarted {often} and exited again ({status}): see its log"
            )));
        }
        self.restarted.push(now);
        report(&format!("{name} ended ({status}): started again"));
        self.start()
    }
}

/// All children. Dropping this value kills the running ones.
struct Group<'a>(Vec<Running<'a>>);

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let mut children: Vec<Child> = self.0.iter_mut().filter_map(|running| running.child.take()).collect();
        // Each child has ended by now, or is killed here.
        for child in &mut children {
            let _ = child.kill();
        }
        for child in &mut children {
            let _ = child.wait();
        }
    }
}

fn is_crash(status: ExitStatus) -> bool {
    status.signal().is_some_and(|number| CRASHES.iter().any(|crash| crash.as_raw() == number))
}

/// Runs a learner and its workers until the learner ends, and returns its exit code. A killed learner is restarted, and
/// so is a failed worker. A learner that crashed or failed ends the run. A worker that exits with code 2 (its model or
/// program differs) ends the run with that code. A worker that exits with [`EXPELLED`] is not restarted; once all
/// workers have done so, the run ends. `asked` returns each request once. A stop request is forwarded to the learner as
/// its signal, and the learner ends the workers. A request to end at once kills all children.
pub fn run(
    learner: Role<'_>,
    workers: Vec<Role<'_>>,
    limits: Limits,
    asked: &mut dyn FnMut() -> Option<Asked>,
    report: &mut dyn FnMut(&str),
) -> Result<i32> {
    let mut all = Group(std::iter::once(learner).chain(workers).map(Running::new).collect());
    all.0.iter_mut().try_for_each(Running::start)?;
    let mut is_asked = false;
    let mut refused = None;
    let code = loop {
        match asked() {
            Some(Asked::AtOnce(number)) => return Ok(128 + number),
            Some(Asked::Stop(number)) => {
                is_asked = true;
                all.0[0].stop(Signal::from_named_raw(number).unwrap_or(Signal::TERM));
            }
            None => {}
        }
        if let Some(status) = all.0[0].ended()? {
            let killed = 128 + status.signal().unwrap_or(0);
            match status.code() {
                Some(code) => break refused.unwrap_or(code),
                // The learner was told to stop, and the signal killed it.
                None if is_asked => break refused.unwrap_or(killed),
                None if is_crash(status) => {
                    report(&format!("the learner crashed ({status}), so the run stops"));
                    break killed;
                }
                None => all.0[0].restart(&limits, status, report)?,
            }
        }
        for worker in &mut all.0[1..] {
            let Some(status) = worker.ended()? else { continue };
            match status.code() {
                Some(0) => worker.done = true,
                Some(code) if code == i32::from(EXPELLED) => {
                    (worker.done, worker.expelled) = (true, true);
                    report(&format!("{} was expelled and is not restarted", worker.role.name));
                }
                Some(2) if refused.is_none() => {
                    worker.done = true;
                    report(&format!("{} was refused: the run stops", worker.role.name));
                    refused = Some(2);
                }
                _ if refused.is_some() => worker.done = true,
                _ => worker.restart(&limits, status, report)?,
            }
        }
        if refused.is_none() && !all.0[1..].is_empty() && all.0[1..].iter().all(|worker| worker.expelled) {
            report("all workers were expelled, so the run stops");
            refused = Some(1);
        }
        if refused.is_some() && !is_asked {
            is_asked = true;
            all.0[0].stop(Signal::TERM);
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    // Connected workers learn that the run has ended. The supervisor closes the pipes of all other workers, and finally
    // kills them.
    let end = Instant::now() + limits.grace;
    let mut closed = code != 0;
    loop {
        match asked() {
            Some(Asked::AtOnce(_)) => return Ok(code),
            Some(Asked::Stop(_)) => closed = true,
            None => {}
        }
        let mut left = false;
        for running in &mut all.0 {
            if closed {
                running.close_pipe();
            }
            running.ended()?;
            left |= running.child.is_some();
        }
        if !left || Instant::now() >= end {
            return Ok(code);
        }
        closed |= Instant::now() + limits.grace / 2 >= end;
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Detaches a child process from the supervisor's terminal; the child must call this first. Ctrl-C then reaches only
/// the supervisor, which stops the learner before the workers, and the child may write to the terminal from the
/// background (`stty tostop`). Returns whether this process has a supervisor.
pub fn leave_terminal() -> bool {
    let is_supervised = std::env::var_os(SUPERVISED).is_some();
    if is_supervised {
        // The call fails for a process-group leader, which Ctrl-C does not reach anyway.
        let _ = rustix::process::setsid();
    }
    is_supervised
}

/// Call this in a child process. It calls `gone` once the supervisor has ended, and ends the process if the process is
/// still running `grace` later. Without a supervisor it does nothing and returns false.
pub fn watch_parent(grace: Duration, gone: impl FnOnce() + Send + 'static) -> bool {
    if std::env::var_os(SUPERVISED).is_none() {
        return false;
    }
    let watch = move || {
        let mut byte = [0];
        // Nothing is ever written to the pipe, so the read returns only when the pipe is closed.
        while std::io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {}
        gone();
        std::thread::sleep(grace);
        std::process::exit(1);
    };
    std::thread::Builder::new().name("supervisor".to_owned()).spawn(watch).is_ok()
}

#[cfg(test)]
mod tests;
