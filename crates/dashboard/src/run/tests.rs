use super::*;
use crate::lines::PIECE;
use std::io::Write;

#[test]
fn a_log_is_read_incrementally_and_again_if_it_was_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("metrics.jsonl");
    std::fs::write(&log, "{\"step\":1,\"reward\":0.5}\n{\"step\":2,\"rew").unwrap();
    let mut run = RunFiles::new(dir.path().to_owned());
    run.refresh();
    assert_eq!(run.series().last_step(), Some(Step(1)));
    assert!(run.log.open().is_none(), "an unchanged file must not be opened again");
    let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    file.write_all(b"ard\":0.75}\n{\"step\":2,\"alarm\":{\"id\":\"truncated\"}}\nnot json\n").unwrap();
    run.refresh();
    assert_eq!(run.series().values("reward").collect::<Vec<_>>(), [(Step(1), 0.5), (Step(2), 0.75)]);
    assert_eq!(run.alarms(&run.verdict())[0]["alarm"]["id"], "truncated");
    assert_eq!(run.facts("x")["written_s"], json!([null, null]), "these lines have no time");
    assert_eq!((run.alarms(&run.verdict()).len(), run.active_alarms(&run.verdict()).len()), (1, 1));
    assert_eq!(run.state(), "stopped");
    std::fs::write(&log, "{\"step\":1,\"reward\":2}\n").unwrap();
    run.refresh();
    assert_eq!(run.series().values("reward").collect::<Vec<_>>(), [(Step(1), 2.0)]);
    assert!(run.alarms(&run.verdict()).is_empty());
    assert_eq!(run.facts("x")["groups"], Value::Null);
}

/// A run that is resumed from an earlier step truncates its log, which may be longer than before when it is read again.
#[test]
fn a_log_that_was_truncated_and_has_grown_again_is_read_from_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let line = |step: usize, reward: f64| format!("{{\"step\":{step},\"reward\":{reward}}}\n");
    let lines = |reward: f64, steps: std::ops::Range<usize>| steps.map(|step| line(step, reward)).collect::<String>();
    let mut run = RunFiles::new(dir.path().to_owned());
    for name in ["metrics.jsonl", "steps.jsonl"] {
        std::fs::write(dir.path().join(name), lines(0.25, 1..100)).unwrap();
    }
    run.refresh();
    for name in ["metrics.jsonl", "steps.jsonl"] {
        std::fs::write(dir.path().join(name), lines(0.25, 1..50) + &lines(0.75, 50..120)).unwrap();
    }
    run.refresh();
    let expected: Vec<_> = (1..120).map(|step| (Step(step), if step < 50 { 0.25 } else { 0.75 })).collect();
    assert_eq!(run.series().values("reward").collect::<Vec<_>>(), expected);
    assert_eq!(run.judged_by().1, expected.iter().map(|(_, reward)| *reward).collect::<Vec<_>>());
}

/// A row: the number of steps taken (of 3), whether there is a model, and the state.
#[test]
fn a_run_that_took_all_its_steps_has_finished() {
    for (steps, has_model, state) in
        [(0, false, "stopped"), (2, false, "stopped"), (3, false, "finished"), (2, true, "finished")]
    {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.toml"), "max_steps = 3\n").unwrap();
        let lines: String = (1..=steps).map(|step| format!("{{\"step\":{step},\"reward\":1}}\n")).collect();
        std::fs::write(dir.path().join("metrics.jsonl"), lines).unwrap();
        if has_model {
            std::fs::create_dir(dir.path().join("model")).unwrap();
        }
        let mut run = RunFiles::new(dir.path().to_owned());
        run.refresh();
        assert_eq!(run.state(), state, "{steps} {has_model}");
    }
}

/// Findings are sorted by their cost in seconds per step; findings with unknown cost come last. CPU seconds include
/// steps and evaluations.
#[test]
fn findings_list_the_seconds_that_could_be_saved() {
    let dir = tempfile::tempdir().unwrap();
    let finding = |id: &str| json!({ "id": id, "says": "", "evidence": "", "remedy": "", "steps": [2, 5] });
    let stage = |path: &str, seconds: f64| json!({ "path": path, "seconds": seconds, "flops": 0.0, "bytes": 0.0 });
    let stages = [stage("rollout", 2.0), stage("rewards", 6.0), stage("checkpoint", 2.5), stage("evaluation", 2.0)];
    let measured = json!({
        "first_step": 2, "last_step": 5, "steps": 4, "seconds": 11.0, "cpu_s": 26.0, "stages": stages,
    });
    let findings = ["zero_spread", "checkpoint_bound", "reward_bound"].map(finding);
    let profile = json!({ "version": 1, "measured": measured, "findings": findings });
    std::fs::write(dir.path().join("profile.json"), profile.to_string()).unwrap();
    let facts = RunFiles::new(dir.path().to_owned()).facts("x");
    let found = facts["findings"].as_array().unwrap().iter();
    let found: Vec<_> = found.map(|one| (one["id"].as_str().unwrap(), one["gain_s"].as_f64())).collect();
    let expected = [("reward_bound", Some(1.5)), ("checkpoint_bound", Some(0.625)), ("zero_spread", None)];
    assert_eq!(found, expected);
    assert_eq!(facts["busy_cores"], json!(2.0));
}

/// A long log is read in pieces, and files that are not logs (a sparse file, an endless line) do not fill the memory.
#[test]
fn a_long_log_is_read_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("metrics.jsonl");
    let line = |step: u64| format!("{{\"step\":{step},\"reward\":{step},\"more\":\"{}\"}}\n", "x".repeat(9000));
    let steps = 3 * PIECE / 9000;
    std::fs::write(&log, (1..=steps).map(line).collect::<String>()).unwrap();
    let mut run = RunFiles::new(dir.path().to_owned());
    run.refresh();
    let expected: Vec<_> = (1..=steps).map(|step| (Step(step), step as f64)).collect();
    assert_eq!(run.series().values("reward").collect::<Vec<_>>(), expected);
    let whole = std::fs::metadata(&log).unwrap().len();
    for hole in [PIECE, 3 << 30, 1 << 40] {
        std::fs::File::options().write(true).open(&log).unwrap().set_len(whole + hole).unwrap();
        run.refresh();
        assert_eq!((run.log.read(), run.series().last_step()), (whole, Some(Step(steps))));
    }
    std::fs::write(&log, "x".repeat(2 * PIECE as usize)).unwrap();
    run.refresh();
    assert_eq!((run.log.read(), run.series().last_step()), (0, None));
    std::fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &log).unwrap();
    run.refresh();
    assert!(run.series().last_step().is_none() && run.verdict().says.contains("metrics.jsonl is a symbolic link"));
}

/// A row: logged lines, lines of steps.jsonl, the metric, the number of values if they are too few for a verdict, and
/// the state.
#[test]
fn a_verdict_uses_the_values_of_every_step() {
    let line = |key: &str, step: u64, value: f64| json!({"step": step, key: value}).to_string();
    let all = |key: &'static str, steps: std::ops::RangeInclusive<u64>| -> String {
        steps.map(|step| line(key, step, step as f64) + "\n").collect()
    };
    let some = |key: &'static str, steps: &[u64]| -> String {
        steps.iter().map(|step| line(key, *step, *step as f64) + "\n").collect()
    };
    let none = String::new;
    let rows: Vec<(String, String, &str, Option<usize>, &str)> = vec![
        (none(), none(), "reward", Some(0), "nothing"),
        (none(), all("reward", 1..=1), "reward", Some(1), "nothing"),
        (none(), all("reward", 1..=3), "reward", Some(3), "nothing"),
        (none(), all("reward", 1..=4), "reward", None, "learning"),
        (some("reward", &[10, 20, 30]), all("reward", 1..=30), "reward", None, "learning"),
        (some("reward", &[10]), all("reward", 1..=12), "reward", None, "learning"),
        (some("reward", &[3]), all("reward", 1..=3), "reward", Some(3), "nothing"),
        // Runs of older versions have only logged values.
        (some("reward", &[10, 20, 30]), none(), "reward", Some(3), "nothing"),
        (some("reward", &[10, 20, 30, 40]), none(), "reward", None, "learning"),
        // The run was resumed by this version: per-step values follow the logged values.
        (some("reward", &[10, 20, 30]), all("reward", 21..=30), "reward", None, "learning"),
        (some("reward", &[10, 20]), all("reward", 21..=21), "reward", Some(3), "nothing"),
        (some("reward", &[10, 20, 30]), some("reward", &[21, 30]), "reward", None, "learning"),
        // A run with a generation every other step.
        (some("reward", &[10]), some("reward", &[1, 3, 5, 7, 9]), "reward", None, "learning"),
        (some("reward", &[4]), some("reward", &[1, 3]), "reward", Some(2), "nothing"),
        // Other metrics, which determine the verdicts of other kinds of runs.
        (none(), all("rewards/accuracies", 1..=3), "rewards/accuracies", Some(3), "nothing"),
        (none(), all("rewards/accuracies", 1..=9), "rewards/accuracies", None, "learning"),
        (none(), all("accuracy", 1..=9), "accuracy", None, "learning"),
        (none(), all("loss", 1..=9), "loss", None, "worse"),
        (none(), all("loss", 1..=2), "loss", Some(2), "nothing"),
        // The reward takes precedence over other metrics.
        (some("reward", &[10]), all("loss", 1..=9), "reward", Some(1), "nothing"),
        (all("loss", 1..=9), all("reward", 1..=2), "reward", Some(2), "nothing"),
        // Values of evaluations are ignored.
        (some("eval_reward", &[1, 2, 3, 4]), all("reward", 1..=3), "reward", Some(3), "nothing"),
        // A value that is not a number, an incomplete line, and a line that is not JSON.
        (none(), all("reward", 1..=3) + "{\"step\":4,\"reward\":null}\n", "reward", Some(3), "nothing"),
        (none(), all("reward", 1..=3) + "{\"step\":4,\"rew", "reward", Some(3), "nothing"),
        (none(), "no json\n".to_owned() + &all("reward", 1..=4), "reward", None, "learning"),
    ];
    for (logged, own, key, few, state) in rows {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("metrics.jsonl"), &logged).unwrap();
        if !own.is_empty() {
            std::fs::write(dir.path().join("steps.jsonl"), &own).unwrap();
        }
        let mut run = RunFiles::new(dir.path().to_owned());
        run.refresh();
        let Verdict { state: found, says } = run.verdict();
        let values = |n: usize| format!("{n} value{}", if n == 1 { "" } else { "s" });
        let expected = few.map(|n| format!("Too early to tell: {} of {key}, and 4 are needed.", values(n)));
        assert_eq!(found, state, "{logged} {own}: {says}");
        assert!(expected.is_none_or(|expected| says == expected) && says.contains(key), "{logged} {own}: {says}");
        // Incremental reading gives the same verdict, also after the file was replaced.
        let mut other = RunFiles::new(dir.path().to_owned());
        std::fs::write(dir.path().join("steps.jsonl"), "{\"step\":1,\"reward\":77}\n").unwrap();
        other.refresh();
        std::fs::write(dir.path().join("steps.jsonl"), &own).unwrap();
        other.refresh();
        assert_eq!(other.verdict(), run.verdict(), "{logged} {own}");
    }
}

#[test]
fn an_ended_alarm_is_listed_once_and_not_active() {
    let dir = tempfile::tempdir().unwrap();
    let line = |step: u64, alarm: Value| json!({ "step": step, "alarm": alarm }).to_string() + "\n";
    // An alarm that is raised, ended and raised again, and an alarm for each of two rewards.
    let lines = [
        line(181, json!({ "id": "zero_variance", "since": 179 })),
        line(181, json!({ "id": "constant_reward", "subject": "happy", "since": 179 })),
        line(182, json!({ "id": "constant_reward", "subject": "said", "since": 179 })),
        line(233, json!({ "id": "zero_variance", "since": 179, "until": 233 })),
        line(239, json!({ "id": "zero_variance", "since": 237 })),
    ];
    std::fs::write(dir.path().join("metrics.jsonl"), lines.concat()).unwrap();
    let mut run = RunFiles::new(dir.path().to_owned());
    run.refresh();
    let alarms = run.alarms(&run.verdict());
    let found: Vec<_> = alarms.iter().map(|line| &line["alarm"]).collect();
    let since: Vec<_> = found.iter().map(|alarm| (&alarm["since"], alarm.get("until"))).collect();
    let (first, second) = (json!(179), json!(237));
    // Active alarms come first.
    assert_eq!(since, [(&first, None), (&first, None), (&second, None), (&first, Some(&json!(233)))]);
    assert!(alarms.iter().all(|line| line["weight"] == "look" && line["gaming"] == false));
    assert_eq!(run.active_alarms(&run.verdict()).len(), 3);
}

#[test]
fn the_facts_of_a_run_are_read_from_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let mut run = RunFiles::new(root.to_owned());
    assert_eq!((run.progress(), run.silent_s()), ((Step(0), None), None));
    assert!(run.mark("running").starts_with("0-0-"), "{}", run.mark("running"));
    let write = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
    let config = "seed = 1  # the file\n# beta = 2  # the file\nlr = 1e-6  # default\nname = \"a = b\"  # --set\n";
    write("config.toml", config);
    write("record.json", r#"{"total_steps": 9}"#);
    write("profile.json", "no json");
    for name in ["step-000002", "step-000001", ".step-3", "other"] {
        std::fs::create_dir_all(root.join("checkpoints").join(name)).unwrap();
    }
    let line = |step: u64, a: f64, b: f64| {
        json!({"step": step, "reward": a, "rewards/a/mean": a, "rewards/b/mean": b, "time_s": 100 + step}).to_string()
            + "\n"
    };
    let late = |step: u64| if step > 6 { 1.0 } else { 0.0 };
    let early = |step: u64| if step > 3 { 1.0 } else { 0.0 };
    let lines: String = (1..=9).map(|step| line(step, late(step), early(step))).collect();
    write("metrics.jsonl", &lines);
    let facts = run.facts("it");
    let config = json!({"seed": 1, "lr": 1e-6, "name": "a = b"});
    let moved = json!([
        {"name": "b", "from": 0.0, "to": 1.0, "half": 4}, {"name": "a", "from": 0.0, "to": 1.0, "half": 7},
    ]);
    for (key, value) in [
        ("id", json!("it")),
        // The run took all its planned steps.
        ("state", json!("finished")),
        ("step", json!(9)),
        ("total", json!(9)),
        ("alarms", json!([])),
        ("moved", moved),
        ("written_s", json!([101.0, 109.0])),
        ("config", config),
        ("origins", json!({"seed": "the file", "name": "--set"})),
        ("record", json!({"total_steps": 9})),
        ("checkpoints", json!(["step-000001", "step-000002"])),
        ("keys", json!(["reward", "rewards/a/mean", "rewards/b/mean", "time_s"])),
        ("updates", Value::Null),
        ("groups", Value::Null),
        ("group_steps", json!([null, null])),
        ("evaluated", Value::Null),
        ("profile", Value::Null),
        ("directory", json!(root)),
    ] {
        assert_eq!(facts[key], value, "{key}");
    }
    let values: Vec<f64> = run.series.values("reward").map(|(_, x)| x).collect();
    let judged = Judged { name: "reward", values: &values, higher_is_better: true, has_ended: true };
    assert_eq!(run.verdict(), verdict(judged, &[], &[]));
    assert!(facts["meanings"]["reward"].as_str().is_some_and(|text| !text.is_empty()));
    let mark = facts["mark"].as_str().unwrap();
    assert!(mark.starts_with(&format!("{}-0-", lines.len())), "{mark}");
    assert!(mark.ends_with(facts["state"].as_str().unwrap()), "{mark}");
    // The configured number of steps takes precedence if it is positive.
    for (steps, total) in [("12", Some(12)), ("-1", Some(9)), ("0", Some(9)), ("1", Some(1))] {
        write("config.toml", &format!("max_steps = {steps}\n"));
        assert_eq!(run.progress(), (Step(9), total));
    }
    std::fs::create_dir(root.join("model")).unwrap();
    assert_eq!(run.state(), "finished");
    let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // The lock determines the state, regardless of which process has the recorded PID on this machine.
    for (host, pid, is_locked, state) in [
        (here.trim(), std::process::id(), false, "finished"),
        (here.trim(), std::process::id(), true, "running"),
        (here.trim(), u32::MAX, false, "finished"),
        (here.trim(), u32::MAX, true, "running"),
        ("another-machine", u32::MAX, false, "running"),
    ] {
        write("run.lock", &json!({"pid": pid, "host": host}).to_string());
        let lock = std::fs::File::open(root.join("run.lock")).unwrap();
        if is_locked {
            lock.try_lock().unwrap();
        }
        assert_eq!(run.state(), state, "{host} {pid}");
    }
}

#[test]
fn files_of_recorded_groups_are_reopened_as_they_grow() {
    use crate::groups::tests::recorded;
    use lockstep::wire::Group;
    let dir = tempfile::tempdir().unwrap();
    let mut run = RunFiles::new(dir.path().to_owned());
    assert!(run.groups().is_none() && run.updates().is_none() && run.evaluations().is_none());
    let group = |step: Option<u64>| Group { step: step.map(Step), prompt_ids: vec![1], ..Group::default() };
    recorded(dir.path(), [group(Some(4)), group(Some(2)), group(None)]);
    let first = run.groups().unwrap();
    assert!(Arc::ptr_eq(&first, &run.groups().unwrap()), "an unchanged file must not be reopened");
    assert_eq!((steps_of(Some(&first)), steps_of(None)), ([Some(Step(2)), Some(Step(4))], [None, None]));
    recorded(dir.path(), [group(Some(7))]);
    assert_eq!(run.groups().unwrap().index().len(), 4);
    assert!(!run.mark("running").starts_with("0-0-"), "{}", run.mark("running"));
    for name in ["updates.bin", "evaluations.bin"] {
        std::fs::copy(dir.path().join("rollouts.bin"), dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("metrics.jsonl"), "").unwrap();
    let facts = run.facts("x");
    assert_eq!((&facts["groups"], &facts["updates"], &facts["evaluated"]), (&json!(4), &json!(4), &json!(4)));
    assert_eq!((&facts["group_steps"], &facts["evaluated_steps"]), (&json!([2, 7]), &json!([2, 7])));
}
