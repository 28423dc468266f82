//! The exact error of each check of configuration keys, with the nearest accepted configuration.

use super::{REQUIRED, grpo, resolve};
use crate::config::{Config, Layers, Purpose};
use crate::error::is_bad_input;
use telemetry::Step;

type Set<'a> = &'a [(&'a str, &'a str)];

/// Asserts that this configuration gives this error, and that adding `fix` makes it valid.
#[track_caller]
fn of(purpose: Purpose, base: Set<'_>, set: Set<'_>, words: &str, fix: Set<'_>) {
    let error = resolve(purpose, &[base, set].concat()).expect_err(&format!("{set:?} was accepted"));
    assert!(is_bad_input(&error), "{error}");
    assert_eq!(error.to_string(), words, "{set:?}");
    if let Err(error) = resolve(purpose, &[base, set, fix].concat()) {
        panic!("{set:?}, {fix:?}: {error}");
    }
}

#[track_caller]
fn train(set: Set<'_>, words: &str, fix: Set<'_>) {
    of(Purpose::Grpo, &REQUIRED, set, words, fix);
}

#[test]
fn invalid_steps_columns_and_stop_strings_are_refused() {
    for steps in ["0", "-2"] {
        let words = format!("`max_steps` must be at least 1, or -1 for num_train_epochs passes, but is {steps}");
        train(&[("max_steps", steps)], &words, &[("max_steps", "1")]);
    }
    train(
        &[("columns", "{answer = 3}")],
        "`columns`: answer = 3: expected the old column's name in quotes",
        &[("columns", "{answer = \"a\"}")],
    );
    train(
        &[("stop", "[\"a\", \"\"]")],
        "`stop` has an empty string, which would end every completion at once: remove it",
        &[("stop", "[\"a\"]")],
    );
    for text in ["5-3", "0", "0-2", "x", "3-", "1,,2", ""] {
        let set: Set<'_> = &[("trace_steps", &format!("\"{text}\""))];
        let words = format!("`trace_steps` = \"{text}\" names no optimizer steps: write \"3-5\", \"7\" or \"3-5,100\"");
        train(set, &words, &[("trace_steps", "\"3-3, 7\"")]);
    }
    let traced = |text: &str| grpo(&[("trace_steps", text)]).unwrap().config.traced_steps().unwrap();
    assert_eq!(traced("\"3-5, 100\""), [Step(3)..=Step(5), Step(100)..=Step(100)]);
    assert_eq!((traced("\"1\""), traced("none")), (vec![Step(1)..=Step(1)], vec![]));
}

/// Logits divided by such a temperature overflow, so that the first step would end with an internal error.
#[test]
fn a_temperature_that_overflows_is_refused_in_every_command() {
    for (text, shown) in [("1e-45", "1e-45"), ("5e-324", "5e-324"), ("1e-39", "1e-39"), ("9.9e-21", "9.9e-21")] {
        let words = format!(
            "`temperature` = {shown} must be at least 1e-20, so that logits divided by it do not overflow (1.0 \
                is usual)"
        );
        train(&[("temperature", text)], &words, &[("temperature", "1e-20")]);
        let kwargs = format!("{{temperature = {text}}}");
        train(&[("generation_kwargs", &kwargs)], &words, &[("generation_kwargs", "{temperature = 0.5}")]);
        for purpose in [Purpose::Sft, Purpose::Eval] {
            let error = resolve(purpose, &[&REQUIRED[..], &[("temperature", text)]].concat()).unwrap_err();
            assert!(is_bad_input(&error) && error.to_string() == words, "{error}");
        }
    }
}

#[test]
fn weights_that_are_all_0_are_noted_and_accepted() {
    let notes = |weights: &str| {
        let set = [("reward_funcs", "[\"unique_chars\", \"length:3\"]"), ("reward_weights", weights)];
        let notes = grpo(&set).unwrap().notes;
        notes.into_iter().filter(|note| note.contains("all weights are 0")).count()
    };
    assert_eq!(["[0, 0]", "[-0.0, 0.0]", "[0, 1]", "[1, -1]", "[0, 1e-300]"].map(notes), [1, 1, 0, 0, 0]);
}

#[test]
fn sync_ref_model_with_an_adapter_is_refused() {
    let lora = [("use_peft", "true"), ("sync_ref_model", "true"), ("beta", "0.1")];
    let words = "`sync_ref_model` = true does not work with use_peft, whose reference model (the model without an \
                 adapter, or with the initial adapter) never changes: set sync_ref_model = false";
    train(&lora, words, &[("use_peft", "false")]);
    train(&lora, words, &[("sync_ref_model", "false")]);
    let error = grpo(&[("optim_args", "momentum")]).unwrap_err().to_string();
    assert!(error.starts_with("`optim` = \"adamw_torch\": optim_args: `momentum` must"), "{error}");
    let error = grpo(&[("optim", "muon"), ("optim_args", "speed=2")]).unwrap_err().to_string();
    assert!(error.starts_with("`optim` = \"muon\": optim_args: "), "{error}");
    grpo(&[("optim", "muon"), ("optim_args", "momentum=0.9")]).unwrap();
}

#[test]
fn contradictory_loss_settings_are_refused() {
    train(
        &[("delta", "1.2")],
        "`delta` = 1.2 must be above 1 + epsilon_high = 1.2: it bounds ratios that the clip lets through",
        &[("delta", "1.3")],
    );
    train(
        &[("delta", "1.4"), ("epsilon_high", "0.5")],
        "`delta` = 1.4 must be above 1 + epsilon_high = 1.5: it bounds ratios that the clip lets through",
        &[("epsilon_high", "0.25")],
    );
    train(
        &[("entropy_coef_min", "0.5"), ("entropy_coef_max", "0.25")],
        "`entropy_coef_min` must be at most 0.25 (entropy_coef_max), but is 0.5",
        &[("entropy_coef_max", "0.5")],
    );
    let bounds = |low, high| [("vllm_importance_sampling_clip_min", low), ("vllm_importance_sampling_clip_max", high)];
    for low in ["2", "3"] {
        let words =
            format!("`vllm_importance_sampling_clip_min` = {low} must be below vllm_importance_sampling_clip_max = 2");
        train(&bounds(low, "2"), &words, &bounds(low, "4"));
    }
    train(
        &bounds("2", "2"),
        "`vllm_importance_sampling_clip_min` = 2 must be below vllm_importance_sampling_clip_max = 2",
        &[("vllm_importance_sampling_clip_max", "none")],
    );
    let on = ("vllm_importance_sampling_correction", "true");
    for mode in ["token_truncate", "sequence_truncate"] {
        let set = [on, ("vllm_importance_sampling_mode", mode), ("vllm_importance_sampling_clip_max", "none")];
        let words = "`vllm_importance_sampling_mode` truncates, but no bound is set: set \
                     vllm_importance_sampling_clip_max or vllm_importance_sampling_clip_min";
        train(&set, words, &[("vllm_importance_sampling_clip_min", "0.5")]);
        train(&set, words, &[("vllm_importance_sampling_clip_max", "2")]);
        train(&set, words, &[("vllm_importance_sampling_mode", "sequence_mask")]);
        train(&set, words, &[("vllm_importance_sampling_correction", "false")]);
    }
    for mode in ["sequence_truncate", "sequence_mask"] {
        let words = "`loss_type` = \"vespo\" weights sequences itself: set vllm_importance_sampling_mode to \
                     \"token_truncate\" or \"token_mask\"";
        let set = [on, ("loss_type", "vespo"), ("vllm_importance_sampling_mode", mode)];
        train(&set, words, &[("vllm_importance_sampling_mode", "token_mask")]);
        train(&set, words, &[("vllm_importance_sampling_mode", "token_truncate")]);
        train(&set, words, &[("loss_type", "grpo")]);
    }
    let notes = |set: Set<'_>| grpo(set).unwrap().notes;
    let cispo = "loss_type \"cispo\" bounds the ratio at epsilon_high itself, here 0.5: unchanged tokens have a weight \
                 below 1; 5.0 is recommended";
    assert_eq!(notes(&[("loss_type", "cispo"), ("epsilon_high", "0.5")]), [cispo]);
    assert_eq!(notes(&[("loss_type", "cispo"), ("epsilon_high", "1")]), [""; 0]);
    let sequence = ("importance_sampling_level", "sequence");
    let luspo = "loss_type \"luspo\" is meant for importance_sampling_level = \"sequence\"";
    assert_eq!(notes(&[("loss_type", "luspo")]), [luspo]);
    assert_eq!(notes(&[("loss_type", "luspo"), sequence]), [""; 0]);
    let vespo =
        "loss_type \"vespo\" always uses the sequence's ratio: importance_sampling_level affects only the KL term";
    assert_eq!(notes(&[("loss_type", "vespo"), sequence]), [vespo]);
    assert_eq!(notes(&[("loss_type", "vespo")]), [""; 0]);
}

#[test]
fn invalid_reward_settings_are_refused() {
    for range in ["[1]", "[2, 1]", "[1, 1]", "[1, 2, 3]"] {
        let numbers = range.replace('1', "1.0").replace('2', "2.0").replace('3', "3.0");
        let words = format!("`reward_clip_range` must be two numbers, the lower first, but is {numbers}");
        let set = [("algorithm", "rloo"), ("reward_clip_range", range)];
        train(&set, &words, &[("reward_clip_range", "[-1, 1]")]);
    }
    let per_step = [("process_rewards", "per_step"), ("multi_objective_aggregation", "normalize_then_sum")];
    let words = "`process_rewards` = \"per_step\" compares the steps of all rewards, and `multi_objective_aggregation` \
                 = \"normalize_then_sum\" compares rewards one by one: choose one of them";
    train(&per_step, words, &[("process_rewards", "sum")]);
    train(&per_step, words, &[("multi_objective_aggregation", "sum_then_normalize")]);
    let none = "no reward: give --reward gsm8k (or format:REGEX, length:N, exact_match, unique_chars, \
                command:PROGRAM, python:FILE:FUNCTION, model:DIR), or reward_funcs in the configuration";
    train(&[("reward_funcs", "[]")], none, &[("reward_funcs", "length:3")]);
    // Replayed rollouts contain rewards, so reward_funcs are needed only for evaluations.
    let replay = [("reward_funcs", "[]"), ("replay", "r.jsonl")];
    grpo(&replay).unwrap();
    train(&[&replay[..], &[("eval_dataset_name", "e")]].concat(), none, &[("eval_dataset_name", "none")]);
    let teacher = [("algorithm", "distillation"), ("teacher_model_name_or_path", "t"), ("reward_funcs", "[]")];
    grpo(&teacher).unwrap();
    train(
        &[("reward_weights", "[1, 2]")],
        "`reward_weights` must have one weight per reward: it has 2, and there are 1 rewards",
        &[("reward_weights", "[0.5]")],
    );
    let weights = |set: Set<'_>| grpo(set).unwrap().config.weights_of_rewards();
    let two = ("reward_funcs", "[\"gsm8k\", \"length:3\"]");
    assert_eq!((weights(&[two]), weights(&[two, ("reward_weights", "[2, 0.5]")])), (vec![1.0, 1.0], vec![2.0, 0.5]));
}

#[test]
fn invalid_sampling_and_staleness_settings_are_refused() {
    train(
        &[("temperature", "0")],
        "`temperature` = 0 makes all completions of a group the same, so that nothing can be learned: set it above 0 \
         (1.0 is usual)",
        &[("temperature", "0.1")],
    );
    train(
        &[("partial_rollout_tokens", "8")],
        "`partial_rollout_tokens` = 8 continues completions with newer weights, but with `max_staleness` = 0 the \
         newest weights sample every token: set max_staleness to 1 or more, or leave partial_rollout_tokens unset",
        &[("max_staleness", "1")],
    );
    let drawn = "`max_staleness` = 2 generates batches ahead, but `dynamic_sampling` must know the rewards of a batch \
                 before it draws later prompts: set max_staleness to 0, or dynamic_sampling to false";
    let both = [("max_staleness", "2"), ("dynamic_sampling", "true")];
    train(&both, drawn, &[("max_staleness", "0")]);
    train(&both, drawn, &[("dynamic_sampling", "false")]);
    let replayed = "`max_staleness` = 2 is for generated completions, but `replay` reads them from a file: remove one";
    train(&[("max_staleness", "2"), ("replay", "r.jsonl")], replayed, &[("max_staleness", "0")]);
    let notes = |tokens: &str| {
        let set = [("max_staleness", "1"), ("max_completion_length", "8"), ("partial_rollout_tokens", tokens)];
        grpo(&set).unwrap().notes
    };
    assert_eq!(notes("8"), ["partial_rollout_tokens = 8 has no effect: completions have at most 8 tokens"]);
    assert_eq!(notes("7"), [""; 0]);
}

#[test]
fn generation_kwargs_override_keys() {
    let all = "{temperature = 0.5, top_p = 0.9, top_k = 7, min_p = 0.25, repetition_penalty = 1.5, stop = \"x\", \
               eos_token_id = [3], max_new_tokens = 9, do_sample = true}";
    let c = grpo(&[("generation_kwargs", all), ("top_k", "20")]).unwrap().config;
    assert_eq!((c.temperature, c.top_p, c.top_k, c.min_p, c.repetition_penalty), (0.5, 0.9, 7, Some(0.25), 1.5));
    assert_eq!((c.stop.as_slice(), c.stop_token_ids.as_slice()), (["x".to_owned()].as_slice(), [3].as_slice()));
    assert_eq!((c.max_completion_length, c.generation_kwargs.len()), (9, 0));
    for (arguments, what) in [("{do_sample = false}", "do_sample"), ("{num_beams = 2}", "num_beams")] {
        let words = format!(
            "`generation_kwargs`: {what} is not supported; supported are temperature, top_p, top_k, min_p, \
             repetition_penalty, stop_strings, eos_token_id, max_new_tokens"
        );
        train(&[("generation_kwargs", arguments)], &words, &[("generation_kwargs", "{do_sample = true}")]);
    }
    train(
        &[("generation_kwargs", "{top_k = \"all\"}")],
        "`generation_kwargs`: top_k: expected an integer, got \"all\"",
        &[("generation_kwargs", "{top_k = 3}")],
    );
}

#[test]
fn invalid_evaluation_and_best_model_settings_are_refused() {
    let eval = [("eval_strategy", "steps"), ("eval_dataset_name", "e")];
    let reward = ("metric_for_best_model", "reward");
    for key in [("load_best_model_at_end", "true"), ("early_stopping_patience", "2")] {
        let name = key.0;
        train(
            &[key, reward],
            &format!("`{name}` needs evaluation: set eval_strategy = \"steps\", eval_steps and eval_dataset_name"),
            &eval,
        );
        train(
            &[key, eval[0], eval[1]],
            &format!(
                "`{name}` needs a metric to compare: set metric_for_best_model to an evaluation metric (\"reward\" \
                 with rewards, else \"loss\")"
            ),
            &[reward],
        );
    }
    let best = [eval[0], eval[1], reward, ("load_best_model_at_end", "true"), ("eval_steps", "20")];
    train(
        &[&best[..], &[("save_strategy", "epoch")]].concat(),
        "`load_best_model_at_end` needs a checkpoint at every evaluation: set save_strategy to the value of \
         eval_strategy",
        &[("eval_strategy", "epoch")],
    );
    for (save, multiple) in [("50", "60"), ("10", "20"), ("41", "60")] {
        let words = format!(
            "`load_best_model_at_end` needs save_steps ({save}) to be a multiple of eval_steps (20): set save_steps = \
             {multiple}"
        );
        train(&[&best[..], &[("save_steps", save)]].concat(), &words, &[("save_steps", multiple)]);
    }
    // With strategy "epoch", the step intervals are not checked.
    let epochs = [("save_strategy", "epoch"), ("eval_strategy", "epoch"), ("save_steps", "50")];
    grpo(&[&best[..], &epochs].concat()).unwrap();
    let k = |list| [eval[0], eval[1], ("eval_pass_at_k", list)];
    let words = "`eval_pass_at_k` has 0: each k must be at least 1";
    train(&k("[1, 0]"), words, &[("eval_pass_at_k", "[1]")]);
    let words = "`eval_pass_at_k` has 9, but each prompt has only 8 completions: set num_generations_eval = 9 or more";
    train(&k("[8, 9]"), words, &[("num_generations_eval", "9")]);
    let words = "`eval_pass_at_k` has 2, but each prompt has only 1 completion: set num_generations_eval = 2 or more";
    let greedy = ("eval_sampling", "greedy");
    train(&[&k("[1, 2]")[..], &[greedy]].concat(), words, &[("num_generations_eval", "2")]);
    for (name, data) in [("a b", "\"e\""), ("", "\"e\""), ("a", "3")] {
        let sets = format!("{{ \"{name}\" = {data} }}");
        let words = format!(
            "`eval_datasets`: {name} = {data}: expected a name of letters, digits, _, - and ., and a file or a Hub id \
             in quotes"
        );
        train(&[eval[0], ("eval_datasets", &sets)], &words, &[("eval_datasets", "{ \"a-1_b.c\" = \"e\" }")]);
    }
    train(
        &eval[..1],
        "`eval_strategy` needs evaluation data: set eval_dataset_name, or eval_strategy = \"no\"",
        &[("eval_datasets", "{ a = \"e\" }")],
    );
    let unused = "evaluation data is set, but eval_strategy is \"no\": nothing is evaluated during the run";
    assert_eq!(grpo(&eval[1..]).unwrap().notes, [unused]);
    assert_eq!(grpo(&eval).unwrap().notes, [""; 0]);
    let model_and_reward = [REQUIRED[0], REQUIRED[2], eval[1]];
    assert_eq!(
        resolve(Purpose::Eval, &model_and_reward).unwrap().notes,
        [""; 0],
        "`lockstep eval` evaluates this dataset"
    );
}

#[test]
fn missing_required_keys_are_refused() {
    let without_model = "no model: give --model DIR, or model_name_or_path in the configuration";
    let without_data = "no training data: give --dataset FILE, or dataset_name in the configuration";
    for purpose in [Purpose::Grpo, Purpose::Sft, Purpose::Dpo, Purpose::Reward] {
        of(purpose, &[], &REQUIRED[1..], without_model, &REQUIRED[..1]);
        of(purpose, &[], &[REQUIRED[0], REQUIRED[2]], without_data, &REQUIRED[1..2]);
    }
    grpo(&[("dataset_name", "none"), ("replay", "r.jsonl")]).unwrap();
    resolve(Purpose::Show, &[]).unwrap();
    let evaluated = [REQUIRED[0], REQUIRED[2], ("eval_dataset_name", "e")];
    of(
        Purpose::Eval,
        &[],
        &evaluated[1..],
        "no model: give --model DIR, or a configuration with model_name_or_path",
        &evaluated[..1],
    );
    of(
        Purpose::Eval,
        &[],
        &evaluated[..2],
        "no data: give --dataset FILE, or a configuration with eval_dataset_name or eval_datasets",
        &[("eval_datasets", "{ a = \"e\" }")],
    );
    let no_reward = resolve(Purpose::Eval, &[evaluated[0], evaluated[2]]).unwrap_err().to_string();
    assert!(no_reward.starts_with("no reward: "), "{no_reward}");
    for (purpose, learns) in [
        (Purpose::Sft, "supervised fine-tuning and reward models learn"),
        (Purpose::Reward, "supervised fine-tuning and reward models learn"),
        (Purpose::Dpo, "direct preference optimization learns"),
    ] {
        let words = format!("`replay` is for `lockstep train`: {learns} from dataset_name");
        of(purpose, &REQUIRED[..2], &[("replay", "r.jsonl")], &words, &[("replay", "none")]);
    }
}

#[test]
fn invalid_dpo_settings_are_refused() {
    let dpo = |set: Set<'_>, words: &str, fix: Set<'_>| of(Purpose::Dpo, &REQUIRED[..2], set, words, fix);
    dpo(
        &[("beta", "0")],
        "`beta` = 0 must be above 0: it keeps the policy near its reference (0.1 is usual)",
        &[("beta", "0.01")],
    );
    dpo(
        &[("sync_ref_model", "true")],
        "in direct preference optimization the reference never changes: remove sync_ref_model",
        &[("sync_ref_model", "false")],
    );
    let words = "`label_smoothing` = 0.25 needs dpo_loss_type = \"robust\" or \"exo_pair\": set one of them, or \
         label_smoothing = 0";
    for fix in [("label_smoothing", "0"), ("dpo_loss_type", "robust"), ("dpo_loss_type", "exo_pair")] {
        dpo(&[("label_smoothing", "0.25")], words, &[fix]);
    }
    dpo(
        &[("dpo_loss_type", "exo_pair")],
        "dpo_loss_type = \"exo_pair\" needs `label_smoothing` above 0: 0.001 is the paper's",
        &[("label_smoothing", "0.001")],
    );
    resolve(Purpose::Dpo, &[&REQUIRED[..2], &[("dpo_loss_type", "robust")]].concat()).unwrap();
}

#[test]
fn invalid_profiles_and_workers_are_refused() {
    let base = [("max_completion_length", "64")];
    let profiles = |table: &str, words: &str, fix: &str| {
        of(
            Purpose::Grpo,
            &[&REQUIRED[..], &base].concat(),
            &[("sampling_profiles", table)],
            words,
            &[("sampling_profiles", fix)],
        );
    };
    let one = |rest: &str| format!("{{ a = {{ share = 1.0{rest} }} }}");
    for (share, fix) in [("0.0", "1.0"), ("-0.5", "1.0"), ("1.5", "1.0")] {
        let is = share.trim_end_matches(".0");
        profiles(
            &format!("{{ a = {{ share = {share} }} }}"),
            &format!(
                "`sampling_profiles.a.share` is {is}, but must be the share of groups with this profile, above 0 \
                and at most 1"
            ),
            &format!("{{ a = {{ share = {fix} }} }}"),
        );
    }
    for (key, bad, is, fix, good) in [
        ("max_completion_length", "0", "0", "from 1 to max_completion_length = 64", "1"),
        ("max_completion_length", "65", "65", "from 1 to max_completion_length = 64", "64"),
        ("top_p", "0.0", "0", "above 0 and at most 1", "1.0"),
        ("top_p", "1.5", "1.5", "above 0 and at most 1", "0.5"),
        ("min_p", "-0.5", "-0.5", "from 0 to 1", "0.0"),
        ("min_p", "1.5", "1.5", "from 0 to 1", "1.0"),
        ("repetition_penalty", "0.0", "0", "above 0", "0.5"),
        ("repetition_penalty", "-1.0", "-1", "above 0", "2.0"),
    ] {
        profiles(
            &one(&format!(", {key} = {bad}")),
            &format!("`sampling_profiles.a.{key}` is {is}, but must be {fix}"),
            &one(&format!(", {key} = {good}")),
        );
    }
    let halves = "{ a = { share = 0.5 }, b = { share = 0.5 } }";
    profiles(
        "{ a = { share = 0.5 }, b = { share = 0.25 } }",
        "the shares of `sampling_profiles` must sum to 1, but sum to 0.75",
        halves,
    );
    profiles(
        "{ a = { share = 0.5 }, b = { share = 0.4999999985 } }",
        "the shares of `sampling_profiles` must sum to 1, but sum to 0.9999999985",
        halves,
    );
    // Shares that sum to 1 except for rounding are accepted.
    grpo(&[("sampling_profiles", "{ a = { share = 0.3333333333 }, b = { share = 0.6666666666 } }")]).unwrap();
    train(
        &[("sampling_profiles", halves), ("replay", "r.jsonl")],
        "`sampling_profiles` is for generated completions, but `replay` reads them from a file: remove one",
        &[("sampling_profiles", "{}")],
    );
    let workers = |kinds: &str, words: &str| {
        train(&[("sampling_profiles", halves), ("workers", kinds)], words, &[("workers", "[{}]")]);
    };
    workers("[{}, { count = 0 }]", "`workers`, entry 2: count and threads must be at least 1");
    workers("[{ threads = 0 }]", "`workers`, entry 1: count and threads must be at least 1");
    workers("[{}, { profiles = [\"a\", \"c\"] }]", "`workers`, entry 2: unknown profile `c`; the profiles are: a, b");
    workers(
        "[{ profiles = [\"a\"] }]",
        "no entry of `workers` lists the profile \"b\", so no worker would generate its groups",
    );
    train(
        &[("workers", "[{ profiles = [\"c\"] }]")],
        "`workers`, entry 1: unknown profile `c`; the profiles are: none",
        &[("workers", "[{ count = 1 }]")],
    );
    let kinds = "[{ profiles = [\"a\"], threads = 1 }, { count = 3, profiles = [\"b\"] }]";
    let config = grpo(&[("sampling_profiles", halves), ("workers", kinds)]).unwrap().config;
    let kinds = crate::config::worker_kinds(&config).unwrap();
    let kinds: Vec<_> = kinds.iter().map(|kind| (kind.count, kind.threads, kind.profiles[0].as_str())).collect();
    assert_eq!(kinds, [(1, Some(1), "a"), (3, None, "b")]);
}

#[test]
fn settings_that_bias_the_gradient_are_named() {
    let notes = |set: Set<'_>| grpo(set).unwrap().notes;
    let rest = "the sampling distribution, but log-probabilities are those of the full distribution: the policy \
                gradient is biased, and the importance ratio does not correct it (docs/algorithms.md)";
    for set in [("top_p", "0.9"), ("top_k", "1"), ("min_p", "0.01"), ("repetition_penalty", "1.1")] {
        assert_eq!(notes(&[set]), [format!("{} changes {rest}", set.0)]);
    }
    let profiles = "{ a = { share = 0.5, top_k = 3 }, b = { share = 0.5, repetition_penalty = 0.9 } }";
    assert_eq!(
        notes(&[("sampling_profiles", profiles), ("min_p", "0.5")]),
        [format!("top_k, min_p, repetition_penalty change {rest}")]
    );
    let named =
        |set: Set<'_>| notes(set).iter().filter_map(|note| note.strip_suffix(rest)).map(str::to_owned).collect();
    let mut wrong = Vec::new();
    for (set, expected) in [
        (&[("top_p", "1"), ("top_k", "0"), ("min_p", "0"), ("repetition_penalty", "1")][..], &[][..]),
        (&[("temperature", "0.7")], &[]),
        (&[("stop", "[\"x\"]"), ("stop_token_ids", "[3]")], &[]),
        (&[("generation_kwargs", "{ top_p = 0.5 }")], &["top_p changes "]),
        (&[("generation_kwargs", "{ top_k = 5, min_p = 0.1 }")], &["top_k, min_p change "]),
        (&[("generation_kwargs", "{ repetition_penalty = 2.0 }")], &["repetition_penalty changes "]),
        (&[("generation_kwargs", "{ temperature = 0.5 }")], &[]),
        (&[("top_p", "0.9"), ("generation_kwargs", "{ top_p = 1.0 }")], &[]),
        (&[("sampling_profiles", "{ a = { share = 1.0 } }")], &[]),
        (&[("sampling_profiles", "{ a = { share = 1.0, top_k = 3 } }")], &["top_k changes "]),
        (&[("top_p", "0.9"), ("sampling_profiles", "{ a = { share = 1.0, top_p = 1.0 } }")], &[]),
        (&[("top_p", "0.9"), ("sampling_profiles", "{ a = { share = 1.0 } }")], &["top_p changes "]),
        (&[("algorithm", "rloo"), ("top_p", "0.9")], &["top_p changes "]),
        (&[("algorithm", "ppo"), ("top_k", "9")], &["top_k changes "]),
        (&[("algorithm", "reinforce_plus_plus"), ("min_p", "0.1")], &["min_p changes "]),
    ] {
        let found: Vec<String> = named(set);
        if found != expected {
            wrong.push(format!("{set:?}: {found:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A program cannot unset a key that always has a value.
#[test]
fn a_program_sets_keys_but_cannot_unset_required_ones() {
    let resolve =
        |config: Config| Layers { purpose: Purpose::Show, config: Some(config), ..Layers::default() }.resolve();
    let unset = resolve(Config { max_length: None, ..Config::default() }).unwrap_err();
    assert!(is_bad_input(&unset));
    assert_eq!(unset.to_string(), "`max_length` cannot be unset");
    let resolved = resolve(Config { seed: 3, threads: Some(2), ..Config::default() }).unwrap();
    assert_eq!((resolved.config.seed, resolved.config.threads), (3, Some(2)));
    let toml = resolved.to_toml();
    assert!(toml.contains("seed = 3  # program\n") && toml.contains("beta = 0.0  # default\n"), "{toml}");
}
