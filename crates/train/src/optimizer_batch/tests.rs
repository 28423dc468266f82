//! Tests of the sequences and groups of an optimizer batch.

use super::*;
use crate::loss::bradley_terry::RankingConfig;
use crate::loss::dpo::DpoConfig;
use crate::{PreferencePair, Response, Sample};
use model::Columns;
use model::columns::REF_LOGPS;

fn pair(prompt: &Arc<Prompt>, chosen: &[u32], rejected: &[u32]) -> PreferencePair {
    let response =
        |ids: &[u32]| Response { ids: ids.to_vec(), columns: Columns::of([(REF_LOGPS, vec![-1.0; ids.len()])]) };
    PreferencePair { prompt: prompt.clone(), chosen: response(chosen), rejected: response(rejected), margin: 0.0 }
}

#[test]
fn a_pair_becomes_two_sequences_with_the_chosen_one_first() {
    let prompt = Prompt::new([1, 2]);
    let pairs = [pair(&prompt, &[3, 4], &[5]), pair(&prompt, &[6], &[7, 8, 9])];
    let found = |loss: &Objective| -> Vec<(Vec<u32>, Vec<bool>, bool)> {
        let of = |s: Sequence<'_>| (s.completion.to_vec(), s.mask, matches!(s.source, Source::Chosen(_)));
        sequences(loss, (&pairs[..]).into()).unwrap().into_iter().map(of).collect()
    };
    let preference = [
        (vec![3, 4], vec![true; 2], true),
        (vec![5], vec![true], false),
        (vec![6], vec![true], true),
        (vec![7, 8, 9], vec![true; 3], false),
    ];
    assert_eq!(found(&Objective::Preference(DpoConfig::default())), preference);
    // The score of a response is read at one extra token.
    let ranking = [
        (vec![3, 4, 4], vec![false, false, true], true),
        (vec![5, 5], vec![false, true], false),
        (vec![6, 6], vec![false, true], true),
        (vec![7, 8, 9, 9], vec![false, false, false, true], false),
    ];
    assert_eq!(found(&Objective::Ranking(RankingConfig::default())), ranking);
}

#[test]
fn consecutive_samples_with_the_same_prompt_form_a_group() {
    let json = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 10}"#;
    let config = ModelConfig::parse(json).unwrap();
    let (a, b) = (Prompt::new([1, 2]), Prompt::new([1, 2]));
    let of = |prompt: &Arc<Prompt>, completion: &[u32]| Sample::supervised(prompt.clone(), completion.to_vec());
    let samples = [of(&a, &[3]), of(&a, &[]), of(&b, &[4]), of(&a, &[5, 6])];
    let all = sequences(&Objective::Supervised, (&samples[..]).into()).unwrap();
    let found: Vec<usize> = groups(&config, &all).unwrap().iter().map(|g| g.completions.len()).collect();
    assert_eq!(found, [2, 1, 1], "equal but separate prompts are not shared");
    let none: &[Sample] = &[];
    let error = sequences(&Objective::Supervised, none.into()).err().unwrap().to_string();
    assert_eq!(error, "an optimizer step needs at least one sample");

    let told = |loss: &Objective, samples: Samples<'_>| {
        groups(&config, &sequences(loss, samples).unwrap()).unwrap_err().to_string()
    };
    let outside = "token id 10 is outside the vocabulary of 10 tokens";
    let bad = [of(&a, &[3]), of(&a, &[4]), of(&b, &[10])];
    assert_eq!(told(&Objective::Supervised, (&bad[..]).into()), format!("sample 2: {outside}"));
    for (chosen, rejected) in [([3], [10]), ([10], [3])] {
        let pairs = [pair(&a, &[3], &[4]), pair(&b, &chosen, &rejected)];
        let loss = Objective::Preference(DpoConfig::default());
        assert_eq!(
            told(&loss, (&pairs[..]).into()),
            format!("sample 1: {outside}"),
            "the error must have the index of the pair"
        );
    }
}
