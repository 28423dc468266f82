use super::*;
use crate::config::ComputeDType;
use model::tokenizer::SpecialTokens;

struct Nothing;

impl RolloutFunction for Nothing {
    fn complete(&mut self, _: &RolloutRequest<'_>, _: &mut Generate<'_>) -> anyhow::Result<Vec<GivenCompletion>> {
        Ok(Vec::new())
    }
}

fn rollouts(max_tokens: usize) -> FunctionRollouts {
    let ctx = crate::context(None, Some(1), ComputeDType::F32).unwrap();
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    FunctionRollouts {
        function: Box::new(Nothing),
        scorer: Arc::new(Mutex::new(Scorer::new(ctx.memory(), 64, true))),
        tokenizer: Arc::new(Tokenizer::characters("ab".chars(), &special).unwrap()),
        template: None,
        kwargs: Map::new(),
        max_tokens,
        ctx,
    }
}

fn given(prompt: &[u32], ids: &[u32]) -> GivenCompletion {
    GivenCompletion { prompt_ids: prompt.to_vec(), ids: ids.to_vec(), ..GivenCompletion::default() }
}

#[test]
fn invalid_completions_of_a_rollout_function_are_refused() {
    let rollouts = rollouts(6);
    let four = || vec![given(&[1], &[2, 3]), given(&[1], &[4]), given(&[5, 6], &[7]), given(&[5, 6], &[8, 9, 1, 2])];
    let checked = |change: &dyn Fn(&mut Vec<GivenCompletion>)| {
        let mut all = four();
        change(&mut all);
        rollouts.checked(all, 4, 2, 10).map(|all| all.len()).map_err(|error| error.to_string())
    };
    assert_eq!(checked(&|_| {}), Ok(4), "the last completion has exactly the most tokens that fit");
    let refused =
        |change: &dyn Fn(&mut Vec<GivenCompletion>), words: &str| assert_eq!(checked(change), Err(words.to_owned()));
    refused(
        &|all| drop(all.pop()),
        "it returned 3 completions for 4 prompts, but must return one per prompt (each prompt is repeated 2 times, \
         once per completion of its group)",
    );
    refused(&|all| all[3].prompt_ids.clear(), "prompt_ids[3] must have at least one token");
    refused(&|all| all[1].ids.clear(), "completion_ids[1] must have at least one token");
    refused(
        &|all| all[2].prompt_ids[1] = 10,
        "prompt_ids[2] has token 10, but token ids must be below 10, the vocabulary size",
    );
    refused(
        &|all| all[0].ids[1] = 11,
        "completion_ids[0] has token 11, but token ids must be below 10, the vocabulary size",
    );
    refused(
        &|all| all[0].logps = Some(vec![-1.0]),
        "logprobs[0] must have one element per token: it has 1 for 2 tokens",
    );
    refused(
        &|all| all[1].sampled = Some(vec![true; 2]),
        "env_mask[1] must have one element per token: it has 2 for 1 tokens",
    );
    refused(
        &|all| all[0].sampled = Some(vec![false; 2]),
        "env_mask[0] is 0 for every token, so there is nothing to learn: at least one token must come from the model",
    );
    assert_eq!(checked(&|all| (all[0].sampled, all[0].logps) = (Some(vec![false, true]), Some(vec![-1.0; 2]))), Ok(4));
    refused(
        &|all| all[3].ids.push(1),
        "prompt and completion 3 have 7 tokens, but at most 6 fit: raise max_completion_length, or set \
         max_prompt_length if the function's prompts are longer than the dataset's",
    );
    let other = |at: usize, first: usize| {
        format!(
            "prompt_ids[{at}] differs from prompt_ids[{first}], but all completions of a group must share one prompt: \
             move the tokens that differ into completion_ids, with env_mask 0"
        )
    };
    refused(&|all| all[1].prompt_ids[0] = 2, &other(1, 0));
    refused(&|all| all[3].prompt_ids[0] = 2, &other(3, 2));
}

#[test]
fn completions_returned_unchanged_keep_the_engines_log_probabilities() {
    let logps = vec![-0.5, -1.0];
    let written = Written::from([((vec![1], vec![2, 3]), (logps.clone(), FinishReason::Length))]);
    let of =
        |given: &GivenCompletion, scores: Option<Vec<f32>>| completion(1, given, scores, &written, Updates(6), &[3]);
    let with = |logps: Option<Vec<f32>>| GivenCompletion { logps, ..given(&[1], &[2, 3]) };
    let none = crate::rollouts::versions::NO_VERSION;
    let shown = |c: Completion| (c.columns.sampler_logps().unwrap().to_vec(), c.versions, c.finish_reason);
    // The version of the weights is known only if the policy or its engine computed all log-probabilities.
    assert_eq!(shown(of(&with(None), Some(vec![-2.0; 2]))), (vec![-2.0; 2], vec![Updates(6); 2], FinishReason::Length));
    assert_eq!(shown(of(&with(Some(logps.clone())), None)), (logps.clone(), vec![Updates(6); 2], FinishReason::Length));
    let others = vec![-0.5, -1.5];
    assert_eq!(shown(of(&with(Some(others.clone())), None)), (others, vec![none; 2], FinishReason::Length));
    let partly = of(&with(Some(vec![-0.25, f32::NAN])), Some(vec![-3.0, -4.0]));
    assert_eq!(shown(partly), (vec![-0.25, -4.0], vec![none; 2], FinishReason::Length));
    // A completion that the engine did not generate has ended if its last token is a stop id.
    let other = GivenCompletion { logps: Some(logps.clone()), ..given(&[2], &[2, 3]) };
    assert_eq!(shown(of(&other, None)), (logps.clone(), vec![none; 2], FinishReason::Stop));
    let cut = GivenCompletion { logps: Some(logps), sampled: Some(vec![false, true]), ..given(&[1], &[3, 2]) };
    let made = of(&cut, None);
    assert_eq!((made.finish_reason, made.generation, &made.ids), (FinishReason::Length, 1, &vec![3, 2]));
    assert_eq!((made.sampled, of(&other, None).sampled), (vec![false, true], vec![true; 2]));
}
