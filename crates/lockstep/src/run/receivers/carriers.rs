//! Two ways to deliver records to a receiver: the standard input of a program, and POST requests to an address.

use rewards::outside::{Address, Program, explain};
use std::io::Write;
use std::process::ChildStdin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The time limit of a request, in seconds.
pub(super) const TIMEOUT_S: f64 = 10.0;
/// A program that ends within this time is considered not started: an interpreter without its script, for example.
const STARTED: Duration = Duration::from_millis(250);

/// Why a record was not delivered.
#[derive(Debug)]
pub(super) struct Failure {
    pub why: String,
    /// Whether another attempt may succeed.
    pub may_pass: bool,
}

/// Delivers records to one receiver; used by a single thread.
pub(super) trait Carrier: Send {
    /// Called before the first record.
    fn begin(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Delivers a record, which is one line.
    fn deliver(&mut self, line: &[u8]) -> Result<(), Failure>;

    /// Called after the last record; may take until the deadline. Returns an error message, if any.
    fn end(&mut self, _deadline: Instant) -> Option<String> {
        None
    }
}

/// A program that reads records from its standard input. A program that has ended is started again for the next record.
pub(super) struct Command {
    words: Vec<String>,
    /// The running program, which another thread may kill during a write.
    program: Arc<Mutex<Option<Program>>>,
    input: Option<ChildStdin>,
}

impl Command {
    pub(super) fn new(words: Vec<String>) -> Command {
        Command { words, program: Arc::default(), input: None }
    }

    /// A function that kills the program, so that nothing waits for it any longer.
    pub(super) fn abort(&self) -> impl FnMut() + Send + use<> {
        let program = self.program.clone();
        move || {
            if let Some(program) = lock(&program).as_mut() {
                program.kill();
            }
        }
    }

    fn start(&mut self) -> Result<(), Failure> {
        let again = |why: String| Failure { why, may_pass: true };
        let started = Program::start(&self.words, false);
        let (mut program, input, _) = started.map_err(|e| again(format!("it cannot be started: {}", explain(&e))))?;
        if program.exited_within(STARTED) {
            return Err(again(program.epitaph()));
        }
        *lock(&self.program) = Some(program);
        self.input = Some(input);
        Ok(())
    }
}

impl Carrier for Command {
    fn begin(&mut self) -> Result<(), Failure> {
        self.start()
    }

    fn deliver(&mut self, line: &[u8]) -> Result<(), Failure> {
        if self.input.is_none() {
            self.start()?;
        }
        let Some(input) = &mut self.input else { return Ok(()) };
        let written = input.write_all(line).and_then(|()| input.flush());
        written.map_err(|error| {
            self.input = None;
            let ended = lock(&self.program).take().map(|mut program| program.epitaph());
            Failure { why: ended.unwrap_or_else(|| error.to_string()), may_pass: true }
        })
    }

    fn end(&mut self, deadline: Instant) -> Option<String> {
        self.input = None;
        let mut program = lock(&self.program).take()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if !program.exited_within(left) {
            program.kill();
            return Some("it was still running after the run's end, and was killed".to_owned());
        }
        let status = program.kill().filter(|status| !status.success())?;
        Some(program.with_stderr(format!("it ended ({status})")))
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// An address that receives each record in a POST request.
pub(super) struct Http {
    address: Address,
    authorization: Option<String>,
}

impl Http {
    pub(super) fn new(address: Address, token: Option<&str>) -> Http {
        Http { address, authorization: token.map(|token| format!("Bearer {token}")) }
    }
}

impl Carrier for Http {
    fn deliver(&mut self, line: &[u8]) -> Result<(), Failure> {
        let body = line.strip_suffix(b"\n").unwrap_or(line);
        let sent = self.address.notify(body, self.authorization.as_deref());
        sent.map_err(|(why, may_pass)| Failure { why, may_pass })
    }
}
