//! Configuration keys of evaluation during a run.

use crate::bad_input;
use crate::config::keys::Config;
use crate::config::methods::Purpose;
use crate::config::values::{EvalSampling, Strategy};
use telemetry::counted;

macro_rules! evaluation_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Evaluation" {
    /// The evaluation data; not set: none.
    eval_dataset_name: Option<String> = None => OURS.name().on_resume(Warn);
    /// Further evaluation datasets, by name: { easy = "easy.jsonl", hard = "hard.jsonl" } gives eval_easy_reward (or
    /// eval_easy_loss), eval_hard_reward and so on.
    eval_datasets: Map<String, Json> = Map::new()
        => OURS.trl_has("a dict as the trainer's eval_dataset").on_resume(Warn);
    /// The split of the evaluation data; not set: `test`, and all of a single file.
    eval_dataset_split: Option<String> = None
        => TRL.trl_name("dataset_test_split").trl_defaults(&[(ALL, "\"test\"")]).on_resume(Warn);
    /// Use only this many rows of the evaluation data, from the start.
    eval_max_samples: Option<usize> = None => OURS.range(at_least(1.0)).on_resume(Warn);
    /// When to evaluate.
    eval_strategy: Strategy = Strategy::No => TRL.on_resume(Free);
    /// Optimizer steps between evaluations; not set: logging_steps.
    eval_steps: Option<u64> = None => TRL.range(at_least(1.0)).on_resume(Free);
    /// Supervised fine-tuning: evaluation metrics are the mean over batches of this many rows, as in TRL; not set: over
    /// all tokens. Memory does not depend on it, but on max_tokens_per_micro_batch.
    per_device_eval_batch_size: Option<usize> = None
        => TRL.trl_defaults(&[(ALL, "8")]).range(at_least(1.0)).read_by(SFT).on_resume(Warn);
    /// Evaluate before the first step too.
    eval_on_start: bool = false => TRL.on_resume(Free);
    /// How evaluations sample completions.
    eval_sampling: EvalSampling = EvalSampling::Sampled => OURS.trl_has("sampled").read_by(ONLINE).on_resume(Warn);
    /// Completions of each evaluation prompt; not set: num_generations if sampled, 1 if greedy.
    num_generations_eval: Option<usize> = None
        => TRL.range(at_least(1.0).at_most(MAX_COUNT)).read_by(ONLINE).on_resume(Warn);
    /// The values of k for pass@k (a prompt counts if at least one of k completions is right); each at most
    /// num_generations_eval.
    eval_pass_at_k: Vec<usize> = Vec::new() => OURS.read_by(ONLINE).on_resume(Warn);
    /// The name of the reward that decides pass@k: a completion is right if this reward is 1 or more, whatever its
    /// weight. Not set: the first. Completions without a score are left out.
    eval_pass_at_k_reward: Option<String> = None => OURS.read_by(ONLINE).on_resume(Warn);
    /// Report eval_loss, as TRL does: the loss on the evaluation's completions, as one batch and without an update.
    /// With beta > 0, the reference model scores them, too. eval_entropy, eval_kl and eval_clip_ratio/… are reported
    /// with it. PPO has no eval_loss.
    eval_loss: bool = true => OURS.read_by(ONLINE).on_resume(Warn);
} } } }
pub(in crate::config) use evaluation_keys;

impl Config {
    /// Optimizer steps between evaluations.
    pub(crate) fn eval_steps(&self) -> u64 {
        self.eval_steps.unwrap_or(self.logging_steps)
    }

    /// Whether the configuration names evaluation data.
    pub(crate) fn has_eval_data(&self) -> bool {
        self.eval_dataset_name.is_some() || !self.eval_datasets.is_empty()
    }

    /// Completions generated for each evaluation prompt.
    pub fn generations_eval(&self) -> usize {
        self.num_generations_eval.unwrap_or(match self.eval_sampling {
            EvalSampling::Sampled => self.num_generations,
            EvalSampling::Greedy => 1,
        })
    }
}

/// Checks that evaluation, checkpoints and early stopping fit together. The notes name keys without effect.
pub(in crate::config) fn check(c: &Config, purpose: Purpose) -> anyhow::Result<Vec<String>> {
    let needs_eval = if c.load_best_model_at_end { Some("load_best_model_at_end") } else { None }
        .or(c.early_stopping_patience.map(|_| "early_stopping_patience"));
    if let Some(key) = needs_eval
        && c.eval_strategy == Strategy::No
    {
        bad_input!("`{key}` needs evaluation: set eval_strategy = \"steps\", eval_steps and eval_dataset_name");
    }
    if let Some(key) = needs_eval
        && c.metric_for_best_model.is_none()
    {
        bad_input!(
            "`{key}` needs a metric to compare: set metric_for_best_model to an evaluation metric (\"reward\" with \
             rewards, else \"loss\")"
        );
    }
    if c.load_best_model_at_end {
        if c.save_strategy != c.eval_strategy {
            bad_input!(
                "`load_best_model_at_end` needs a checkpoint at every evaluation: set save_strategy to the value of \
                 eval_strategy"
            );
        }
        let (save, eval) = (c.save_steps, c.eval_steps());
        if c.save_strategy == Strategy::Steps && !save.is_multiple_of(eval) {
            bad_input!(
                "`load_best_model_at_end` needs save_steps ({save}) to be a multiple of eval_steps ({eval}): set \
                 save_steps = {}",
                save.div_ceil(eval) * eval
            );
        }
    }
    let most = c.generations_eval();
    if c.eval_pass_at_k.contains(&0) {
        bad_input!("`eval_pass_at_k` has 0: each k must be at least 1");
    }
    if let Some(k) = c.eval_pass_at_k.iter().find(|&&k| k > most) {
        bad_input!(
            "`eval_pass_at_k` has {k}, but each prompt has only {}: set num_generations_eval = {k} or more",
            counted(most, "completion")
        );
    }
    let word = |name: &String| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    if let Some((name, data)) = c.eval_datasets.iter().find(|(name, data)| !word(name) || !data.is_string()) {
        bad_input!(
            "`eval_datasets`: {name} = {data}: expected a name of letters, digits, _, - and ., and a \
             file or a Hub id in quotes"
        );
    }
    let mut notes = Vec::new();
    if c.has_eval_data() && c.eval_strategy == Strategy::No && purpose != Purpose::Eval {
        notes.push(
            "evaluation data is set, but eval_strategy is \"no\": nothing is evaluated during the run".to_owned(),
        );
    }
    Ok(notes)
}
