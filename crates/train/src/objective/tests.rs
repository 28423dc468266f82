//! Tests of the inputs of each loss, and of the errors for missing inputs.

use super::*;
use crate::{Response, StepRewards};
use model::Prompt;
use model::columns::{REF_LOGPS, RETURNS, SAMPLER_LOGPS, VALUES};

fn policy_with(change: impl FnOnce(&mut LossConfig)) -> Objective {
    let mut config = LossConfig::default();
    change(&mut config);
    Objective::Policy(config)
}

fn all() -> [(&'static str, Objective); 8] {
    [
        ("policy", policy_with(|_| {})),
        ("rloo", Objective::Rloo(RlooConfig::default())),
        ("ppo", Objective::Ppo(PpoConfig::default())),
        ("value", Objective::Value(ValueConfig::default())),
        ("ranking", Objective::Ranking(RankingConfig::default())),
        ("preference", Objective::Preference(DpoConfig::default())),
        ("supervised", Objective::Supervised),
        ("dft", Objective::Dft),
    ]
}

/// A sample with all columns that any loss needs.
fn sample(tokens: usize) -> Sample {
    let numbers = || vec![-1.0; tokens];
    let names = [SAMPLER_LOGPS, REF_LOGPS, VALUES, RETURNS];
    let columns = Columns::of(names.map(|name| (name, numbers())));
    let versions = vec![model::Updates(0); tokens];
    Sample { columns, versions, ..Sample::supervised(Prompt::new([1]), vec![2; tokens]) }
}

fn pair() -> PreferencePair {
    let response =
        |tokens: usize| Response { ids: vec![2; tokens], columns: Columns::of([(REF_LOGPS, vec![-1.0; tokens])]) };
    PreferencePair { prompt: Prompt::new([1]), chosen: response(2), rejected: response(3), margin: 0.0 }
}

#[test]
fn each_loss_accepts_either_samples_or_pairs() {
    let (samples, pairs) = ([sample(2), sample(3)], [pair(), pair()]);
    for (name, loss) in all() {
        let (on_samples, on_pairs) = (loss.check(samples[..].into()), loss.check(pairs[..].into()));
        let told = |result: Result<()>| result.map_err(|e| e.to_string());
        if loss.is_of_pairs() {
            assert_eq!(told(on_pairs), Ok(()), "{name}");
            assert_eq!(told(on_samples), Err("the loss needs preference pairs, got single samples".into()), "{name}");
        } else {
            assert_eq!(told(on_samples), Ok(()), "{name}");
            assert_eq!(told(on_pairs), Err("the loss needs single samples, got preference pairs".into()), "{name}");
        }
    }
}

#[test]
fn a_missing_column_of_a_sample_is_an_error_if_the_loss_needs_it() {
    let refusers = |change: &dyn Fn(&mut Sample)| -> Vec<(&'static str, String)> {
        let mut samples = [sample(2), sample(3)];
        change(&mut samples[1]);
        let check = |loss: &Objective| loss.check(samples[..].into()).err().map(|e| e.to_string());
        all().iter().filter(|(_, l)| !l.is_of_pairs()).filter_map(|(name, l)| Some((*name, check(l)?))).collect()
    };
    let told = |names: &[&'static str], why: &str| {
        names.iter().map(|name| (*name, format!("sample 1: {why}"))).collect::<Vec<_>>()
    };
    let every = ["policy", "rloo", "ppo", "value", "supervised", "dft"];
    let policies = ["policy", "rloo", "ppo"];
    let mask = "mask must have one element per completion token (3), got 2";
    assert_eq!(refusers(&|s| s.loss_mask.truncate(2)), told(&every, mask));
    let column = "ref_logps must have one element per completion token (3), got 4";
    assert_eq!(refusers(&|s| s.columns.set(REF_LOGPS, vec![0.0; 4])), told(&every, column));
    let sampler = told(&policies, "sampler_logps is missing");
    assert_eq!(refusers(&|s| drop(s.columns.remove(SAMPLER_LOGPS))), sampler);
    let versions = "versions must have one element per completion token (3), got 2";
    assert_eq!(refusers(&|s| s.versions.truncate(2)), told(&policies, versions));
    for name in [VALUES, RETURNS] {
        let learned = told(&["value"], "values or returns are missing");
        assert_eq!(refusers(&|s| drop(s.columns.remove(name))), learned);
    }
    assert_eq!(refusers(&|s| drop(s.columns.remove(REF_LOGPS))), []);
    let number = told(&["rloo"], "RLOO needs one advantage per completion, got one per token");
    assert_eq!(refusers(&|s| s.advantage = Advantage::Tokens(vec![1.0; 3])), number);
    let long = told(&["policy", "ppo"], "advantage must have one element per completion token (3), got 4");
    let found = refusers(&|s| s.advantage = Advantage::Tokens(vec![1.0; 4]));
    assert_eq!(found.into_iter().filter(|(name, _)| *name != "rloo").collect::<Vec<_>>(), long);
    let kl = policy_with(|c| c.beta = 0.1);
    assert!(kl.check([sample(2)][..].into()).is_ok());
    let mut without = sample(2);
    without.columns.remove(REF_LOGPS);
    let error = kl.check([without][..].into()).unwrap_err().to_string();
    assert_eq!(error, "sample 0: ref_logps is missing, and beta is not 0");
}

#[test]
fn a_missing_column_of_a_pair_is_an_error_if_the_loss_needs_it() {
    let check = |loss: &Objective, change: &dyn Fn(&mut PreferencePair)| {
        let mut pairs = [pair(), pair(), pair()];
        change(&mut pairs[2]);
        loss.check(pairs[..].into()).map_err(|e| e.to_string())
    };
    let [.., (_, ranking), (_, preference), _, _] = &all();
    for loss in [ranking, preference] {
        for rejected in [false, true] {
            let of = |pair: &mut PreferencePair, change: &dyn Fn(&mut Response)| {
                change(if rejected { &mut pair.rejected } else { &mut pair.chosen });
            };
            let empty = check(loss, &|pair| of(pair, &|r| r.ids.clear()));
            assert_eq!(empty, Err("sample 2: each response of a pair must have at least one token".into()));
            let without = check(loss, &|pair| of(pair, &|r| drop(r.columns.remove(REF_LOGPS))));
            let needs = "sample 2: ref_logps (the reference's log-probabilities) is missing";
            assert_eq!(without, if loss.is_of_scores() { Ok(()) } else { Err(needs.to_owned()) });
            let long = check(loss, &|pair| of(pair, &|r| r.columns.set(REF_LOGPS, vec![0.0; 9]))).unwrap_err();
            let tokens = if rejected { 3 } else { 2 };
            assert_eq!(
                long,
                format!("sample 2: ref_logps must have one element per completion token ({tokens}), got 9")
            );
        }
    }
}

#[test]
fn a_pair_is_ranked_by_the_scores_of_its_last_tokens() {
    let pairs = [PreferencePair { margin: 0.5, ..pair() }];
    let config = RankingConfig { center_rewards_coefficient: Some(0.25) };
    let normalizer = Normalizer { sequences: 4, ..Normalizer::default() };
    let (scores, mut sums) = ([9.0, 2.0, 9.0, 9.0, 1.0], LossSums::default());
    let (mut d, mut d_entropies, mask, zeros) = ([7.0; 5], [7.0; 5], [true; 3], [0.0; 3]);
    let (first, second) = d.split_at_mut(2);
    let (e1, e2) = d_entropies.split_at_mut(2);
    let mut both = [
        Scored {
            source: Source::Chosen(&pairs[0]),
            mask: &mask[..2],
            logps: &scores[..2],
            entropies: &zeros[..2],
            d_logps: first,
            d_entropies: e1,
        },
        Scored {
            source: Source::Rejected(&pairs[0]),
            mask: &mask,
            logps: &scores[2..],
            entropies: &zeros,
            d_logps: second,
            d_entropies: e2,
        },
    ];
    Objective::Ranking(config).evaluate(&normalizer, &mut both, &mut sums);
    let mut expected = LossSums::default();
    let gradient = ranking(&config, 2, [2.0, 1.0], 0.5, &mut expected);
    assert_eq!((sums.loss, d), (expected.loss, [0.0, gradient[0] as f32, 0.0, 0.0, gradient[1] as f32]));
}

#[test]
fn skipped_sequences_count_with_their_known_values() {
    let normalizer = Normalizer { sequences: 1, tokens: 3, ..Normalizer::default() };
    let evaluate = |loss: &Objective, mask: &[bool], on_policy: bool| {
        let mut sums = LossSums::default();
        sums.means.add("before", 1.0, 1);
        let sample = Sample { advantage: Advantage::Sequence(0.0), ..sample(3) };
        loss.evaluate_skipped(&normalizer, &sample, mask, on_policy, &mut sums);
        let names: Vec<String> = sums.means.entries().map(|(name, _)| name.to_owned()).collect();
        (sums.loss, sums.tokens, names)
    };
    let vespo = policy_with(|c| c.loss_type = LossType::Vespo);
    let (phi, before) = (vec!["before".to_owned(), "vespo/phi_seq_mean".to_owned()], vec!["before".to_owned()]);
    assert_eq!(evaluate(&vespo, &[true; 3], true), (0.0, 3, phi.clone()));
    assert_eq!(
        evaluate(&vespo, &[true; 3], false),
        (0.0, 3, before.clone()),
        "off-policy, the ratio of a skipped sequence is unknown"
    );
    assert_eq!(evaluate(&vespo, &[false; 3], false), (0.0, 0, phi), "without a token in the loss the ratio is 1");
    for on_policy in [true, false] {
        assert_eq!(evaluate(&policy_with(|_| {}), &[true; 3], on_policy), (0.0, 3, before.clone()));
    }
    let default = StepRewards::default();
    assert!(default.steps.is_empty() && default.at_end.is_none());
}
