//! Finds keys that were set but that the run does not read. Unused keys are reported or refused, so that no user
//! believes that they have an effect.

use super::keys::{Config, KEYS, Key};
use super::methods::{GRPO, Methods, PPO, Purpose, RLOO};
use super::resolved::{Origin, Resolved};
use super::values::KeyValue;
use crate::bad_input;

/// Adds a note for each key that was set without effect; refuses a key that belongs to another algorithm's objective.
pub(super) fn check(resolved: &mut Resolved, purpose: Purpose) -> anyhow::Result<()> {
    let c = &resolved.config;
    let (command, method) = (Methods::for_command(purpose), Methods::of(purpose, c.algorithm));
    let algorithm = KeyValue::write(&c.algorithm).map_or_else(String::new, |v| v.to_string());
    let default = Config::default();
    // `config show` may print any command's configuration, and an evaluation reads a training configuration.
    let any_use = matches!(purpose, Purpose::Show | Purpose::Eval);
    // A configuration that a run has written names every key, so a key with its default value is not treated as set.
    let asked = |key: &&Key| {
        let origin = resolved.origin(key.name);
        let set = matches!(origin, Origin::File(_) | Origin::Environment(_) | Origin::Flag | Origin::Program);
        set && key.value(c) != key.value(&default)
    };
    let (mut not_read, mut without, mut notes) = (Vec::new(), Vec::<(String, Vec<&str>)>::new(), Vec::new());
    for key in KEYS.iter().filter(asked) {
        let readers = key.row.read_by;
        let hint = key.row.instead.iter().find(|(methods, _)| methods.contain(method));
        let hint = hint.map_or(String::new(), |(_, other)| format!(" (use {other} instead)"));
        if !any_use && !readers.meet(command) {
            not_read.push(format!("{}{hint}", key.name));
        } else if !any_use && !readers.contain(method) {
            let shared = readers == PPO || method == PPO && readers.meet(GRPO.and(RLOO));
            if !shared {
                bad_input!("`{}` is not read by algorithm = {algorithm}: remove it{hint}", key.name);
            }
            // PPO and the other algorithms have different keys, and one file may be used for both.
            notes.push(format!("{} is not read by algorithm = {algorithm}{hint}", key.name));
        } else if let Some(need) = key.unmet_need(c) {
            match without.iter_mut().find(|(other, _)| *other == need) {
                Some((_, names)) => names.push(key.name),
                None => without.push((need, vec![key.name])),
            }
        }
    }
    if !not_read.is_empty() {
        notes.push(format!("not read by `lockstep {}`: {}", purpose.command(), not_read.join(", ")));
    }
    notes.extend(without.iter().map(|(need, names)| format!("no effect without {need}: {}", names.join(", "))));
    if c.replay.is_some() {
        let unread = [("dataset_name", c.dataset_name.is_some()), ("dynamic_sampling", c.dynamic_sampling)];
        notes.extend(
            unread
                .iter()
                .filter(|(_, set)| *set)
                .map(|(name, _)| format!("{name} is not used: the rollouts come from the file of `replay`")),
        );
    }
    resolved.notes.extend(notes);
    Ok(())
}
