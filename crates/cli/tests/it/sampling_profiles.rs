//! Groups with several sampling profiles: the group's number determines its profile, and no bit depends on which worker
//! generates it.

use super::distributed::{distributed, end, start};
use crate::support::runs::{arguments, directory, good, metrics, rollouts, same_but_workers};
use crate::support::{lockstep, refused};
use fleet::status;
use std::io::{BufRead, BufReader};
use std::path::Path;

const PROFILES: &str = "sampling_profiles={ fast = { share = 0.75, max_completion_length = 2 }, \
                        quality = { share = 0.25, top_k = 8 } }";
const KINDS: &str = r#"workers=[{ profiles = ["fast"], count = 2, threads = 1 }, { profiles = ["quality"] }]"#;

/// The maximum number of completion tokens and `top_k` of each recorded group.
fn kinds(run: &Path) -> Vec<(u64, u64)> {
    let of = |line: &serde_json::Value| {
        let sampling = &line["sampling"];
        (sampling["max_completion_length"].as_u64().unwrap(), sampling["top_k"].as_u64().unwrap())
    };
    rollouts(run).iter().map(of).collect()
}

#[test]
fn a_group_keeps_its_profile_with_any_worker() {
    let dir = directory();
    let root = dir.path();
    let set = [PROFILES, "max_staleness=2", "partial_rollout_tokens=2", "record_rollouts=true"];
    good(root, &arguments("train", "one", &set));
    let one = root.join("one");
    let found = kinds(&one);
    let most = found.iter().map(|(most, _)| *most).max().unwrap();
    assert!(most > 2);
    assert!(found.contains(&(2, 0)) && found.contains(&(most, 8)), "{found:?}");
    assert!(found.iter().all(|kind| [(2, 0), (most, 8)].contains(kind)), "{found:?}");
    for (line, (most, _)) in rollouts(&one).iter().zip(&found) {
        assert!(line["completion_ids"].as_array().unwrap().len() as u64 <= *most, "{line:?}");
    }
    let logged = metrics(&one);
    assert!(logged.iter().any(|line| line.contains("sampling_profiles/quality/reward")), "{logged:?}");
    // Either all workers are identical, or each has its own profiles.
    good(root, &distributed("alike", "2", &set));
    same_but_workers(&one, &root.join("alike"));
    let kinds = [&set[..], &[KINDS]].concat();
    good(root, &[&arguments("train", "kinds", &kinds)[..], &["--distributed"]].concat());
    same_but_workers(&one, &root.join("kinds"));
    let workers = status::read(&root.join("kinds")).unwrap().workers;
    let profiles = workers.iter().map(|worker| worker.status.clone().unwrap());
    let profiles: Vec<(Vec<String>, bool)> = profiles.map(|status| (status.profiles, status.done > 0)).collect();
    let of = |name: &str| (vec![name.to_owned()], true);
    assert_eq!(profiles.len(), 3);
    assert!(profiles.contains(&of("quality")) && profiles.contains(&of("fast")), "{profiles:?}");
    let output = lockstep(root, &["verify", "kinds", "--all"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
}

#[test]
fn a_profile_without_a_worker_is_reported() {
    let dir = directory();
    let root = dir.path();
    let set = [PROFILES, "max_steps=4"];
    let mut learner = arguments("train", "out", &set);
    learner[0] = "learner";
    let join = ["worker", "--join", "out", "--threads", "1"];
    let fast = start(root, &[&join[..], &["--name", "dev1", "--profiles", "fast"]].concat());
    let run = root.join("out");
    let is_there = |worker: &status::WorkerLine| worker.alive.is_some();
    testing::wait_until("the worker runs", || status::read(&run).is_ok_and(|s| s.workers.iter().any(is_there)));
    let mut learner = start(root, &learner);
    testing::wait_until("the learner runs", || status::read(&run).is_ok_and(|status| status.learner.is_some()));
    let output = lockstep(root, &[&join[..], &["--name", "dev3", "--profiles", "fats"]].concat());
    assert_eq!(output.code, Some(2), "{}", output.err);
    assert!(
        output.err.contains("--profiles fats") && output.err.contains("its profiles are: fast, quality"),
        "{}",
        output.err
    );
    // After ten seconds the learner reports the missing worker, which is started only then.
    let mut lines = BufReader::new(learner.stderr.take().unwrap()).lines().map_while(Result::ok);
    let missing = "no worker generates groups of the profile \"quality\"";
    assert!(lines.any(|line| line.contains(missing)), "the learner ended before the message");
    let rest = std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
    let quality = start(root, &[&join[..], &["--name", "dev2", "--profiles", "quality"]].concat());
    assert!(learner.wait().unwrap().success(), "{}", rest.join().unwrap());
    end(fast);
    end(quality);
}

#[test]
fn incomplete_sampling_profiles_are_refused() {
    let dir = directory();
    let root = dir.path();
    let bad = ["sampling_profiles={ a = { share = 0.5 } }"];
    refused(root, &arguments("train", "out", &bad), &["sum to 0.5", "must sum to 1"]);
    let bad = [PROFILES, r#"workers=[{ profiles = ["fast"] }]"#];
    refused(root, &arguments("train", "out", &bad), &["no entry of `workers`", "quality"]);
    assert!(!root.join("out").exists());
}
