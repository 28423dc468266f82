use super::file::{GroupFile, GroupLog, index_path};
use super::{Completion, Group, records};
use model::GroupId;
use std::fs;
use telemetry::Step;
use twox_hash::XxHash3_64;

fn group(id: u64, rewards: &[f64]) -> Group {
    let completion = |(place, reward): (usize, &f64)| Completion {
        rewards: vec![Some(*reward), None],
        ..Completion::new(place, vec![7; place + 1])
    };
    Group {
        group: GroupId(id),
        step: (id > 0).then_some(Step(id)),
        prompt_ids: vec![1, id as u32 % 2],
        reward_names: vec!["a".into(), "b".into()],
        reward_weights: vec![2.0, 1.0],
        completions: rewards.iter().enumerate().map(completion).collect(),
        ..Group::default()
    }
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
    GroupFile::open(path).unwrap().groups().map(|group| group.unwrap().group.0).collect()
}

#[test]
fn the_index_has_offset_and_summary_of_each_group() {
    let (_dir, path, _log) = three();
    let file = GroupFile::open(&path).unwrap();
    let [first, second, third] = file.index() else { panic!("{:?}", file.index()) };
    assert_eq!((first.group, first.step, first.completions, first.tokens), (GroupId(0), None, 2, 3));
    assert_eq!((first.reward, first.reward_std), (4.0, 2.0), "the mean and deviation of the weighted rewards");
    assert!(second.reward.is_nan() && (second.step, second.tokens) == (Some(Step(1)), 0));
    assert!(first.prompt_hash == third.prompt_hash && first.prompt_hash != second.prompt_hash);
    assert_eq!(file.read(2).unwrap(), group(2, &[0.5]));
    assert_eq!(fs::metadata(index_path(&path)).unwrap().len(), 8 + 3 * 64);
}

#[test]
fn an_open_file_grows_by_appended_groups_and_is_read_again_if_it_was_replaced() {
    let (dir, path, mut log) = three();
    let mut file = GroupFile::open(&path).unwrap();
    let grown = |file: &mut GroupFile| {
        file.grow().unwrap();
        file.groups().map(|group| group.unwrap().group.0).collect::<Vec<_>>()
    };
    assert_eq!(grown(&mut file), [0, 1, 2]);
    log.append(&records(&[group(3, &[1.0]), group(4, &[])])).unwrap();
    // Appended groups are read from their own records and entries: the entry of an older group is not read again.
    let (index, whole) = (index_path(&path), fs::read(index_path(&path)).unwrap());
    let mut changed = whole.clone();
    changed[8 + 16] ^= 9;
    fs::write(&index, &changed).unwrap();
    assert_eq!(grown(&mut file), [0, 1, 2, 3, 4]);
    assert_eq!(file.index()[0].group, GroupId(0));
    fs::write(&index, &whole).unwrap();
    // The group that is being written is left out, and so is an entry without a record.
    let bytes = fs::read(&path).unwrap();
    log.append(&records(&[group(5, &[2.0])])).unwrap();
    let end = log.len();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(end - 1).unwrap();
    assert_eq!(grown(&mut file), [0, 1, 2, 3, 4]);
    // A run that was resumed from an earlier step: the file has the same length, and other groups.
    fs::write(&path, &bytes).unwrap();
    let mut log = GroupLog::open(&path).unwrap();
    log.truncate(file.index()[3].offset).unwrap();
    assert_eq!(grown(&mut file), [0, 1, 2]);
    log.append(&records(&[group(7, &[1.0]), group(8, &[]), group(9, &[])])).unwrap();
    assert_eq!(grown(&mut file), [0, 1, 2, 7, 8, 9]);
    log.truncate(file.index()[3].offset).unwrap();
    log.append(&records(&[group(17, &[1.0]), group(18, &[]), group(19, &[]), group(20, &[])])).unwrap();
    assert_eq!(grown(&mut file), [0, 1, 2, 17, 18, 19, 20]);
    // Another file in its place, a file without an index, and a missing file.
    let (_other, other, _log) = three();
    fs::rename(&other, &path).unwrap();
    fs::rename(index_path(&other), &index).unwrap();
    assert_eq!(grown(&mut file), [0, 1, 2]);
    fs::remove_file(&index).unwrap();
    assert_eq!(grown(&mut file), [0, 1, 2]);
    drop(dir);
    assert!(file.grow().is_err());
}

#[test]
fn an_index_that_does_not_match_is_recomputed() {
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
fn a_kill_during_a_write_loses_only_the_group_being_written() {
    let (_dir, path, log) = three();
    drop(log);
    let whole = fs::read(&path).unwrap();
    let last = GroupFile::open(&path).unwrap().index()[2];
    for length in last.offset..whole.len() as u64 {
        fs::write(&path, &whole[..length as usize]).unwrap();
        assert_eq!(ids(&path), [0, 1], "truncated to {length}");
        let mut log = GroupLog::open(&path).unwrap();
        assert_eq!(log.len(), last.offset);
        log.append(&records(&[group(2, &[0.5])])).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    // After a power failure, the length may be on disk without the bytes.
    let mut zeros = whole.clone();
    zeros[last.offset as usize + 20..].fill(0);
    for torn in [zeros, [&whole[..last.offset as usize], &[0; 90]].concat()] {
        fs::write(&path, torn).unwrap();
        assert_eq!(GroupLog::open(&path).unwrap().len(), last.offset);
        assert_eq!(ids(&path), [0, 1]);
    }
}

#[test]
fn truncation_keeps_whole_groups() {
    let (_dir, path, mut log) = three();
    let second = GroupFile::open(&path).unwrap().index()[1];
    assert_eq!(log.truncate(u64::MAX).unwrap(), log.len());
    assert_eq!(log.truncate(second.offset + second.length + 5).unwrap(), second.offset + second.length);
    assert_eq!(ids(&path), [0, 1]);
    log.append(&records(&[group(9, &[])])).unwrap();
    assert_eq!(ids(&path), [0, 1, 9]);
    assert_eq!(GroupFile::open(&path).unwrap().index()[2].group, GroupId(9));
    assert_eq!((log.truncate(0).unwrap(), ids(&path).len()), (0, 0));
}

#[test]
fn a_file_without_groups_is_refused_and_kept() {
    let (_dir, path, log) = three();
    drop(log);
    let mut bytes = fs::read(&path).unwrap();
    let second = GroupFile::open(&path).unwrap().index()[1];
    bytes[second.offset as usize + 20] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let file = GroupFile::open(&path).unwrap();
    assert!(file.read(0).is_ok() && file.read(2).is_ok(), "undamaged groups are read");
    let error = file.read(1).unwrap_err().to_string();
    assert!(error.contains(&format!("the record at byte {}", second.offset)) && error.contains("checksum"), "{error}");

    fs::write(&path, "{\"prompt_ids\": [1]}\n").unwrap();
    assert!(GroupFile::open(&path).unwrap_err().to_string().contains("rollouts.bin"));
    assert!(GroupLog::open(&path).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"prompt_ids\": [1]}\n");
}

/// The entry's layout as documented, byte by byte.
#[test]
fn index_entries_have_the_documented_layout() {
    let (_dir, path, log) = three();
    assert_eq!((log.path(), log.len(), log.is_empty()), (&*path, fs::metadata(&path).unwrap().len(), false));
    let records = [group(0, &[1.0, 3.0]), group(1, &[]), group(2, &[0.5])].map(|group| records(&[group]));
    let hash = |ids: [u32; 2]| XxHash3_64::oneshot(&ids.map(u32::to_le_bytes).concat());
    let nan = f64::NAN.to_bits();
    let entry = |of: [u64; 7], completions: u32, tokens: u32| {
        let numbers = of.map(u64::to_le_bytes).concat();
        [numbers, completions.to_le_bytes().to_vec(), tokens.to_le_bytes().to_vec()].concat()
    };
    let lengths = records.each_ref().map(|record| record.len() as u64);
    let index = fs::read(index_path(&path)).unwrap();
    let expected = [
        entry([0, lengths[0], 0, u64::MAX, hash([1, 0]), 4.0f64.to_bits(), 2.0f64.to_bits()], 2, 3),
        entry([lengths[0], lengths[1], 1, 1, hash([1, 1]), nan, nan], 0, 0),
        entry([lengths[0] + lengths[1], lengths[2], 2, 2, hash([1, 0]), 1.0f64.to_bits(), 0], 1, 1),
    ];
    assert_eq!(index[..8], *b"LSI\x01\x40\0\0\0");
    for (place, expected) in expected.iter().enumerate() {
        let own = &index[8 + 64 * place..8 + 64 * (place + 1)];
        // NaN may have any of its bit patterns.
        let bytes = if place == 1 { 0..40 } else { 0..64 };
        assert_eq!(own[bytes.clone()], expected[bytes], "{place}");
    }
    let file = GroupFile::open(&path).unwrap();
    let [_, second, third] = file.index() else { panic!("{:?}", file.index()) };
    assert!(second.reward.is_nan() && second.reward_std.is_nan());
    let found = (third.offset, third.length, third.step, third.completions, third.tokens);
    assert_eq!(found, (lengths[0] + lengths[1], lengths[2], Some(Step(2)), 1, 1));
}

/// Programs that do not know the fields that later versions append still read the others.
#[test]
fn index_entries_with_later_fields_are_read() {
    let (_dir, path, log) = three();
    drop(log);
    let index = fs::read(index_path(&path)).unwrap();
    let with = |more: usize, tokens: u32| {
        let entry = |(place, entry): (usize, &[u8])| {
            // A recomputed entry would have the correct number of tokens.
            let tokens = if place == 2 { tokens.to_le_bytes().to_vec() } else { entry[60..].to_vec() };
            [&entry[..60], &tokens, &vec![0xff; more]].concat()
        };
        let entries: Vec<u8> = index[8..].chunks(64).enumerate().flat_map(entry).collect();
        [b"LSI\x01", &(64 + more as u32).to_le_bytes()[..], &entries].concat()
    };
    let tokens = |bytes: &[u8]| {
        fs::write(index_path(&path), bytes).unwrap();
        GroupFile::open(&path).unwrap().index().iter().map(|entry| entry.tokens).collect::<Vec<_>>()
    };
    assert_eq!((tokens(&with(0, 99)), tokens(&with(8, 98))), (vec![3, 0, 99], vec![3, 0, 98]));
    // An index with shorter entries, or with only a header, is not used.
    let mut short = with(0, 97);
    short[4] = 63;
    assert_eq!(
        (tokens(&short), tokens(&with(0, 99)[..8]), tokens(b"LSI\x01\x40\0\0")),
        (vec![3, 0, 1], vec![3, 0, 1], vec![3, 0, 1])
    );
    // Entries without a record are ignored.
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert_eq!(tokens(&with(0, 99)), [3, 0]);
}

#[test]
fn damaged_records_are_not_appended() {
    let (_dir, path, mut log) = three();
    let (before, index) = (fs::read(&path).unwrap(), fs::read(index_path(&path)).unwrap());
    let first = records(&[group(7, &[1.0])]);
    let mut second = records(&[group(8, &[1.0])]);
    *second.last_mut().unwrap() ^= 1;
    let place = |at: usize| format!("{}, the record at byte {}: ", path.display(), before.len() + at);
    let error = log.append(&[&first[..], &second].concat()).unwrap_err().to_string();
    assert_eq!(error, place(first.len()) + "the checksum (XXH3) does not match: the record is damaged");
    let mut other = super::RecordWriter::new();
    other.uints("group", 1, [5]);
    let mut bytes = Vec::new();
    other.finish(&mut bytes);
    assert_eq!(log.append(&bytes).unwrap_err().to_string(), place(0) + "group 5: column `lengths` is missing");
    assert_eq!((fs::read(&path).unwrap(), fs::read(index_path(&path)).unwrap()), (before, index));
    log.append(&first).unwrap();
    log.sync().unwrap();
    assert_eq!((ids(&path), log.len()), (vec![0, 1, 2, 7], fs::metadata(&path).unwrap().len()));
    assert_eq!((log.truncate(0).unwrap(), log.len(), log.is_empty()), (0, 0, true));
    assert_eq!(fs::metadata(index_path(&path)).unwrap().len(), 8);
}

#[test]
fn a_deleted_file_is_written_again() {
    let (_dir, path, mut log) = three();
    let (index, whole) = (index_path(&path), fs::read(&path).unwrap());
    let index_bytes = fs::read(&index).unwrap();
    assert_eq!(log.check().unwrap(), None);
    let deleted =
        |path: &std::path::Path| format!("{} was deleted during the run: it is written again", path.display());
    fs::remove_file(&index).unwrap();
    assert_eq!(log.check().unwrap(), Some(deleted(&index)));
    assert_eq!((fs::read(&path).unwrap(), fs::read(&index).unwrap()), (whole.clone(), index_bytes.clone()));
    fs::remove_file(&index).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(log.check().unwrap(), Some(format!("{}; {}", deleted(&path), deleted(&index))));
    assert_eq!((fs::read(&path).unwrap(), fs::read(&index).unwrap()), (whole, index_bytes));
    assert_eq!(log.check().unwrap(), None);
    log.append(&records(&[group(4, &[2.0])])).unwrap();
    assert_eq!(ids(&path), [0, 1, 2, 4]);
}
