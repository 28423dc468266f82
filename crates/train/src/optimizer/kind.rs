//! Which optimizer a run uses, and its settings.

use super::muon::{self, Muon, MuonConfig};
use super::{Rule, adamw};
use serde::{Deserialize, Serialize};

/// The dtype of AdamW's moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentsDType {
    /// f32, as in torch.
    #[default]
    F32,
    /// bf16 with stochastic rounding, which halves the memory.
    Bf16,
}

/// The optimizer: AdamW or Muon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101).
    #[default]
    AdamW,
    /// Muon for the matrices of decoder layers, AdamW for all other parameters.
    Muon(MuonConfig),
}

/// How configurations select an optimizer.
pub(super) struct Definition {
    /// Names of the optimizer (those of transformers, if it has the optimizer). The usual name comes first.
    pub(super) names: &'static [&'static str],
    /// Parses the optimizer's arguments from `optim_args`.
    pub(super) parse: fn(&mut Args) -> std::result::Result<OptimizerKind, String>,
}

const OPTIMIZERS: &[Definition] = &[adamw::DEFINITION, muon::DEFINITION];

impl OptimizerKind {
    /// All names that [`parse`](Self::parse) accepts. The first one is the default.
    pub fn names() -> impl Iterator<Item = &'static str> {
        OPTIMIZERS.iter().flat_map(|definition| definition.names).copied()
    }

    /// Parses transformers' `optim` and `optim_args` ("momentum=0.9,ns_steps=5").
    pub fn parse(optim: &str, args: &str) -> std::result::Result<OptimizerKind, String> {
        let definition = OPTIMIZERS.iter().find(|definition| definition.names.contains(&optim));
        let definition = definition.ok_or_else(|| OptimizerKind::unknown(optim))?;
        let mut args = Args::parse(args)?;
        let kind = (definition.parse)(&mut args)?;
        args.all_read(optim)?;
        Ok(kind)
    }

    /// The error message for a name that is not in [`names`](Self::names).
    pub fn unknown(optim: &str) -> String {
        format!(
            "unknown optimizer `{optim}`: expected one of {}. For AdamW with half the memory, set \
             optim = \"adamw_torch\" and adam_moments_dtype = \"bf16\"",
            OptimizerKind::names().collect::<Vec<_>>().join(", ")
        )
    }

    pub(super) fn rule(self) -> Box<dyn Rule> {
        match self {
            OptimizerKind::AdamW => Box::new(adamw::AdamW),
            OptimizerKind::Muon(config) => Box::new(Muon::new(config)),
        }
    }
}

/// The `key=value` pairs of transformers' `optim_args`.
pub(super) struct Args {
    pairs: Vec<(String, String)>,
    /// The keys that the optimizer reads.
    known: Vec<&'static str>,
}

impl Args {
    fn parse(text: &str) -> std::result::Result<Args, String> {
        let pairs = text.split(',').filter(|pair| !pair.trim().is_empty()).map(|pair| match pair.split_once('=') {
            Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
            None => Err(format!("optim_args: `{}` must have the form key=value", pair.trim())),
        });
        Ok(Args { pairs: pairs.collect::<std::result::Result<_, _>>()?, known: Vec::new() })
    }
    /// Removes and returns the value of `key`; `default` if it is absent.
    pub(super) fn take<T: std::str::FromStr>(
        &mut self,
        key: &'static str,
        default: T,
    ) -> std::result::Result<T, String> {
        self.known.push(key);
        let Some(at) = self.pairs.iter().position(|(name, _)| name == key) else { return Ok(default) };
        let (_, value) = self.pairs.remove(at);
        value.to_lowercase().parse().map_err(|_| format!("optim_args: `{value}` is not a valid value for `{key}`"))
    }
    fn all_read(self, optim: &str) -> std::result::Result<(), String> {
        let Some((key, _)) = self.pairs.first() else { return Ok(()) };
        let known = match self.known.as_slice() {
            [] => "none".to_owned(),
            known => known.join(", "),
        };
        Err(format!(
            "optim_args: the optimizer {optim} has no argument `{key}`; its arguments: {known} (AdamW's settings are \
             the keys adam_beta1, adam_beta2, adam_epsilon and weight_decay)"
        ))
    }
}

/// Optimizer settings; names and defaults are transformers'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// The optimizer: AdamW or Muon.
    pub optim: OptimizerKind,
    /// AdamW's decay rate β₁ of the first moment.
    pub adam_beta1: f64,
    /// AdamW's decay rate β₂ of the second moment.
    pub adam_beta2: f64,
    /// AdamW's ε, added to the square root of the second moment.
    pub adam_epsilon: f64,
    /// Coefficient of decoupled weight decay, for matrices only; biases and norm weights do not decay.
    pub weight_decay: f64,
    /// Maximum L2 norm of the gradient, to which larger gradients are scaled down; 0 for no clipping.
    pub max_grad_norm: f64,
    /// The dtype of AdamW's moments.
    pub moments: MomentsDType,
    /// Seed of the random numbers of a step, for rounding bf16 moments and for LoRA dropout.
    pub seed: u64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        OptimizerConfig {
            optim: OptimizerKind::AdamW,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            moments: MomentsDType::F32,
            seed: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::muon::AdjustLr;
    use super::*;

    #[test]
    fn optimizer_names_and_arguments_of_transformers_are_parsed() {
        assert_eq!(OptimizerKind::parse("adamw_torch_fused", ""), Ok(OptimizerKind::AdamW));
        let mut names: Vec<&str> = OptimizerKind::names().collect();
        assert!(names.iter().all(|name| OptimizerKind::parse(name, "").is_ok()));
        assert_eq!(OptimizerKind::parse(names[0], ""), Ok(OptimizerKind::default()));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "two optimizers have the same name");
        let muon = OptimizerKind::parse("muon", "momentum=0.9, nesterov=False,adjust_lr_fn=match_rms_adamw").unwrap();
        let expected =
            MuonConfig { momentum: 0.9, nesterov: false, adjust_lr: AdjustLr::MatchRmsAdamW, ..Default::default() };
        assert_eq!(muon, OptimizerKind::Muon(expected));
        for (optim, args, why) in [
            ("no_such_name", "", "unknown optimizer `no_such_name`: expected one of adamw_torch, "),
            ("adamw_torch", "momentum=0.9", "no argument `momentum`; its arguments: none"),
            ("muon", "beta=0.9", "no argument `beta`; its arguments: momentum, nesterov, ns_steps, eps, adjust_lr_fn"),
            ("muon", "momentum", "key=value"),
            ("muon", "momentum=much", "`much`"),
            ("muon", "momentum=1.5", "below 1"),
            ("muon", "ns_steps=0", "at least 1"),
        ] {
            let error = OptimizerKind::parse(optim, args).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
