//! The keys of low-rank adapters, together.

use super::{Config, Origin, Resolved};
use crate::bad_input;
use crate::error::OrBadInput;
use crate::source::is_adapter;
use model::weights::LINEAR_MODULES;
use model::{LoraConfig, TargetModules};
use std::path::Path;

/// Keys that mean nothing without `use_peft`.
const KEYS: [&str; 5] = ["lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_rslora"];

/// Where the model is an adapter's directory, the run goes on with that adapter: the keys say what it is, and one that says
/// otherwise is refused.
pub(super) fn adopt(resolved: &mut Resolved) -> anyhow::Result<()> {
    let Some(dir) = resolved.config.model_name_or_path.clone().filter(|name| is_adapter(Path::new(name))) else {
        return Ok(());
    };
    let lora = model::peft::load_adapter_config(Path::new(&dir)).or_bad_input()?.lora;
    let mut own = resolved.config.clone();
    own.use_peft = true;
    (own.lora_r, own.lora_alpha, own.lora_dropout) = (lora.r, lora.alpha, lora.dropout);
    own.use_rslora = lora.use_rslora;
    own.lora_target_modules = Some(match lora.target_modules {
        TargetModules::AllLinear => vec!["all-linear".to_owned()],
        TargetModules::Regex(pattern) => vec![pattern],
        TargetModules::Names(names) => names,
    });
    for name in ["use_peft"].into_iter().chain(KEYS) {
        let Some(key) = Config::key(name) else { continue };
        let same = match name {
            "lora_target_modules" => listed(&own) == listed(&resolved.config),
            _ => key.value(&own) == key.value(&resolved.config),
        };
        if resolved.is_set(name) && !same {
            let mend = match name {
                "use_peft" => "; to train all weights, make one model of it with `lockstep merge`",
                "lora_dropout" => " (disable_dropout = true trains without)",
                _ => "",
            };
            bad_input!(
                "`{name}` = {}, but the model {dir} is an adapter, and its {} says {}: leave the key out{mend}",
                key.value_text(&resolved.config),
                model::peft::ADAPTER_CONFIG,
                key.value_text(&own)
            );
        }
        // Where it stands in the file of the run, it says so.
        resolved.origins.insert(key.name, Origin::Adapter);
    }
    resolved.config = own;
    resolved.notes.push(format!("the run goes on with the adapter {dir}"));
    Ok(())
}

/// The target modules in one order, the names of all linear layers as what they are.
fn listed(config: &Config) -> Option<Vec<String>> {
    let mut names = config.lora_target_modules.clone()?;
    if names == ["all-linear"] {
        names = LINEAR_MODULES.map(str::to_owned).to_vec();
    }
    names.sort();
    Some(names)
}

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
