use super::*;

/// The verdict on the curve of a running run.
fn verdict(name: &str, values: &[f64], higher_is_better: bool) -> Verdict {
    of_curve(Judged { name, values, higher_is_better, has_ended: false }).0
}

/// Values of the function `of` at 0 to n − 1, with noise of ±0.05 that repeats every seven values.
fn noisy(n: usize, of: impl Fn(f64) -> f64) -> Vec<f64> {
    (0..n).map(|i| of(i as f64 / n as f64) + 0.05 * (((i * 5) % 7) as f64 / 3.0 - 1.0)).collect()
}

/// Rewards of 60 steps of GRPO on a story model, with learning rate 1e-4. The means of ten steps are 0.97, 1.27, 1.67,
/// 2.02, 2.19, 2.44.
#[rustfmt::skip]
const RISING: [f64; 60] = [
    0.863, 0.956, 0.956, 0.894, 0.988, 0.956, 1.05, 1.019, 1.019, 0.956, 1.144, 1.05, 1.331, 1.05, 1.237,
    1.238, 1.581, 1.3, 1.362, 1.425, 1.519, 1.581, 1.769, 1.487, 1.55, 1.612, 1.675, 1.8, 1.831, 1.831,
    2.05, 1.987, 2.019, 1.925, 2.112, 1.894, 2.112, 1.987, 2.175, 1.956, 2.144, 2.081, 2.237, 2.269,
    2.144, 2.237, 2.237, 2.112, 2.05, 2.394, 2.55, 2.55, 2.019, 2.456, 2.425, 2.456, 2.394, 2.581, 2.675,
    2.331,
];
/// The same run with learning rate 3e-4; its means are 1.13, 2.04, 2.66, 2.79, 2.78, 2.79.
#[rustfmt::skip]
const LEVEL: [f64; 60] = [
    0.863, 0.956, 1.019, 0.956, 1.081, 1.394, 1.237, 1.144, 1.144, 1.487, 1.581, 1.581, 1.925, 1.862,
    2.081, 2.394, 2.206, 2.269, 2.237, 2.3, 2.519, 2.487, 2.737, 2.612, 2.706, 2.675, 2.769, 2.737, 2.675,
    2.675, 2.8, 2.8, 2.737, 2.8, 2.8, 2.8, 2.8, 2.8, 2.769, 2.8, 2.8, 2.769, 2.8, 2.8, 2.8, 2.769, 2.8,
    2.769, 2.737, 2.769, 2.769, 2.8, 2.8, 2.8, 2.8, 2.769, 2.8, 2.8, 2.8, 2.8,
];

#[test]
fn the_first_metric_to_move_is_found_by_its_halfway_step() {
    let of = |of: &dyn Fn(f64) -> f64| -> Option<Moved> {
        let values = noisy(60, of);
        moved(&(1..).map(Step).zip(values).collect::<Vec<_>>())
    };
    let half = |middle: f64| of(&|t| (5.0 * (t - middle) + 0.5).clamp(0.0, 1.0)).unwrap().half.unwrap().0;
    assert!((16..=20).contains(&half(0.3)), "{}", half(0.3));
    assert!((40..=44).contains(&half(0.7)), "{}", half(0.7));
    assert_eq!(of(&|_| 0.8).unwrap().half, None, "noise alone");
    // A falling metric also moves. A constant metric has no noise and does not move.
    assert_eq!(of(&|t| -t).unwrap().half.map(|step| step.0 / 10), Some(3));
    assert_eq!(moved(&[(Step(1), 0.8); 9]).unwrap().half, None);
    assert_eq!(moved(&[(Step(1), 0.8); 3]), None);
}

#[test]
fn a_run_is_level_only_if_its_last_third_is_level() {
    let of = |values: &[f64]| verdict("reward", values, true);
    assert_eq!(of(&RISING).says, "Learning: reward went from 0.863 to 2.48, and it still improves.");
    assert_eq!(of(&LEVEL).says, "Learned: reward went from 0.863 to 2.79, and is level now.");
    // The same run, while the reward still rose.
    assert_eq!(of(&LEVEL[..24]).state, "learning");
    // Level on average, but too noisy to exclude a rise.
    let noisy: Vec<f64> = LEVEL.iter().enumerate().map(|(i, x)| x + [0.3, -0.3, -0.3, 0.3][i % 4]).collect();
    assert_eq!(of(&noisy).state, "learned");
    let fell: Vec<f64> = LEVEL.iter().enumerate().map(|(i, x)| x - 0.03 * i.saturating_sub(40) as f64).collect();
    assert_eq!(of(&fell).state, "falling");
    // A loss falls where a reward rises.
    let loss: Vec<f64> = RISING.iter().map(|x| 3.0 - x).collect();
    assert_eq!(verdict("loss", &loss, false).state, "learning");
}

#[test]
fn each_shape_of_a_curve_gives_the_expected_state() {
    let state = |values: &[f64]| verdict("reward", values, true).state;
    assert_eq!(state(&noisy(200, |t| t)), "learning");
    assert_eq!(state(&noisy(200, |t| (4.0 * t).min(1.0))), "level");
    assert_eq!(state(&noisy(200, |_| 0.3)), "not yet");
    assert_eq!(state(&noisy(200, |t| 1.0 - t)), "worse");
    assert_eq!(state(&[1.0, 2.0]), "nothing");
    assert_eq!(state(&[f64::NAN; 9]), "nothing");
    assert_eq!(verdict("loss", &noisy(200, |t| 1.0 - t), false).state, "learning");
    let says = verdict("reward", &noisy(200, |t| (4.0 * t).min(1.0)), true).says;
    assert_eq!(says, "Learned: reward went from -0.050 to 0.997, and is level now.");
}

/// Rewards rise from 0.7 to 0.9, and the prompts of a step change them by up to 0.3. The first value alone is not a
/// sufficient reference, but the mean of the first tenth is.
#[test]
fn a_noisy_first_step_does_not_hide_learning() {
    let of = |n: usize, gain: f64, first: f64| {
        let mut values: Vec<f64> = (0..n)
            .map(|i| 0.7 + gain * (2.0 * i as f64 / n as f64).min(1.0) + 0.15 * (((i * 5) % 7) as f64 / 3.0 - 1.0))
            .collect();
        values[0] = first;
        verdict("reward", &values, true)
    };
    let rows = [
        // The columns: number of values, gain, the first value, whether the run learns.
        (100, 0.3, 0.95, true),
        (100, 0.2, 0.7, true),
        (100, 0.2, 0.5, true),
        (60, 0.4, 0.95, true),
        (30, 0.5, 0.95, true),
        (20, 0.6, 0.95, true),
        (200, 0.15, 0.95, true),
        (1000, 0.1, 0.95, true),
        // With so few values, a tenth is one value.
        (12, 0.2, 0.95, false),
        (4, 0.2, 0.95, false),
        // The run learns nothing.
        (20, 0.0, 0.95, false),
        (100, 0.0, 0.7, false),
        (100, 0.0, 0.95, false),
        (1000, 0.0, 0.95, false),
        (1000, 0.005, 0.95, false),
    ];
    for (n, gain, first, learns) in rows {
        let Verdict { state, says } = of(n, gain, first);
        assert_eq!(state != "not yet", learns, "{n} {gain} {first}: {says}");
        assert!(!learns || says.starts_with("Learn"), "{n} {gain} {first}: {says}");
    }
    assert_eq!(of(100, -0.2, 0.65).state, "worse");
    assert!(of(100, 0.3, 0.95).says.starts_with("Learned: reward went from 0.7"), "{}", of(100, 0.3, 0.95).says);
}

/// Noise between −1 and 1 that repeats every seven values.
fn noise(i: usize) -> f64 {
    ((i * 5) % 7) as f64 / 3.0 - 1.0
}

/// A loss that starts at 3.1, blows up in step 2, and then falls to `to`.
fn recovers(to: f64, n: usize) -> Vec<f64> {
    let after = (0..n - 4).map(|i| to + 900.0 * 0.93f64.powi(i as i32) + 0.01 * noise(i));
    [3.1, 3933.0, 2800.0, 1500.0].into_iter().chain(after).collect()
}

/// A loss that falls from 3 to 0.5.
fn falls(n: usize) -> Vec<f64> {
    (0..n).map(|i| 3.0 - 2.5 * i as f64 / n as f64 + 0.05 * noise(i)).collect()
}

/// A metric that rises by `gain` in the first half, with noise of this width.
fn rises(from: f64, gain: f64, width: f64) -> Vec<f64> {
    (0..199).map(|i| from + gain * (i as f64 / 100.0).min(1.0) + width * noise(i)).collect()
}

/// Concatenates the two parts.
fn then(first: &[f64], second: &[f64]) -> Vec<f64> {
    [first, second].concat()
}

/// A row: the kind of run, the metric, its values, the expected state, and words of the sentence.
#[test]
fn a_run_below_its_first_value_has_not_learned() {
    const NAN: f64 = f64::NAN;
    let mut with_nan = falls(200);
    with_nan[80..82].fill(NAN);
    let negative: Vec<f64> = recovers(574.0, 200).iter().map(|x| -x).collect();
    let swings = then(&[3.1, 3933.0, 50.0, 2800.0, 700.0, 1500.0], &recovers(574.0, 200)[4..]);
    let rows: [(&str, &str, Vec<f64>, &str, &str); 24] = [
        // The loss blows up in step 2 and recovers partially.
        ("SFT", "loss", recovers(574.0, 200), "worse", "Worse: loss went from 3.10 to 574."),
        ("SFT", "loss", recovers(574.0, 40), "worse", "from 3.10 to 653."),
        ("SFT", "loss", recovers(574.0, 10), "not yet", "began at 3.10 and is 1224"),
        ("SFT", "loss", then(&[NAN], &recovers(574.0, 200)), "worse", "from 3.10 to 574"),
        ("SFT", "loss", swings, "not yet", "began at 3.10 and is 574"),
        // A full recovery is an improvement over the first value, not over the worst values.
        ("SFT", "loss", recovers(1.0, 200), "level", "Learned: loss went from 3.10 to 1.00, and is level now."),
        ("SFT", "loss", recovers(3.1, 400), "not yet", "began at 3.10 and is 3.10"),
        // The loss blows up late.
        ("SFT", "loss", then(&falls(200)[..197], &[900.0, 1800.0, 3600.0]), "worse", "to 316."),
        ("SFT", "loss", then(&falls(200)[..199], &[9.0]), "not yet", "began at 2.95 and is 9.00"),
        // The loss does not blow up.
        ("SFT", "loss", falls(200), "learning", "from 2.95 to 0.6"),
        // NaN in the middle, at the end, in the last step, in the first step.
        ("SFT", "loss", with_nan, "learning", "from 2.95 to 0.6"),
        ("SFT", "loss", then(&falls(150), &[NAN; 50]), "worse", "2.95, and its last 20 values are NaN or infinite."),
        ("SFT", "loss", then(&falls(199), &[NAN]), "learning", "from 2.95"),
        ("SFT", "loss", then(&[NAN], &falls(199)), "learning", "from 2.95"),
        ("SFT", "loss", vec![3.0], "nothing", "1 value of loss"),
        ("SFT", "loss", then(&[3.0], &[NAN; 9]), "nothing", "1 value of loss"),
        // The initial level is lost immediately, or the first value is noise.
        ("DPO", "rewards/accuracies", then(&[0.9], &rises(0.1, 0.5, 0.05)), "worse", "from 0.900 to 0.602"),
        ("DPO", "rewards/accuracies", then(&[1.0], &rises(0.6, 0.3, 0.25)), "learned", "from 0.64"),
        ("reward model", "accuracy", then(&[0.95], &rises(0.25, 0.45, 0.05)), "worse", "from 0.950 to 0.702"),
        ("PPO", "reward", negative, "worse", "from -3.10 to -574"),
        ("GRPO", "reward", then(&[0.8], &rises(0.6, 0.15, 0.15)), "learned", "from 0.62"),
        ("GRPO", "reward", then(&[0.8], &rises(0.6, 0.15, 0.05)), "not yet", "began at 0.800 and is 0.7"),
        ("GRPO", "reward", rises(0.6, 0.4, 0.05), "level", "from 0.550 to"),
        ("PPO", "reward", then(&rises(0.6, 0.4, 0.05), &[-2.0]), "not yet", "began at 0.550 and is -2.00"),
    ];
    for (kind, name, values, state, words) in rows {
        let higher_is_better = name != "loss";
        let found = verdict(name, &values, higher_is_better);
        assert_eq!(found.state, state, "{kind}: {}", found.says);
        assert!(found.says.contains(words), "{kind}: {} has no {words:?}", found.says);
    }
}

#[test]
fn each_state_gives_the_expected_sentence() {
    let says = |values: &[f64], higher| verdict("loss", values, higher).says;
    assert_eq!(says(&[1.0], true), "Too early to tell: 1 value of loss, and 4 are needed.");
    assert_eq!(says(&[1.0, 2.0, 3.0], true), "Too early to tell: 3 values of loss, and 4 are needed.");
    assert_eq!(says(&[1.0; 4], true), "Nothing to learn from: loss was 1.00 in every step.");
    let line = [1.0, 2.0, 3.0, 4.0];
    assert_eq!(says(&line, true), "Learning: loss went from 1.00 to 3.50, and it still improves.");
    assert_eq!(says(&line, false), "Worse: loss went from 1.00 to 3.50.");
    let falls = [&[0.0, 10.0][..], &[20.0; 8], &[20.0, 19.0, 18.0, 17.0, 16.0]].concat();
    let fell = verdict("loss", &falls, true);
    assert_eq!((fell.state, fell.to_json()), ("falling", json!({ "state": "falling", "says": fell.says })));
    assert_eq!(fell.says, "Learned: loss went from 0.000 to 16.5, but it became worse in the last third of the steps.");
}

/// A row: a curve, the alarms (id, since, until), held-out values, whether the run has ended, and the expected state
/// and sentence.
#[test]
fn the_verdict_includes_alarms_held_out_values_and_the_end() {
    const LEVEL_NOW: &str = "Learned: reward went from 0.863 to 2.79, and is level now.";
    const RISES: &str = "Learning: reward went from 0.863 to 2.48, and it still improves.";
    type Row<'a> = (&'a [f64], &'a [(&'a str, u64, Option<u64>)], &'a [f64], bool, &'a str, &'a str);
    let flat = noisy(60, |_| 0.3);
    let rising: Vec<f64> = RISING.to_vec();
    let rows: [Row<'_>; 22] = [
        (&RISING, &[], &[], false, "learning", RISES),
        (
            &RISING,
            &[],
            &[],
            true,
            "learning",
            "Learned: reward went from 0.863 to 2.48, and still improved at the end.",
        ),
        (&LEVEL, &[], &[], true, "level", LEVEL_NOW),
        (
            &LEVEL,
            &[("zero_variance", 40, None)],
            &[],
            true,
            "level",
            "Learned: reward went from 0.863 to 2.79, and is level now. Nearly every group earns the same now: nothing \
             is left to learn from these prompts.",
        ),
        (&LEVEL, &[("zero_variance", 40, Some(44))], &[], true, "level", LEVEL_NOW),
        (
            &LEVEL,
            &[("repetition_wins", 19, None)],
            &[],
            true,
            "gamed",
            "Gamed: reward went from 0.863 to 2.79, but the winners repeat themselves (since step 19).",
        ),
        (
            &LEVEL,
            &[("truncated", 1, None), ("repetition_wins", 19, None), ("one_text_wins", 30, None)],
            &[0.8, 1.9, 2.75],
            true,
            "gamed",
            "Gamed: reward went from 0.863 to 2.79, but one text wins whatever the prompt (since step 30). Held-out: \
             0.800 to 2.75.",
        ),
        (&LEVEL, &[("repetition_wins", 19, Some(30))], &[], true, "level", LEVEL_NOW),
        (
            &RISING,
            &[("length_is_paid", 9, None)],
            &[],
            false,
            "gamed",
            "Gamed: reward went from 0.863 to 2.48, but the reward goes with the length (since step 9).",
        ),
        (&rising, &[("length_explodes", 9, None)], &[], false, "learning", RISES),
        (&RISING, &[("cut_short", 9, None)], &[], false, "learning", RISES),
        (
            &RISING,
            &[("empty_answer_wins", 9, None), ("not_finite", 2, None)],
            &[],
            false,
            "gamed",
            "Gamed: reward went from 0.863 to 2.48, but the winners have no answer (since step 9).",
        ),
        (
            &RISING,
            &[("not_finite", 2, None)],
            &[],
            false,
            "broken",
            "Learning: reward went from 0.863 to 2.48, and it still improves. But loss or gradient is not finite \
             (since step 2).",
        ),
        (&[0.5; 9], &[], &[], true, "constant", "Nothing to learn from: reward was 0.500 in every step."),
        (
            &[0.5; 9],
            &[("constant_reward", 1, None)],
            &[],
            true,
            "constant",
            "Nothing to learn from: reward was 0.500 in every step.",
        ),
        (
            &[0.5; 9],
            &[("one_text_wins", 3, None)],
            &[],
            true,
            "gamed",
            "Nothing to learn from: reward was 0.500 in every step. But one text wins whatever the prompt \
             (since step 3).",
        ),
        (
            &flat,
            &[],
            &[],
            false,
            "not yet",
            "Not learning yet: reward began at 0.303 and is 0.292, which may be chance.",
        ),
        (
            &flat,
            &[],
            &[],
            true,
            "not yet",
            "Not learned: reward began at 0.303 and ended at 0.292, which may be chance.",
        ),
        (
            &flat,
            &[("broken_text_wins", 7, None)],
            &[],
            true,
            "gamed",
            "Not learned: reward began at 0.303 and ended at 0.292, which may be chance. But the winners cannot be \
             parsed (since step 7).",
        ),
        (
            &LEVEL,
            &[],
            &[0.8, f64::NAN, 2.6],
            true,
            "level",
            "Learned: reward went from 0.863 to 2.79, and is level now. Held-out: 0.800 to 2.60.",
        ),
        (&LEVEL, &[], &[0.8], true, "level", LEVEL_NOW),
        (
            &[1.0],
            &[("odd_marks_win", 1, None)],
            &[0.0, 1.0],
            false,
            "nothing",
            "Too early to tell: 1 value of reward, and 4 are needed.",
        ),
    ];
    for (values, alarms, held_out, has_ended, state, says) in rows {
        let alarm = |&(id, since, until): &(&str, u64, Option<u64>)| Alarm {
            id: id.to_owned(),
            since: Step(since),
            until: until.map(Step),
            ..Alarm::default()
        };
        let alarms: Vec<Alarm> = alarms.iter().map(alarm).collect();
        let judged = Judged { name: "reward", values, higher_is_better: true, has_ended };
        let found = super::verdict(judged, &alarms, held_out);
        assert_eq!((found.state, found.says.as_str()), (state, says));
    }
}
