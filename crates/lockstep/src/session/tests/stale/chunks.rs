//! Runs whose completions are continued by newer weights (`partial_rollout_tokens`). The weights after every step are
//! kept, and each token is scored again with them to prove which weights sampled it.

use super::super::stop::stopped_anywhere;
use super::super::{config, directory};
use super::{corrected, groups, kept, lora, metric, options, ppo, resumed, scored, stale};
use crate::Run;
use crate::config::{ComputeDType, Config, Purpose, Strategy};
use model::columns::OLD_LOGPS;
use std::collections::BTreeSet;
use std::path::Path;
use telemetry::Step;

const FRONTIER: &str = "frontier.begun.bin";

fn chunked(dir: &Path, out: &str, k: usize, tokens: usize) -> Config {
    Config { partial_rollout_tokens: Some(tokens), max_completion_length: 10, ..stale(dir, out, k) }
}

/// A run with `max_staleness` = k and chunks of C = `tokens`. Token t of batch b must be sampled with the weights at
/// the start of batch clamp(b − k + ⌊t / C⌋, 0, b). With the importance sampling correction, π_old must come from the
/// weights at the start of batch b.
#[track_caller]
fn proven(k: usize, tokens: usize, planted: bool, change: impl Fn(&mut Config)) {
    let dir = directory();
    let mut config = chunked(dir.path(), "run", k, tokens);
    change(&mut config);
    let steps = (config.generation_batch() / config.completions_per_step() * config.passes()) as u64;
    let run = kept(config.clone(), planted);
    let (mut next, mut mixed, mut lags) = (0, 0, Vec::new());
    for group in groups(&run.root) {
        assert_eq!(group.group.0, next, "group numbers must ascend without gaps");
        next += 1;
        let batch = (group.step.unwrap().0 - 1) / steps;
        let batch_weights = |batch: u64| &run.weights[(batch * steps) as usize];
        let version = |token: usize| (batch + (token / tokens) as u64).saturating_sub(k as u64).min(batch);
        for completion in &group.completions {
            let own = completion.columns.sampler_logps().unwrap();
            let by = |version: u64| scored(&config, batch_weights(version), &group, completion);
            let all: Vec<Vec<f32>> = (0..=batch).map(by).collect();
            for token in 0..own.len() {
                let wrote = version(token);
                assert_eq!(own[token], all[wrote as usize][token], "batch {batch}, token {token}");
                assert_eq!(completion.versions[token], batch_weights(wrote).view().version().trained());
                lags.push((batch, (batch - wrote) as f64));
            }
            let versions: BTreeSet<model::Updates> = completion.versions.iter().copied().collect();
            mixed += usize::from(versions.len() > 1);
            let now = batch_weights(batch).view().version().trained();
            let is_stale = versions.iter().any(|&version| version != now);
            let old = completion.columns.f32(OLD_LOGPS);
            let wanted = is_stale && config.vllm_importance_sampling_correction;
            assert_eq!(old, wanted.then_some(&all[batch as usize][..]), "batch {batch}");
        }
    }
    assert!(mixed > 3, "{mixed} completions of several versions");
    let batches = (config.max_steps as u64).div_ceil(steps);
    assert_eq!(next, batches * (config.generation_batch() / config.num_generations) as u64);
    assert!(metric(&run.root, "sampling/logp_mismatch_tokens").iter().all(|&tokens| tokens == 0.0));
    if !planted {
        let of = |batch: u64| lags.iter().filter(move |(of, _)| *of == batch).map(|(_, lag)| *lag);
        let mean = |batch: u64| of(batch).sum::<f64>() / of(batch).count() as f64;
        assert_eq!(metric(&run.root, "async/lag_mean"), (0..batches).map(mean).collect::<Vec<_>>());
        let max = |batch: u64| of(batch).fold(0.0, f64::max);
        assert_eq!(metric(&run.root, "async/lag_max"), (0..batches).map(max).collect::<Vec<_>>());
    }
}

#[test]
fn the_position_of_a_token_decides_which_weights_sample_it() {
    proven(1, 4, false, |_| {});
    proven(2, 3, false, |_| {});
    proven(2, 1, false, corrected);
    // The staleness exceeds the number of batches.
    proven(9, 1, false, |_| {});
}

#[test]
fn all_kinds_of_runs_work_in_chunks() {
    proven(2, 3, false, |config| {
        corrected(config);
        lora(config);
        config.num_iterations = 2;
    });
    proven(1, 4, false, |config| config.dtype = ComputeDType::Bf16);
    proven(2, 3, false, |config| (config.steps_per_generation, config.max_steps) = (Some(2), 9));
    proven(2, 2, false, ppo);
    proven(1, 3, true, |config| config.scale_rewards = train::ScaleRewards::None);
}

#[test]
fn a_stopped_run_resumes_to_the_same_bits() {
    resumed(1, FRONTIER, |config| config.partial_rollout_tokens = Some(2));
    resumed(2, FRONTIER, |config| {
        corrected(config);
        lora(config);
        (config.num_iterations, config.partial_rollout_tokens) = (2, Some(3));
    });
    resumed(2, FRONTIER, |config| {
        ppo(config);
        config.partial_rollout_tokens = Some(1);
    });
}

/// Interrupts a run at each check for a stop request, including while it generates chunks of later batches.
#[test]
fn a_discarded_step_generates_its_chunks_again() {
    let mut config = Config { max_steps: 4, packing: false, max_staleness: 2, ..config(Path::new(""), "") };
    config.partial_rollout_tokens = Some(2);
    let plain = || options(&Config::default(), false);
    let steps = stopped_anywhere(Purpose::Grpo, config, plain);
    assert!((0..4).all(|step| steps.contains(&step)), "{steps:?}");
}

/// Chunks as long as the longest completion must change no weights. A run that learns nothing must sample the same
/// completions as the synchronous run, whichever weights continue them.
#[test]
fn chunks_longer_than_completions_change_no_bit() {
    let dir = directory();
    let run = |out: &str, change: &dyn Fn(&mut Config)| {
        let mut config = Config { eval_strategy: Strategy::No, ..chunked(dir.path(), out, 2, 3) };
        change(&mut config);
        Run::new(Purpose::Grpo, config.clone(), options(&config, false)).unwrap().run().unwrap()
    };
    let whole = run("whole", &|config| config.partial_rollout_tokens = None);
    let long = run("long", &|config| config.partial_rollout_tokens = Some(10));
    let weights = |out: &str| std::fs::read(dir.path().join(out).join("model/model.safetensors")).unwrap();
    assert!(weights("whole") == weights("long"));
    assert_eq!(metric(whole.dir.root(), "loss"), metric(long.dir.root(), "loss"));
    run("chunks", &|config| config.partial_rollout_tokens = Some(3));
    assert!(weights("whole") != weights("chunks"));
    let still = |config: &mut Config| config.learning_rate = 0.0;
    run("still", &|config| {
        still(config);
        (config.max_staleness, config.partial_rollout_tokens) = (0, None);
    });
    run("still-chunks", &still);
    let (expected, mut found) = (groups(&dir.path().join("still")), groups(&dir.path().join("still-chunks")));
    for (a, b) in expected.iter().zip(&mut found) {
        b.lineage = a.lineage;
        a.completions.iter().zip(&mut b.completions).for_each(|(a, b)| b.versions.clone_from(&a.versions));
    }
    assert_eq!(expected, found);
}

#[test]
fn a_damaged_frontier_is_refused() {
    let dir = directory();
    let config = chunked(dir.path(), "run", 2, 3);
    let run = Run::new(Purpose::Grpo, config.clone(), options(&config, false)).unwrap().run().unwrap();
    let checkpoint = run.dir.checkpoint(Step(3));
    let file = checkpoint.join(FRONTIER);
    let bytes = std::fs::read(&file).unwrap();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    for (damaged, word) in [(&flipped[..], "checksum"), (&bytes[..bytes.len() - 3], "truncated"), (&[], "2 batches")] {
        std::fs::write(&file, damaged).unwrap();
        // Removes the list of files, which would report the damage first.
        let _ = std::fs::remove_file(checkpoint.join("files.json"));
        let error = Run::resume(Purpose::Grpo, &checkpoint, options(&config, false)).err().expect("refused");
        let message = format!("{error:#}");
        assert!(message.contains(FRONTIER) && message.contains(word), "{message}");
    }
}

#[test]
fn chunks_without_staleness_are_refused() {
    let dir = directory();
    let config = chunked(dir.path(), "out", 0, 3);
    let error = Run::new(Purpose::Grpo, config.clone(), options(&config, false)).err().expect("refused").to_string();
    assert!(error.contains("partial_rollout_tokens") && error.contains("max_staleness"), "{error}");
    assert!(!dir.path().join("out").exists());
}
