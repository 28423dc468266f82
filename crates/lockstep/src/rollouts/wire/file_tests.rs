use super::file::{GroupFile, GroupLog, index_path};
use super::{Completion, Group};
use std::fs;

fn group(id: u64, rewards: &[f64]) -> Group {
    let completion = |(place, reward): (usize, &f64)| Completion {
        rewards: vec![Some(*reward), None],
        ..Completion::new(place, vec![7; place + 1])
    };
    Group {
        id,
        step: (id > 0).then_some(id),
        prompt_ids: vec![1, id as u32 % 2],
        reward_names: vec!["a".into(), "b".into()],
        reward_weights: vec![2.0, 1.0],
        completions: rewards.iter().enumerate().map(completion).collect(),
        ..Group::default()
    }
}

fn records(groups: &[Group]) -> Vec<u8> {
    let mut bytes = Vec::new();
    groups.iter().for_each(|group| group.write(&mut bytes));
    bytes
}

/// A directory with a file of three groups.
fn three() -> (tempfile::TempDir, std::path::PathBuf, GroupLog) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rollouts.bin");
    let mut log = GroupLog::open(&path).unwrap();
    log.append(&records(&[group(0, &[1.0, 3.0]), group(1, &[])])).unwrap();
    log.append(&records(&[group(2, &[0.5])])).unwrap();
    (dir, path, log)
}

fn ids(path: &std::path::Path) -> Vec<u64> {
    GroupFile::open(path).unwrap().groups().map(|group| group.unwrap().id).collect()
}

#[test]
fn the_index_says_where_groups_lie_and_what_they_are() {
    let (_dir, path, _log) = three();
    let file = GroupFile::open(&path).unwrap();
    let [first, second, third] = file.index() else { panic!("{:?}", file.index()) };
    assert_eq!((first.group, first.step, first.completions, first.tokens), (0, None, 2, 3));
    assert_eq!((first.reward, first.reward_std), (4.0, 2.0), "weighted");
    assert!(second.reward.is_nan() && (second.step, second.tokens) == (Some(1), 0));
    assert!(first.prompt_hash == third.prompt_hash && first.prompt_hash != second.prompt_hash);
    assert_eq!(file.read(2).unwrap(), group(2, &[0.5]));
    assert_eq!(fs::metadata(index_path(&path)).unwrap().len(), 8 + 3 * 64);
}

#[test]
fn an_index_that_does_not_fit_is_made_again() {
    let (_dir, path, log) = three();
    drop(log);
    let index = index_path(&path);
    let good = fs::read(&index).unwrap();
    let mut moved = good.clone();
    moved[8 + 64] ^= 1;
    for bad in [&b""[..], b"LSI\x02....", &good[..8 + 64], &good[..8 + 100], &moved] {
        fs::write(&index, bad).unwrap();
        assert_eq!(ids(&path), [0, 1, 2]);
        drop(GroupLog::open(&path).unwrap());
        assert_eq!(fs::read(&index).unwrap(), good);
    }
    fs::remove_file(&index).unwrap();
    drop(GroupLog::open(&path).unwrap());
    assert_eq!(fs::read(&index).unwrap(), good);
}

#[test]
fn a_kill_in_the_middle_of_a_write_costs_that_group_alone() {
    let (_dir, path, log) = three();
    drop(log);
    let whole = fs::read(&path).unwrap();
    let last = GroupFile::open(&path).unwrap().index()[2];
    for length in last.offset..whole.len() as u64 {
        fs::write(&path, &whole[..length as usize]).unwrap();
        assert_eq!(ids(&path), [0, 1], "cut at {length}");
        let mut log = GroupLog::open(&path).unwrap();
        assert_eq!(log.len(), last.offset);
        log.append(&records(&[group(2, &[0.5])])).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    // A power cut: the length arrived, the bytes did not.
    let mut zeros = whole.clone();
    zeros[last.offset as usize + 20..].fill(0);
    for torn in [zeros, [&whole[..last.offset as usize], &[0; 90]].concat()] {
        fs::write(&path, torn).unwrap();
        assert_eq!(GroupLog::open(&path).unwrap().len(), last.offset);
        assert_eq!(ids(&path), [0, 1]);
    }
}

#[test]
fn a_file_is_cut_back_to_whole_groups() {
    let (_dir, path, mut log) = three();
    let second = GroupFile::open(&path).unwrap().index()[1];
    assert_eq!(log.truncate(u64::MAX).unwrap(), log.len());
    assert_eq!(log.truncate(second.offset + second.length + 5).unwrap(), second.offset + second.length);
    assert_eq!(ids(&path), [0, 1]);
    log.append(&records(&[group(9, &[])])).unwrap();
    assert_eq!(ids(&path), [0, 1, 9]);
    assert_eq!(GroupFile::open(&path).unwrap().index()[2].group, 9);
    assert_eq!((log.truncate(0).unwrap(), ids(&path).len()), (0, 0));
}

#[test]
fn what_is_no_file_of_groups_is_refused_and_stays() {
    let (_dir, path, log) = three();
    drop(log);
    let mut bytes = fs::read(&path).unwrap();
    let second = GroupFile::open(&path).unwrap().index()[1];
    bytes[second.offset as usize + 20] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let file = GroupFile::open(&path).unwrap();
    assert!(file.read(0).is_ok() && file.read(2).is_ok(), "the others are read");
    let said = file.read(1).unwrap_err().to_string();
    assert!(said.contains(&format!("the record at byte {}", second.offset)) && said.contains("checksum"), "{said}");

    fs::write(&path, "{\"prompt_ids\": [1]}\n").unwrap();
    assert!(GroupFile::open(&path).unwrap_err().to_string().contains("rollouts.bin"));
    assert!(GroupLog::open(&path).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"prompt_ids\": [1]}\n");
}
