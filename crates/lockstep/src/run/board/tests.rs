use super::*;
use crate::error::is_bad_input;
use crate::rollouts::wire::Completion;
use model::tokenizer::{SpecialTokens, Tokenizer};
use model::{Columns, GroupId, columns};
use rewards::Content;
use std::fs;

/// A group with two rewards whose completions have these ids.
fn group(id: u64, all: &[&[u32]]) -> Group {
    let completion = |(i, ids): (usize, &&[u32])| Completion {
        rewards: vec![Some(i as f64), None],
        advantage: Some(Advantage::Sequence(0.5 - i as f32)),
        columns: Columns::of([
            (columns::SAMPLER_LOGPS, vec![-1.0; ids.len()]),
            (columns::ENTROPIES, vec![0.25; ids.len()]),
        ]),
        ..Completion::new(i, ids.to_vec())
    };
    Group {
        group: GroupId(id),
        prompt: Some(Content::from(format!("p{id}").as_str())),
        reward_names: vec!["a".into(), "b".into()],
        reward_weights: vec![2.0, 1.0],
        completions: all.iter().enumerate().map(completion).collect(),
        ..Group::default()
    }
}

#[test]
fn recorded_groups_become_rows_and_histograms() {
    let groups = [group(3, &[&[1, 2], &[3]]), group(4, &[&[2], &[1], &[1, 1, 1]])];
    let dir = tempfile::tempdir().unwrap();
    Tokenizer::characters("xyz".chars(), &SpecialTokens::default()).unwrap().save(dir.path()).unwrap();
    let texts = TokenTexts::open(dir.path()).unwrap();
    let letters = texts.text(&[0, 1, 2]).unwrap();
    assert_eq!(letters, "xyz");
    let of = |ids: &[u32]| ids.iter().map(|id| &letters[*id as usize..*id as usize + 1]).collect::<String>();
    let small = [group(3, &[&[1, 2], &[0]]), group(4, &[&[2], &[1], &[1, 1, 1]])];
    let rows = completions(Step(9), &small, &texts).unwrap();
    assert_eq!((rows.step.0, rows.prompts.clone()), (9, ["p3", "p3", "p4", "p4", "p4"].map(Value::from).to_vec()));
    assert_eq!(rows.completions, [&[1, 2][..], &[0], &[2], &[1], &[1, 1, 1]].map(|ids| Value::from(of(ids))));
    let first = vec![Some(0.0), Some(1.0), Some(0.0), Some(1.0), Some(2.0)];
    assert_eq!(rows.rewards, [("a".to_owned(), first), ("b".to_owned(), vec![None; 5])]);
    assert_eq!(rows.advantages, [0.5, -0.5, 0.5, -0.5, -1.5].map(Some));
    let many: Vec<&[u32]> = vec![&[1]; 9];
    assert_eq!(completions(Step(9), &[group(1, &many)], &texts).unwrap().completions.len(), 8);
    assert!(completions(Step(9), &[], &texts).unwrap().rewards.is_empty());
    let all: BTreeMap<String, Vec<f64>> = distributions(&groups).into_iter().collect();
    assert_eq!(all["reward"], [0.0, 2.0, 0.0, 2.0, 4.0]);
    assert_eq!(
        (all["length"].as_slice(), all["advantage"].as_slice()),
        (&[2.0, 1.0, 1.0, 1.0, 3.0][..], &[0.5, -0.5, 0.5, -0.5, -1.5][..])
    );
    assert_eq!((all["logprob"].clone(), all["entropy"].clone()), (vec![-1.0; 8], vec![0.25; 8]));
    assert!(distributions(&[]).is_empty());
}

#[test]
fn an_event_file_has_the_logged_values_and_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::fresh(&dir.path().join("run")).unwrap();
    run.create("seed = 3\n").unwrap();
    let board = |name: &str| write_board(&run, &dir.path().join(name));
    fs::write(run.metrics(), "").unwrap();
    let nothing = board("a").unwrap_err();
    let words = format!("{}: nothing has been logged yet", run.metrics().display());
    assert_eq!((is_bad_input(&nothing), nothing.to_string()), (true, words));
    let lines =
        "{\"step\": 1, \"time_s\": 5, \"loss\": 1}\n{\"step\": 2, \"loss\": null}\n{\"step\": 2, \"alarm\": {}}\n";
    fs::write(run.metrics(), lines).unwrap();
    assert_eq!(board("a").unwrap(), 2, "the logged metrics, without the alarm");
    let again = board("a").unwrap_err().to_string();
    assert!(again.contains("tfevents"), "{again}");
    let end = " already exists and is not overwritten: delete it, or choose another directory (--out)";
    assert!(again.ends_with(end), "{again}");
    // A completions table, and recorded groups of two steps with histograms.
    fs::write(
        run.completions().join("completions_00001.jsonl"),
        "{\"step\": 1, \"prompt\": \"p\", \"completion\": \"c\"}\n",
    )
    .unwrap();
    assert_eq!(board("b").unwrap(), 3);
    let mut log = crate::rollouts::wire::file::GroupLog::open(&run.rollouts()).unwrap();
    for (id, step) in [(1, 1), (2, 1), (3, 2)] {
        let mut bytes = Vec::new();
        Group { step: Some(Step(step)), ..group(id, &[&[1], &[2]]) }.write(&mut bytes);
        log.append(&bytes).unwrap();
    }
    log.sync().unwrap();
    drop(log);
    assert_eq!(board("c").unwrap(), 5);
    // Without a table, the groups' texts are shown if there is a tokenizer.
    fs::remove_file(run.completions().join("completions_00001.jsonl")).unwrap();
    assert_eq!(board("d").unwrap(), 4);
    Tokenizer::characters("xyz".chars(), &SpecialTokens::default()).unwrap().save(&run.model()).unwrap();
    assert_eq!(board("e").unwrap(), 6);
}
