//! A run whose model is an adapter's directory trains that adapter, as its own configuration describes it.

use super::keys::{Config, KEYS};
use super::resolved::{Origin, Resolved};
use crate::bad_input;
use crate::error::OrBadInput;
use model::TargetModules;
use model::peft::is_adapter;
use model::weights::LINEAR_MODULES;
use std::path::Path;

/// Where the model is an adapter's directory, the run continues with that adapter: the keys say what it is, and one
/// that says otherwise is refused.
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
    // All keys of the section but disable_dropout, which is of the training alone.
    for key in KEYS.iter().filter(|key| key.name == "use_peft" || matches!(key.row.needs, Some(("use_peft", _)))) {
        let name = key.name;
        let same = match name {
            "lora_target_modules" => listed(&own) == listed(&resolved.config),
            _ => key.value(&own) == key.value(&resolved.config),
        };
        if resolved.is_set(name) && !same {
            let fix = match name {
                "use_peft" => "; to train all weights, make one model of it with `lockstep merge`",
                "lora_dropout" => " (disable_dropout = true trains without)",
                _ => "",
            };
            bad_input!(
                "`{name}` = {}, but the model {dir} is an adapter, and its {} says {}: leave the key out{fix}",
                key.value_text(&resolved.config),
                model::peft::ADAPTER_CONFIG,
                key.value_text(&own)
            );
        }
        // Where it stands in the file of the run, it says so.
        resolved.origins.insert(key.name, Origin::Adapter);
    }
    resolved.config = own;
    resolved.notes.push(format!("the run continues with the adapter {dir}"));
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
