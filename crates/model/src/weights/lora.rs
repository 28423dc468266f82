//! Which matrices get a low-rank adapter, and of what rank and scale. Names and meanings are PEFT's.

use super::spec::{ParamSpec, Part, Role, stack};
use crate::{Error, ModelConfig, Result};

/// The modules of a layer that can be adapted, by their last name.
pub const LINEAR_MODULES: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// What PEFT puts before the name of a module of the model in its files.
pub(super) const PREFIX: &str = "base_model.model.";

/// Which modules are adapted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetModules {
    /// Every linear layer but the head.
    AllLinear,
    /// Modules whose name is one of these, or ends in a dot and one of these.
    Names(Vec<String>),
    /// Modules whose whole name, such as `model.layers.0.self_attn.q_proj`, matches this regular expression.
    Regex(String),
}

/// A low-rank adapter (LoRA): `W x` becomes `W x + s · B (A x)` with `A: [r, K]`, `B: [N, r]`.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// The rank of every adapter.
    pub r: usize,
    /// With the rank, the scale.
    pub alpha: f64,
    /// The scale is `alpha / √r` (rsLoRA, Kalajdzievski 2023, arXiv 2312.03732) instead of `alpha / r`.
    pub use_rslora: bool,
    /// The chance that an input is dropped before A sees it, in training; in [0, 1).
    pub dropout: f64,
    /// Which modules have one.
    pub target_modules: TargetModules,
}

impl Default for LoraConfig {
    /// TRL's rank and alpha, and the modules that PEFT adapts in these families if none are named.
    fn default() -> LoraConfig {
        let names = ["q_proj", "v_proj"].map(str::to_owned).to_vec();
        LoraConfig { r: 16, alpha: 32.0, use_rslora: false, dropout: 0.0, target_modules: TargetModules::Names(names) }
    }
}

/// The regular expression of a whole name.
fn whole(pattern: &str) -> Result<regex::Regex> {
    let bad =
        |e: regex::Error| Error::Value(format!("`lora_target_modules`: `{pattern}` is no regular expression: {e}"));
    regex::Regex::new(&format!("^(?:{pattern})$")).map_err(bad)
}

/// Whether `name` names `module`, as PEFT decides it.
fn names(name: &str, module: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

impl LoraConfig {
    /// Elements of the largest matrix, or more: of B of the widest matmul.
    pub fn largest_tensor(&self, config: &ModelConfig) -> usize {
        let widths = [config.intermediate_size, config.hidden_size, config.num_heads * config.head_dim];
        self.r * widths.into_iter().max().unwrap_or(0)
    }

    /// What `B (A x)` is multiplied with.
    pub fn scale(&self) -> f32 {
        let r = self.r as f64;
        (self.alpha / if self.use_rslora { r.sqrt() } else { r }) as f32
    }

    /// Refuses what no model, or not this one, can have.
    pub fn check(&self, config: &ModelConfig) -> Result<()> {
        let bad = |message: String| Err(Error::Value(message));
        if self.r == 0 {
            return bad("the rank of a low-rank adapter must be at least 1, but is 0".into());
        }
        if !(self.alpha.is_finite() && self.scale().is_finite()) {
            return bad(format!("alpha = {} is no scale of a low-rank adapter", self.alpha));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return bad(format!("lora_dropout must be at least 0 and below 1, but is {}", self.dropout));
        }
        let modules: Vec<String> = modules(config).map(|(module, _)| module).collect();
        let known = LINEAR_MODULES.join(", ");
        match &self.target_modules {
            TargetModules::AllLinear => Ok(()),
            TargetModules::Names(list) => match list.iter().find(|n| !modules.iter().any(|m| names(n, m))) {
                Some(name) => bad(format!(
                    "`lora_target_modules`: no linear layer of the model is called `{name}`; there are {known} (the \
                     head and the embedding cannot be adapted)"
                )),
                None if list.is_empty() => {
                    bad(format!("`lora_target_modules` is empty; name some of {known}, or all-linear"))
                }
                None => Ok(()),
            },
            TargetModules::Regex(pattern) => {
                let regex = whole(pattern)?;
                match modules.iter().any(|m| regex.is_match(m)) {
                    true => Ok(()),
                    false => bad(format!(
                        "`lora_target_modules`: `{pattern}` matches no linear layer of the model; their names \
                         are like {}",
                        modules.first().map_or("", |m| m)
                    )),
                }
            }
        }
    }

    fn matcher(&self) -> impl Fn(&str) -> bool {
        // What does not compile was refused by `check`.
        let regex = match &self.target_modules {
            TargetModules::Regex(pattern) => whole(pattern).ok(),
            _ => None,
        };
        move |module| match &self.target_modules {
            TargetModules::AllLinear => true,
            TargetModules::Names(list) => list.iter().any(|name| names(name, module)),
            TargetModules::Regex(_) => regex.as_ref().is_some_and(|r| r.is_match(module)),
        }
    }

    /// The parts of each linear layer that are adapted, in the layers' order; empty where none is.
    pub(super) fn targets(&self, base: &[ParamSpec]) -> Vec<Vec<Part>> {
        let wanted = self.matcher();
        linears(base).map(|spec| spec.parts.iter().filter(|p| wanted(module_of(p))).cloned().collect()).collect()
    }
}

/// The matrices of the layers, in the order of [`Layer::linears_mut`](super::Layer::linears_mut).
fn linears(base: &[ParamSpec]) -> impl Iterator<Item = &ParamSpec> {
    base.iter().filter(|s| s.matrix && s.parts[0].name.starts_with("model.layers."))
}

fn module_of(part: &Part) -> &str {
    part.name.strip_suffix(".weight").unwrap_or(&part.name)
}

/// The linear layers that can be adapted: name, and shape of the weight.
fn modules(config: &ModelConfig) -> impl Iterator<Item = (String, Vec<usize>)> {
    let specs = super::spec::specs(config);
    let parts: Vec<_> =
        linears(&specs).flat_map(|s| &s.parts).map(|p| (module_of(p).to_owned(), p.shape.clone())).collect();
    parts.into_iter()
}

/// The name that PEFT's files have for `A` or `B` of the module that `part` is the weight of.
pub(super) fn adapter_name(part: &Part, which: &str) -> String {
    format!("{PREFIX}{}.lora_{which}.weight", module_of(part))
}

/// What an adapter's tensors are, in their order: of each linear layer that has adapted parts the A, one below the
/// other, then each B.
pub(super) fn adapter_specs(base: &[ParamSpec], lora: &LoraConfig) -> Vec<ParamSpec> {
    let matrix = |cols: usize, parts: &[(String, usize)]| ParamSpec {
        parts: stack(parts, |rows| vec![rows, cols]),
        matrix: true,
        role: Role::Adapter,
    };
    let mut specs = Vec::new();
    for parts in lora.targets(base).into_iter().filter(|parts| !parts.is_empty()) {
        let a: Vec<_> = parts.iter().map(|p| (adapter_name(p, "A"), lora.r)).collect();
        specs.push(matrix(parts[0].shape[1], &a));
        specs.extend(parts.iter().map(|p| matrix(lora.r, &[(adapter_name(p, "B"), p.rows.len())])));
    }
    specs
}
