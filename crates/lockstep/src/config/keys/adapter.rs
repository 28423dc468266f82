//! Configuration keys of low-rank adapters (LoRA).

use crate::bad_input;
use crate::config::keys::Config;
use crate::config::row::{Row, TRL};
use model::{LoraConfig, TargetModules};

pub(in crate::config) const LORA: Row = TRL.needs("use_peft", "true");

macro_rules! adapter_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Adapter" {
    /// Train a low-rank adapter (LoRA) and freeze the model: no gradients and no moments of its weights. The run's
    /// result is a PEFT directory. The reference model of beta > 0 then takes no memory for weights of its own
    /// (ref_adapter). In a reward model the head is trained beside it. True by itself where the model is an adapter's
    /// directory, whose adapter_config.json then gives the keys of this section; one that says otherwise is refused.
    use_peft: bool = false => TRL;
    /// The adapter's rank.
    lora_r: usize = 16 => LORA.range(at_least(1.0).at_most(MAX_COUNT));
    /// The adapter's scale is lora_alpha / lora_r.
    lora_alpha: f64 = 32.0 => LORA;
    /// The chance that an input of the adapter is dropped, for the gradient of a training step alone: rollout and every
    /// log-probability that is compared with it know no dropout, for which a policy's step computes a second forward.
    lora_dropout: f64 = 0.0 => LORA.trl_defaults(&[(ALL, "0.05")]).range(at_least(0.0).below(1.0));
    /// Train as if lora_dropout were 0.
    disable_dropout: bool = false => TRL.trl_defaults(&[(PAIRS, "true")]);
    /// The modules that are adapted: names such as q_proj, one regular expression of whole names that matches linear
    /// layers alone, or all-linear; not set: q_proj and v_proj. The adapter's files name the modules.
    lora_target_modules: Option<Vec<String>> = None => LORA;
    /// Scale by lora_alpha / √lora_r instead.
    use_rslora: bool = false => LORA;
    /// The reference model of beta > 0 and of DPO, where an adapter is trained and ref_model is not set: the model
    /// without an adapter (none), or with the adapter from which training began (initial). Initial by itself where the
    /// model is an adapter's directory, as in TRL; a new adapter is the same model as none.
    ref_adapter: RefAdapter = RefAdapter::None
        => OURS.read_by(REFERENCE.and(DPO)).needs("use_peft", "true").on_resume(Warn);
} } } }
pub(in crate::config) use adapter_keys;

impl Config {
    /// The adapter that is trained; `None` if all weights are.
    pub(crate) fn adapter(&self) -> Option<LoraConfig> {
        let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        let target_modules = match self.lora_target_modules.as_deref() {
            None => LoraConfig::default().target_modules,
            Some([one]) if one.eq_ignore_ascii_case("all-linear") => TargetModules::AllLinear,
            // As in TRL, a list with a single entry may be a regular expression.
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

/// Checks the adapter keys, as far as that needs no model.
pub(in crate::config) fn check(c: &Config) -> anyhow::Result<()> {
    if c.use_peft && c.sync_ref_model {
        bad_input!(
            "`sync_ref_model` = true, but with use_peft the reference is the model without its adapter, or with the \
             adapter from which training began, which does not move: set sync_ref_model = false"
        );
    }
    Ok(())
}
