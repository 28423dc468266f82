//! The keys of low-rank adapters, together.

use super::{Config, Resolved};
use crate::bad_input;
use model::{LoraConfig, TargetModules};

/// Keys that mean nothing without `use_peft`.
const KEYS: [&str; 5] = ["lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_rslora"];

/// What the keys must satisfy whatever the model.
pub(super) fn validate(resolved: &mut Resolved) -> anyhow::Result<()> {
    let c = &resolved.config;
    if c.lora_r == 0 {
        bad_input!("`lora_r` must be at least 1, but is 0");
    }
    if !(0.0..1.0).contains(&c.lora_dropout) {
        bad_input!(
            "`lora_dropout` = {}: it is a chance, at least 0 and below 1; set lora_dropout = 0 for no dropout",
            c.lora_dropout
        );
    }
    if !c.use_peft {
        // The configuration of a run that is resumed names every key, with its default.
        let default = Config::default();
        let differs = |name: &&str| Config::key(name).is_some_and(|key| key.value(c) != key.value(&default));
        let idle: Vec<&str> = KEYS.into_iter().filter(differs).collect();
        if !idle.is_empty() {
            let note = format!("{} without use_peft = true changes nothing: all weights are trained", idle.join(", "));
            resolved.notes.push(note);
        }
        return Ok(());
    }
    if c.sync_ref_model {
        bad_input!(
            "`sync_ref_model` = true, but with use_peft the reference is the model without its adapter, which does not move: set \
             sync_ref_model = false"
        );
    }
    Ok(())
}

impl Config {
    /// The adapter that is trained; none: all weights are.
    pub fn adapter(&self) -> Option<LoraConfig> {
        let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        let target_modules = match self.lora_target_modules.as_deref() {
            None => LoraConfig::default().target_modules,
            Some([one]) if one == "all-linear" => TargetModules::AllLinear,
            // As in TRL, a single entry may be a regular expression.
            Some([one]) if !plain(one) => TargetModules::Regex(one.clone()),
            Some(names) => TargetModules::Names(names.to_vec()),
        };
        self.use_peft.then_some(LoraConfig {
            r: self.lora_r,
            alpha: self.lora_alpha,
            use_rslora: self.use_rslora,
            dropout: if self.disable_dropout { 0.0 } else { self.lora_dropout },
            target_modules,
        })
    }
}
