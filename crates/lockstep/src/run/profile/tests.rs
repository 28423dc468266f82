//! The profile's rules on made-up measurements, and its windows. `session/tests/profile.rs` triggers the rules with
//! real runs.

mod least;

use super::ceilings::tests::Invented;
use super::measured::{Stage, Tail};
use super::*;
use telemetry::StageTotal;

/// Measurements of a run that is as fast as its machine allows: 40 sequences per decode step, and half of the time
/// spent decoding.
fn healthy() -> Measured {
    let stage = |path: &str, seconds: f64, flops: f64, bytes: f64| Stage { path: path.into(), seconds, flops, bytes };
    Measured {
        first_step: Step(2),
        last_step: Step(11),
        steps: 10,
        seconds: 100.0,
        stages: vec![
            stage("rollout", 55.0, 2000e9, 900e9),
            stage("rollout/prefill", 3.0, 0.0, 0.0),
            stage("rollout/decode", 48.0, 0.0, 0.0),
            stage("rollout/sampling", 2.0, 0.0, 0.0),
            stage("rewards", 2.0, 0.0, 0.0),
            stage("update", 40.0, 4000e9, 100e9),
            stage("checkpoint", 1.0, 0.0, 0.0),
            stage("evaluation", 10.0, 0.0, 0.0),
        ],
        counts: [("decode_steps", 1000.0), ("decode_passes", 40_000.0), ("preemptions", 0.0)]
            .map(|(name, n)| (name.to_owned(), n))
            .into(),
        rewards: [("gsm8k".to_owned(), 3.0), ("format".to_owned(), 1.0)].into(),
        interpreter: [("gsm8k".to_owned(), (0.1, 2.9))].into(),
        zero_spread: (3.0, 10),
        tail: Tail { completions: 640, longest: 40, steps: 1000, alone: 200 },
        cpu_s: 195.0,
        waited_s: Some(2.0),
        threads: 2,
        cores: 2,
        resident: (0..20).map(|i| (1000 + i % 3) << 20).collect(),
        memory: BTreeMap::new(),
        memory_resident: BTreeMap::new(),
        ceilings: Some(Ceilings { flops_per_s: Some(200e9), bytes_per_s: Some(30e9) }),
        without_ceilings: None,
    }
}

/// A profile on a machine with this load.
fn profiled(run: &RunDir, dtype: DType, asked_for: bool, load: f64) -> Profile {
    Profile::on(Box::new(Invented::with_load(load)), run, dtype, asked_for)
}

fn found(change: impl FnOnce(&mut Measured)) -> Vec<(&'static str, String)> {
    let mut measured = healthy();
    change(&mut measured);
    rules::ALL.iter().filter_map(|rule| Some((rule.id, (rule.holds)(&measured)?))).collect()
}

fn stage<'a>(measured: &'a mut Measured, path: &str) -> &'a mut Stage {
    measured.stages.iter_mut().find(|stage| stage.path == path).unwrap()
}

#[test]
fn findings_are_sorted_by_the_seconds_that_they_cost() {
    let ids = ["zero_spread", "data_bound", "worker_bound", "evaluation_bound", "long_tail", "no such rule"];
    let findings = ids.map(|id| Finding { id: id.to_owned(), ..Finding::default() });
    let record = ProfileRecord { measured: healthy(), findings: findings.into(), ..ProfileRecord::default() };
    let found: Vec<_> = record.by_gain().into_iter().map(|(finding, gain)| (finding.id.as_str(), gain)).collect();
    let (evaluations, tail, rest) = (10.0, 48.0 * 0.2, 100.0 - 98.0);
    let known = [("evaluation_bound", Some(evaluations)), ("long_tail", Some(tail)), ("data_bound", Some(rest))];
    // The measurements have no wait for workers, so the cost is unknown.
    let unknown = ["zero_spread", "worker_bound", "no such rule"].map(|id| (id, None));
    assert_eq!(found, [known, unknown].concat());
}

/// Asserts that after `change` exactly the rule `id` holds, with `part` in its evidence.
#[track_caller]
fn only(id: &str, part: &str, change: impl FnOnce(&mut Measured)) {
    let found = found(change);
    assert!(matches!(&found[..], [(rule, evidence)] if *rule == id && evidence.contains(part)), "{id}: {found:?}");
}

#[test]
fn each_rule_can_hold_and_none_holds_for_a_fast_run() {
    assert_eq!(found(|_| {}), []);
    assert_eq!(found(|m| *m = Measured::default()), []);
    only("reward_bound", "40.0 of 100.0 s (40 %) were spent waiting for rewards, most of it for `gsm8k`", |m| {
        stage(m, "rewards").seconds = 40.0;
        stage(m, "update").seconds = 5.0;
    });
    only("interpreter_lock", "`gsm8k` took 12.0 s, and waited 80 % of them", |m| {
        m.rewards.insert("gsm8k".into(), 12.0);
        m.interpreter.insert("gsm8k".into(), (0.8, 0.2));
    });
    only("worker_bound", "45.0 of 100.0 s (45 %)", |m| {
        m.counts.insert("waited_for_workers_s".into(), 45.0);
    });
    only("decode_memory_bound", "moves 79 % of the bytes", |m| stage(m, "rollout").bytes = 1300e9);
    only("decode_compute_bound", "does 82 % of the operations", |m| stage(m, "rollout").flops = 9000e9);
    // Bytes from a cache are not read from memory.
    assert_eq!(found(|m| stage(m, "rollout").bytes = 5000e9), []);
    only("small_batch", "has 3.0 sequences", |m| {
        m.counts.insert("decode_passes".into(), 3000.0);
    });
    // If the other completions have ended, a small number of sequences is reported as a tail.
    only("long_tail", "40 of 640 completions were decoded alone in 60 % of the decode steps", |m| {
        m.tail.alone = 600;
        m.counts.insert("decode_passes".into(), 3000.0);
    });
    only("kv_preemption", "40 preemptions interrupted the 640", |m| {
        m.counts.insert("preemptions".into(), 40.0);
    });
    only("zero_spread", "In 80 % of the groups", |m| m.zero_spread = (8.0, 10));
    only("data_bound", "31 % of the steps' 100.0 s", |m| {
        stage(m, "update").seconds = 10.0;
        stage(m, "rollout").seconds = 56.0;
    });
    only("checkpoint_bound", "20.0 of 100.0 s", |m| {
        stage(m, "checkpoint").seconds = 20.0;
        stage(m, "update").seconds = 22.0;
    });
    only("evaluation_bound", "Evaluations took 100.0 s", |m| stage(m, "evaluation").seconds = 100.0);
    only("oversubscribed", "8 threads on 2 cores waited 60.0 s", |m| (m.threads, m.waited_s) = (8, Some(60.0)));
    only("cores_shared", "waited 60.0 s for a core, and computed 195.0 s", |m| m.waited_s = Some(60.0));
    assert_eq!(found(|m| m.waited_s = None), []);
    only("memory_growth", "It rose from 100 to 200 MiB", |m| {
        m.resident = [90, 100, 120, 140, 160, 180, 200].map(|mib| mib << 20).to_vec();
    });
    // A single fall, or a small rise, is not growth.
    assert_eq!(found(|m| m.resident = [100, 120, 140, 139, 180, 200].map(|mib| mib << 20).to_vec()), []);
    assert_eq!(found(|m| m.resident = [1000, 1012, 1024, 1036, 1048, 1060].map(|mib| mib << 20).to_vec()), []);
}

#[test]
fn decode_steps_of_the_tail_follow_from_the_lengths() {
    let mut measured = Measured::default();
    // The longest two of 32 completions are alone in 897 of 997 steps.
    measured.lengths((0..32).map(|i| if i % 16 == 3 { 1000 - i } else { 100 - i }));
    assert_eq!(measured.tail, Tail { completions: 32, longest: 2, steps: 997, alone: 897 });
    measured.lengths([7, 7, 7].into_iter());
    assert_eq!(measured.tail, Tail { completions: 35, longest: 3, steps: 1004, alone: 897 });
    measured.lengths([7].into_iter());
    assert_eq!(measured.tail.completions, 35, "a single completion has no tail");
}

fn totals(rewards_s: f64) -> StepTotals {
    let stage = |path: &str, seconds| StageTotal { path: path.into(), count: 1, seconds, ..StageTotal::default() };
    StepTotals { stages: vec![stage("rewards", rewards_s), stage("update", 6.0 - rewards_s)], ..StepTotals::default() }
}

#[test]
fn a_rule_that_holds_in_two_windows_in_a_row_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = crate::context(None, Some(1), crate::config::ComputeDType::F32).unwrap();
    let run = RunDir::at(dir.path());
    run.write(&run.record(), &RunRecord::default().to_bytes().unwrap()).unwrap();
    let mut profile = profiled(&run, DType::F32, false, 0.0);
    let no_values = BTreeMap::new();
    let mut step = 0;
    let mut take = |profile: &mut Profile, rewards_s: f64| -> Vec<(String, (u64, u64))> {
        step += 1;
        let found = profile.end_step(Step(step), 6.0, &totals(rewards_s), &no_values, &ctx);
        let found = found.into_iter().filter(|finding| finding.id == "reward_bound");
        found.map(|finding| (finding.id, (finding.steps.0.0, finding.steps.1.0))).collect()
    };
    // The first step starts programs and is skipped. A window has three steps; a single step is not enough.
    for (rewards_s, windows) in [(6.0, 0), (5.0, 1), (1.0, 1), (5.0, 1)] {
        for _ in 0..if windows == 0 { 1 } else { 3 } {
            assert_eq!(take(&mut profile, rewards_s), []);
        }
    }
    assert_eq!(take(&mut profile, 5.0), []);
    assert_eq!(take(&mut profile, 5.0), []);
    assert_eq!(take(&mut profile, 5.0), [("reward_bound".to_owned(), (11, 13))]);
    for _ in 0..6 {
        assert_eq!(take(&mut profile, 5.0), []);
    }
    let kept = ProfileRecord::read(dir.path()).unwrap();
    assert_eq!(&kept, profile.record());
    assert_eq!((kept.measured.span(), kept.measured.steps), ((Step(2), Step(19)), 18));
    assert!(kept.findings.iter().any(|finding| finding.id == "reward_bound"));
    // The finding is not reported twice.
    let ids: Vec<String> = profile.finish(&ctx, true).into_iter().map(|finding| finding.id).collect();
    assert!(!ids.contains(&"reward_bound".to_owned()), "{ids:?}");
    // The ceilings are in the run's record, so a resumed run does not measure them again.
    let measured = RunRecord::read(&run.record()).unwrap().ceilings.unwrap();
    assert_eq!(profile.record().measured.ceilings.unwrap().flops_per_s, Some(measured.flops_per_s));
    assert_eq!((&*measured.dtype, measured.threads), ("f32", 1));
    let known = MeasuredCeilings { flops_per_s: 7.0, ..measured };
    let bytes = RunRecord { ceilings: Some(known), ..RunRecord::default() }.to_bytes().unwrap();
    run.write(&run.record(), &bytes).unwrap();
    let profile = |dtype| profiled(&run, dtype, true, 0.0);
    let mut again = profile(DType::F32);
    for _ in 0..5 {
        take(&mut again, 1.0);
    }
    assert_eq!(again.record().measured.ceilings.unwrap().flops_per_s, Some(7.0));
    // Ceilings of an older version are not used: the machine may have been busy.
    let measured = RunRecord::read(&run.record()).unwrap();
    let older = measured.ceilings.clone().map(|known| MeasuredCeilings { load: None, ..known });
    run.write(&run.record(), &RunRecord { ceilings: older, ..measured.clone() }.to_bytes().unwrap()).unwrap();
    let mut older = profile(DType::F32);
    for _ in 0..5 {
        take(&mut older, 1.0);
    }
    assert_eq!(older.record().measured.ceilings, None);
    run.write(&run.record(), &measured.to_bytes().unwrap()).unwrap();
    // Ceilings of another dtype are not used.
    let mut other = profile(DType::Bf16);
    for _ in 0..5 {
        take(&mut other, 1.0);
    }
    assert_eq!(other.record().measured.ceilings, None);
}

/// On a busy machine stages are not compared with ceilings, and the profile names the reason. An interrupted or very
/// short run does not measure ceilings.
#[test]
fn a_busy_machine_has_no_ceilings() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = crate::context(None, Some(1), crate::config::ComputeDType::F32).unwrap();
    let run = RunDir::at(dir.path());
    let ended = |load: f64, may_wait: bool, seconds: f64| {
        run.write(&run.record(), &RunRecord::default().to_bytes().unwrap()).unwrap();
        let machine = Invented::with_load(load);
        let mut profile = Profile::on(Box::new(machine.clone()), &run, DType::F32, false);
        for step in 1..=2 {
            machine.pass(seconds);
            profile.end_step(Step(step), seconds, &totals(1.0), &BTreeMap::new(), &ctx);
        }
        profile.finish(&ctx, may_wait);
        let Measured { ceilings, without_ceilings, .. } = profile.record().measured.clone();
        let kept = RunRecord::read(&run.record()).unwrap().ceilings;
        assert_eq!(kept.is_some(), ceilings.is_some());
        (kept.and_then(|kept| kept.load), without_ceilings)
    };
    let (load, why_not) = ended(0.1, true, 20.0);
    assert!((load.unwrap() - 0.1).abs() < 1e-6 && why_not.is_none(), "{load:?} {why_not:?}");
    assert_eq!(ended(0.3, true, 20.0), (None, Some(ceilings::BUSY.to_owned())));
    let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    assert!(text.contains("\"without_ceilings\": \"The machine was too busy"), "{text}");
    assert_eq!((ended(0.3, false, 20.0), ended(0.1, true, 2.0)), ((None, None), (None, None)));
}

#[test]
fn every_rule_of_the_profile_is_documented() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/profiling.md")).unwrap();
    for rule in rules::ALL {
        assert!(page.lines().any(|line| line.starts_with(&format!("| `{}` |", rule.id))), "{} has no row", rule.id);
    }
}

#[test]
fn measurements_of_steps_are_summed_by_stage_and_metric() {
    let values =
        |entries: &[(&str, f64)]| entries.iter().map(|(name, x)| ((*name).to_owned(), *x)).collect::<BTreeMap<_, _>>();
    let stages = |flops: f64| StepTotals {
        stages: vec![StageTotal { path: "update".into(), seconds: 2.0, flops, bytes: 3.0, ..StageTotal::default() }],
        counts: [("decode_steps".to_owned(), 4.0)].into(),
    };
    let mut m = Measured::default();
    let waits = [("rewards/a/gil_wait_s", 0.5), ("rewards/a/gil_held_s", 0.25), ("rewards/b/gil_wait_s", 1.0)];
    m.add_step(Step(7), 3.0, &stages(10.0), &values(&[&waits[..], &[("frac_reward_zero_std", 0.5)]].concat()));
    m.add_step(
        Step(8),
        4.0,
        &stages(20.0),
        &values(&[("gil_wait_s", 9.0), ("rewards/a", 9.0), ("rewards/a/gil_wait_s", 0.5)]),
    );
    assert_eq!((m.span(), m.steps, m.seconds), ((Step(7), Step(8)), 2, 7.0));
    assert_eq!(m.stages, [Stage { path: "update".into(), seconds: 4.0, flops: 30.0, bytes: 6.0 }]);
    assert_eq!((m.count("decode_steps"), m.zero_spread), (8.0, (0.5, 1)));
    let interpreter: Vec<_> = m.interpreter.into_iter().collect();
    assert_eq!(interpreter, [("a".to_owned(), (1.0, 0.25)), ("b".to_owned(), (1.0, 0.0))]);
}

fn count(measured: &mut Measured, name: &str, n: f64) {
    measured.counts.insert(name.to_owned(), n);
}

/// A run in which decoding takes 40 % of the steps, with the bytes and operations of 50 s in its rollout.
fn decoding(m: &mut Measured) {
    stage(m, "rollout").seconds = 50.0;
    stage(m, "rollout/decode").seconds = 40.0;
    m.ceilings = Some(Ceilings { flops_per_s: Some(1e9), bytes_per_s: Some(1e9) });
    (stage(m, "rollout").bytes, stage(m, "rollout").flops) = (0.0, 0.0);
}

/// A window ends after three steps and five seconds, or after thirty seconds.
#[test]
fn windows_end_after_three_steps_and_five_seconds_or_after_thirty_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = crate::context(None, Some(1), crate::config::ComputeDType::F32).unwrap();
    let run = RunDir::at(dir.path());
    // For each step: the number of steps in complete windows.
    let course = |seconds: &[f64]| {
        let mut profile = profiled(&run, DType::F32, false, 0.0);
        profile.end_step(Step(1), 99.0, &StepTotals::default(), &BTreeMap::new(), &ctx);
        let mut step = |(step, seconds): (u64, &f64)| {
            profile.end_step(Step(step), *seconds, &StepTotals::default(), &BTreeMap::new(), &ctx);
            profile.record().measured.steps
        };
        (2..).zip(seconds).map(&mut step).collect::<Vec<_>>()
    };
    assert_eq!(course(&[2.0, 2.0, 1.0, 1.0, 1.0]), [0, 0, 3, 3, 3]);
    assert_eq!(course(&[1.0, 1.0, 1.0, 1.0, 1.0]), [0, 0, 0, 0, 5]);
    assert_eq!(course(&[4.0, 20.0, 1.0, 30.0, 29.0]), [0, 0, 3, 4, 4]);
    assert!(dir.path().join(FILE).is_file() && ProfileRecord::read(dir.path()).unwrap().version == 1);
    // A very short run gets findings only on request.
    let mut short = profiled(&run, DType::F32, false, 0.0);
    std::fs::remove_file(dir.path().join(FILE)).unwrap();
    short.end_step(Step(1), 1.0, &StepTotals::default(), &BTreeMap::new(), &ctx);
    short.end_step(Step(2), 9.9, &totals(5.0), &BTreeMap::new(), &ctx);
    assert!(short.finish(&ctx, true).is_empty() && !dir.path().join(FILE).exists());
    assert_eq!((short.record().measured.steps, short.record().measured.seconds), (1, 9.9));
    let mut long = profiled(&run, DType::F32, false, 0.0);
    long.end_step(Step(1), 1.0, &StepTotals::default(), &BTreeMap::new(), &ctx);
    long.end_step(Step(2), 10.0, &totals(5.0), &BTreeMap::new(), &ctx);
    let ids: Vec<String> = long.finish(&ctx, true).into_iter().map(|finding| finding.id).collect();
    assert!(ids.contains(&"reward_bound".to_owned()), "{ids:?}");
    assert_eq!(ProfileRecord::read(dir.path()).as_ref(), Some(long.record()));
    let again: Vec<String> = long.finish(&ctx, true).into_iter().map(|finding| finding.id).collect();
    assert!(!again.iter().any(|id| ids.contains(id)), "{again:?}");
    let mut nothing = profiled(&run, DType::F32, true, 0.0);
    assert!(nothing.finish(&ctx, true).is_empty());
}
