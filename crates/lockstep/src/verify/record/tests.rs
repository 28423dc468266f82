//! The recorded groups, and their comparison with a replay's groups.

use super::*;
use crate::rollouts::generation::tests::round;
use crate::rollouts::wire::Completion;
use crate::rollouts::wire::file::GroupLog;

/// A group of step `step`, whose two completions have `id` and `id + 1` tokens.
fn group(id: u64, step: Option<u64>) -> Group {
    let completion = |place: usize| Completion {
        rewards: vec![Some(id as f64), Some(10.0 * id as f64 + place as f64)],
        steps: if place == 1 { vec![None, Some(vec![(0, 0.5)])] } else { Vec::new() },
        ..Completion::new(place, vec![3; id as usize + place])
    };
    let reward_names = vec!["asked".into(), "r".into()];
    Group {
        group: GroupId(id),
        step: step.map(Step),
        prompt_ids: vec![1],
        reward_names,
        completions: vec![completion(0), completion(1)],
        ..Group::default()
    }
}

/// Compares a group of the replay.
fn compare(record: &mut Record, group: &Group) {
    record.compare(group, &crate::rollouts::wire::records([group]));
}

/// A record of the groups 2, 3, 4 and 6, from which the steps 1, 2, 4 and 5 learned.
fn record(dir: &Path, not_asked: &[&str]) -> Record {
    let path = dir.join("rollouts.bin");
    let mut log = GroupLog::open(&path).unwrap();
    for (id, step) in [(2, Some(1)), (3, Some(2)), (4, Some(4)), (6, Some(5))] {
        let mut bytes = Vec::new();
        group(id, step).write(&mut bytes);
        log.append(&bytes).unwrap();
    }
    Record::new(GroupFile::open(&path).unwrap(), not_asked.iter().map(|&name| name.to_owned()).collect(), true)
}

#[test]
fn the_groups_of_an_interval_exclude_its_first_step() {
    let dir = tempfile::tempdir().unwrap();
    let record = record(dir.path(), &[]);
    let of =
        |from, to| record.groups_in_steps(Step(from), Step(to)).into_iter().map(|group| group.0).collect::<Vec<u64>>();
    assert_eq!((of(0, 4), of(0, 1), of(1, 2), of(2, 3), of(2, 4)), (vec![2, 3, 4], vec![2], vec![3], vec![], vec![4]));
    assert_eq!(record.last_step(), Some(Step(5)));
}

#[test]
fn groups_are_compared_once_until_the_first_difference() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = record(dir.path(), &[]);
    record.sampled.insert(GroupId(2));
    compare(&mut record, &group(2, Some(1)));
    compare(&mut record, &group(3, Some(2)));
    // The two groups have 2 + 3 and 3 + 4 tokens; the second group came with a checkpoint.
    assert_eq!((record.equal, &record.difference), ((2, 12, 1), &None));
    compare(&mut record, &group(5, Some(3)));
    let none = Difference {
        step: Some(Step(3)),
        group: Some(GroupId(5)),
        kind: "group".into(),
        recorded: "none".into(),
        remade: "2 completions".into(),
        ..Difference::default()
    };
    assert_eq!(record.difference, Some(none.clone()));
    // The first difference stays, and later groups are not counted.
    compare(&mut record, &group(4, Some(4)));
    assert_eq!((record.equal, record.difference.take()), ((2, 12, 1), Some(none)));
    compare(&mut record, &group(4, Some(3)));
    let step = record.difference.take().unwrap();
    assert_eq!((step.kind.as_str(), step.group, step.step), ("step", Some(GroupId(4)), Some(Step(3))));
    assert_eq!(record.compared, [2, 3, 4, 5].map(GroupId).into());

    let path = dir.path().join("rollouts.bin");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    compare(&mut record, &group(6, Some(5)));
    let damaged = record.difference.take().unwrap();
    assert_eq!(
        (damaged.kind.as_str(), damaged.group, damaged.remade.as_str()),
        ("record", Some(GroupId(6)), "a group")
    );
    assert!(damaged.recorded.contains("checksum"), "{}", damaged.recorded);
}

#[test]
fn scores_of_rewards_not_called_again_come_from_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut asked = record(dir.path(), &[]);
    let names = ["r".to_owned(), "asked".to_owned()];
    let scored = |id: u32| {
        let mut group = round(&[(id, [None, None])]).groups.remove(0);
        group.completions.iter_mut().for_each(|c| c.rewards = vec![None, Some(0.25)]);
        group
    };
    let rewards = |group: &ScoredGroup| group.completions.iter().map(|c| c.rewards.clone()).collect::<Vec<_>>();
    let mut group = scored(3);
    asked.fill(&mut group, &names).unwrap();
    assert_eq!(rewards(&group), [[None, Some(0.25)], [None, Some(0.25)]], "the other reward is called again");
    let dir = tempfile::tempdir().unwrap();
    let mut record = record(dir.path(), &["r", "other"]);
    record.fill(&mut group, &names).unwrap();
    assert_eq!(rewards(&group), [[Some(30.0), Some(0.25)], [Some(31.0), Some(0.25)]]);
    assert_eq!(group.completions[0].steps, Vec::new());
    assert_eq!(group.completions[1].steps, [Some(vec![(0, 0.5)]), None]);
    let error = record.fill(&mut scored(9), &names).unwrap_err();
    assert!(error.is::<NotVerifiable>());
    assert_eq!(error.to_string(), "group 9 was not recorded, so its scores by r, other cannot be recomputed");
    // Groups that the run never learned from are only in a checkpoint.
    let mut ahead = super::tests::group(9, None);
    ahead.completions[1].rewards.truncate(1);
    record.ahead.insert(GroupId(9), ahead);
    let mut group = scored(9);
    record.fill(&mut group, &names).unwrap();
    assert_eq!(rewards(&group), [[Some(90.0), Some(0.25)], [None, Some(0.25)]]);
    // The recorded group is used, not the one from a checkpoint.
    record.ahead.insert(GroupId(3), super::tests::group(5, None));
    let mut group = scored(3);
    record.fill(&mut group, &names).unwrap();
    assert_eq!(rewards(&group)[0], [Some(30.0), Some(0.25)]);
    assert!(record.add_ahead(&dir.path().join("none.bin")).is_ok() && record.ahead.len() == 2);
    std::fs::write(dir.path().join("frontier.bin"), "rubbish").unwrap();
    assert!(record.add_ahead(&dir.path().join("frontier.bin")).is_err());
}
