//! If a run's model is the directory of an adapter, the run trains that adapter, with the rank, alpha and target
//! modules of the adapter's own configuration.

use super::keys::{Config, KEYS};
use super::methods::{Methods, Purpose};
use super::resolved::{Origin, Resolved};
use super::values::RefAdapter;
use crate::bad_input;
use crate::error::OrBadInput;
use model::TargetModules;
use model::peft::is_adapter;
use model::weights::LINEAR_MODULES;
use std::path::Path;

/// If the model is an adapter's directory, sets the adapter keys (rank, alpha, target modules, …) from it. A key that
/// was set to a different value is refused.
pub(super) fn adopt(resolved: &mut Resolved, purpose: Purpose) -> anyhow::Result<()> {
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
    let method = Methods::of(purpose, own.algorithm);
    let has_reference = KEYS.iter().any(|key| key.name == "ref_adapter" && key.row.read_by.contain(method));
    if has_reference && !resolved.is_set("ref_adapter") {
        own.ref_adapter = RefAdapter::Initial;
    }
    // All keys of the adapter section except disable_dropout, which belongs to training and not to the adapter.
    for key in KEYS.iter().filter(|key| key.name == "use_peft" || matches!(key.row.needs, Some(("use_peft", _)))) {
        let name = key.name;
        if name == "ref_adapter" && (resolved.is_set(name) || !has_reference) {
            continue;
        }
        let same = match name {
            "lora_target_modules" => listed(&own) == listed(&resolved.config),
            _ => key.value(&own) == key.value(&resolved.config),
        };
        if resolved.is_set(name) && !same {
            let fix = match name {
                "use_peft" => "; to train all weights, merge the adapter into its base with `lockstep merge`",
                "lora_dropout" => " (disable_dropout = true trains without dropout)",
                _ => "",
            };
            bad_input!(
                "`{name}` = {}, but the model {dir} is an adapter, and its {} has {}: remove the key{fix}",
                key.value_text(&resolved.config),
                model::peft::ADAPTER_CONFIG,
                key.value_text(&own)
            );
        }
        // Shows the adapter as the origin even of keys that the configuration file sets.
        resolved.origins.insert(key.name, Origin::Adapter);
    }
    resolved.config = own;
    resolved.notes.push(format!("the run continues with the adapter {dir}"));
    Ok(())
}

/// The target modules, sorted; `all-linear` is replaced by the names of all linear layers.
fn listed(config: &Config) -> Option<Vec<String>> {
    let mut names = config.lora_target_modules.clone()?;
    if matches!(names.as_slice(), [one] if one.eq_ignore_ascii_case("all-linear")) {
        names = LINEAR_MODULES.map(str::to_owned).to_vec();
    }
    names.sort();
    Some(names)
}
