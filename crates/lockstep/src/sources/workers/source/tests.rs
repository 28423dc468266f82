use super::*;
use crate::rollouts::jobs::GroupAnswer;
use fleet::{Answer, JobName, WorkerName};
use model::Prompt;
use model::columns::SAMPLER_LOGPS;
use train::Sample;

#[test]
fn settings_that_workers_do_not_support_are_refused() {
    let refused = |change: fn(&mut Config), has_function: bool| {
        let mut config = Config::default();
        change(&mut config);
        refuse_what_workers_cannot(&config, has_function).err().map(|error| error.to_string())
    };
    assert_eq!(refused(|_| {}, false), None);
    let why = |change: fn(&mut Config), has_function: bool, words: &str| {
        let error = refused(change, has_function).expect(words);
        assert!(error.starts_with(&format!("a distributed run: {words}")), "{error}");
    };
    why(|c| c.dynamic_sampling = true, false, "`dynamic_sampling` must know the rewards of a batch");
    why(|c| c.target_kl = Some(0.1), false, "`target_kl` ends batches early");
    why(|c| c.replay = Some("r.bin".into()), false, "`replay` reads completions from a file");
    why(|_| {}, true, "a rollout function (rollout_func) exists only in this program");
}

/// A checkpoint waits for all groups of the batches ahead, for which the queue must have room.
#[test]
fn a_queue_too_small_for_a_checkpoint_is_refused() {
    let config = |queue_maxsize: usize, max_staleness: usize| Config {
        per_device_train_batch_size: 12,
        num_generations: 4,
        queue_maxsize,
        max_staleness,
        ..Config::default()
    };
    let refused = |config: &Config| refuse_short_queue(config).err().map(|error| error.to_string());
    assert_eq!((refused(&config(6, 2)), refused(&config(7, 2)), refused(&config(1, 0))), (None, None, None));
    let words = "a distributed run: `queue_maxsize` is 5, but a checkpoint needs the groups of the batches ahead, \
                 max_staleness × 3: set it to 6 or more";
    assert_eq!(refused(&config(5, 2)).as_deref(), Some(words));
    assert!(refuse_what_workers_cannot(&config(5, 2), false).is_err());
}

#[test]
fn the_recorded_worker_of_a_group_is_its_sampler() {
    let result = |job: JobName, worker: &str| JobResult {
        job,
        lineage: fleet::Lineage([0; 16]),
        worker: WorkerName::new(worker).unwrap(),
        answer: Answer { fingerprint: 1, more: false },
        bytes: Vec::new(),
    };
    let results = [
        result(JobName { group: fleet::GroupId(5), chunk: 0 }, "a"),
        result(JobName { group: fleet::GroupId(4), chunk: 1 }, "b"),
    ];
    let name = |name: &str| WorkerName::new(name).unwrap();
    assert_eq!(makers(&results), [(GroupId(5), name("a")), (GroupId(4), name("b"))]);
}

#[test]
fn the_current_batch_is_converted_to_a_frontier_of_groups() {
    let sample = |group: u64, ids: &[u32], logps: &[f32]| {
        let mut sample = Sample { group: GroupId(group), ..Sample::supervised(Prompt::new([1]), ids.to_vec()) };
        sample.columns.set(SAMPLER_LOGPS, logps.to_vec());
        sample
    };
    let samples = [
        sample(4, &[5, 6], &[-0.5, -1.0]),
        sample(4, &[7], &[-0.25]),
        sample(5, &[8], &[-2.0]),
        sample(6, &[9], &[-3.0]),
    ];
    let whole = in_use(&samples, [4, 5].map(GroupId).into_iter(), &Chunks::new(&Plan::new(3, 2, 0), None, 40));
    let one = |completions: &[(&[u32], &[f32])]| GroupAnswer::fingerprint_of(completions.iter().copied());
    let (first, second) = (one(&[(&[5, 6], &[-0.5, -1.0]), (&[7], &[-0.25])]), one(&[(&[8], &[-2.0])]));
    let found: Vec<_> = whole.into_iter().map(|group| (group.group.0, group.answers, group.bytes)).collect();
    let ended = |fingerprint| vec![Answer { fingerprint, more: false }];
    assert_eq!(found, [(4, ended(first), vec![]), (5, ended(second), vec![])]);
    // In chunks of one token, a group of two tokens has two answers.
    let plan = Plan { chunks: true, ..Plan::new(3, 2, 1) };
    let chunks = in_use(&samples, [4, 5].map(GroupId).into_iter(), &Chunks::new(&plan, Some(1), 40));
    let begun = Answer { fingerprint: one(&[(&[5], &[-0.5]), (&[7], &[-0.25])]), more: true };
    let found: Vec<_> = chunks.into_iter().map(|group| group.answers).collect();
    assert_eq!(found, [vec![begun, Answer { fingerprint: first, more: false }], ended(second)]);
}
