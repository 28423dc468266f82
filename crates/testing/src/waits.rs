//! Helpers with which tests wait for other threads and processes. They do not depend on the machine's speed: a test
//! fails only if it hangs.

use std::process::{Child, ExitStatus};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// The time after which a wait fails. Only a hanging test reaches it, however slow or busy the machine is.
pub const HANG: Duration = Duration::from_secs(600);

/// The pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `happened` returns true. After [`HANG`] it fails the test with a message that contains `what`.
#[track_caller]
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    wait_for(what, || happened().then_some(()));
}

/// Waits until `look` returns a value, and returns that value. After [`HANG`] it fails the test with a message that
/// contains `what`.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < HANG, "it does not happen: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Receives the next message. If the sender is gone, or after [`HANG`], it fails the test with a message that contains
/// `what`.
#[track_caller]
pub fn receive<T>(what: &str, messages: &Receiver<T>) -> T {
    match messages.recv_timeout(HANG) {
        Ok(message) => message,
        Err(error) => panic!("it does not happen: {what} ({error})"),
    }
}

/// Waits until a process ends, and returns its exit status. After [`HANG`] it kills the process and fails the test with
/// a message that contains `what`.
#[track_caller]
pub fn wait_for_end(what: &str, child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status,
            Ok(None) if begun.elapsed() < HANG => std::thread::sleep(POLL_INTERVAL),
            other => {
                let _ = child.kill();
                panic!("a process does not end: {what} ({other:?})");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::mpsc::channel;

    #[test]
    fn a_wait_ends_when_it_happens() {
        let mut looks = 0;
        wait_until("the third look", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
        assert_eq!(wait_for("a value", || Some(7)), 7);
        let (sender, messages) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(8).unwrap());
            assert_eq!(receive("a message", &messages), 8);
        });
        let mut child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        assert_eq!(wait_for_end("a shell", &mut child).code(), Some(3));
    }

    #[test]
    #[should_panic(expected = "it does not happen: a message")]
    fn a_message_of_a_sender_that_is_gone_is_not_waited_for() {
        let (sender, messages) = channel::<()>();
        drop(sender);
        receive("a message", &messages);
    }
}
