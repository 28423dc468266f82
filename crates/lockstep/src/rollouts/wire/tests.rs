mod begun;
mod converted;
mod record;
mod refused;
mod written;

use super::record::{HEADER, MAGIC};
use super::*;
use model::columns::{Column, OLD_LOGPS, REF_LOGPS, SAMPLER_LOGPS, TOP_IDS, TOP_LOGPS, VALUES, Values};
use model::{Columns, GroupId, Updates};
use proptest::prelude::*;
use rewards::Content;
use rollout::FinishReason;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use telemetry::Step;
use testing::foreign;
use train::{Advantage, Sample};
use twox_hash::XxHash3_64;

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn bytes(group: &Group) -> Vec<u8> {
    let mut bytes = Vec::new();
    group.write(&mut bytes);
    bytes
}

/// A record with this body and a correct checksum.
fn sealed(body: &[u8]) -> Vec<u8> {
    let checksum = XxHash3_64::oneshot(body).to_le_bytes();
    [&MAGIC[..], &[VERSION], &(body.len() as u32).to_le_bytes(), &checksum, body].concat()
}

/// The first record of `bytes`, in which `put` replaces the column `name`. The bytes after the record are kept.
pub(super) fn with_column(bytes: &[u8], name: &str, put: impl Fn(&mut RecordWriter)) -> Vec<u8> {
    let (read, rest) = RecordReader::take(bytes).unwrap();
    let mut record = RecordWriter::new();
    for column in read.names() {
        let width = read.width(column) as usize;
        match read.kind(column).unwrap() {
            _ if column == name => {}
            Kind::Uint => record.uints(column, width, read.uints(column).unwrap().unwrap()),
            Kind::F32 => record.f32s(column, width, &read.f32s(column).unwrap().unwrap()),
            Kind::F64 => record.f64s(column, width, &read.f64s(column).unwrap().unwrap()),
            Kind::Runs => {
                let values = (0..100).find_map(|count| read.runs(column, count).ok()).unwrap();
                record.runs(column, values.unwrap());
            }
            Kind::Text => record.texts(column, read.texts(column).unwrap().unwrap()),
            Kind::Bytes => record.bytes(column, read.bytes(column).unwrap().unwrap()),
        }
    }
    put(&mut record);
    let mut bytes = Vec::new();
    record.finish(&mut bytes);
    [&bytes, rest].concat()
}

/// The name and the width of each column of the first record.
pub(super) fn widths(bytes: &[u8]) -> Vec<(&str, u64)> {
    let (record, _) = RecordReader::take(bytes).unwrap();
    record.names().map(|name| (name, record.width(name))).collect()
}

/// A group with all columns and unusual values.
fn full() -> Group {
    let mut first = Completion {
        sampled: vec![true, false, false, true],
        loss_mask: vec![true, false, false, false],
        versions: [7, 7, 8, 8].map(Updates).to_vec(),
        columns: Columns::of([
            (SAMPLER_LOGPS, vec![-0.5, f32::from_bits(0x7fc1_2345), f32::NEG_INFINITY, -0.0]),
            (REF_LOGPS, vec![-1.0, -2.0, -3.0, f32::MIN_POSITIVE / 2.0]),
        ]),
        finish_reason: Some(FinishReason::Length),
        advantage: Some(Advantage::Tokens(vec![0.5, -0.5, 0.0, 2.0])),
        rewards: vec![Some(0.1 + 0.2), None],
        steps: vec![Some(vec![(0, 0.1), (3, -4.0)]), None],
        content: Some(Content::Text("a \u{10ffff}".into())),
        extra: object(json!({"answer": 0.1, "parsed": [null, "x"]})),
        ..Completion::new(0, vec![5, 1 << 31, 0, u32::MAX])
    };
    first.columns.insert(TOP_IDS, Column { width: 2, values: Values::U32((0..8).collect()) });
    let second = Completion {
        versions: vec![Updates(8)],
        columns: Columns::of([(SAMPLER_LOGPS, vec![-0.25])]),
        finish_reason: Some(FinishReason::Stop),
        advantage: Some(Advantage::Sequence(-0.0)),
        rewards: vec![None, Some(f64::NEG_INFINITY)],
        content: Some(Content::assistant("b")),
        fork: Some(Fork { parent: 0, at: 1 }),
        ..Completion::new(0, vec![5])
    };
    let empty = Completion { rewards: vec![None; 2], ..Completion::new(1, vec![]) };
    let mut prompt_columns = Columns::of([(SAMPLER_LOGPS, vec![-1.0, -2.0])]);
    prompt_columns.insert(TOP_LOGPS, Column { width: 2, values: Values::F32(vec![-1.0; 4]) });
    Group {
        group: GroupId(u64::MAX),
        step: Some(Step(3)),
        prompt_ids: vec![1, 2, 300],
        prompt_id: Some(12),
        prompt: Some(Content::Messages(vec![json!({"role": "user", "content": "hi"})])),
        prompt_in_batch: Some(0),
        prompt_columns,
        dataset: object(json!({"answer": "7", "z": {"a": 1e-300}})),
        sampling: object(json!({"temperature": 0.7, "top_k": 0})),
        lineage: Some(Lineage(*b"0123456789abcdef")),
        reward_names: vec!["math".into(), "len".into()],
        reward_weights: vec![1.0, 0.5],
        problems: vec![json!({"reward": "len", "message": "no\nanswer"})],
        completions: vec![first, second, empty],
    }
}

#[test]
fn a_group_is_read_back_bit_for_bit() {
    let written = bytes(&full());
    let (back, rest) = Group::read(&written).expect("the reader must accept a written group");
    assert!(rest.is_empty());
    let nan = |group: &Group| group.completions[0].columns.sampler_logps().unwrap()[1].to_bits();
    assert_eq!((nan(&back), bytes(&back)), (0x7fc1_2345, written));
    // NaN is not equal to itself.
    let without_nan = |mut group: Group| {
        group.completions[0].columns.remove(SAMPLER_LOGPS);
        group
    };
    assert_eq!(without_nan(back), without_nan(full()));

    let bare = Group { completions: vec![Completion::new(0, vec![1]), Completion::new(1, vec![])], ..Group::default() };
    let both = [bytes(&bare), bytes(&Group::default())].concat();
    assert_eq!(Group::read_all(&both).unwrap(), [bare, Group::default()]);
    assert_eq!(Group::read_all(&[]).unwrap(), []);
}

/// The layout as documented, byte by byte.
#[test]
fn records_have_the_documented_layout() {
    let mut record = RecordWriter::new();
    record.must_be_known().uints("n", 1, [1, 300]);
    record.f32s("x", 2, &[1.0, -2.0]);
    record.runs("r", [7, 7, 7, 0]);
    record.texts("t", ["é", ""]);
    record.bytes("b", &[9]);
    let mut bytes = Vec::new();
    record.finish(&mut bytes);
    let directory = b"\x05\x01n\x81\x01\x03\x01x\x02\x02\x08\x01r\x04\x01\x04\x01t\x05\x01\x04\x01b\x06\x01\x01";
    let values = b"\x01\xac\x02\0\0\x80\x3f\0\0\0\xc0\x07\x03\0\x01\x02\xc3\xa9\0\x09";
    assert_eq!(bytes, sealed(&[&directory[..], values].concat()));
    let (read, _) = RecordReader::take(&bytes).unwrap();
    assert_eq!(read.names().collect::<String>(), "nxrtb");
    assert_eq!((read.kind("x"), read.width("x"), read.kind("y")), (Some(Kind::F32), 2, None));
    assert_eq!(read.uints("n").unwrap().unwrap(), [1, 300]);
    assert_eq!(read.runs("r", 4).unwrap().unwrap(), [7, 7, 7, 0]);
    assert_eq!(read.texts("t").unwrap().unwrap(), ["é", ""]);
    assert_eq!(read.bytes("b").unwrap().unwrap(), [9]);
    assert_eq!(read.f64s("absent").unwrap(), None);
    assert!(read.f64s("x").unwrap_err().to_string().contains("column `x` has values of kind 2, not 3"));
}

#[test]
fn a_flipped_bit_anywhere_is_an_error() {
    let written = bytes(&full());
    for at in 0..written.len() {
        for bit in 0..8 {
            let mut flipped = written.clone();
            flipped[at] ^= 1 << bit;
            assert!(Group::read(&flipped).is_err(), "byte {at}, bit {bit}");
        }
    }
    let mut flipped = written.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let error = Group::read_all(&[written.clone(), flipped].concat()).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("record 1, at byte {}: ", written.len())) && error.contains("checksum"),
        "{error}"
    );
}

#[test]
fn a_truncated_record_or_another_version_is_refused() {
    let written = bytes(&full());
    for length in 0..written.len() {
        let error = Group::read(&written[..length]).unwrap_err().to_string();
        assert!(error.contains(if length < HEADER { "are not a record" } else { "is truncated" }), "{length}: {error}");
    }
    let newer = [&b"LSG\x02"[..], &written[4..]].concat();
    assert!(Group::read(&newer).unwrap_err().to_string().contains("version 2"), "the error names the version");
    assert!(Group::read(&[b'{'; 16]).unwrap_err().to_string().contains("does not begin with LSG"));
}

#[test]
fn unknown_columns_are_skipped_unless_they_must_be_known() {
    let mut later = Vec::new();
    for must in [false, true] {
        let mut record = RecordWriter::new();
        record.must_be_known().uints("group", 1, [4]);
        record.uints("prompt_ids", 1, [1]);
        record.uints("lengths", 1, [1]);
        record.texts("new thing", ["?"]);
        record.uints("ids", 1, [9]);
        if must {
            record.must_be_known().runs("reversed", [1]);
        }
        record.finish(&mut later);
    }
    let (group, rest) = Group::read(&later).unwrap();
    assert_eq!(
        group,
        Group {
            group: GroupId(4),
            prompt_ids: vec![1],
            completions: vec![Completion::new(0, vec![9])],
            ..Group::default()
        }
    );
    let error = Group::read(rest).unwrap_err().to_string();
    assert!(error.contains("`reversed`") && error.contains("use a newer one"), "{error}");
}

/// Versions that do not know a reserved column read the others.
#[test]
fn readers_need_not_know_reserved_columns() {
    let written = bytes(&full());
    let (record, _) = RecordReader::take(&written).unwrap();
    assert_eq!(record.uints("forks").unwrap().unwrap(), [0, 0, 1, 1, 0, 0], "parent 0 and one token of the second");
    record.refuse_unknown(|name| name != "forks" && !name.starts_with("prompt.")).unwrap();
    let error = record.refuse_unknown(|name| name != "ids").unwrap_err().to_string();
    assert!(error.contains("`ids`"), "{error}");
}

#[test]
fn samples_are_read_back_with_shared_prompts() {
    let prompt = model::Prompt::new([1, 2, 3]);
    let sample = Sample {
        group: GroupId(1 << 40),
        prompt: prompt.clone(),
        completion: vec![4, 5],
        loss_mask: vec![true, false],
        versions: [7, 8].map(Updates).to_vec(),
        finish_reason: FinishReason::Length,
        advantage: Advantage::Tokens(vec![0.5, f32::MIN_POSITIVE / 2.0]),
        columns: Columns::of([(SAMPLER_LOGPS, vec![-0.1, f32::NEG_INFINITY]), (VALUES, vec![0.1, -0.0])]),
    };
    // One more group of the same prompt object, and one with the same ids in another prompt object.
    let again = Sample { group: GroupId(2), advantage: Advantage::Sequence(-1.25), ..sample.clone() };
    let mut other = Sample {
        group: GroupId(3),
        prompt: model::Prompt::new([1, 2, 3]),
        finish_reason: FinishReason::Stop,
        ..sample.clone()
    };
    other.columns.set(OLD_LOGPS, vec![f32::NAN, -0.0]);
    let mut bytes = Vec::new();
    let groups = Group::from_samples(&[sample.clone(), sample.clone(), again.clone(), other.clone()]);
    assert_eq!(groups.len(), 3);
    for group in &groups {
        group.write(&mut bytes);
    }
    let back = Group::into_samples(Group::read_all(&bytes).unwrap());
    assert_eq!(back[..3], [sample.clone(), sample, again]);
    assert!(Arc::ptr_eq(&back[0].prompt, &back[1].prompt) && Arc::ptr_eq(&back[0].prompt, &back[2].prompt));
    assert!(!Arc::ptr_eq(&back[0].prompt, &back[3].prompt) && back[3].prompt.ids == [1, 2, 3]);
    assert_eq!(back[3].columns.f32(OLD_LOGPS).unwrap()[0].to_bits(), f32::NAN.to_bits());
}

/// The line has the record's values under the names that a replay reads.
#[test]
fn a_group_is_converted_to_one_json_line_per_completion() {
    let lines = full().lines();
    assert_eq!(lines.len(), 3);
    let known = telemetry::RolloutLine::KEYS;
    for key in lines.iter().flat_map(|line| line.keys()) {
        assert!(known.contains(&key.as_str()), "{key}");
    }
    let first = Value::Object(lines[0].clone());
    let expected = [
        ("completion_ids", json!([5, 1u64 << 31, 0, u32::MAX])),
        ("mask", json!([true, false, false, true])),
        ("loss_mask", json!([true, false, false, false])),
        ("truncated", json!(true)),
        ("versions", json!([[7, 2], [8, 2]])),
        ("rewards", json!([0.1 + 0.2, null])),
        ("advantages", json!([0.5, -0.5, 0.0, 2.0])),
        ("lineage", json!("30313233343536373839616263646566")),
        ("tokens", json!({"top_ids": [[0, 1], [2, 3], [4, 5], [6, 7]]})),
        ("columns", json!({"answer": "7", "z": {"a": 1e-300}})),
        ("step_scores", json!([[[0, 0.1], [3, -4.0]], null])),
    ];
    for (key, value) in expected {
        assert_eq!(first[key], value, "{key}");
    }
    assert_eq!((&lines[1]["fork"], &lines[1]["advantages"]), (&json!({"parent": 0, "at": 1}), &json!(-0.0)));
    assert!(!lines[2].contains_key("completion") && !lines[2].contains_key("truncated"));

    let mut plain = full();
    plain.completions[0].columns.set(SAMPLER_LOGPS, vec![-0.5, -1.0, -0.25, -0.0]);
    plain.completions[0].ids = vec![5, 6, 7, 8];
    let line = &plain.lines()[0];
    let read = telemetry::RolloutLine::read(line, 1000).unwrap();
    let mut replayed = plain.replayed();
    replayed.completions.truncate(1);
    replayed.completions[0].steps.clear();
    assert_eq!(read, replayed);
}

#[test]
fn scored_groups_are_read_back_unchanged() {
    use crate::rollouts::generation::tests::round;
    let mut rollouts = round(&[(3, [Some(1.0), None])]);
    let scored = &mut rollouts.groups[0];
    scored.completions[0].steps = vec![Some(vec![(0, 0.5)])];
    scored.completions[0].completion.sampled = vec![false];
    let group = Group { reward_names: vec!["r".into()], ..Group::from_scored(scored, true) };
    let (back, _) = Group::read(&bytes(&group)).unwrap();
    assert_eq!(back, group);
    let back = back.into_scored().unwrap();
    assert_eq!((back.group, &back.prompt), (scored.group, &scored.prompt));
    for (back, own) in back.completions.iter().zip(&scored.completions) {
        assert_eq!((&back.completion, &back.content, &back.rewards), (&own.completion, &own.content, &own.rewards));
        assert_eq!((&back.steps, &back.extra), (&own.steps, &own.extra));
    }
    let error = Group::from_scored(scored, false).into_scored().unwrap_err().to_string();
    assert!(error.contains("group 3: column `completions` is missing"), "{error}");
}

/// f32 with any bits.
fn any_f32() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits)
}

fn completion(rewards: usize) -> impl Strategy<Value = Completion> {
    let ids = prop::collection::vec(any::<u32>(), 0..6);
    ids.prop_flat_map(move |ids| {
        let n = ids.len();
        let tokens = (prop::collection::vec(any::<[bool; 2]>(), n), prop::collection::vec(0..3u64, n));
        let columns = prop::collection::btree_map(0..3usize, prop::collection::vec(any_f32(), n), 0..3);
        let scores = prop::collection::vec(prop::option::of(any::<u64>().prop_map(f64::from_bits)), rewards);
        let rest = (any::<u8>(), any::<bool>(), any_f32(), ".{0,4}");
        (Just(ids), tokens, columns, scores, rest)
    })
    .prop_map(|(ids, (masks, versions), columns, rewards, (generation, known, x, text))| {
        let names = [SAMPLER_LOGPS, REF_LOGPS, "entropies"];
        let mut all = Columns::default();
        for (name, values) in columns {
            all.set(names[name], values);
        }
        let advantages = vec![x; ids.len()];
        Completion {
            generation: usize::from(generation),
            sampled: masks.iter().map(|m| m[0]).collect(),
            loss_mask: masks.iter().map(|m| m[1]).collect(),
            versions: if known { versions.into_iter().map(Updates).collect() } else { Vec::new() },
            columns: all,
            finish_reason: known.then_some(FinishReason::Stop),
            advantage: Some(if known { Advantage::Sequence(x) } else { Advantage::Tokens(advantages) }),
            rewards,
            content: known.then(|| Content::Text(text.clone())),
            extra: object(json!({"text": text})),
            ..Completion::new(0, ids)
        }
    })
}

fn group() -> impl Strategy<Value = Group> {
    (0..3usize).prop_flat_map(|rewards| {
        let completions = prop::collection::vec(completion(rewards), 0..4);
        let prompt = prop::collection::vec(any::<u32>(), 0..4);
        (completions, prompt, any::<u64>(), prop::option::of(any::<[u8; 16]>().prop_map(Lineage))).prop_map(
            move |(completions, prompt_ids, id, lineage)| Group {
                group: GroupId(id),
                step: lineage.map(|_| Step(id / 2)),
                prompt_ids,
                lineage,
                reward_names: (0..rewards).map(|k| format!("r{k}")).collect(),
                reward_weights: vec![f64::NAN; rewards],
                completions,
                ..Group::default()
            },
        )
    })
}

proptest! {
    #![proptest_config(foreign::few())]

    #[test]
    fn any_group_is_read_back_unchanged(groups in prop::collection::vec(group(), 0..3)) {
        let written: Vec<u8> = groups.iter().flat_map(bytes).collect();
        let back = Group::read_all(&written).unwrap();
        prop_assert_eq!(back.iter().flat_map(bytes).collect::<Vec<u8>>(), written);
        prop_assert_eq!(format!("{back:?}"), format!("{groups:?}"));
    }

    #[test]
    fn parsing_arbitrary_bytes_as_a_group_never_panics(bytes in foreign::bytes(bytes(&full()))) {
        let _ = Group::read_all(&bytes);
    }

    /// The checksum is correct, so that the later checks are reached.
    #[test]
    fn parsing_an_arbitrary_body_never_panics(body in foreign::bytes(bytes(&full())[HEADER..].to_vec())) {
        if let Ok((group, _)) = Group::read(&sealed(&body)) {
            // A group that was read can be written again.
            bytes(&group);
        }
    }
}
