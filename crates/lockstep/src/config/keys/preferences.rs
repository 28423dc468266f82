//! Configuration keys of learning from preference pairs: direct preference optimization (DPO) and reward models.

use crate::bad_input;
use crate::config::keys::Config;
use train::RankingConfig;
use train::loss::dpo::{DpoConfig, DpoLoss};

macro_rules! preferences_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Preference pairs" {
    /// How strongly the scores of a pair are pulled to a mean of 0 (`lockstep reward` only; 0.01 is usual); not set:
    /// not at all.
    center_rewards_coefficient: Option<f64> = None => TRL.range(at_least(0.0)).read_by(REWARD).on_resume(Warn);
    /// Direct preference optimization: the loss as a function of a pair's difference (`loss_type` in TRL's DPOConfig).
    dpo_loss_type: DpoLoss = DpoLoss::Sigmoid => TRL.trl_name("loss_type").read_by(DPO).on_resume(Warn);
    /// dpo_loss_type "robust" and "exo_pair": the share of pairs with swapped preferences, from 0 to below 0.5; above 0
    /// for "exo_pair".
    label_smoothing: f64 = 0.0 => TRL.range(at_least(0.0).below(0.5)).read_by(DPO).on_resume(Warn);
    /// dpo_loss_type "discopop": the temperature at which the logistic loss becomes the exponential one.
    discopop_tau: f64 = 0.05
        => TRL.range(above(0.0)).read_by(DPO).needs("dpo_loss_type", "discopop").on_resume(Warn);
} } } }
pub(in crate::config) use preferences_keys;

impl Config {
    /// The loss of a reward model.
    pub(crate) fn ranking(&self) -> RankingConfig {
        RankingConfig { center_rewards_coefficient: self.center_rewards_coefficient }
    }

    /// The loss of direct preference optimization (DPO).
    pub(crate) fn dpo(&self) -> DpoConfig {
        DpoConfig {
            beta: self.beta,
            loss_type: self.dpo_loss_type,
            label_smoothing: self.label_smoothing,
            discopop_tau: self.discopop_tau,
        }
    }
}

/// Checks the keys of direct preference optimization (DPO).
pub(in crate::config) fn check(c: &Config) -> anyhow::Result<()> {
    if c.beta <= 0.0 {
        bad_input!("`beta` = {} must be above 0: it keeps the policy near its reference (0.1 is usual)", c.beta);
    }
    if c.sync_ref_model {
        bad_input!("in direct preference optimization the reference never changes: remove sync_ref_model");
    }
    let smooths = matches!(c.dpo_loss_type, DpoLoss::Robust | DpoLoss::ExoPair);
    if c.label_smoothing != 0.0 && !smooths {
        bad_input!(
            "`label_smoothing` = {} needs dpo_loss_type = \"robust\" or \"exo_pair\": set one of them, or \
             label_smoothing = 0",
            c.label_smoothing
        );
    }
    if c.label_smoothing == 0.0 && c.dpo_loss_type == DpoLoss::ExoPair {
        bad_input!("dpo_loss_type = \"exo_pair\" needs `label_smoothing` above 0: 0.001 is the paper's");
    }
    Ok(())
}
