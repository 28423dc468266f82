//! Random walks through the states of a run, each from a seed. The runs have more workers, batches and faults than an
//! exhaustive search could visit, and messages that are late, out of order, repeated or lost.

use super::world::{Budget, Environment, Move, World};
use crate::coordinator::Rules;
use crate::plan::Plan;

/// The random number generator SplitMix64 (Steele, Lea and Flood 2014), which is small and portable.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Simulates one run. Returns its last state and the number of moves. Without `disturbed`, the run has neither faults
/// nor lost messages; disturbed runs must end with the same weights.
fn simulate(plan: &Plan, seed: u64, disturbed: bool) -> Result<(World, usize), String> {
    let mut random = Random(seed);
    let workers = if disturbed { 1 + random.below(4) } else { 1 };
    // The budget has no unreadable files: scores may differ when a job is repeated, and then the weights would differ,
    // too. If there are several workers, one may be expelled.
    let lies = u32::from(workers > 1);
    let budget = if disturbed {
        Budget { kills: 4, stops: 3, crashes: 2, lies, ..Budget::default() }
    } else {
        Budget::default()
    };
    let halves = seed.is_multiple_of(2);
    let environment = Environment { lossy: true, judge: false, halves, workers, ..Environment::SOUND };
    let mut world = World::new(plan.clone(), Rules::ALL, environment, budget);
    for moves in 0..20_000 {
        if world.has_ended() {
            return Ok((world, moves));
        }
        let enabled = world.moves();
        let (quiet, faults): (Vec<_>, Vec<_>) = enabled.into_iter().partition(|(_, is_fault)| !is_fault);
        let step = match random.below(1000) {
            // Time passes: a little, or a lot, as after a suspend of the machine.
            0..60 => Move::Tick(if random.below(10) == 0 { 1 << 40 } else { 1 }),
            60..80 if disturbed && !faults.is_empty() => faults[random.below(faults.len())].0.clone(),
            80..180 if disturbed && !world.mail.is_empty() => Move::Deliver(random.below(world.mail.len()), true),
            180..240 if disturbed && !world.mail.is_empty() => Move::Lose(random.below(world.mail.len())),
            _ if quiet.is_empty() => Move::Tick(1),
            _ => quiet[random.below(quiet.len())].0.clone(),
        };
        world.apply(&step)?;
    }
    Err("the run does not end".to_owned())
}

fn run(seeds: std::ops::Range<u64>) -> usize {
    let mut moves = 0;
    let mut undisturbed = std::collections::BTreeMap::new();
    for seed in seeds {
        let mut random = Random(seed);
        let (batches, groups, k) = (3 + random.next() % 4, 1 + random.next() % 3, random.next() % 4);
        let chunks = random.next().is_multiple_of(2);
        let plan = Plan {
            chunks,
            // A worker counts as stalled only after a while, but a lost job is soon offered again.
            stale_after_ms: 20,
            straggler_after_ms: Some(8),
            failures_per_job: 100,
            kills_per_job: 100,
            max_inflight_tasks: 1 + random.next() % 4,
            // Large enough for a single worker: a checkpoint waits for all groups of the batches ahead.
            queue_maxsize: k * groups + 1 + random.next() % 4,
            ..Plan::new(batches, groups, k)
        };
        let (world, took) = simulate(&plan, seed, true).unwrap_or_else(|why| panic!("seed {seed}, {plan:?}: {why}"));
        moves += took;
        let halves = seed % 2;
        let alone = undisturbed.entry((batches, groups, k, chunks, halves)).or_insert_with(|| {
            let (world, _) =
                simulate(&plan, 2 + halves, false).unwrap_or_else(|why| panic!("undisturbed {plan:?}: {why}"));
            world.published().clone()
        });
        assert_eq!(world.published(), alone, "seed {seed}: the weights of every version");
    }
    moves
}

#[test]
fn lost_and_repeated_messages_do_not_change_the_weights() {
    let moves = run(0..2000);
    assert!(moves > 100_000, "{moves} moves");
}

/// Run by `cargo xtask nightly fleet_simulations`.
#[test]
#[ignore = "minutes: 100,000 seeds, which the nightly check runs"]
fn a_hundred_thousand_runs_with_lost_and_repeated_messages_have_the_right_weights() {
    let moves = run(2000..102_000);
    eprintln!("100000 runs, {moves} moves");
}
