//! The smallest time for which a finding is reported.

use super::*;

/// The findings of a run of this many seconds, after `change`. All measurements are scaled to the length.
fn found_in(seconds: f64, change: impl FnOnce(&mut Measured)) -> Vec<&'static str> {
    let mut measured = healthy();
    change(&mut measured);
    let of = seconds / measured.seconds;
    measured.seconds *= of;
    measured.stages.iter_mut().for_each(|stage| {
        (stage.seconds, stage.flops, stage.bytes) = (stage.seconds * of, stage.flops * of, stage.bytes * of);
    });
    measured.rewards.values_mut().for_each(|seconds| *seconds *= of);
    measured.interpreter.values_mut().for_each(|(waited, held)| (*waited, *held) = (*waited * of, *held * of));
    measured.counts.entry("waited_for_workers_s".to_owned()).and_modify(|seconds| *seconds *= of);
    (measured.cpu_s, measured.waited_s) = (measured.cpu_s * of, measured.waited_s.map(|waited| waited * of));
    rules::ALL.iter().filter(|rule| (rule.holds)(&measured).is_some()).map(|rule| rule.id).collect()
}

/// `lockstep profile --steps 3` of a small model measures hundredths of a second. Each row has a rule about time, and
/// the length in seconds of a run in which the rule finds exactly half a second.
#[test]
fn a_finding_about_time_is_at_least_half_a_second() {
    type Row = (&'static str, f64, fn(&mut Measured));
    let rows: [Row; 13] = [
        ("reward_bound", 1.25, |m| (stage(m, "rewards").seconds, stage(m, "update").seconds) = (40.0, 5.0)),
        ("interpreter_lock", 2.5, |m| {
            m.rewards.insert("gsm8k".into(), 20.0);
            m.interpreter.insert("gsm8k".into(), (0.8, 0.2));
        }),
        ("worker_bound", 1.0, |m| count(m, "waited_for_workers_s", 50.0)),
        ("decode_memory_bound", 1.25, |m| {
            decoding(m);
            stage(m, "rollout").bytes = 40e9;
        }),
        ("decode_compute_bound", 1.25, |m| {
            decoding(m);
            stage(m, "rollout").flops = 40e9;
        }),
        ("small_batch", 1.25, |m| {
            stage(m, "rollout/decode").seconds = 40.0;
            count(m, "decode_passes", 3000.0);
        }),
        ("long_tail", 1.25, |m| (m.tail.alone, stage(m, "rollout/decode").seconds) = (600, 40.0)),
        ("kv_preemption", 1.0, |m| {
            stage(m, "rollout").seconds = 50.0;
            count(m, "preemptions", 40.0);
        }),
        ("data_bound", 1.0, |m| stage(m, "update").seconds = -8.0),
        ("checkpoint_bound", 1.0, |m| (stage(m, "checkpoint").seconds, stage(m, "update").seconds) = (50.0, 0.0)),
        ("evaluation_bound", 0.4, |m| stage(m, "evaluation").seconds = 125.0),
        ("oversubscribed", 1.0, |m| (m.threads, m.waited_s) = (8, Some(50.0))),
        ("cores_shared", 1.0, |m| m.waited_s = Some(50.0)),
    ];
    let about_time = rules::ALL.iter().map(|rule| rule.id).filter(|id| !["zero_spread", "memory_growth"].contains(id));
    let named: Vec<&str> = rows.iter().map(|(id, ..)| *id).collect();
    assert!(about_time.clone().all(|id| named.contains(&id)), "{:?}", about_time.collect::<Vec<_>>());
    for (id, seconds, change) in rows {
        for (times, expected) in [(100.0, true), (1.01, true), (0.99, false), (0.1, false), (1e-6, false)] {
            let found = found_in(seconds * times, change);
            assert_eq!(found.contains(&id), expected, "{id} in {} s: {found:?}", seconds * times);
        }
    }
    // A fast run gets no finding, however short it is.
    for seconds in [1e-9, 0.01, 0.5, 2.0, 1000.0] {
        assert_eq!(found_in(seconds, |_| {}), [""; 0]);
    }
}
