//! Finds the configuration keys that make a run fit into memory. The memory is planned again with each key changed, so
//! that only keys that lower this run's memory are named, with the number of bytes that the run would then take.

use super::memory_plan::{Available, MemoryPlan, Shortage, mib};
use crate::bad_input;
use crate::config::{Config, Layers, Purpose, changes_on_resume};

mod levers;

use levers::{LEVERS, Lever};

/// Plans the memory of a run again with changed keys.
pub struct Replan<'a> {
    /// The command of the run.
    pub purpose: Purpose,
    /// The configuration of the run.
    pub config: &'a Config,
    /// Whether the run resumes from a checkpoint; then some keys cannot change.
    pub resumes: bool,
    /// Plans the memory of a configuration on the run's device.
    pub plan: &'a dyn Fn(&Config) -> anyhow::Result<MemoryPlan>,
}

/// A configuration with changed keys, and its memory.
#[derive(Clone)]
struct Changed {
    /// The changes, as `key = value`.
    texts: Vec<String>,
    config: Config,
    plan: MemoryPlan,
}

impl Replan<'_> {
    /// Refuses a run that does not fit into the `available` memory. The error names the keys that make it fit.
    pub fn check(&self, plan: &MemoryPlan, available: &Available) -> anyhow::Result<()> {
        match plan.shortage(available) {
            None => Ok(()),
            Some(shortage) => bad_input!("{shortage}. {}", self.advice(plan, available, &shortage)),
        }
    }

    /// Adds to each part of `plan` the keys that lower it, and the run's memory with each of them.
    pub fn name_keys(&self, plan: &mut MemoryPlan) {
        let lowered = |from: &Config, before: &MemoryPlan, with: &str, named: &mut Vec<Vec<String>>| {
            for lever in LEVERS {
                let after =
                    lever.values(from, before.longest).last().and_then(|value| self.change(from, lever, *value));
                let Some((_, after)) = after else { continue };
                for (part, keys) in before.parts.iter().zip(named.iter_mut()) {
                    let is_named = keys.iter().any(|key| key.split(' ').next() == Some(lever.key));
                    if !is_named
                        && after.bytes_of(part) < part.bytes
                        && after.needed_on(part.on) < before.needed_on(part.on)
                    {
                        keys.push(format!("{}{with}", lever.key));
                    }
                }
            }
        };
        let mut named: Vec<Vec<String>> = plan
            .parts
            .iter()
            .map(|part| Some(part.lowered_by.clone()).filter(|keys| !keys.is_empty()).into_iter().collect())
            .collect();
        lowered(self.config, plan, "", &mut named);
        // Some keys lower a part only if an adapter is trained: bf16, for example, needs master copies of trained
        // weights.
        let adapter = LEVERS.iter().find(|lever| lever.key == "use_peft");
        if let Some((config, adapted)) = adapter.and_then(|lever| self.change(self.config, lever, 1)) {
            let mut beside: Vec<Vec<String>> = vec![Vec::new(); adapted.parts.len()];
            lowered(&config, &adapted, " (with use_peft)", &mut beside);
            for (part, keys) in adapted.parts.iter().zip(beside) {
                let same = plan.parts.iter().zip(&mut named).find(|(own, _)| own.name == part.name);
                // These keys are named only if no single key lowers the part.
                if let Some((_, own)) = same.filter(|(_, own)| own.is_empty()) {
                    own.extend(keys);
                }
            }
        }
        for (part, keys) in plan.parts.iter_mut().zip(named) {
            part.lowered_by = keys.join(", ");
        }
    }

    /// The sentences after a shortage: the single keys that make the run fit, else a combination of keys, else the
    /// memory needed with all keys together.
    fn advice(&self, plan: &MemoryPlan, available: &Available, shortage: &Shortage) -> String {
        let now = Changed { texts: Vec::new(), config: self.config.clone(), plan: plan.clone() };
        let needed = |changed: &Changed| changed.plan.needed_on(shortage.on);
        let with = |changed: &Changed| format!("{} ({} MiB)", changed.texts.join(", "), mib(needed(changed)));
        let list = |all: &[&Changed]| all.iter().map(|changed| with(changed)).collect::<Vec<_>>().join(", ");
        let single: Vec<Changed> = LEVERS.iter().filter_map(|lever| self.apply(&now, lever, available)).collect();
        let fits = |changed: &&Changed| changed.plan.excess(available) == 0;
        let enough: Vec<&Changed> = single.iter().filter(fits).collect();
        let mut helping: Vec<&Changed> = single.iter().filter(|changed| !fits(changed)).collect();
        helping.retain(|changed| needed(changed) < shortage.needed);
        let helping = if helping.is_empty() { String::new() } else { format!(" Alone, {}.", list(&helping)) };
        if !enough.is_empty() {
            let one = if enough.len() == 1 { "" } else { "one of these: " };
            let too = helping.replacen(" Alone, ", " These also lower it: ", 1);
            return format!("It fits with {one}{}.{too} (`lockstep plan` shows the parts)", list(&enough));
        }
        let together = self.together(&now, available);
        if together.plan.excess(available) == 0 {
            return format!(
                "No single key makes it fit; together these do: {}.{helping} (`lockstep plan` shows the parts)",
                with(&together)
            );
        }
        let rest = if together.texts.is_empty() {
            String::new()
        } else {
            format!(": with {} it would need {} MiB", together.texts.join(", "), mib(needed(&together)))
        };
        format!("No key makes it fit{rest}. Train a smaller model, or on a machine with more memory")
    }

    /// The fewest changes of keys that make the run fit, with keys that do not change bits first. If nothing makes it
    /// fit, all changes that lower its memory.
    fn together(&self, now: &Changed, available: &Available) -> Changed {
        let fits = |changed: &Changed| changed.plan.excess(available) == 0;
        let (mut used, mut best): (Vec<&Lever>, _) = (Vec::new(), now.clone());
        // A key may help only in combination with another key: bf16, for example, helps only with LoRA.
        for _ in 0..2 {
            for lever in LEVERS {
                if fits(&best) || used.iter().any(|other| other.key == lever.key) {
                    continue;
                }
                if let Some(changed) = self.apply(&best, lever, available) {
                    (best, used) = (changed, [used, vec![lever]].concat());
                }
            }
        }
        if !fits(&best) {
            return best;
        }
        // Drops unnecessary levers, trying the last one first, since it changes the run most.
        for left_out in used.clone().into_iter().rev() {
            let rest: Vec<&Lever> = used.iter().copied().filter(|lever| lever.key != left_out.key).collect();
            let without = rest.iter().try_fold(now.clone(), |changed, lever| self.apply(&changed, lever, available));
            if let Some(without) = without.filter(fits) {
                (best, used) = (without, rest);
            }
        }
        best
    }

    /// `from` with the key of `lever` changed: the least change with which the run fits, or else the least change with
    /// the greatest effect. `None` if the key does not lower the memory.
    fn apply(&self, from: &Changed, lever: &Lever, available: &Available) -> Option<Changed> {
        let size = |plan: &MemoryPlan| (plan.excess(available), plan.needed() + plan.device_total.unwrap_or(0));
        let values = lever.values(&from.config, from.plan.longest);
        let (strongest, rest) = values.split_last()?;
        let (mut config, mut plan) = self.change(&from.config, lever, *strongest)?;
        if size(&plan) >= size(&from.plan) {
            return None;
        }
        let mut value = *strongest;
        for &other in rest.iter().rev() {
            let Some((weaker, weaker_plan)) = self.change(&from.config, lever, other) else { break };
            let as_good = if plan.excess(available) == 0 {
                weaker_plan.excess(available) == 0
            } else {
                size(&weaker_plan) == size(&plan)
            };
            if !as_good {
                break;
            }
            (config, plan, value) = (weaker, weaker_plan, other);
        }
        let texts = from.texts.iter().cloned().chain([lever.text(&from.config, value)]).collect();
        Some(Changed { texts, config, plan })
    }

    /// The configuration with another value of a key, and its memory; `None` if the run would refuse the value.
    fn change(&self, from: &Config, lever: &Lever, value: usize) -> Option<(Config, MemoryPlan)> {
        let mut config = from.clone();
        (lever.set)(&mut config, value);
        if self.resumes && changes_on_resume(self.config, &config).is_err() {
            return None;
        }
        let is_valid = |config: &Config| {
            let (mut config, mut purpose) = (config.clone(), self.purpose);
            if purpose == Purpose::Show {
                // An unfinished configuration must be valid once it has data and a reward.
                purpose = Purpose::Grpo;
                config.dataset_name.get_or_insert_with(|| "data".to_owned());
                if config.reward_funcs.is_empty() {
                    config.reward_funcs = vec!["length:10".into()];
                }
            }
            Layers { purpose, config: Some(config), ..Layers::default() }.resolve().is_ok()
        };
        // The caller may supply missing values.
        if !is_valid(&config) && is_valid(from) {
            return None;
        }
        let plan = (self.plan)(&config).ok()?;
        Some((config, plan))
    }
}

#[cfg(test)]
mod tests;
