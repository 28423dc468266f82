//! Configuration keys of the optimizer and the learning-rate schedule.

use crate::config::keys::Config;
use crate::config::keys::schedule;
use crate::config::values::OptimizerName;
use crate::error::BadInput;

macro_rules! optimizer_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Optimizer" {
    /// The peak learning rate. (Other defaults are TRL's, too: 2e-5 in supervised fine-tuning, 1e-4 for reward models.)
    learning_rate: f64 = 1e-6, SFT = 2e-5, REWARD = 1e-4, PPO = 3e-6 => TRL.range(at_least(0.0)).on_resume(Warn);
    /// The learning-rate schedule after warm-up.
    lr_scheduler_type: ScheduleKind = ScheduleKind::Linear => TRL.on_resume(Warn);
    /// Arguments of the schedule, as transformers names them, such as { min_lr_rate = 0.1 } for cosine_with_min_lr or {
    /// num_decay_steps = 100 } for warmup_stable_decay.
    lr_scheduler_kwargs: Map<String, Json> = Map::new() => TRL.on_resume(Warn);
    /// Warm-up steps, during which the learning rate rises; a number below 1 is a share of all steps.
    warmup_steps: f64 = 0.0 => TRL.range(at_least(0.0)).on_resume(Warn);
    /// Warm-up steps as a share of all steps, used if warmup_steps is 0.
    warmup_ratio: Option<f64> = None
        => OURS.trl_has("the same in transformers 4, now warmup_steps below 1")
            .range(at_least(0.0).at_most(1.0)).on_resume(Warn);
    /// The optimizer. All names that contain adamw mean the same AdamW; muon orthogonalises the momentum of each matrix
    /// in a layer and uses AdamW for the rest; not set: AdamW.
    optim: Option<OptimizerName> = None => TRL;
    /// Arguments of the optimizer, such as `momentum=0.95,nesterov=true,ns_steps=5,adjust_lr_fn=match_rms_adamw` for
    /// muon.
    optim_args: Option<String> = None => TRL;
    /// Decoupled weight decay; biases and norms do not decay.
    weight_decay: f64 = 0.0 => TRL.range(at_least(0.0)).on_resume(Warn);
    /// AdamW's decay of the first moment.
    adam_beta1: f64 = 0.9 => TRL.range(at_least(0.0).below(1.0)).on_resume(Warn);
    /// AdamW's decay of the second moment.
    adam_beta2: f64 = 0.999 => TRL.range(at_least(0.0).below(1.0)).on_resume(Warn);
    /// AdamW's ε.
    adam_epsilon: f64 = 1e-8 => TRL.range(above(0.0)).on_resume(Warn);
    /// The dtype of AdamW's moments: f32, or bf16 with stochastic rounding, which halves their memory. With muon this
    /// applies to the parameters that AdamW updates; the momentum of matrices stays f32.
    adam_moments_dtype: MomentsDType = MomentsDType::F32 => OURS;
    /// Gradients with a larger norm are scaled down to it; 0: never.
    max_grad_norm: f64 = 1.0 => TRL.range(at_least(0.0)).on_resume(Warn);
} } } }
pub(in crate::config) use optimizer_keys;

impl Config {
    /// The optimizer that the keys describe.
    pub(crate) fn optimizer(&self) -> train::OptimizerConfig {
        train::OptimizerConfig {
            optim: self.optimizer_kind().expect("`optim` was checked"),
            adam_beta1: self.adam_beta1,
            adam_beta2: self.adam_beta2,
            adam_epsilon: self.adam_epsilon,
            weight_decay: self.weight_decay,
            max_grad_norm: self.max_grad_norm,
            moments: self.adam_moments_dtype,
            seed: self.seed,
        }
    }

    fn optimizer_kind(&self) -> Result<train::OptimizerKind, String> {
        train::OptimizerKind::parse(optimizer_name(self), self.optim_args.as_deref().unwrap_or_default())
    }

    /// Warm-up steps, during which the learning rate rises, in a run of `total` steps.
    pub(crate) fn warmup(&self, total: u64) -> u64 {
        let share = if self.warmup_steps == 0.0 { self.warmup_ratio.unwrap_or(0.0) } else { self.warmup_steps };
        // As in transformers, a number below 1 is a share of all steps, rounded up.
        let steps = if share < 1.0 || self.warmup_steps == 0.0 { (share * total as f64).ceil() } else { share };
        steps as u64
    }
}

/// Checks the keys of optimizer and schedule.
pub(in crate::config) fn check(c: &Config) -> anyhow::Result<()> {
    match c.optimizer_kind() {
        Ok(_) => schedule::check(c),
        Err(why) => Err(BadInput::new(format!("`optim` = {:?}: {why}", optimizer_name(c)))),
    }
}

fn optimizer_name(c: &Config) -> &'static str {
    c.optim.map_or("adamw_torch", OptimizerName::as_str)
}
