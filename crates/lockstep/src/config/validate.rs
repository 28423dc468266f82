//! Checks a configuration: the range of each key, then the rules for keys of one topic. An error names the fix; a note
//! reports a valid but probably mistaken value. The algorithm's own rules are checked afterwards, in
//! [`crate::algorithms`].

use super::keys::{Config, KEYS, adapter, data, evaluation, optimizer, preferences, rewards, sampling};
use super::methods::Purpose;
use super::report_to;
use super::resolved::Resolved;
use super::unused_keys;
use super::values::Strategy;
use crate::bad_input;
use crate::error::BadInput;

/// Checks `resolved`, and adds notes on doubtful values.
pub(super) fn validate(resolved: &mut Resolved, purpose: Purpose) -> anyhow::Result<()> {
    sampling::generation_kwargs(&mut resolved.config)?;
    if let Some(message) = KEYS.iter().find_map(|key| key.out_of_range(&resolved.config)) {
        return Err(BadInput::new(message));
    }
    let c = &resolved.config;
    if c.max_steps != -1 && c.max_steps < 1 {
        bad_input!("`max_steps` must be at least 1, or -1 for num_train_epochs passes, but is {}", c.max_steps);
    }
    if !c.gradient_shares.is_power_of_two() {
        let why = "a power of two (1, 2, 4, …), since shares are added in pairs";
        bad_input!("`gradient_shares` must be {why}, but is {}", c.gradient_shares);
    }
    c.traced_steps()?;
    data::renames(&c.columns).map_err(BadInput::new)?;
    data::check_template_columns(c)?;
    sampling::check_stop(c)?;
    sampling::check_temperature(c)?;
    adapter::check(c)?;
    optimizer::check(c)?;
    resolved.notes.extend(evaluation::check(&resolved.config, purpose)?);
    resolved.notes.extend(report_to::check(&resolved.config)?);
    match purpose {
        Purpose::Show => {}
        Purpose::Eval => evaluated(&resolved.config)?,
        _ => inputs(resolved, purpose)?,
    }
    unused_keys::check(resolved, purpose)
}

/// Checks that an evaluation outside a run has a model and data.
fn evaluated(c: &Config) -> anyhow::Result<()> {
    if c.model_name_or_path.is_none() {
        bad_input!("no model: give --model DIR, or a configuration with model_name_or_path");
    }
    if !c.has_eval_data() {
        bad_input!("no data: give --dataset FILE, or a configuration with eval_dataset_name or eval_datasets");
    }
    rewards::check(c, false)
}

/// Checks that a run has a model and data.
fn inputs(resolved: &Resolved, purpose: Purpose) -> anyhow::Result<()> {
    let c = &resolved.config;
    if c.model_name_or_path.is_none() {
        bad_input!("no model: give --model DIR, or model_name_or_path in the configuration");
    }
    let learns = match purpose {
        Purpose::Sft | Purpose::Reward => "supervised fine-tuning and reward models learn",
        Purpose::Dpo => "direct preference optimization learns",
        Purpose::Grpo | Purpose::Eval | Purpose::Show => "",
    };
    if c.replay.is_some() && !learns.is_empty() {
        bad_input!("`replay` is for `lockstep train`: {learns} from dataset_name");
    }
    if purpose == Purpose::Dpo {
        preferences::check(c)?;
    }
    if c.dataset_name.is_none() && c.replay.is_none() {
        bad_input!("no training data: give --dataset FILE, or dataset_name in the configuration");
    }
    if c.eval_strategy != Strategy::No && !c.has_eval_data() {
        bad_input!("`eval_strategy` needs evaluation data: set eval_dataset_name, or eval_strategy = \"no\"");
    }
    Ok(())
}
