//! Decides when to warn that a learner waits for missing workers.

use std::time::{Duration, Instant};

/// How often a waiting learner checks for missing workers.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The missing workers of one wait, and the time of the last check.
pub(super) struct Missing {
    looked: Instant,
    reported: Option<String>,
}

impl Missing {
    /// No worker is missing yet.
    pub fn new() -> Missing {
        Missing { looked: Instant::now(), reported: None }
    }

    /// Whether a check is due.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.looked.elapsed() > POLL_INTERVAL;
        if is_due {
            self.looked = Instant::now();
        }
        is_due
    }

    /// Returns the current message if it has changed: workers come and go while a learner waits.
    pub fn news(&mut self, missing: Option<String>) -> Option<&str> {
        let is_new = missing != self.reported;
        self.reported = missing;
        self.reported.as_deref().filter(|_| is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row has the missing workers at a check, and the message.
    #[test]
    fn missing_workers_are_reported_whenever_they_change() {
        let mut missing = Missing::new();
        assert!(!missing.is_due(), "no check is due at the start of a wait");
        for (now, expected) in [
            (None, None),
            (Some("a"), Some("a")),
            (Some("a"), None),
            (Some("b"), Some("b")),
            (None, None),
            (None, None),
            (Some("b"), Some("b")),
            (Some("a"), Some("a")),
            (None, None),
            (Some("a"), Some("a")),
        ] {
            assert_eq!(missing.news(now.map(str::to_owned)), expected);
        }
    }
}
