//! `lockstep bench`: measures the engine's speed and the peak performance of this machine.
//!
//! Each benchmark has one file. [`workload`] creates the timed steps, and [`shapes`] the models. All figures are
//! measured on this machine.

pub mod ablation;
pub mod addition;
pub mod algorithms;
pub mod gemm;
pub mod group;
pub mod levels;
pub mod memory;
pub mod parity;
pub mod plot;
pub mod report;
pub mod rollout;
pub mod shapes;
pub mod step;
pub mod train;
pub mod workload;

pub use report::{Machine, Report};
pub use shapes::{Shape, Subject};
pub use workload::Workload;

use std::time::Instant;

/// Calls `work` at least `least` times, and continues until `seconds` have passed. Returns the seconds of each call.
pub fn repeat(least: usize, seconds: f64, mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Vec<f64>> {
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < least || start.elapsed().as_secs_f64() < seconds {
        let one = Instant::now();
        work()?;
        times.push(one.elapsed().as_secs_f64());
    }
    Ok(times)
}

/// The median; for an even number of times, the smaller of the two middle values.
pub fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_of_an_even_count_is_the_lower_middle_value() {
        assert_eq!(super::median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(super::median(&[4.0, 1.0, 100.0, 2.0]), 2.0);
        let mut calls = 0;
        let times = super::repeat(3, 0.0, || {
            calls += 1;
            Ok(())
        });
        assert_eq!((times.unwrap().len(), calls), (3, 3));
    }
}
