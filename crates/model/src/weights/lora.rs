//! LoRA settings: which matrices get a low-rank adapter, and its rank and scale. Names and meanings are PEFT's.

use super::spec::{ParamSpec, Part, Role, stack};
use crate::{Error, Head, ModelConfig, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The modules of a decoder layer that can be adapted, by the last part of their names.
pub const LINEAR_MODULES: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// Prefix that PEFT's files put before the name of a module of the model.
pub(super) const PREFIX: &str = "base_model.model.";

/// The modules that get an adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetModules {
    /// Every linear layer of the decoder layers; not the head.
    AllLinear,
    /// Modules whose name is one of these, or ends in `.` and one of these.
    Names(Vec<String>),
    /// Modules whose full name, such as `model.layers.0.self_attn.q_proj`, matches this regular expression.
    Regex(String),
}

/// Settings of a low-rank adapter (LoRA): `W x` becomes `W x + s · B (A x)`, with rank r, scale s, `A: [r, inputs]` and
/// `B: [outputs, r]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraConfig {
    /// The rank of the adapter, the same for every matrix.
    pub r: usize,
    /// LoRA's alpha. The scale is `alpha / r`, unless `use_rslora` is set.
    pub alpha: f64,
    /// Makes the scale `alpha / √r` (rsLoRA, Kalajdzievski 2023, arXiv 2312.03732) instead of `alpha / r`.
    pub use_rslora: bool,
    /// Probability in [0, 1) that an input of A is dropped in training.
    pub dropout: f64,
    /// The modules that get an adapter.
    pub target_modules: TargetModules,
}

impl Default for LoraConfig {
    /// TRL's default rank and alpha, and the modules that PEFT adapts by default in these families.
    fn default() -> LoraConfig {
        let names = ["q_proj", "v_proj"].map(str::to_owned).to_vec();
        LoraConfig { r: 16, alpha: 32.0, use_rslora: false, dropout: 0.0, target_modules: TargetModules::Names(names) }
    }
}

/// A regular expression that must match a full name, like Python's `re.fullmatch`. It may use lookaround.
struct Whole(fancy_regex::Regex);

impl Whole {
    fn new(pattern: &str) -> Result<Whole> {
        let bad = |e: fancy_regex::Error| {
            Error::Value(format!("`lora_target_modules`: `{pattern}` is not a regular expression: {e}"))
        };
        fancy_regex::Regex::new(&format!("^(?:{pattern})$")).map(Whole).map_err(bad)
    }

    /// Whether the expression matches `name`; false if the match needs too many steps.
    fn matches(&self, name: &str) -> bool {
        self.0.is_match(name).unwrap_or(false)
    }
}

/// Whether the target `name` selects `module`. By PEFT's rule the module's name is `name`, or ends in `.name`.
fn names(name: &str, module: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

impl LoraConfig {
    /// The scale: the factor on `B (A x)`.
    pub fn scale(&self) -> f32 {
        let r = self.r as f64;
        (self.alpha / if self.use_rslora { r.sqrt() } else { r }) as f32
    }

    /// Fails if the settings are invalid, or select no module of this model.
    pub fn check(&self, config: &ModelConfig) -> Result<()> {
        let bad = |message: String| Err(Error::Value(message));
        if self.r == 0 {
            return bad("the LoRA rank must be at least 1, got 0".into());
        }
        if !(self.alpha.is_finite() && self.scale().is_finite()) {
            return bad(format!(
                "lora_alpha and the scale computed from it must be finite, got lora_alpha = {}",
                self.alpha
            ));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return bad(format!("lora_dropout must be at least 0 and below 1, got {}", self.dropout));
        }
        let modules: Vec<String> = modules(config).map(|(module, _)| module).collect();
        let known = LINEAR_MODULES.join(", ");
        match &self.target_modules {
            TargetModules::AllLinear => Ok(()),
            TargetModules::Names(list) => match list.iter().find(|n| !modules.iter().any(|m| names(n, m))) {
                Some(name) => bad(format!(
                    "`lora_target_modules`: the model has no linear layer named `{name}`; available: {known} (the head \
                     and the embedding cannot be adapted)"
                )),
                None if list.is_empty() => {
                    bad(format!("`lora_target_modules` is empty; name some of {known}, or all-linear"))
                }
                None => Ok(()),
            },
            TargetModules::Regex(pattern) => {
                let regex = Whole::new(pattern)?;
                if modules.iter().any(|m| regex.matches(m)) {
                    Ok(())
                } else {
                    bad(format!(
                        "`lora_target_modules`: `{pattern}` matches no linear layer of the model; an example of a \
                         layer name is {}",
                        modules.first().map_or("", |m| m)
                    ))
                }
            }
        }
    }

    /// Like [`check`](Self::check), for an adapter that has not been trained yet: a regular expression may match only
    /// linear layers. PEFT applies the expression to every module of the model: it rejects modules that are not layers
    /// with weights, and adapts the head and the embedding, unlike this crate. (Earlier versions accepted such
    /// expressions, and their adapters can still be read.)
    pub fn check_new(&self, config: &ModelConfig) -> Result<()> {
        self.check(config)?;
        let TargetModules::Regex(pattern) = &self.target_modules else { return Ok(()) };
        let regex = Whole::new(pattern)?;
        let Some(other) = other_modules(config).into_iter().find(|module| regex.matches(module)) else {
            return Ok(());
        };
        let why = match other.as_str() {
            "lm_head" | "model.embed_tokens" => "the head and the embedding cannot be adapted",
            _ => "that is not a linear layer",
        };
        let message = format!(
            "`lora_target_modules`: `{pattern}` also matches `{other}`, but {why}: match only linear layers, as in \
             `.*_proj`, or set all-linear"
        );
        Err(Error::Value(message))
    }

    /// The target modules as a list of names that select the same modules in PEFT: the last parts of the modules' names
    /// if these are sufficient, else full names.
    pub(crate) fn names(&self, config: &ModelConfig) -> Vec<String> {
        let wanted = self.matcher();
        match &self.target_modules {
            TargetModules::AllLinear => LINEAR_MODULES.map(str::to_owned).to_vec(),
            TargetModules::Names(list) => list.clone(),
            TargetModules::Regex(_) => {
                let (adapted, others): (Vec<String>, Vec<String>) =
                    modules(config).map(|(module, _)| module).partition(|module| wanted(module));
                let is_adapted = |last: &&str| adapted.iter().any(|module| names(last, module));
                let short: Vec<&str> = LINEAR_MODULES.into_iter().filter(is_adapted).collect();
                if others.iter().any(|other| short.iter().any(|last| names(last, other))) {
                    adapted
                } else {
                    short.into_iter().map(str::to_owned).collect()
                }
            }
        }
    }

    fn matcher(&self) -> impl Fn(&str) -> bool {
        // `check` has already rejected patterns that do not compile.
        let regex = match &self.target_modules {
            TargetModules::Regex(pattern) => Whole::new(pattern).ok(),
            _ => None,
        };
        move |module| match &self.target_modules {
            TargetModules::AllLinear => true,
            TargetModules::Names(list) => list.iter().any(|name| names(name, module)),
            TargetModules::Regex(_) => regex.as_ref().is_some_and(|r| r.matches(module)),
        }
    }

    /// The parts of each linear layer that get an adapter (q, k and v are parts of one fused layer), in the order of
    /// the layers. The list is empty for a layer without an adapter.
    pub(super) fn targets(&self, base: &[ParamSpec]) -> Vec<Vec<Part>> {
        let wanted = self.matcher();
        linears(base).map(|spec| spec.parts.iter().filter(|p| wanted(module_of(p))).cloned().collect()).collect()
    }
}

/// The specifications of the decoder layers' matrices, in the order of
/// [`Layer::linears_mut`](super::Layer::linears_mut).
fn linears(base: &[ParamSpec]) -> impl Iterator<Item = &ParamSpec> {
    base.iter().filter(|s| s.matrix && s.parts[0].name.starts_with("model.layers."))
}

fn module_of(part: &Part) -> &str {
    part.name.strip_suffix(".weight").unwrap_or(&part.name)
}

/// The linear layers that can be adapted: each layer's name and the shape of its weight.
fn modules(config: &ModelConfig) -> impl Iterator<Item = (String, Vec<usize>)> {
    let specs = super::spec::specs(config);
    let parts: Vec<_> =
        linears(&specs).flat_map(|s| &s.parts).map(|p| (module_of(p).to_owned(), p.shape.clone())).collect();
    parts.into_iter()
}

/// The names of the other modules that transformers' model has, except a score head, which PEFT never adapts.
fn other_modules(config: &ModelConfig) -> Vec<String> {
    let specs = super::spec::specs(config);
    let linear: BTreeSet<String> = modules(config).map(|(module, _)| module).collect();
    let head = (config.head == Head::Lm).then_some("lm_head");
    let mut others: BTreeSet<String> = head.into_iter().chain(["model.rotary_emb"]).map(str::to_owned).collect();
    for module in specs.iter().flat_map(|spec| &spec.parts).map(module_of).filter(|module| *module != "score") {
        let module = module.strip_suffix(".bias").unwrap_or(module);
        // Lists the module itself, and all modules that contain it.
        let dots = module.match_indices('.').map(|(at, _)| &module[..at]);
        others.extend(dots.chain([module]).map(str::to_owned));
    }
    others.extend((0..config.num_layers).map(|layer| format!("model.layers.{layer}.mlp.act_fn")));
    let mut others: Vec<String> = others.into_iter().filter(|module| !linear.contains(module)).collect();
    // The head and the embedding come first, so that errors name them before other modules: a pattern usually matches
    // them on purpose.
    others.sort_by_key(|module| !["lm_head", "model.embed_tokens"].contains(&module.as_str()));
    others
}

/// The name of a LoRA matrix in PEFT's files. `which` is `A` or `B`; `part` is the adapted weight.
pub(super) fn adapter_name(part: &Part, which: &str) -> String {
    format!("{PREFIX}{}.lora_{which}.weight", module_of(part))
}

/// Specifications of an adapter's tensors, in order: for each linear layer with adapted parts, the A matrices stacked
/// in one tensor, then the B matrix of each part.
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
