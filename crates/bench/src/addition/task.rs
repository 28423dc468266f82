//! The demo's task: two-digit addition, character by character. The training data are the answers of a teacher that
//! drops the carries in half of the sums.

use kernels::rng::Stream;
use serde_json::json;
use std::fmt::Write as _;

/// The characters of prompts and answers.
pub const CHARACTERS: &str = "0123456789+=";

/// One in this many pairs of operands is held out of training, for evaluation.
const HELD_OUT_ONE_IN: u64 = 4;

/// The number of answers that the teacher writes for each training pair.
const LESSONS_PER_PAIR: usize = 3;

/// The two operands of an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    a: u64,
    b: u64,
}

impl Pair {
    fn all() -> impl Iterator<Item = Pair> {
        (0..100).flat_map(|a| (0..100).map(move |b| Pair { a, b }))
    }

    /// Whether the pair is held out of training. A hash of both operands decides, so that each single operand occurs in
    /// training.
    pub fn is_held_out(self) -> bool {
        // SplitMix64's finaliser.
        let mut x = (self.a * 100 + self.b).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)).is_multiple_of(HELD_OUT_ONE_IN)
    }

    /// The prompt, for example `37+58=`.
    pub fn prompt(self) -> String {
        format!("{:02}+{:02}=", self.a, self.b)
    }

    /// The correct answer.
    pub fn sum(self) -> String {
        (self.a + self.b).to_string()
    }

    /// The sum digit by digit, with every carry dropped: 37+58 gives 85.
    pub fn sum_without_carry(self) -> String {
        format!("{}{}", (self.a / 10 + self.b / 10) % 10, (self.a + self.b) % 10)
    }
}

/// The teacher's answers as JSON lines with `prompt` and `completion`, for SFT.
pub fn lessons(seed: u64) -> String {
    let mut coin = Stream::new(seed, 0x7465_6163_6865_7200);
    let mut lines = String::new();
    for pair in Pair::all().filter(|p| !p.is_held_out()) {
        for _ in 0..LESSONS_PER_PAIR {
            let answer = if coin.next_f64() < 0.5 { pair.sum_without_carry() } else { pair.sum() };
            let _ = writeln!(lines, "{}", json!({"prompt": pair.prompt(), "completion": answer}));
        }
    }
    lines
}

/// Additions with their correct answers, as JSON lines with `prompt` and `answer`: the held-out pairs, or the training
/// pairs.
pub fn problems(held_out: bool) -> String {
    let mut lines = String::new();
    for pair in Pair::all().filter(|p| p.is_held_out() == held_out) {
        let _ = writeln!(lines, "{}", json!({"prompt": pair.prompt(), "answer": pair.sum()}));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_without_carry_drops_every_carry() {
        let answer = |a, b| Pair { a, b }.sum_without_carry();
        assert_eq!((answer(37, 58), answer(12, 34), answer(95, 5)), ("85".into(), "46".into(), "90".into()));
        let spoiled = Pair::all().filter(|p| p.sum() != p.sum_without_carry()).count();
        assert!(
            (6500..7500).contains(&spoiled),
            "dropped carries change {spoiled} of 10000 sums, expected 6500 to 7500"
        );
    }

    #[test]
    fn at_least_2000_problems_are_held_out_of_training() {
        assert!(problems(true).lines().count() >= 2000);
        assert_eq!(problems(true).lines().count() + problems(false).lines().count(), 10_000);
        let held_out = problems(true);
        assert!(!lessons(1).lines().take(200).any(|l| held_out.contains(&l[..18])));
    }
}
