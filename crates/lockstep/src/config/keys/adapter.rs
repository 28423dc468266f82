//! Configuration keys of low-rank adapters (LoRA).

use crate::bad_input;
use crate::config::keys::Config;
use crate::config::row::{Row, TRL};
use model::{LoraConfig, TargetModules};

pub(in crate::config) const LORA: Row = TRL.needs("use_peft", "true");

macro_rules! adapter_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Adapter" {
    /// Train a low-rank adapter (LoRA) and freeze the model, which then needs neither gradients nor moments. The run's
    /// result is a PEFT directory. A reference model (beta > 0) then needs no weights of its own (ref_adapter). In a
    /// reward model the head is trained with the adapter. Set automatically if the model is an adapter's directory: its
    /// adapter_config.json then gives the keys of this section, and other values are refused.
    use_peft: bool = false => TRL;
    /// The adapter's rank.
    lora_r: usize = 16 => LORA.range(at_least(1.0).at_most(MAX_COUNT));
    /// The adapter's scale is lora_alpha / lora_r.
    lora_alpha: f64 = 32.0 => LORA;
    /// The probability with which a training step's gradient drops an input of the adapter. Rollouts, and
    /// log-probabilities that are compared with theirs, use no dropout; the policy therefore computes a second forward
    /// pass.
    lora_dropout: f64 = 0.0 => LORA.trl_defaults(&[(ALL, "0.05")]).range(at_least(0.0).below(1.0));
    /// Train as if lora_dropout were 0.
    disable_dropout: bool = false => TRL.trl_defaults(&[(PAIRS, "true")]);
    /// The modules to adapt: names such as q_proj, or one regular expression for whole names that matches only linear
    /// layers, or all-linear; not set: q_proj and v_proj. The adapter's files list the modules.
    lora_target_modules: Option<Vec<String>> = None => LORA;
    /// Scale the adapter by lora_alpha / √lora_r, instead of lora_alpha / lora_r.
    use_rslora: bool = false => LORA;
    /// The reference model, for beta > 0 and DPO, if an adapter is trained and ref_model is not set: the model without
    /// an adapter (none), or with the adapter as it was before training (initial). The default is initial if the model
    /// is an adapter's directory, as in TRL. For a new adapter both are the same.
    ref_adapter: RefAdapter = RefAdapter::None
        => OURS.read_by(REFERENCE.and(DPO)).needs("use_peft", "true").on_resume(Warn);
} } } }
pub(in crate::config) use adapter_keys;

impl Config {
    /// The adapter to train; `None` if all weights are trained.
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

/// Checks the adapter keys, as far as possible without the model.
pub(in crate::config) fn check(c: &Config) -> anyhow::Result<()> {
    if c.use_peft && c.sync_ref_model {
        bad_input!(
            "`sync_ref_model` = true does not work with use_peft, whose reference model (the model without an adapter, \
             or with the initial adapter) never changes: set sync_ref_model = false"
        );
    }
    Ok(())
}
