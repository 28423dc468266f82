//! Decides when to warn that a learner waits for missing workers.

use std::time::{Duration, Instant};

/// How often a waiting learner looks for missing workers.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The missing workers of one wait, and the time of the last look.
pub(super) struct Missing {
    looked: Instant,
    said: Option<String>,
}

impl Missing {
    /// Nothing is missing yet.
    pub fn new() -> Missing {
        Missing { looked: Instant::now(), said: None }
    }

    /// Whether it is time to look.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.looked.elapsed() > POLL_INTERVAL;
        if is_due {
            self.looked = Instant::now();
        }
        is_due
    }

    /// Takes the present message, and returns it if it has changed: workers come and go while a learner waits.
    pub fn news(&mut self, missing: Option<String>) -> Option<&str> {
        let is_new = missing != self.said;
        self.said = missing;
        self.said.as_deref().filter(|_| is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (The missing workers at each look, the message.)
    #[test]
    fn missing_workers_are_reported_at_each_change() {
        let mut missing = Missing::new();
        assert!(!missing.is_due(), "a wait begins");
        for (now, said) in [
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
            assert_eq!(missing.news(now.map(str::to_owned)), said);
        }
    }
}
