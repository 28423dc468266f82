//! Compares rewards of steps with the same reward as a single number: PPO trains a random model to continue arithmetic
//! sequences modulo 10, with one point for each correct digit.
//!
//! ```text
//! cargo run --release -p lockstep-rl --example dense_reward -- runs/dense
//! ```
//!
//! A prompt is the first two terms, `a` and `a + d` with d from 1 to 3; the answer is the next eight. A random answer,
//! like every constant answer, has one correct digit in ten.

use lockstep::config::Algorithm;
use lockstep::{Config, Purpose, Rows, Run, RunOptions, Step};
use model::tokenizer::{SpecialTokens, Tokenizer};
use model::{ModelConfig, Weights};
use rewards::{Reward, RewardBatch, Scores, StepEnd, StepScore};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

const SHAPE: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 11,
"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
"head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 10}"#;

/// Digits of an answer.
const DIGITS: usize = 8;
const MODULUS: usize = 10;

/// A point for each correct digit, given to the digit, or summed over the completion.
struct RightDigits {
    per_step: bool,
}

impl Reward for RightDigits {
    fn name(&self) -> &str {
        "digits"
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        let steps = |row: usize| -> Vec<StepScore> {
            let answer = batch.columns["answer"][row].as_str().unwrap_or_default();
            let completion = batch.completions[row].text();
            let right = completion.chars().zip(answer.chars()).map(|(given, expected)| given == expected);
            let step = |(place, right)| StepScore { end: StepEnd::Char(place), score: f64::from(u8::from(right)) };
            (1..).zip(right).map(step).collect()
        };
        let all: Vec<Vec<StepScore>> = (0..batch.len()).map(steps).collect();
        let values = all.iter().map(|steps| Some(steps.iter().map(|step| step.score).sum())).collect();
        let steps = if self.per_step { all.into_iter().map(Some).collect() } else { Vec::new() };
        Scores { steps, ..Scores::new(values) }
    }
}

fn rows() -> Vec<Value> {
    let member = |first: usize, step: usize, place: usize| (first + step * place) % MODULUS;
    let text = |first, step, places: std::ops::Range<usize>| {
        places.map(|place| member(first, step, place).to_string()).collect::<String>()
    };
    let row = |(first, step)| json!({"prompt": text(first, step, 0..2), "answer": text(first, step, 2..2 + DIGITS)});
    (0..MODULUS).flat_map(|first| (1..=3).map(move |step| (first, step))).map(row).collect()
}

/// The best mean reward of one answer to all prompts: at each position, the digit that most answers have there.
fn best_constant(rows: &[Value]) -> f64 {
    let best_count = |place: usize| {
        let count = |digit: usize| {
            let digit = char::from_digit(digit as u32, 10);
            rows.iter().filter(|row| row["answer"].as_str().and_then(|a| a.chars().nth(place)) == digit).count()
        };
        (0..MODULUS).map(count).max().unwrap_or(0)
    };
    (0..DIGITS).map(best_count).sum::<usize>() as f64 / rows.len() as f64
}

fn train(model: &Path, out: &Path, per_step: bool) -> anyhow::Result<Vec<(Step, f64)>> {
    let config = Config {
        model_name_or_path: Some(model.display().to_string()),
        output_dir: Some(out.to_owned()),
        algorithm: Algorithm::Ppo,
        num_generations: 1,
        per_device_train_batch_size: 240,
        num_mini_batches: 1,
        num_ppo_epochs: 2,
        kl_coef: 0.0,
        max_completion_length: DIGITS,
        learning_rate: 2e-3,
        max_steps: 600,
        logging_steps: 20,
        ..Config::default()
    };
    let rows = Rows::try_from((0..8).flat_map(|_| rows()).collect::<Vec<Value>>())?;
    let curve = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let points = curve.clone();
    let options = RunOptions::new().train_rows(rows).reward_of_batch(RightDigits { per_step }).on_log(move |log| {
        points.borrow_mut().extend(log.get("reward").map(|reward| (log.step, reward)));
        ControlFlow::Continue(())
    });
    Run::new(Purpose::Grpo, config, options)?.run()?;
    Ok(curve.take())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [out] = &arguments[..] else { anyhow::bail!("usage: dense_reward OUT_DIR") };
    let (out, model) = (Path::new(out), Path::new(out).join("model"));
    let shape = Arc::new(ModelConfig::parse(SHAPE)?);
    let weights =
        Weights::random(lockstep::context(None, None, lockstep::config::ComputeDType::F32)?.memory(), &shape, 1)?;
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    Tokenizer::characters("0123456789".chars(), &special)?.save(&model)?;
    model::io::save_model(&model, &shape, &weights, None, Default::default())?;
    let steps = train(&model, &out.join("steps"), true)?;
    let whole = train(&model, &out.join("whole"), false)?;
    println!("the best constant answer earns {:.2} of {DIGITS}", best_constant(&rows()));
    println!("step  one score per digit  one number");
    for ((step, dense), (_, sum)) in steps.iter().zip(&whole) {
        println!("{step:4}  {dense:19.2}  {sum:10.2}");
    }
    Ok(())
}
