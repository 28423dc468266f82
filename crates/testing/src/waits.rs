//! Functions that wait for other threads and processes. Tests that use them do not depend on the machine's speed: a
//! wait fails only if the test hangs.

use std::process::{Child, ExitStatus};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// The timeout of a wait. It is so long that only a hanging test reaches it, even on a slow or busy machine.
pub const HANG: Duration = Duration::from_secs(600);

/// The time between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `happened` returns true. Panics with a message that contains `what` after [`HANG`].
#[track_caller]
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    wait_for(what, || happened().then_some(()));
}

/// Waits until `look` returns a value, and returns that value. Panics with a message that contains `what` after
/// [`HANG`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < HANG, "timed out waiting for: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Receives the next message. Panics with a message that contains `what` if the sender was dropped, or after [`HANG`].
#[track_caller]
pub fn receive<T>(what: &str, messages: &Receiver<T>) -> T {
    match messages.recv_timeout(HANG) {
        Ok(message) => message,
        Err(error) => panic!("no message received: {what} ({error})"),
    }
}

/// Waits until a process exits, and returns its exit status. After [`HANG`] it kills the process and panics with a
/// message that contains `what`.
#[track_caller]
pub fn wait_for_end(what: &str, child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status,
            Ok(None) if begun.elapsed() < HANG => std::thread::sleep(POLL_INTERVAL),
            other => {
                let _ = child.kill();
                panic!("the process did not exit: {what} ({other:?})");
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
    fn waits_return_when_their_condition_holds() {
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
    #[should_panic(expected = "no message received: a message")]
    fn receive_panics_at_once_if_the_sender_was_dropped() {
        let (sender, messages) = channel::<()>();
        drop(sender);
        receive("a message", &messages);
    }
}
