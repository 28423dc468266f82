//! The directory in which `lockstep demo` and `lockstep bench algorithms` train: its model and data, the settings of
//! the training runs, and the evaluation on held-out problems.

use super::task;
use kernels::Context;
use lockstep::config::{EvalSampling, Layers, Purpose};
use lockstep::directory::{find_run, write_atomically};
use lockstep::evaluation::{Evaluator, Outcome};
use lockstep::{Policy, ResumeFrom, Run, RunDir, RunOptions, RunResult, StopReason, StopSignal};
use model::chat::PromptTime;
use model::tokenizer::{SpecialTokens, Tokenizer};
use model::{ModelConfig, Weights};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use telemetry::{Console, Record, Sinks};

/// Optimizer steps of supervised fine-tuning.
pub const SFT_STEPS: u64 = 800;

/// A directory for training runs on the demo's task, and the settings that all of these runs share.
#[derive(Clone, Copy)]
pub struct Workspace<'a> {
    /// The path of the directory.
    pub root: &'a Path,
    /// The seed of all randomness.
    pub seed: u64,
    /// The device and threads that compute.
    pub ctx: &'a Context,
    /// The console on which training runs report.
    pub console: &'a Console,
    /// The signal that stops a training run.
    pub stop: &'a StopSignal,
}

impl Workspace<'_> {
    /// Writes a model directory and three data files, as a user would provide them. Returns the path of the model
    /// directory.
    pub fn make_inputs(&self) -> anyhow::Result<PathBuf> {
        let base = self.root.join("base-model");
        std::fs::create_dir_all(&base)?;
        let special =
            SpecialTokens { eos: Some("<eos>".into()), pad: Some("<pad>".into()), ..SpecialTokens::default() };
        let tokenizer = Tokenizer::characters(task::CHARACTERS.chars(), &special)?;
        tokenizer.save(&base)?;
        let shape = json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": 128,
            "intermediate_size": 304,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "hidden_act": "silu",
            "vocab_size": 16,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "tie_word_embeddings": true,
            "attention_bias": false,
            "initializer_range": 0.02,
            "eos_token_id": tokenizer.eos_id(),
            "pad_token_id": tokenizer.pad_id(),
            "dtype": "float32",
        });
        let config = Arc::new(ModelConfig::parse(&shape.to_string())?);
        let weights = Weights::random(self.ctx.memory(), &config, self.seed)?;
        model::io::save_model(&base, &config, &weights, None, Default::default())?;
        for (name, lines) in [
            ("lessons.jsonl", task::lessons(self.seed)),
            ("problems.jsonl", task::problems(false)),
            ("heldout.jsonl", task::problems(true)),
        ] {
            write_atomically(&self.root.join(name), lines.as_bytes())?;
        }
        Ok(base)
    }

    /// The configuration of a training run, as a user would write it. The run's directory is `out`; the keys in `own`
    /// override the shared ones.
    pub fn layers(&self, purpose: Purpose, out: &str, model: &Path, steps: u64, own: &[(&str, &str)]) -> Layers {
        let path = |name: &str| self.root.join(name).display().to_string();
        let steps = steps.to_string();
        let settings: &[(&str, &str)] = match purpose {
            Purpose::Sft => &[
                ("per_device_train_batch_size", "256"),
                ("max_steps", &steps),
                ("learning_rate", "2e-3"),
                ("lr_scheduler_type", "cosine"),
                ("warmup_steps", "40"),
                ("logging_steps", "100"),
            ],
            _ => &[
                ("task", "prompt_answer"),
                ("num_generations", "8"),
                ("per_device_train_batch_size", "512"),
                ("max_steps", &steps),
                ("learning_rate", "5e-4"),
                ("lr_scheduler_type", "linear"),
                ("max_completion_length", "4"),
                ("max_num_seqs", "256"),
                ("logging_steps", "25"),
                ("eval_steps", "100"),
                ("eval_strategy", "steps"),
                ("num_generations_eval", "1"),
                ("log_completions", "true"),
                ("num_completions_to_print", "0"),
            ],
        };
        let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        let mut set: Vec<(String, String)> = settings.iter().map(owned).collect();
        let mut put = |key: &str, value: String| set.push((key.to_owned(), value));
        put("model_name_or_path", model.display().to_string());
        put("seed", self.seed.to_string());
        // Only the last step is saved, since a finished phase is never repeated.
        put("save_steps", u32::MAX.to_string());
        put("output_dir", path(out));
        put("dataset_name", path(if purpose == Purpose::Sft { "lessons.jsonl" } else { "problems.jsonl" }));
        if purpose != Purpose::Sft {
            put("eval_dataset_name", path("heldout.jsonl"));
        }
        set.extend(own.iter().map(owned));
        Layers { purpose, set, ..Layers::default() }
    }

    /// Starts the training run, or resumes it if its directory has a checkpoint. Returns `None` if a stop was
    /// requested.
    pub fn run(&self, layers: &Layers) -> anyhow::Result<Option<RunResult>> {
        let resolved = layers.resolve()?;
        let out = resolved.config.output_dir.clone().unwrap_or_default();
        let (run, from) = if RunDir::is_new(&out) {
            (RunDir::fresh(&out)?, ResumeFrom::Nothing)
        } else {
            find_run("latest", Some(&out))?
        };
        let options =
            RunOptions::new().context(self.ctx.clone()).console(self.console.clone()).stop_signal(self.stop.clone());
        let finished = Run::resolved(layers.purpose, resolved, run, from, options)?.run()?;
        if finished.stop_reason == StopReason::Interrupted {
            let command = if layers.purpose == Purpose::Sft { "sft" } else { "train" };
            self.console.info(&format!(
                "stopped as asked; to continue this phase: lockstep {command} --resume {}",
                out.display()
            ));
            return Ok(None);
        }
        Ok(Some(finished))
    }

    /// Evaluates a model on the held-out problems, sampled at temperature 1 and greedily.
    pub fn examine(&self, policy: &Policy) -> anyhow::Result<Examined> {
        let layers = self.layers(Purpose::Grpo, "examination", &policy.dir, 1, &[]);
        let (config, model) = (layers.resolve()?.config, (&*policy.dir, PromptTime::now()));
        let mut evaluator = Evaluator::new(self.ctx, config, model, &Sinks::new(), self.stop.clone())?;
        let sampled = evaluator.evaluate(policy, EvalSampling::Sampled)?.remove(0);
        let greedy = evaluator.evaluate(policy, EvalSampling::Greedy)?.remove(0);
        let prompts = evaluator.prompts().map(|prompt| prompt.text().into_owned()).collect();
        Ok(Examined { sampled, greedy, prompts })
    }
}

/// A model's answers to the held-out problems.
pub struct Examined {
    /// Answers sampled at temperature 1.
    pub sampled: Outcome,
    /// Greedy answers.
    pub greedy: Outcome,
    /// The prompts of the problems.
    pub prompts: Vec<String>,
}

impl Examined {
    /// Shares of correct answers, from 0 to 1: sampled at temperature 1, and greedy.
    pub fn accuracy(&self) -> [f64; 2] {
        [&self.sampled, &self.greedy].map(|o| o.metric("reward").unwrap_or(f64::NAN))
    }

    /// Prints both accuracies.
    pub fn report(&self, console: &Console, when: &str, phase: &str) {
        let accuracy = self.accuracy();
        let [sampled, greedy] = accuracy.map(|share| 100.0 * share);
        let text = format!(
            "held-out accuracy {when} {phase}: {sampled:.1} % sampled at T = 1, {greedy:.1} % greedy ({} problems)",
            self.prompts.len()
        );
        let mut fields = Record::new();
        fields.set("sampled", accuracy[0]).set("greedy", accuracy[1]).set("problems", self.prompts.len());
        console.table(&text, &format!("held-out accuracy {when} {phase}"), &fields);
    }
}
