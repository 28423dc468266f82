//! GRPO from Rust with a closure as the reward: two-digit addition, on the files that the demo makes.
//!
//! ```text
//! lockstep demo --out runs/demo --steps 1
//! cargo run --release -p lockstep-rl --example reward_closure -- runs/demo runs/closure
//! ```

use lockstep::{Config, Purpose, Run, RunOptions};
use std::ops::ControlFlow;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [demo, out] = &arguments[..] else { anyhow::bail!("usage: reward_closure DEMO_DIR OUT_DIR") };
    let config = Config {
        model_name_or_path: Some(format!("{demo}/sft/model")),
        dataset_name: Some(format!("{demo}/problems.jsonl")),
        output_dir: Some(out.into()),
        num_generations: 8,
        per_device_train_batch_size: 256,
        max_completion_length: 4,
        learning_rate: 5e-4,
        max_steps: 50,
        logging_steps: 5,
        ..Config::default()
    };
    let options = RunOptions::new()
        .reward("right", |sample| {
            let answer = sample.column("answer")?.as_str()?;
            Some(if sample.completion_text() == answer { 1.0 } else { 0.0 })
        })
        .on_log(|log| {
            println!("step {:3}  reward {:.3}", log.step, log.get("reward").unwrap_or(f64::NAN));
            ControlFlow::Continue(())
        });
    let result = Run::new(Purpose::Grpo, config, options)?.run()?;
    println!("{} steps; the model is in {}", result.step, result.dir.model().display());
    Ok(())
}
