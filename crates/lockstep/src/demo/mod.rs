//! `lockstep demo`: a small model from nothing, taught by a careless teacher, then by reward. No network, no files.
//!
//! It writes what a user would bring (a model directory, data files) into its run directory, then calls what `lockstep sft`,
//! `lockstep train` and `lockstep eval` call; nothing here knows how any of them works.

pub mod task;

use crate::cli::demo::Args;
use crate::config::{Config, Layers, Purpose};
use crate::course::{Beginning, Ended, Finished};
use crate::data::DatasetSpec;
use crate::evaluate::{Evaluation, Outcome};
use crate::grpo::{engine_config, sampling};
use crate::policy::{Policy, Words};
use crate::questions::{Questions, build_rewards, context};
use crate::run_dir::{RunDir, write_atomically};
use crate::session::{self, execute};
use crate::signals::StopRequest;
use kernels::Context;
use model::tokenizer::{SpecialTokens, Tokenizer};
use model::{ModelConfig, Weights};
use rollout::Engine;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use telemetry::{Align, Console, Table};

/// Held-out completions that are shown before and after.
const SHOWN: usize = 8;

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let console = Console::new(args.log.console()?)?;
    let ctx = session::context(args.threads)?;
    let root = args.out.clone().unwrap_or_else(default_root);
    RunDir::fresh(&root)?;
    let stop = StopRequest::listen()?;

    console.print(&format!(
        "Two-digit addition, one character a token. A model of random weights first imitates a careless teacher, who drops\n\
         the carries in half of the answers: imitation is capped by its data. Then GRPO rewards right answers.\n\
         Run directory: {}",
        root.display()
    ));
    let base = make_inputs(&root, args.seed, &ctx)?;

    let taught = phase(Purpose::Sft, &root, &base, &args, &ctx, &console, &stop)?;
    let Some(taught) = taught else { return Ok(()) };
    let before = examine(&root, &taught.policy, &args, &ctx)?;
    console.print(&before.line("SFT"));

    let taught_dir = taught.run.model();
    let rewarded = phase(Purpose::Grpo, &root, &taught_dir, &args, &ctx, &console, &stop)?;
    let Some(rewarded) = rewarded else { return Ok(()) };
    let after = examine(&root, &rewarded.policy, &args, &ctx)?;

    console.print(&show(&before, &after, &rewarded.policy)?.render(console.width()));
    for (name, finished) in [("SFT", &taught), ("GRPO", &rewarded)] {
        console.print(&format!("Where the time of {name} went:"));
        console.print(&finished.summary.table().render(console.width()));
    }
    console.print(&before.line("SFT"));
    console.print(&after.line("GRPO"));
    let model = rewarded.run.model();
    console.print(&format!(
        "{:.0} s in all. The run: {}; its model: {}\n\
         Ask it:            lockstep generate --model {} --prompt 58+67= --temperature 0\n\
         Your own model:    lockstep train --model DIR --dataset FILE.jsonl --reward gsm8k --out runs/mine",
        started.elapsed().as_secs_f64(),
        root.display(),
        model.display(),
        model.display(),
    ));
    Ok(())
}

fn default_root() -> PathBuf {
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    PathBuf::from("runs").join(format!("demo-{seconds}"))
}

/// What a user would bring: a model directory and three data files.
fn make_inputs(root: &Path, seed: u64, ctx: &Context) -> anyhow::Result<PathBuf> {
    let base = root.join("base-model");
    std::fs::create_dir_all(&base)?;
    let special = SpecialTokens { eos: Some("<eos>".into()), pad: Some("<pad>".into()), ..SpecialTokens::default() };
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
    let weights = Weights::random(ctx.memory(), &config, seed)?;
    model::io::save_model(&base, &config, &weights, None, Default::default())?;
    for (name, lines) in [
        ("lessons.jsonl", task::lessons(seed)),
        ("problems.jsonl", task::problems(false)),
        ("heldout.jsonl", task::problems(true)),
    ] {
        write_atomically(&root.join(name), lines.as_bytes())?;
    }
    Ok(base)
}

/// The configuration of a phase: what a user would write into its file.
fn layers(purpose: Purpose, root: &Path, model: &Path, args: &Args) -> Layers {
    let path = |name: &str| root.join(name).display().to_string();
    let steps = args.steps.to_string();
    let settings: &[(&str, &str)] = match purpose {
        Purpose::Sft => &[
            ("per_device_train_batch_size", "256"),
            ("max_steps", "800"),
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
    let mut set: Vec<(String, String)> = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let mut put = |key: &str, value: String| set.push((key.to_owned(), value));
    put("model_name_or_path", model.display().to_string());
    put("seed", args.seed.to_string());
    put("save_strategy", "no".into());
    put("output_dir", path(if purpose == Purpose::Sft { "sft" } else { "grpo" }));
    put("dataset_name", path(if purpose == Purpose::Sft { "lessons.jsonl" } else { "problems.jsonl" }));
    if purpose != Purpose::Sft {
        put("eval_dataset_name", path("heldout.jsonl"));
    }
    Layers { purpose, set, ..Layers::default() }
}

/// Runs a phase; `None` if somebody asked it to stop.
fn phase(
    purpose: Purpose,
    root: &Path,
    model: &Path,
    args: &Args,
    ctx: &Context,
    console: &Console,
    stop: &StopRequest,
) -> anyhow::Result<Option<Finished>> {
    let resolved = layers(purpose, root, model, args).resolve()?;
    let out = resolved.config.output_dir.clone().unwrap_or_default();
    let run = RunDir::fresh(&out)?;
    let finished = execute(purpose, resolved, run, Beginning::Fresh, ctx, console, stop.clone())?;
    if finished.ended == Ended::Asked {
        let command = if purpose == Purpose::Sft { "sft" } else { "train" };
        console
            .info(&format!("stopped as asked; this phase goes on with: lockstep {command} --resume {}", out.display()));
        return Ok(None);
    }
    Ok(Some(finished))
}

/// Held-out accuracy, drawn at temperature 1 and greedily.
struct Examined {
    sampled: Outcome,
    greedy: Outcome,
    prompts: Vec<String>,
}

impl Examined {
    fn line(&self, phase: &str) -> String {
        let percent = |o: &Outcome| 100.0 * o.metric("reward").unwrap_or(f64::NAN);
        format!(
            "held-out accuracy after {phase}: {:.1} % sampled at T = 1, {:.1} % greedy ({} problems)",
            percent(&self.sampled),
            percent(&self.greedy),
            self.prompts.len()
        )
    }
}

fn examine(root: &Path, policy: &Policy, args: &Args, ctx: &Context) -> anyhow::Result<Examined> {
    let mut config: Config = layers(Purpose::Grpo, root, &policy.dir, args).resolve()?.config;
    let words = Words::load(&policy.dir)?;
    let Some(spec) = DatasetSpec::eval(&config) else { anyhow::bail!("no held-out problems") };
    let questions = Questions::load(&spec, &config, &words, config.max_completion_length)?;
    let mut rewards = build_rewards(&config)?;
    let weights = config.weights_of_rewards();
    let mut engine =
        Engine::new(ctx, &words.config, engine_config(&config, context(&config, &words), questions.longest()))?;
    let drawn = sampling(&config, &words.eos_ids);
    let mut ask = |config: &Config| {
        Evaluation::new(config, &questions, &drawn).run(&mut engine, policy, &mut rewards, &weights, 0)
    };
    let sampled = ask(&config)?;
    config.eval_sampling = crate::config::EvalSampling::Greedy;
    let greedy = ask(&config)?;
    let prompts = questions.all.iter().map(|q| q.content.text().into_owned()).collect();
    Ok(Examined { sampled, greedy, prompts })
}

/// A few held-out problems, with what was drawn before and after.
fn show(before: &Examined, after: &Examined, policy: &Policy) -> anyhow::Result<Table> {
    let mut table = Table::new([("held-out", Align::Left), ("after SFT", Align::Right), ("after GRPO", Align::Right)]);
    let stride = (before.prompts.len() / SHOWN).max(1);
    for i in (stride / 2..before.prompts.len()).step_by(stride).take(SHOWN) {
        let answer = |examined: &Examined| -> anyhow::Result<String> {
            let text = policy.tokenizer.decode(&examined.sampled.completions[i].ids, true)?;
            let right = examined.sampled.rewards[i].is_some_and(|r| r >= 1.0);
            Ok(if right { format!("{text} ✓") } else { format!("{text} ✗") })
        };
        table.row([before.prompts[i].clone(), answer(before)?, answer(after)?]);
    }
    Ok(table)
}
