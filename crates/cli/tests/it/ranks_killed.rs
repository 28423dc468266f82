//! Kills of random ranks at random times, over all kinds of runs: resumed with other numbers of ranks, each run has the
//! bits of one process that was never killed.

use crate::distributed_faults::signal;
use crate::many_kills::Random;
use crate::ranks::{KINDS, children, divided, ended};
use crate::stopping::is_alive;
use crate::support::command;
use crate::support::runs::{arguments, directory, good, same, same_but_workers};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use testing::wait_until;

/// The number of kills of each run.
const EACH: u32 = 5;

/// The number of kills, in total, of rank 0 and of other ranks; and of those of other ranks during an optimizer step.
#[derive(Default)]
struct Kills {
    first: u32,
    others: u32,
    during_steps: u32,
}

/// `LOCKSTEP_KILLS` is the number of kills, and `LOCKSTEP_SEED` that of the random numbers.
#[test]
#[ignore = "takes ten minutes; cargo xtask nightly rank_kills"]
fn kills_of_random_ranks_change_no_bit() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let (seed, all) = (number("LOCKSTEP_SEED").unwrap_or(42), number("LOCKSTEP_KILLS").unwrap_or(200) as u32);
    println!("seed {seed}");
    let dir = directory();
    let root = dir.path();
    let (mut random, mut kills, mut runs) = (Random(seed), Kills::default(), 0);
    for (purpose, kind, set) in KINDS.iter().cycle() {
        if kills.first + kills.others >= all {
            break;
        }
        let set = [*set, &["gradient_shares=4", "max_steps=30", "save_steps=1", "eval_steps=10"]].concat();
        let (one, out) = (format!("{kind}-one"), format!("{kind}-{runs}"));
        let start = Instant::now();
        good(root, &arguments(purpose, &one, &set));
        killed(root, (purpose, &out, &set), start.elapsed(), &mut random, &mut kills);
        let compare = if ["rloo", "chunks"].contains(kind) { same_but_workers } else { same };
        compare(&root.join(&one), &root.join(&out));
        for run in [one, out] {
            fs::remove_dir_all(root.join(run)).unwrap();
        }
        runs += 1;
        println!("{kind}: {} kills", kills.first + kills.others);
    }
    let Kills { first, others, during_steps } = kills;
    println!(
        "seed {seed}: {} kills of ranks in {runs} runs: {first} of rank 0, {others} of others, {during_steps} of them \
         during an optimizer step: the same bits, no process left behind",
        first + others
    );
}

/// Runs to the end, with kills of random ranks and a random number of ranks after each. `whole` is the time of a run.
fn killed(root: &Path, run: (&str, &str, &[&str]), whole: Duration, random: &mut Random, kills: &mut Kills) {
    let (purpose, out, set) = run;
    let mut left = EACH;
    loop {
        let ranks = ["2", "4"][random.below(2) as usize];
        // Without its configuration, a run that was killed at its start is not one.
        let arguments = if root.join(out).join("config.toml").exists() {
            vec![purpose, "--resume", out, "--ranks", ranks]
        } else {
            divided(purpose, out, set, ranks)
        };
        let run = command(root, &arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut victim = None;
        if left > 0 {
            let until = Instant::now() + whole.mul_f64(random.below(1000) as f64 / 3000.0);
            while Instant::now() < until && is_alive(&run.id().to_string()) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let processes = [vec![run.id()], children(run.id())].concat();
            let chosen = random.below(processes.len() as u64) as usize;
            if is_alive(&processes[chosen].to_string()) {
                signal(processes[chosen], "9");
                victim = Some(chosen);
                left -= 1;
            }
        }
        let others = children(run.id());
        let (code, text) = ended(run);
        wait_until("every rank ends", || !others.iter().any(|pid| is_alive(&pid.to_string())));
        match (code, victim) {
            // It had ended, or was about to.
            (Some(0), _) => return,
            (None, Some(0)) => kills.first += 1,
            (Some(1), Some(rank)) if rank > 0 => {
                kills.others += 1;
                kills.during_steps += u32::from(text.contains(", during an optimizer step: resume the run"));
                assert!(text.contains("was killed by signal 9"), "{text}");
            }
            _ => panic!("{code:?} after a kill of {victim:?}: {text}"),
        }
    }
}
